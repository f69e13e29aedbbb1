// Several residual streams around a layer, and the linear branch beside its attention.
#include <algorithm>
#include <cmath>

#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/llm/streams/streams.h"
#include "kernels/shared/vec.h"
#include "models/cpu/cpu_decoder.h"

namespace celer {

StreamsArgs CpuDecoder::Streams(int64_t tokens) {
  return {.x = work_.streams.data(),
          .streams = config_.altup.streams,
          .tokens = tokens,
          .cols = config_.hidden,
          .pool = pool_};
}

// The first stream is the embedding, the others are projections of it that are as large.
void CpuDecoder::SplitStreams(int64_t tokens) {
  const int64_t row = config_.hidden, size = tokens * row;
  const float* const x = work_.x.data();
  std::copy_n(x, size, work_.streams.data());
  for (int64_t s = 1; s < config_.altup.streams; ++s) {
    float* const to = work_.streams.data() + s * size;
    Matmul({.x = x, .tokens = tokens, .pool = pool_},
           {.w = weights_.streams_in[s - 1], .out = to, .out_stride = row}, added_);
    MatchMagnitudes(to, x, tokens, row, *pool_);
  }
}

// The mean of the streams, projected back, is what the model's last norm reads.
void CpuDecoder::JoinStreams(int64_t tokens) {
  const int64_t row = config_.hidden, size = tokens * row;
  const float* const first = work_.streams.data();
  float* const x = work_.x.data();
  std::copy_n(first, size, x);
  for (int64_t s = 1; s < config_.altup.streams; ++s) {
    float* const branch = work_.branch.data();
    Matmul({.x = first + s * size, .tokens = tokens, .pool = pool_},
           {.w = weights_.streams_out[s - 1], .out = branch, .out_stride = row}, added_);
    MatchMagnitudes(branch, first, tokens, row, *pool_);
    vec::Axpy(1.0f, branch, x, size);
  }
  vec::Scale(1 / static_cast<float>(config_.altup.streams), x, size);
}

// What a layer's coefficients are made of: [tokens, streams].
void CpuDecoder::StreamModes(const LayerWeights& w, const float* x, int64_t tokens) {
  const DecoderConfig& c = config_;
  float *const normed = work_.branch.data(), *const modes = work_.modes.data();
  RmsNorm({.x = x,
           .weight = w.altup.router_norm,
           .eps = c.norm_eps,
           .rows = tokens,
           .cols = c.hidden,
           .out = normed,
           .pool = pool_});
  vec::Scale(1 / static_cast<float>(c.hidden), normed, tokens * c.hidden);
  Matmul({.x = normed, .tokens = tokens, .pool = pool_},
         {.w = w.altup.router, .out = modes, .out_stride = c.altup.streams}, added_);
  for (int64_t i = 0; i < tokens * c.altup.streams; ++i) modes[i] = std::tanh(modes[i]);
}

void CpuDecoder::Predict(const LayerWeights& w, int64_t tokens) {
  const int64_t n = config_.altup.streams, size = tokens * config_.hidden;
  const float* const active = work_.streams.data() + config_.altup.active * size;
  StreamModes(w, active, tokens);
  Matmul({.x = work_.modes.data(), .tokens = tokens, .pool = pool_},
         {.w = w.altup.predict, .out = work_.coefficients.data(), .out_stride = n * n}, added_);
  PredictStreams(Streams(tokens), work_.coefficients.data());
  std::copy_n(active, size, work_.x.data());
}

void CpuDecoder::Correct(int64_t layer, int64_t tokens) {
  const LayerWeights& w = weights_.layers[layer];
  const AltUpConfig& altup = config_.altup;
  const int64_t row = config_.hidden, size = tokens * row;
  StreamModes(w, work_.x.data(), tokens);
  Matmul({.x = work_.modes.data(), .tokens = tokens, .pool = pool_},
         {.w = w.altup.correct, .out = work_.coefficients.data(), .out_stride = altup.streams}, added_);
  CorrectStreams(Streams(tokens), work_.coefficients.data(), work_.x.data(), altup.active);
  float* const x = work_.x.data();
  std::copy_n(work_.streams.data() + altup.active * size, size, x);
  for (int64_t t = 0; altup.scale_output && t < tokens; ++t)
    for (int64_t d = 0; d < row; ++d) x[t * row + d] *= w.altup.output_scale[d];
  PerLayer(layer, x, tokens, work_.streams.data() + size, altup.streams - 1);
}

void CpuDecoder::Laurel(const LayerWeights& w, int64_t tokens) {
  const DecoderConfig& c = config_;
  float *const out = work_.laurel.data(), *const low = work_.laurel_low.data(),
               *const branch = work_.branch.data();
  RmsNorm({.x = work_.x.data(),
           .weight = w.attention_norm,
           .eps = c.norm_eps,
           .rows = tokens,
           .cols = c.hidden,
           .out = out,
           .pool = pool_});
  Matmul({.x = out, .tokens = tokens, .pool = pool_},
         {.w = w.laurel_left, .out = low, .out_stride = c.laurel_rank}, added_);
  Matmul({.x = low, .tokens = tokens, .pool = pool_},
         {.w = w.laurel_right, .out = branch, .out_stride = c.hidden}, added_);
  AddNormed({.x = branch,
             .weight = w.laurel_norm,
             .eps = c.norm_eps,
             .rows = tokens,
             .cols = c.hidden,
             .to = out,
             .pool = pool_});
}

void CpuDecoder::AddLaurel(int64_t tokens) {
  const int64_t size = tokens * config_.hidden;
  vec::Axpy(1.0f, work_.laurel.data(), work_.x.data(), size);
  vec::Scale(std::sqrt(0.5f), work_.x.data(), size);
}

}  // namespace celer
