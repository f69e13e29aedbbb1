#include "io/file/content_hash.h"

#if CELER_WITH_XXHASH
#define XXH_INLINE_ALL  // a header is all that is needed
#include <xxhash.h>
#endif

#include <algorithm>
#include <string>
#include <vector>

#include "io/file/sha256.h"

namespace celer {

#if CELER_WITH_XXHASH
bool ContentHashIsXxh3() {
  return true;
}
uint64_t ContentHash(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}
#else
bool ContentHashIsXxh3() {
  return false;
}
uint64_t ContentHash(std::span<const std::byte> bytes) {
  Sha256 sum;
  sum.Update(bytes);
  return std::stoull(sum.Finish().substr(0, 16), nullptr, 16);
}
#endif

uint64_t ContentHash(std::span<const std::span<const std::byte>> parts, ThreadPool& pool) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<std::span<const std::byte>> pieces;
  for (const std::span<const std::byte> part : parts)
    for (size_t at = 0; at < part.size(); at += kPiece)
      pieces.push_back(part.subspan(at, std::min(kPiece, part.size() - at)));
  std::vector<uint64_t> sums(pieces.size());
  pool.ParallelForDynamic(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      sums[i] = ContentHash(pieces[i]);
  });
  return ContentHash(std::as_bytes(std::span(sums)));
}

}  // namespace celer
