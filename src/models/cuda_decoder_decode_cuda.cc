// CudaDecoder's decode steps: one captured graph each, often of a single kernel, with the choice of the token
// at its end.
#include <algorithm>
#include <cstring>

#include "models/cuda_decoder_impl.h"

namespace celer {

cuda::SampleArgs CudaDecoder::Impl::SampleRows(int rows) const {
  return {.logits = logits,
          .rows = rows,
          .vocab = static_cast<int>(config.vocab),
          .sampling = sample_rows,
          .tokens = tokens,
          .positions = positions,
          .host_tokens = reinterpret_cast<int32_t*>(host_tokens.data()),
          .host_logprobs = reinterpret_cast<cuda::SampleLogprobs*>(host_logprobs.data()),
          .host_stride = static_cast<int>(kMaxDecode),
          .host_slots = cuda::kHostSlots};
}

cuda::GreedyTarget CudaDecoder::Impl::Choice() const {
  return {.tokens = tokens,
          .positions = positions,
          .host_tokens = reinterpret_cast<int32_t*>(host_tokens.data()),
          .host_stride = static_cast<int>(kMaxDecode)};
}

void CudaDecoder::Impl::QueueDecode(int count, bool sampled) {
  if (UsesWholeStep(count) && !UsesBatchStep(count)) {
    cuda::DecodeStepArgs step = StepArgs(count);
    const bool all = cuda::DecodeStepHasHead(step);
    if (all && !sampled) step.choice = Choice();
    Check(cuda::LaunchDecodeStep(step, step_memory, stream->get()));
    if (all && !sampled) return;
    if (!all) MultiplyHead(count, false);
  } else {
    Run(count, count, false);
  }
  Mark(Op::kSampling);
  if (sampled) return Check(cuda::LaunchSample(SampleRows(count), stream->get()));
  Check(cuda::LaunchGreedy({.logits = logits,
                            .rows = count,
                            .vocab = static_cast<int>(config.vocab),
                            .best = greedy_best,
                            .tickets = greedy_tickets,
                            .to = Choice()},
                           stream->get()));
}

Status CudaDecoder::Decode(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                           std::span<const int32_t> block_table, int64_t max_blocks, Choose choose) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  const auto count = static_cast<int64_t>(positions.size());
  if (count < 1 || count > std::min(kMaxDecode, d.options.max_tokens))
    return Error::Invalid("a decode step of ", count, " sequences; 1 to ", kMaxDecode, " are possible");
  // The device moved its positions on by itself; tokens and tables that it has are not sent again.
  const bool continues =
      std::equal(positions.begin(), positions.end(), d.seen_positions.begin(), d.seen_positions.end());
  const bool same_table = continues && std::equal(block_table.begin(), block_table.end(),
                                                  d.seen_table.begin(), d.seen_table.end());
  if (!continues || !same_table || !tokens.empty()) {
    std::vector<int32_t> starts(static_cast<size_t>(count) + 1);
    for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int32_t>(i);
    CELER_RETURN_IF_ERROR(d.UploadBatch({.tokens = tokens,
                                         .positions = positions,
                                         .seq_start = starts,
                                         .block_table = block_table,
                                         .max_blocks = max_blocks,
                                         .logit_rows = {}}));
    d.seen_table.assign(block_table.begin(), block_table.end());
  }
  d.seen_positions.assign(positions.begin(), positions.end());
  for (int32_t& position : d.seen_positions) ++position;

  const bool sampled = choose == Choose::kSampled;
  d.most_keys = *std::max_element(positions.begin(), positions.end()) + 1;
  const bool whole = d.UsesWholeStep(static_cast<int>(count));
  Event& done = *d.step_done[static_cast<size_t>(positions[0] % cuda::kHostSlots)];
  d.last_rows = count;
  CELER_ASSIGN(const GpuTurns::Turn turn, d.turns->Take());
  if (d.options.launch == StepLaunch::kEager && !d.profile) {
    d.QueueDecode(static_cast<int>(count), sampled);
    CELER_RETURN_IF_ERROR(d.TakeFault("queueing a decode step"));
    return done.Record(*d.stream);
  }
  // A profiled step is a graph of its own, with the events inside.
  cudaGraphExec_t measured = nullptr;
  cudaGraphExec_t& graph = d.profile ? measured : d.graphs[2 * sampled + whole][static_cast<size_t>(count)];
  if (!graph) {
    cudaGraph_t captured = nullptr;
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaStreamBeginCapture(d.stream->get(), cudaStreamCaptureModeThreadLocal),
                   "capturing a decode step"));
    d.BeginMarks(/*captured=*/true);
    d.QueueDecode(static_cast<int>(count), sampled);
    d.Mark(Op::kSampling);  // where it ends
    const cudaError_t ended = cudaStreamEndCapture(d.stream->get(), &captured);
    CELER_RETURN_IF_ERROR(d.TakeFault("queueing a decode step"));
    CELER_RETURN_IF_ERROR(CudaStatus(ended, "capturing a decode step"));
    const cudaError_t made = cudaGraphInstantiate(&graph, captured, 0);
    cudaGraphDestroy(captured);
    CELER_RETURN_IF_ERROR(CudaStatus(made, "making a graph of a decode step"));
  }
  CELER_RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(graph, d.stream->get()), "launching a decode step"));
  CELER_RETURN_IF_ERROR(done.Record(*d.stream));
  if (!measured) return {};
  const Status taken = d.TakeMarks();
  cudaGraphExecDestroy(measured);
  return taken;
}

Status CudaDecoder::ChosenTokens(std::span<const int32_t> positions, std::span<int32_t> tokens) {
  Impl& d = *impl_;
  CELER_RETURN_IF_ERROR(d.step_done[static_cast<size_t>(positions[0] % cuda::kHostSlots)]->Synchronize());
  const auto* host = reinterpret_cast<const volatile int32_t*>(d.host_tokens.data());
  for (size_t i = 0; i < positions.size(); ++i)
    tokens[i] = host[positions[i] % cuda::kHostSlots * kMaxDecode + static_cast<int64_t>(i)];
  return {};
}

const cuda::SampleLogprobs& CudaDecoder::ChosenLogprobs(int64_t row, int64_t position) const {
  return reinterpret_cast<const cuda::SampleLogprobs*>(
      impl_->host_logprobs.data())[position % cuda::kHostSlots * kMaxDecode + row];
}

Status CudaDecoder::SetSampling(std::span<const cuda::SampleRow> rows) {
  return Upload(impl_->sample_rows, rows.data(), static_cast<int64_t>(rows.size_bytes()));
}

Status CudaDecoder::Upload(void* to, const void* from, int64_t bytes) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  Impl::Upload* upload = nullptr;
  CELER_ASSIGN(std::byte * memory, d.Pinned(bytes, &upload));
  std::memcpy(memory, from, static_cast<size_t>(bytes));
  CELER_RETURN_IF_ERROR(d.Copy(to, memory, bytes));
  return upload->done->Record(*d.stream);
}

cudaStream_t CudaDecoder::stream() const {
  return impl_->stream->get();
}

Status CudaDecoder::Sample(std::span<int32_t> tokens) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  constexpr int64_t kFirst = cuda::kHostSlots * kMaxDecode;
  cuda::SampleArgs args = d.SampleRows(static_cast<int>(d.last_rows));
  args.token_of = d.logit_rows;
  args.advance = false;
  args.host_tokens += kFirst;
  args.host_logprobs += kFirst;
  args.host_stride = static_cast<int>(kLogitRows);
  args.host_slots = 1;
  d.BeginMarks(/*captured=*/false);
  d.Mark(Op::kSampling);
  d.Check(cuda::LaunchSample(args, d.stream->get()));
  d.Mark(Op::kSampling);
  CELER_RETURN_IF_ERROR(d.TakeFault("sampling on the GPU"));
  CELER_RETURN_IF_ERROR(d.stream->Synchronize());
  const auto* host = reinterpret_cast<const volatile int32_t*>(d.host_tokens.data()) + kFirst;
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = host[i];
  return d.TakeMarks();
}

const cuda::SampleLogprobs& CudaDecoder::SampledLogprobs(int64_t row) const {
  return reinterpret_cast<const cuda::SampleLogprobs*>(
      impl_->host_logprobs.data())[cuda::kHostSlots * kMaxDecode + row];
}

}  // namespace celer
