// What some tokens of a batch add to the products of their layer: matrices of low rank beside a model's own (LoRA), with
// a norm of the rows (DoRA) or in their place. Tokens with different ones, and with none, are in one batch.
//
// A token's result depends on its own input and terms alone, bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/llm/weight_view.h"

namespace celer {

// W x becomes row_scale * (W x + B A x) + shift, or whole x + shift.
struct LowRankTerm {
  int64_t rank = 0;
  const float* a = nullptr;          // [rank, cols]; of an embedding [tokens, rank]
  const float* b = nullptr;          // [rank, rows]; of an embedding [rank, width]
  const float* row_scale = nullptr;  // [rows]; may be none
  const float* shift = nullptr;      // [rows]; may be none
  WeightView whole = {};             // [rows, cols] as stored; may be none
};

// The terms of one adapter, by the matrix that they change.
class LowRankTerms {
 public:
  void Add(const WeightView& w, const LowRankTerm& term) { terms_[KeyOf(w)] = term; }
  void SetEmbedding(const LowRankTerm& term) { embedding_ = term; }

  const LowRankTerm* Find(const WeightView& w) const {
    const auto found = terms_.find(KeyOf(w));
    return found == terms_.end() ? nullptr : &found->second;
  }
  const LowRankTerm* embedding() const { return embedding_ ? &*embedding_ : nullptr; }

 private:
  static const std::byte* KeyOf(const WeightView& w) { return w.packed ? w.packed : w.data; }

  std::unordered_map<const std::byte*, LowRankTerm> terms_;
  std::optional<LowRankTerm> embedding_;  // which may be the head's matrix, too
};

struct LowRankUse {
  const LowRankTerms* terms = nullptr;
  float scale = 1;  // of the difference to W x
};

// Which terms each token of a batch has. Without any, what takes this does as without it.
struct LowRankBatch {
  std::span<const std::vector<LowRankUse>> mixes = {};
  std::span<const int32_t> mix_of = {};  // [tokens], or -1: none

  bool empty() const { return mixes.empty(); }
  const std::vector<LowRankUse>& Of(int64_t token) const;  // empty if it has none
  bool Touches(const WeightView& w) const;                 // whether any token's product with w changes
};

}  // namespace celer
