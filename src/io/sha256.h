// SHA-256 (FIPS 180-4), to know that a fetched file is the one that was meant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "core/result.h"

namespace celer {

class Sha256 {
 public:
  void Update(std::span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits. Ends the computation: nothing may follow.
  std::string Finish();

 private:
  void Block(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};  // the first length_ % 64 bytes of it count
  uint64_t length_ = 0;                  // bytes so far
};

// Reads in pieces; `progress` gets the bytes read so far.
Result<std::string> Sha256OfFile(const std::filesystem::path& path,
                                 const std::function<void(int64_t done)>& progress = {});

}  // namespace celer
