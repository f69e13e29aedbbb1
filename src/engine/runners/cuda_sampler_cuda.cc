#include "engine/runners/cuda_sampler.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "kernels/llm/sample/greedy_cuda.h"

namespace celer {

static_assert(Sampler::kNoToken == cuda::kNoToken);

namespace {

bool HasPenalties(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

}  // namespace

// The sequence's own slot, else the least recently used one. There are as many as a step has rows.
CudaSampler::Slot& CudaSampler::SlotOf(int64_t id) {
  const auto own = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.id == id; });
  if (own != slots_.end()) return *own;
  const auto oldest = std::min_element(slots_.begin(), slots_.end(),
                                       [](const Slot& a, const Slot& b) { return a.used < b.used; });
  if (oldest != slots_.end() && oldest->used < uses_) {  // not one of this step
    oldest->id = id;
    oldest->counted = -1;
    return *oldest;
  }
  Slot& slot = slots_.emplace_back();
  slot.id = id;
  slot.counted = -1;
  return slot;
}

Status CudaSampler::Reserve(Buffer* buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer->size()) >= bytes) return {};
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(decoder_.device()));
  CELER_ASSIGN(*buffer, Buffer::Allocate(*allocator, static_cast<size_t>(bytes)));
  return {};
}

Status CudaSampler::LoadCounts(const Row& row, Slot* slot) {
  const int64_t vocab = decoder_.vocab();
  // Tokens beyond the position are those of a step that runs again.
  const int64_t known = std::min<int64_t>(static_cast<int64_t>(row.tokens.size()), row.position + 1);
  CELER_RETURN_IF_ERROR(Reserve(&slot->counts, (vocab + 1) * 4));
  CELER_RETURN_IF_ERROR(Reserve(&slot->history, (known + 4095) / 4096 * 4096 * 4));
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(slot->counts.data(), 0, static_cast<size_t>(vocab) * 4, decoder_.stream()),
                 "clearing token counts"));
  CELER_RETURN_IF_ERROR(decoder_.Upload(slot->history.data(), row.tokens.data(), known * 4));
  const auto counted = static_cast<int32_t>(known);
  CELER_RETURN_IF_ERROR(decoder_.Upload(slot->counts.data() + vocab * 4, &counted, 4));
  slot->counted = known;
  return CudaStatus(
      cuda::LaunchCountTokens(reinterpret_cast<const int32_t*>(slot->history.data()),
                              static_cast<int>(std::min(row.prompt, known)), static_cast<int>(known),
                              reinterpret_cast<uint32_t*>(slot->counts.data()), decoder_.stream()),
      "counting tokens");
}

Status CudaSampler::LoadBias(const SamplingParams& params, Slot* slot) {
  std::vector<float> bias(static_cast<size_t>(decoder_.vocab()), 0.0f);
  for (const auto& [token, value] : params.logit_bias) bias[token] = value;
  const auto bytes = static_cast<int64_t>(bias.size() * 4);
  CELER_RETURN_IF_ERROR(Reserve(&slot->bias, bytes));
  return decoder_.Upload(slot->bias.data(), bias.data(), bytes);
}

Status CudaSampler::Prepare(std::span<const Row> rows) {
  const CudaDeviceScope scope(decoder_.device());
  ++uses_;
  // Slots of sequences that stay are touched first, so that they are not evicted.
  for (Slot& slot : slots_)
    if (std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return row.id == slot.id; }))
      slot.used = uses_;
  std::vector<cuda::SampleRow> now(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const SamplingParams& p = *row.params;
    CELER_CHECK(CanSample(p, decoder_.vocab()));
    cuda::SampleRow& to = now[i];
    to.temperature = p.temperature;
    to.top_p = p.top_p;
    to.top_k = p.top_k;
    to.reach = cuda::Reach(p.min_p);
    to.repetition = p.repetition_penalty;
    to.presence = p.presence_penalty;
    to.frequency = p.frequency_penalty;
    to.logprobs = p.logprobs;
    to.seed = cuda::HashDraw(p.seed);
    to.first = static_cast<int32_t>(row.prompt - 1);
    if (!HasPenalties(p) && p.logit_bias.empty()) continue;
    Slot& slot = SlotOf(row.id);
    const bool fresh = slot.counted < 0;
    slot.used = uses_;
    if (fresh && !p.logit_bias.empty()) CELER_RETURN_IF_ERROR(LoadBias(p, &slot));
    if (!p.logit_bias.empty()) to.bias = reinterpret_cast<const float*>(slot.bias.data());
    if (HasPenalties(p)) {
      // Tokens that were sampled on the CPU in the meantime are not in the counts.
      if (fresh || row.position > slot.counted) CELER_RETURN_IF_ERROR(LoadCounts(row, &slot));
      to.counts = reinterpret_cast<uint32_t*>(slot.counts.data());
      to.counted = reinterpret_cast<int32_t*>(to.counts + decoder_.vocab());
    }
    slot.counted = std::max(slot.counted, row.position + 1);
  }
  if (now == rows_) return {};
  rows_ = std::move(now);
  return decoder_.SetSampling(rows_);
}

Sampler::Choice CudaSampler::ToChoice(int32_t token, const SamplingParams& params,
                                      const cuda::SampleLogprobs& logprobs) {
  Sampler::Choice choice;
  choice.token = token;
  if (params.logprobs < 0 || token == Sampler::kNoToken) return choice;
  choice.logprob = logprobs.chosen;
  for (int i = 0; i < logprobs.count; ++i) choice.top.push_back({logprobs.tokens[i], logprobs.values[i]});
  return choice;
}

}  // namespace celer
