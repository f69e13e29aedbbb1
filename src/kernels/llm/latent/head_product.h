// out[t, h, r] = w[h, r, :] . x[t, h, :]: each head has a matrix and an input of its own. Latent attention takes its
// queries into the latent space with one such product, and its values out of it with another.
//
// A token's result depends on its own input alone, bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/llm/latent/head_tile.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct HeadProductArgs {
  WeightView w;       // [heads * rows, cols] as stored: f32, f16 or bf16
  int64_t heads = 0;  // divides w.rows
  int64_t tokens = 0;
  const float* x = nullptr;
  int64_t x_token = 0, x_head = 0;  // floats from one token, one head to the next
  float* out = nullptr;
  int64_t out_token = 0, out_head = 0;
  ThreadPool* pool = nullptr;
};

void HeadProduct(const HeadProductArgs& args);
void HeadProduct(const HeadProductArgs& args, HeadTileFn run);
std::span<const Variant<HeadTileFn>> HeadTileVariants();

// What the matrices of heads can be.
bool IsHeadWeight(DType dtype);

}  // namespace celer
