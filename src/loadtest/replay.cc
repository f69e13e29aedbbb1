#include "loadtest/replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <unordered_map>

#include "base/check.h"
#include "base/result.h"

namespace celer::cli {
namespace {

// Steps in which nothing comes and no time passes, before it is taken for an engine that hangs.
constexpr int kMostIdleSteps = 100000;

class Player {
 public:
  Player(Engine& engine, const Trace& trace, ReplayClock& clock)
      : engine_(engine), trace_(trace), clock_(clock) {
    for (const TraceRequest& request : trace.requests)
      replay_.requests.push_back(
          {.arrival_s = request.arrival_s, .prompt = request.prompt, .output = request.output});
    text_.resize(trace.requests.size());
  }

  Result<Replay> Run(const std::function<void(int64_t)>& progress) {
    replay_.before = engine_.stats();
    int64_t computed = replay_.before.computed_tokens;
    int idle = 0;
    while (next_ < trace_.requests.size() || engine_.HasWork()) {
      SubmitArrived();
      if (!engine_.HasWork()) {
        if (next_ < trace_.requests.size()) clock_.WaitUntil(trace_.requests[next_].arrival_s);
        continue;
      }
      const double begin = clock_.Now();
      const std::vector<TokenEvent> events = engine_.Step();
      const double end = clock_.Now();
      if (engine_.fault()) return *engine_.fault();
      idle = events.empty() && end <= begin ? idle + 1 : 0;
      if (idle > kMostIdleSteps) return Error::Device("the engine has work and makes no progress");
      for (const TokenEvent& event : events) Take(event, end);
      const EngineStats stats = engine_.stats();
      replay_.steps.push_back({.begin_s = begin,
                               .end_s = end,
                               .tokens = stats.computed_tokens - computed,
                               .running = stats.running,
                               .waiting = stats.waiting,
                               .kv_blocks_used = stats.kv_blocks_used});
      computed = stats.computed_tokens;
      progress(done_);
    }
    replay_.after = engine_.stats();
    for (size_t i = 0; i < text_.size(); ++i) replay_.text += ExtendChecksum(text_[i], i);
    return std::move(replay_);
  }

 private:
  void SubmitArrived() {
    for (; next_ < trace_.requests.size() && trace_.requests[next_].arrival_s <= clock_.Now(); ++next_) {
      ReplayedRequest& request = replay_.requests[next_];
      const Engine::Info& info = engine_.info();
      // The last token is never read.
      if (const int64_t positions = request.prompt + request.output - 1; positions > info.context) {
        request.error =
            Error::Invalid("needs ", positions, " positions and the context has ", info.context).message();
        continue;
      }
      const auto id =
          engine_.Submit({.prompt = PromptOf(trace_, next_, info.vocab), .max_tokens = request.output});
      if (id)
        running_[*id] = next_;
      else
        request.error = id.error().message();
    }
  }

  void Take(const TokenEvent& event, double now) {
    const auto it = running_.find(event.request);
    if (it == running_.end()) return;
    ReplayedRequest& request = replay_.requests[it->second];
    if (event.cached_tokens > 0) request.cached = event.cached_tokens;
    if (event.token != TokenEvent::kNoToken) {
      if (request.tokens == 0)
        request.first_s = now;
      else
        replay_.gaps.push_back(now - request.last_s);
      request.last_s = now;
      ++request.tokens;
      uint64_t& text = text_[it->second];
      text = ExtendChecksum(text, static_cast<uint64_t>(event.token));
    }
    if (!event.last) return;
    request.done = event.finish == FinishReason::kLength && request.tokens == request.output;
    if (!request.done) request.error = event.error.empty() ? Name(event.finish) : event.error;
    ++done_;
    running_.erase(it);
  }

  Engine& engine_;
  const Trace& trace_;
  ReplayClock& clock_;
  Replay replay_;
  std::vector<uint64_t> text_;
  std::unordered_map<int64_t, size_t> running_;  // by the engine's id
  size_t next_ = 0;
  int64_t done_ = 0;
};

}  // namespace

uint64_t ExtendChecksum(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

double RealClock::Now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void RealClock::WaitUntil(double seconds) {
  std::this_thread::sleep_until(start_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                             std::chrono::duration<double>(seconds)));
}

Result<Replay> PlayTrace(Engine& engine, const Trace& trace, ReplayClock& clock,
                         const std::function<void(int64_t)>& progress) {
  return Player(engine, trace, clock).Run(progress);
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  CELER_CHECK(share >= 0 && share <= 1);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<int64_t>(at);
  std::nth_element(values.begin(), values.begin() + below, values.end());
  const double low = values[below];
  if (below + 1 == std::ssize(values)) return low;
  const double high = *std::min_element(values.begin() + below + 1, values.end());
  return low + (at - static_cast<double>(below)) * (high - low);
}

Percentiles PercentilesOf(const std::vector<double>& values) {
  if (values.empty()) return {};
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .p50 = Percentile(values, 0.5),
          .p90 = Percentile(values, 0.9),
          .p99 = Percentile(values, 0.99),
          .max = *std::max_element(values.begin(), values.end())};
}

ServeMetrics Summarize(const Replay& replay, const ServeTarget& target) {
  ServeMetrics m;
  std::vector<double> ttft, token_gap, end_to_end;
  for (const ReplayedRequest& r : replay.requests) {
    if (!r.done) {
      ++m.failed;
      continue;
    }
    ++m.done;
    ttft.push_back(r.ttft());
    if (r.tokens > 1) token_gap.push_back(r.token_gap());
    end_to_end.push_back(r.end_to_end());
    m.prompt_tokens += r.prompt;
    m.cached_tokens += r.cached;
    m.output_tokens += r.tokens;
    m.seconds = std::max(m.seconds, r.last_s);
    if ((target.ttft == 0 || r.ttft() <= target.ttft) && (target.gap == 0 || r.token_gap() <= target.gap))
      ++m.good;
  }
  m.ttft = PercentilesOf(ttft);
  m.gap = PercentilesOf(replay.gaps);
  m.token_gap = PercentilesOf(token_gap);
  m.end_to_end = PercentilesOf(end_to_end);
  const auto blocks = static_cast<double>(std::max<int64_t>(1, replay.after.kv_blocks));
  for (const ReplayedStep& step : replay.steps) {
    const double seconds = step.end_s - step.begin_s,
                 used = static_cast<double>(step.kv_blocks_used) / blocks;
    m.busy_s += seconds;
    m.kv_mean += seconds * used;
    m.kv_peak = std::max(m.kv_peak, used);
  }
  if (m.busy_s > 0) m.kv_mean /= m.busy_s;
  m.steps = std::ssize(replay.steps);
  m.swaps = replay.after.swaps - replay.before.swaps;
  m.recomputations = replay.after.recomputations - replay.before.recomputations;
  m.evictions = replay.after.evictions - replay.before.evictions;
  return m;
}

LeastWork LeastWorkOf(const Replay& replay, const StepCost& cost, const Machine& machine, int64_t kv_tokens) {
  LeastWork least{.work = {.name = "all"}};
  int64_t tokens = 0, rows = 0, longest = 0;
  double held = 0;  // tokens of KV, summed over the steps that need them
  for (const ReplayedRequest& r : replay.requests) {
    if (r.tokens == 0) continue;
    const SliceShape prompt{.position = r.cached, .tokens = r.prompt - r.cached};
    const SliceShape answer{.position = r.prompt, .tokens = r.tokens - 1};
    least.work += cost.Attention({&prompt, 1});
    if (answer.tokens > 0) least.work += cost.DecodeAttention(answer);
    tokens += prompt.tokens + answer.tokens;
    rows += r.tokens;
    longest = std::max(longest, r.tokens);
    // What was found in the cache is another request's.
    const auto n = static_cast<double>(r.tokens);
    held += n * static_cast<double>(prompt.tokens) + n * (n - 1) / 2;
  }
  if (tokens == 0) return least;
  least.steps = std::max(longest, static_cast<int64_t>(std::ceil(held / static_cast<double>(kv_tokens))));
  const auto steps = static_cast<double>(least.steps);
  // Of a mixture's experts, those that steps of one size are expected to need.
  const int64_t at_once = std::max<int64_t>(1, tokens / least.steps);
  const double parts = static_cast<double>(tokens) / static_cast<double>(at_once);
  for (OperatorWork work : cost.Dense(at_once)) {
    work.bytes *= steps;
    for (auto& [type, count] : work.flops) count *= parts;
    least.work += work;
  }
  OperatorWork logits = cost.Logits(1);
  logits.bytes *= steps;
  for (auto& [type, count] : logits.flops) count *= static_cast<double>(rows);
  least.work += logits;
  least.limit = LimitOf(least.work, machine);
  return least;
}

}  // namespace celer::cli
