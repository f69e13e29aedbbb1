// The overhead of the engine itself: 256 running sequences, on a device that takes no time. Scheduling,
// blocks, slices, samplers and events.
#include <benchmark/benchmark.h>

#include "base/check.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/runner.h"

namespace celer {
namespace {

// Returns a fixed token and tells the samplers.
class IdleRunner : public Runner {
 public:
  explicit IdleRunner(int64_t blocks) {
    info_.config.vocab = 1000;
    info_.config.max_positions = info_.context = 1 << 16;
    info_.kv_blocks = blocks;
    info_.device = "idle";
  }
  const Info& info() const override { return info_; }
  Status Queue(std::span<const Slice> slices) override {
    samplers_.clear();
    for (const Slice& slice : slices)
      if (slice.sampler) samplers_.push_back(slice.sampler);
    return {};
  }
  Result<StepOutput> Take() override {
    StepOutput output;
    output.choices.reserve(samplers_.size());
    for (Sampler* sampler : samplers_) {
      sampler->Accept(token_);
      output.choices.push_back({.token = token_, .logprob = 0, .top = {}});
      token_ = (token_ * 5 + 3) % 1000;
    }
    return output;
  }
  void DropQueued() override {}
  bool RunsAhead(std::span<const Slice>) const override { return false; }
  Status CopyBlocks(std::span<const BlockCopy>) override { return {}; }
  Status SwapOut(std::span<const BlockCopy>) override { return {}; }
  Status SwapIn(std::span<const BlockCopy>) override { return {}; }
  Status ClearBlocks(std::span<const int32_t>) override { return {}; }
  std::vector<OperatorWork> Work(const StepShape&) const override { return {}; }
  void set_profile(OpProfile*) override {}
  void set_watch(LayerWatch) override {}

 private:
  Info info_;
  std::vector<Sampler*> samplers_;
  int32_t token_ = 1;
};

// `turnover`: one in so many steps a request ends and another begins.
void BM_Step(benchmark::State& state) {
  const int64_t running = state.range(0), answer = state.range(1);
  auto engine = EngineInternals::Make(std::make_unique<IdleRunner>(running * 40), {.chunk = 2048});
  int64_t next = 0;
  const auto submit = [&] {
    Request request{.prompt = std::vector<int32_t>(256), .max_tokens = answer + next % 32};
    for (size_t i = 0; i < 256; ++i)
      request.prompt[i] = static_cast<int32_t>((next * 7 + static_cast<int64_t>(i) * 13) % 1000);
    ++next;
    CELER_CHECK(engine->Submit(std::move(request)).has_value());
  };
  for (int64_t i = 0; i < running; ++i) submit();
  for (int64_t i = 0; i < 64; ++i) engine->Step();
  int64_t tokens = 0;
  for (auto _ : state) {
    const auto events = engine->Step();
    tokens += static_cast<int64_t>(events.size());
    for (const TokenEvent& event : events)
      if (event.last) submit();
  }
  state.SetItemsProcessed(tokens);
  state.SetLabel(std::to_string(running) + " running, answers of " + std::to_string(answer));
}
BENCHMARK(BM_Step)->Args({256, 200})->Args({256, 20})->Args({1, 200})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace celer
