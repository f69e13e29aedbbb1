// Prompt lookup decoding: drafts the tokens that followed an earlier occurrence of the text's last n-gram.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace celer {

// An n-gram index of one text. The text only grows, and each token is indexed once.
class LookupIndex {
 public:
  // Shortest n-gram that counts as a match, and the longest that is compared.
  static constexpr int kLeast = 2, kMost = 8;

  struct Match {
    int length = 0;    // length of the matching n-gram; 0: no match of kLeast tokens or more
    int64_t next = 0;  // the position behind it
  };
  // The longest match; ties go to the most recent. Costs the tokens added since the last call, and a bounded
  // search.
  Match Find(std::span<const int32_t> text);

 private:
  size_t Slot(std::span<const int32_t> text, int64_t end) const;
  void Insert(std::span<const int32_t> text, int64_t end);

  // Hash chains as in LZ77: the last position behind a pair of tokens with this hash, and from there to the
  // previous one.
  std::vector<int32_t> last_;
  std::vector<int32_t> before_;  // [position]
};

// Up to `count` tokens from `next` on. Past the end of the text the copy continues with itself.
std::vector<int32_t> CopyFrom(std::span<const int32_t> text, int64_t next, int64_t count);

}  // namespace celer
