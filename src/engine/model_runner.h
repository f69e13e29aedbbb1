// Turns pieces of sequences into one ragged batch and runs the model on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "models/decoder.h"

namespace celer {

// The next tokens of one sequence.
struct Piece {
  std::span<const int32_t> tokens;
  int64_t position = 0;                  // of the first of them
  std::span<const int32_t> block_table;  // covers position + tokens.size()
  enum class Logits { kNone, kLast, kAll } logits = Logits::kLast;
};

class ModelRunner {
 public:
  ModelRunner(Decoder decoder, KvCache kv) : decoder_(std::move(decoder)), kv_(std::move(kv)) {}

  // Logits [rows, vocab] in the order of the pieces: none, one or all rows of each. Valid until the next
  // call.
  std::span<const float> Run(std::span<const Piece> pieces);

  const Decoder& decoder() const { return decoder_; }
  Decoder& decoder() { return decoder_; }
  const KvCache& kv() const { return kv_; }
  int64_t vocab() const { return decoder_.config().vocab; }

 private:
  Decoder decoder_;
  KvCache kv_;
  std::vector<int32_t> tokens_, positions_, seq_start_, block_table_, logit_rows_;
  std::vector<float> logits_;
};

}  // namespace celer
