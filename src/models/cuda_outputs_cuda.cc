#include "models/cuda_outputs.h"

#include "core/cuda_allocator.h"
#include "core/cuda_status.h"

namespace celer {

Status CudaOutputs::Make(int device, int64_t vocab) {
  vocab_ = vocab;
  constexpr size_t kRows = kFirstRow + kLogitRows;
  CELER_ASSIGN(logits_, Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(kLogitRows * vocab) * 4));
  CELER_ASSIGN(tokens_, Buffer::Allocate(PinnedAllocator(), kRows * 4));
  CELER_ASSIGN(logprobs_, Buffer::Allocate(PinnedAllocator(), kRows * sizeof(cuda::SampleLogprobs)));
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
          .host_stride = static_cast<int>(kMaxSampled)};
}

cuda::SampleArgs CudaOutputs::Sampled(const CudaMemory& memory, int rows) const {
  return {.logits = memory.logits,
          .rows = rows,
          .vocab = static_cast<int>(vocab_),
          .sampling = memory.sample_rows,
          .tokens = memory.tokens,
          .positions = memory.positions,
          .host_tokens = reinterpret_cast<int32_t*>(tokens_.data()),
          .host_logprobs = reinterpret_cast<cuda::SampleLogprobs*>(logprobs_.data()),
          .host_stride = static_cast<int>(kMaxSampled),
          .host_slots = cuda::kHostSlots};
}

cuda::SampleArgs CudaOutputs::SampledRows(const CudaMemory& memory, int rows) const {
  cuda::SampleArgs args = Sampled(memory, rows);
  args.token_of = memory.logit_rows;
  args.advance = false;
  args.host_tokens += kFirstRow;
  args.host_logprobs += kFirstRow;
  args.host_stride = static_cast<int>(kLogitRows);
  args.host_slots = 1;
  return args;
}

int32_t CudaOutputs::StepToken(int64_t row, int64_t position) const {
  return reinterpret_cast<const volatile int32_t*>(
      tokens_.data())[position % cuda::kHostSlots * kMaxSampled + row];
}

const cuda::SampleLogprobs& CudaOutputs::StepLogprobs(int64_t row, int64_t position) const {
  return reinterpret_cast<const cuda::SampleLogprobs*>(
      logprobs_.data())[position % cuda::kHostSlots * kMaxSampled + row];
}

int32_t CudaOutputs::RowToken(int64_t row) const {
  return reinterpret_cast<const volatile int32_t*>(tokens_.data())[kFirstRow + row];
}

const cuda::SampleLogprobs& CudaOutputs::RowLogprobs(int64_t row) const {
  return reinterpret_cast<const cuda::SampleLogprobs*>(logprobs_.data())[kFirstRow + row];
}

Result<std::span<const float>> CudaOutputs::Logits(const CudaMemory& memory, int64_t rows,
                                                   const Stream& stream) {
  const auto floats = static_cast<size_t>(rows * vocab_);
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(logits_.data(), memory.logits, floats * 4, cudaMemcpyDeviceToHost, stream.get()),
      "copying logits from the GPU"));
  CELER_RETURN_IF_ERROR(stream.Synchronize());
  return std::span<const float>(reinterpret_cast<const float*>(logits_.data()), floats);
}

}  // namespace celer
