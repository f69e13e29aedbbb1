// A 64-bit checksum of content, against corruption and not against attackers (not cryptographic): XXH3, which
// all threads together compute at the speed of memory. Without xxhash.h at build time it is a part of
// SHA-256, which is slow; files that hold a hash say which of the two it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/thread_pool.h"

namespace celer {

bool ContentHashIsXxh3();

uint64_t ContentHash(std::span<const std::byte> bytes);
// The hash of the hashes of each MiB of each part.
uint64_t ContentHash(std::span<const std::span<const std::byte>> parts, ThreadPool& pool);

}  // namespace celer
