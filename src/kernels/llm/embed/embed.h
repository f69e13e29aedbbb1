// x[t] = table[tokens[t]] * scale as floats.
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct EmbedArgs {
  std::span<const int32_t> tokens;
  WeightView table;  // [vocab, hidden]
  float scale = 1;
  float* out = nullptr;  // [tokens, hidden]
  ThreadPool* pool = nullptr;
};

// x[t] += table[positions[t] + offset]: learned positions.
struct AddPositionsArgs {
  std::span<const int32_t> positions;
  int64_t offset = 0;
  WeightView table;    // [positions, hidden]
  float* x = nullptr;  // [tokens, hidden]
  ThreadPool* pool = nullptr;
};

void Embed(const EmbedArgs& args);                // CHECKs that every token is in the vocabulary
void AddPositions(const AddPositionsArgs& args);  // CHECKs that the table has every position

}  // namespace celer
