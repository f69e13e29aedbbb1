#include "engine/runners/cpu_predictor_runner.h"

#include "base/check.h"

namespace celer {

CpuPredictorRunner::CpuPredictorRunner(std::shared_ptr<const Predictor> predictor, ThreadPool& pool,
                                       KvCache kv, KvFormat kv_format, int64_t context)
    : predictor_(std::move(predictor), pool), kv_(std::move(kv)) {
  const Predictor& of = predictor_.predictor();
  info_ = {.config = of.config,
           .device = "cpu",
           .threads = pool.size(),
           .context = context,
           .weight_bytes = of.active_bytes(),
           .bytes_by_format = of.store->bytes_by_format(),
           .kv_bytes_per_token = KvBytesPerToken(of.config, kv_format),
           .kv_blocks = kv_.blocks()};
}

Status CpuPredictorRunner::Queue(std::span<const Slice> slices) {
  CELER_CHECK(!queued_);
  before_.clear();
  for (const Slice& slice : slices) {
    CELER_CHECK(!slice.sampler);
    CELER_CHECK_EQ(std::ssize(slice.before), slice.count() * info_.config.hidden);
    before_.insert(before_.end(), slice.before.begin(), slice.before.end());
  }
  queued_.emplace(slices);
  return {};
}

Result<StepOutput> CpuPredictorRunner::Take() {
  CELER_CHECK(queued_);
  logits_.resize(static_cast<size_t>(queued_->rows() * info_.config.vocab));
  hidden_.resize(queued_->hidden_rows().size() * static_cast<size_t>(info_.config.hidden));
  predictor_.Forward(queued_->View(), before_, kv_.layers(), logits_.data(),
                     {.tokens = queued_->hidden_rows(), .out = hidden_.data()});
  queued_.reset();
  StepOutput output;
  output.logits = logits_;
  output.hidden = hidden_;
  return output;
}

Status CpuPredictorRunner::CopyBlocks(std::span<const BlockCopy> copies) {
  CELER_CHECK(!queued_);
  kv_.Copy(copies);
  return {};
}

Status CpuPredictorRunner::SwapOut(std::span<const BlockCopy>) {
  return Error::Unsupported("the keys and values of a predictor are not swapped out");
}

Status CpuPredictorRunner::SwapIn(std::span<const BlockCopy>) {
  return Error::Unsupported("the keys and values of a predictor are not swapped out");
}

Status CpuPredictorRunner::ClearBlocks(std::span<const int32_t> blocks) {
  CELER_CHECK(!queued_);
  kv_.Clear(blocks);
  return {};
}

std::vector<OperatorWork> CpuPredictorRunner::Work(const StepShape&) const {
  return {};
}

}  // namespace celer
