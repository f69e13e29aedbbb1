// Guesses how a text goes on by what followed its last tokens where they stood before (prompt lookup).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace celer {

// Where the tokens of one text stand. The text only grows, and each token is indexed once.
class LookupIndex {
 public:
  // Tokens that must have stood there before, and how many are compared at most.
  static constexpr int kLeast = 2, kMost = 8;

  struct Match {
    int length = 0;    // tokens at the end of the text that stood there, too; 0: none, or fewer than kLeast
    int64_t next = 0;  // the position behind them
  };
  // The longest match, and of equals the last. Costs what was added to the text since the last call, and a
  // bounded search.
  Match Find(std::span<const int32_t> text);

 private:
  size_t Slot(std::span<const int32_t> text, int64_t end) const;
  void Insert(std::span<const int32_t> text, int64_t end);

  // As in LZ77: the last position behind a pair of tokens with this hash, and from there to the one before.
  std::vector<int32_t> last_;
  std::vector<int32_t> before_;  // [position]
};

// Up to `count` tokens from `next` on. Behind the end of the text come the copied ones themselves.
std::vector<int32_t> CopyFrom(std::span<const int32_t> text, int64_t next, int64_t count);

}  // namespace celer
