#include "models/cuda/outputs.h"

#include <algorithm>
#include <limits>

#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "kernels/llm/rms_norm/rms_norm.h"
#include "kernels/network/rows/rows.h"

namespace celer {

Status CudaOutputs::Make(int device, const CudaShape& shape) {
  vocab_ = shape.vocab();
  sequences_ = shape.sequences;
  rows_ = shape.logit_rows();
  const auto all = static_cast<size_t>(first_row() + rows_);
  CELER_ASSIGN(tokens_, Buffer::Allocate(PinnedAllocator(), all * 4));
  CELER_ASSIGN(logprobs_, Buffer::Allocate(PinnedAllocator(), all * sizeof(cuda::SampleLogprobs)));
  for (std::optional<Event>& event : step_done_) {
    CELER_ASSIGN(Event made, Event::Create(device));
    event.emplace(std::move(made));
  }
  return {};
}

cuda::GreedyTarget CudaOutputs::Greedy(const CudaMemory& memory) const {
  return {.tokens = memory.tokens,
          .positions = memory.positions,
          .host_tokens = reinterpret_cast<int32_t*>(tokens_.data()),
          .host_stride = static_cast<int>(sequences_)};
}

cuda::SampleArgs CudaOutputs::Sampled(const CudaMemory& memory, int rows) const {
  return {.logits = memory.Chosen(),
          .rows = rows,
          .vocab = static_cast<int>(vocab_),
          .sampling = memory.sample_rows,
          .tokens = memory.tokens,
          .positions = memory.positions,
          .host_tokens = reinterpret_cast<int32_t*>(tokens_.data()),
          .host_logprobs = reinterpret_cast<cuda::SampleLogprobs*>(logprobs_.data()),
          .host_stride = static_cast<int>(sequences_),
          .host_slots = cuda::kHostSlots};
}

cuda::SampleArgs CudaOutputs::SampledRows(const CudaMemory& memory, int rows) const {
  cuda::SampleArgs args = Sampled(memory, rows);
  args.token_of = memory.logit_rows;
  args.advance = false;
  args.host_tokens += first_row();
  args.host_logprobs += first_row();
  args.host_stride = static_cast<int>(rows_);
  args.host_slots = 1;
  return args;
}

int32_t CudaOutputs::StepToken(int64_t row, int64_t position) const {
  return reinterpret_cast<const volatile int32_t*>(tokens_.data())[StepAt(row, position)];
}

const cuda::SampleLogprobs& CudaOutputs::StepLogprobs(int64_t row, int64_t position) const {
  return reinterpret_cast<const cuda::SampleLogprobs*>(logprobs_.data())[StepAt(row, position)];
}

int32_t CudaOutputs::RowToken(int64_t row) const {
  return reinterpret_cast<const volatile int32_t*>(tokens_.data())[first_row() + row];
}

const cuda::SampleLogprobs& CudaOutputs::RowLogprobs(int64_t row) const {
  return reinterpret_cast<const cuda::SampleLogprobs*>(logprobs_.data())[first_row() + row];
}

Result<std::span<const float>> CudaOutputs::Logits(const CudaMemory& memory, int64_t rows,
                                                   const Stream& stream) {
  const auto floats = static_cast<size_t>(rows * vocab_);
  if (logits_.size() < floats * 4) {
    const auto least = static_cast<size_t>(16 * vocab_) * 4;
    CELER_ASSIGN(logits_, Buffer::Allocate(PinnedAllocator(), std::max(floats * 4, least)));
  }
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(logits_.data(), memory.Chosen(), floats * 4, cudaMemcpyDeviceToHost, stream.get()),
      "copying logits from the GPU"));
  CELER_RETURN_IF_ERROR(stream.Synchronize());
  return std::span<const float>(reinterpret_cast<const float*>(logits_.data()), floats);
}

Result<std::span<const float>> CudaOutputs::Residual(const CudaMemory& memory, int64_t values, float scale,
                                                     const Stream& stream) {
  const auto bytes = static_cast<size_t>(values) * 4;
  if (residual_.size() < bytes) {
    CELER_ASSIGN(residual_, Buffer::Allocate(PinnedAllocator(), bytes));
  }
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(residual_.data(), memory.x, bytes, cudaMemcpyDeviceToHost, stream.get()),
                 "copying hidden states from the GPU"));
  CELER_RETURN_IF_ERROR(stream.Synchronize());
  auto* const x = reinterpret_cast<float*>(residual_.data());
  if (scale != 1)
    for (int64_t i = 0; i < values; ++i) x[i] *= scale;
  return std::span<const float>(x, static_cast<size_t>(values));
}

Result<std::span<const float>> CudaOutputs::Hidden(const CudaMemory& memory, int64_t tokens,
                                                   const LastNorm& norm, const Stream& stream) {
  const auto fetch = [&](const float* from, int64_t floats, std::vector<float>* to) {
    to->resize(static_cast<size_t>(floats));
    return CudaStatus(cudaMemcpyAsync(to->data(), from, to->size() * 4, cudaMemcpyDeviceToHost, stream.get()),
                      "copying hidden states from the GPU");
  };
  if (norm_.empty()) CELER_RETURN_IF_ERROR(fetch(norm.weight, norm.hidden, &norm_));
  if (norm_bias_.empty() && norm.bias) CELER_RETURN_IF_ERROR(fetch(norm.bias, norm.hidden, &norm_bias_));
  CELER_RETURN_IF_ERROR(fetch(memory.x, tokens * norm.hidden, &hidden_));
  CELER_RETURN_IF_ERROR(stream.Synchronize());
  for (int64_t t = 0; t < tokens; ++t) {
    float* const row = hidden_.data() + t * norm.hidden;
    const float scale = InverseRms(row, norm.hidden, norm.eps);
    if (!(scale > 0))
      std::fill_n(row, norm.hidden, std::numeric_limits<float>::quiet_NaN());
    else if (norm.layer)
      LayerNorm({.x = row,
                 .scale = norm_.data(),
                 .shift = norm.bias ? norm_bias_.data() : nullptr,
                 .eps = norm.eps,
                 .out = row,
                 .rows = 1,
                 .cols = norm.hidden});
    else
      ScaleByWeight(row, scale, norm_.data(), norm.hidden, row);
  }
  return std::span<const float>(hidden_);
}

}  // namespace celer
