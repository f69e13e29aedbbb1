// final norm + output head, only for the rows that are asked for.
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct LogitsArgs {
  const float* x = nullptr;          // [tokens, hidden]
  std::span<const int32_t> rows;     // which tokens
  const float* norm = nullptr;       // [hidden]
  bool layer_norm = false;           // LayerNorm instead of RMSNorm
  const float* norm_bias = nullptr;  // [hidden], of LayerNorm; may be none
  float eps = 1e-5f;
  WeightView head;              // [vocab, hidden]
  const float* bias = nullptr;  // [vocab]; may be none
  float scale = 1;              // of the logits
  float softcap = 0;            // cap * tanh(logit / cap), after the scale; 0: none
  float* out = nullptr;         // [rows, vocab]
  ThreadPool* pool = nullptr;
};

void Logits(const LogitsArgs& args);

}  // namespace celer
