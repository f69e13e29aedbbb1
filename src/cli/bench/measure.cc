#include "cli/bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/check.h"
#include "base/result.h"
#include "kernels/llm/kv_block.h"
#include "limits/quantity.h"
#include "limits/roofline.h"

namespace celer::cli {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t Largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

Status CheckEvents(const std::vector<TokenEvent>& events) {
  for (const TokenEvent& event : events)
    if (event.finish == FinishReason::kError) return Error::NotFinite(event.error);
  return {};
}

}  // namespace

int64_t BenchPlan::max_batch() const {
  return Largest(batches);
}

int64_t BenchPlan::positions() const {
  // A prompt leaves room for one token; the last token of a decode is never appended.
  return std::max({int64_t{2}, Largest(prompts) + 1, tokens > 0 ? Largest(depths) + tokens + 1 : 0});
}

double BenchResult::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double BenchResult::mean() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

double BenchResult::fastest() const {
  return *std::min_element(seconds.begin(), seconds.end());
}

double BenchResult::slowest() const {
  return *std::max_element(seconds.begin(), seconds.end());
}

std::string BenchResult::Title() const {
  return prefill ? "prefill " + FormatCount(length) : "decode at " + FormatCount(length);
}

Result<Bench> Bench::Load(const EngineOptions& options, const BenchPlan& plan, Progress progress,
                          const std::function<void(Engine&)>& on_loaded) {
  progress("loading");
  const Clock::time_point begin = Clock::now();
  CELER_ASSIGN(std::unique_ptr<Engine> engine, Engine::Load(options));
  if (on_loaded) on_loaded(*engine);
  Bench bench(std::move(engine), plan, std::move(progress));
  bench.start_.load_s = Since(begin);
  bench.start_.prompt = plan.prompts.empty() ? 1 : plan.prompts.front();
  double unused = 0;
  CELER_RETURN_IF_ERROR(bench.Prefill(bench.start_.prompt, 1, &unused));
  bench.start_.first_token_s = Since(begin);
  return bench;
}

bool Bench::on_gpu() const {
  return engine_->info().device.starts_with("cuda");
}

Result<std::vector<BenchResult>> Bench::Run() {
  std::vector<BenchResult> results;
  for (const int64_t batch : plan_.batches)
    for (const int64_t prompt : plan_.prompts) {
      CELER_ASSIGN(BenchResult result, MeasurePrefill(prompt, batch));
      results.push_back(std::move(result));
    }
  if (plan_.tokens == 0) return results;
  for (const int64_t batch : plan_.batches)
    for (const int64_t depth : plan_.depths) {
      CELER_ASSIGN(BenchResult result, MeasureDecode(depth, batch));
      results.push_back(std::move(result));
    }
  return results;
}

// Never the same prompt twice, so that nothing computed before can be found again. Any id will do: what a
// step costs does not depend on them.
std::vector<int32_t> Bench::RandomTokens(int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX constants
    token = static_cast<int32_t>((random_ >> 33) % static_cast<uint64_t>(engine_->info().vocab));
  }
  return tokens;
}

Status Bench::Prefill(int64_t prompt, int64_t batch, double* seconds) {
  for (int64_t i = 0; i < batch; ++i) {
    Request request;
    request.prompt = RandomTokens(prompt);
    request.max_tokens = 1;
    CELER_RETURN_IF_ERROR(engine_->Submit(std::move(request)));
  }
  const Clock::time_point begin = Clock::now();
  int64_t first_tokens = 0;
  while (engine_->HasWork()) {
    const std::vector<TokenEvent> events = engine_->Step();
    CELER_RETURN_IF_ERROR(CheckEvents(events));
    first_tokens += static_cast<int64_t>(events.size());
  }
  *seconds = Since(begin);
  if (engine_->fault()) return *engine_->fault();
  CELER_CHECK_EQ(first_tokens, batch);
  return {};
}

Status Bench::Repeat(BenchResult* result, const std::function<Status(double*)>& once) {
  const std::string title = result->Title() + (result->batch > 1 ? fmt::format(" x {}", result->batch) : "");
  double seconds = 0;
  progress_(title + ", warming up");
  CELER_RETURN_IF_ERROR(once(&seconds));
  // On a GPU the operators are timed apart: between events they neither overlap nor run as one graph.
  const bool apart = plan_.ops && on_gpu();
  if (plan_.ops && !apart) engine_->StartProfile();
  for (int64_t i = 0; i < plan_.repeat; ++i) {
    progress_(fmt::format("{}, {} of {}", title, i + 1, plan_.repeat));
    CELER_RETURN_IF_ERROR(once(&seconds));
    result->seconds.push_back(seconds);
  }
  if (!plan_.ops) return {};
  if (apart) {
    engine_->StartProfile();
    for (int64_t i = 0; i < plan_.repeat; ++i) {
      progress_(fmt::format("{}, operators, {} of {}", title, i + 1, plan_.repeat));
      CELER_RETURN_IF_ERROR(once(&seconds));
    }
  }
  engine_->StopProfile();
  const std::vector<OperatorTime> times = engine_->Profile();
  for (BenchOp& op : result->ops)
    for (const OperatorTime& time : times)
      if (time.name == op.work.name) {
        op.calls = static_cast<double>(time.calls) / static_cast<double>(plan_.repeat);
        op.seconds = time.seconds / static_cast<double>(plan_.repeat);
      }
  return {};
}

Result<BenchResult> Bench::MeasurePrefill(int64_t prompt, int64_t batch) {
  BenchResult result{.prefill = true, .length = prompt, .batch = batch};
  // Whatever the chunks, no more than one pass over the weights is needed.
  const std::vector<OperatorWork> work = engine_->Work({.sequences = batch, .tokens = prompt});
  result.work = Sum(work);
  if (plan_.ops)
    for (const OperatorWork& op : work) result.ops.push_back({.work = op});
  CELER_RETURN_IF_ERROR(Repeat(&result, [&](double* seconds) { return Prefill(prompt, batch, seconds); }));
  return result;
}

Result<BenchResult> Bench::MeasureDecode(int64_t depth, int64_t batch) {
  depth -= depth % kKvBlockTokens;  // the prefix cache keeps whole blocks
  BenchResult result{.prefill = false, .length = depth, .batch = batch, .steps = plan_.tokens};
  for (int64_t i = 0; i < plan_.tokens; ++i) {
    const std::vector<OperatorWork> step = engine_->Work({.sequences = batch, .position = depth + i});
    result.work += Sum(step);
    if (!plan_.ops) continue;
    if (i == 0)
      for (const OperatorWork& op : step) result.ops.push_back({.work = op});
    else
      for (size_t k = 0; k < step.size(); ++k) result.ops[k].work += step[k];
  }

  // The KV is filled once: a repetition finds all of its prompt there but the last token, so that its first
  // step is a decode step like the others.
  progress_(fmt::format("{}, filling the KV", result.Title()));
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < batch; ++i) {
    prompts.push_back(RandomTokens(depth + 1));
    CELER_RETURN_IF_ERROR(engine_->Submit({.prompt = prompts.back(), .max_tokens = 1}));
  }
  while (engine_->HasWork()) CELER_RETURN_IF_ERROR(CheckEvents(engine_->Step()));
  if (engine_->fault()) return *engine_->fault();

  CELER_RETURN_IF_ERROR(Repeat(&result, [&](double* seconds) -> Status {
    for (const auto& prompt : prompts)
      if (const auto id = engine_->Submit({.prompt = prompt, .max_tokens = plan_.tokens}); !id)
        return id.error();
    const Clock::time_point begin = Clock::now();
    int64_t tokens = 0;  // more than one for each sequence and step with speculative decoding
    int64_t cached = 0;
    while (engine_->HasWork()) {
      const std::vector<TokenEvent> events = engine_->Step();
      if (engine_->fault()) return *engine_->fault();
      if (const Status checked = CheckEvents(events); !checked) return checked.error();
      tokens += static_cast<int64_t>(events.size());
      for (const TokenEvent& event : events) cached += event.cached_tokens;
    }
    *seconds = Since(begin);
    CELER_CHECK_EQ(tokens, batch * plan_.tokens);
    if (cached != batch * depth)
      return Error::OutOfMemory("the KV does not hold ", batch, " sequences of ", depth, " tokens: ", cached,
                                " of them were found; give it more, or ask for fewer");
    return {};
  }));
  return result;
}

}  // namespace celer::cli
