#include "engine/runners/place/placed_runner.h"

#include <utility>

#include "base/check.h"
#include "models/lora/lora.h"
#include "models/step_work.h"

namespace celer {

PlacedRunner::PlacedRunner(const DecoderConfig& config, std::shared_ptr<ThreadPool> pool,
                           std::vector<std::unique_ptr<Stage>> stages)
    : config_(config), pool_(std::move(pool)), stages_(std::move(stages)) {}

void PlacedRunner::set_last(std::unique_ptr<Runner> last, int64_t kv_bytes_per_token,
                            std::vector<std::unique_ptr<CpuExperts>> experts) {
  last_ = std::move(last);
  experts_ = std::move(experts);
  info_ = last_->info();
  info_.config = config_;
  info_.threads = pool_->size();
  info_.kv_bytes_per_token = kv_bytes_per_token;
  info_.parts.push_back({info_.device, info_.weight_bytes});
  // The device of the last layers first: it has the head, and samples.
  for (const std::unique_ptr<Stage>& stage : stages_) {
    info_.parts.push_back({stage->info().device, stage->info().weight_bytes});
    info_.device += " + " + stage->info().device;
    info_.weight_bytes += stage->info().weight_bytes;
    for (const auto& [format, bytes] : stage->info().bytes_by_format) info_.bytes_by_format[format] += bytes;
  }
  info_.crossings = std::ssize(stages_);
  for (const std::unique_ptr<CpuExperts>& some : experts_) {
    info_.crossings += some->sparse_layers();
    info_.parts.push_back({"cpu", some->active_bytes()});
    info_.device += " + experts of " + std::to_string(some->layers()) + " layers on cpu";
    info_.weight_bytes += some->active_bytes();
    for (const auto& [format, bytes] : some->bytes_by_format()) info_.bytes_by_format[format] += bytes;
  }
}

Status PlacedRunner::Input(const RaggedBatch& batch, float* x) {
  for (const std::unique_ptr<Stage>& stage : stages_)
    if (const Status ran = stage->Run(batch, x); !ran) return failed_ = ran;
  return {};
}

Status PlacedRunner::CheckLora(const LoraMix& mix) const {
  if (mix.uses().empty()) return {};
  return Error::Unsupported("LoRA adapters do not run where the layers are on several devices (",
                            info_.device,
                            "); use one `device`, or merge them into the model with celer merge");
}

Status PlacedRunner::Queue(std::span<const Slice> slices) {
  if (const Status queued = last_->Queue(slices); !queued) {
    failed_ = {};  // which is said here
    return queued;
  }
  queued_.emplace_back();
  return {};
}

Result<StepOutput> PlacedRunner::Take() {
  Result<StepOutput> output = last_->Take();
  CELER_CHECK(!queued_.empty());
  std::vector<std::function<Status()>> operations = std::move(queued_.front());
  queued_.pop_front();
  CELER_RETURN_IF_ERROR(std::exchange(failed_, Status()));
  CELER_RETURN_IF_ERROR(RunOperations(&operations));
  return output;
}

void PlacedRunner::DropQueued() {
  last_->DropQueued();
  for (std::vector<std::function<Status()>>& operations : queued_)
    if (const Status done = RunOperations(&operations); !done) failed_ = done;
  queued_.clear();
}

Status PlacedRunner::RunOperations(std::vector<std::function<Status()>>* operations) {
  for (const auto& operation : *operations) CELER_RETURN_IF_ERROR(operation());
  return {};
}

Status PlacedRunner::InOrder(std::function<Status()> operation) {
  if (queued_.empty()) return operation();
  queued_.back().push_back(std::move(operation));
  return {};
}

Status PlacedRunner::CopyBlocks(std::span<const BlockCopy> copies) {
  return InOrder([this, list = std::vector(copies.begin(), copies.end())]() -> Status {
    for (const auto& stage : stages_) CELER_RETURN_IF_ERROR(stage->CopyBlocks(list));
    return last_->CopyBlocks(list);
  });
}
Status PlacedRunner::SwapOut(std::span<const BlockCopy> copies) {
  return InOrder([this, list = std::vector(copies.begin(), copies.end())]() -> Status {
    for (const auto& stage : stages_) CELER_RETURN_IF_ERROR(stage->SwapOut(list));
    return last_->SwapOut(list);
  });
}
Status PlacedRunner::SwapIn(std::span<const BlockCopy> copies) {
  return InOrder([this, list = std::vector(copies.begin(), copies.end())]() -> Status {
    for (const auto& stage : stages_) CELER_RETURN_IF_ERROR(stage->SwapIn(list));
    return last_->SwapIn(list);
  });
}
Status PlacedRunner::ClearBlocks(std::span<const int32_t> blocks) {
  return InOrder([this, list = std::vector(blocks.begin(), blocks.end())]() -> Status {
    for (const auto& stage : stages_) CELER_RETURN_IF_ERROR(stage->ClearBlocks(list));
    return last_->ClearBlocks(list);
  });
}

Status PlacedRunner::DiscardKv() {
  CELER_CHECK(queued_.empty());
  for (const auto& stage : stages_) CELER_RETURN_IF_ERROR(stage->DiscardKv());
  return last_->DiscardKv();
}

std::vector<OperatorWork> PlacedRunner::Work(const StepShape& shape) const {
  std::vector<OperatorWork> all = last_->Work(shape);
  for (const auto& stage : stages_) AddWork(&all, stage->Work(shape));
  for (const auto& some : experts_) AddWork(&all, some->Work(shape));
  return all;
}

void PlacedRunner::set_profile(OpProfile* profile) {
  for (const auto& stage : stages_) stage->set_profile(profile);
  last_->set_profile(profile);
}

void PlacedRunner::set_watch(LayerWatch watch) {
  int64_t first = 0;
  // A stage's -1 is what the stage in front has shown already.
  const auto from = [&](int64_t layers) -> LayerWatch {
    if (!watch) return {};
    return [watch, begin = std::exchange(first, first + layers)](int64_t layer, std::span<const float> x) {
      if (layer >= 0 || begin == 0) watch(layer < 0 ? layer : begin + layer, x);
    };
  };
  for (const auto& stage : stages_) stage->set_watch(from(stage->info().layers));
  last_->set_watch(from(0));
}

}  // namespace celer
