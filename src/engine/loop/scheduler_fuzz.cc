// Fuzzes the engine: the bytes choose the size of its pool, the token budget of its steps, and a series of
// requests with beams, answers, priorities and deadlines that are submitted and cancelled. No series may leak
// a block, break an invariant, or starve a request.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>

#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

constexpr int64_t kContext = 72;
constexpr int kMostRequests = 24;

// Zeros behind the end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  int Below(int n) { return empty() ? 0 : data_[at_++] % n; }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  __builtin_trap();
}

std::unique_ptr<Engine> EngineOf(Bytes& bytes) {
  SimulatedRunner::Options runner{.model = {.vocab = 40, .seed = static_cast<uint64_t>(bytes.Below(4))}};
  runner.info.config.hidden = 4;
  runner.info.kv_blocks = KvBlocksFor(kContext) + bytes.Below(32);
  runner.info.kv_host_blocks = bytes.Below(24);
  runner.info.kv_bytes_per_token = 64;
  runner.info.context = kContext;
  runner.runs_ahead = bytes.Below(2) == 1;
  EngineOptions options{.chunk = 1 + bytes.Below(40), .mixed_chunk = bytes.Below(12)};
  options.prefix_cache = bytes.Below(2) == 0;
  options.preemption = static_cast<Preemption>(bytes.Below(3));
  std::unique_ptr<Speculator> speculator;
  if (const int depth = bytes.Below(8); depth > 3)
    speculator = std::make_unique<Speculator>(Speculator::Options{.depth = depth, .always = true});
  const int64_t starvation_steps = 1 + bytes.Below(200);
  auto engine = EngineInternals::Make(std::make_unique<SimulatedRunner>(std::move(runner)), options,
                                      std::move(speculator));
  EngineInternals::SetStarvationSteps(*engine, starvation_steps);
  return engine;
}

Request RequestOf(Bytes& bytes) {
  Request request;
  const int family = bytes.Below(3), prompt = 1 + bytes.Below(kContext - 1);
  for (int i = 0; i < prompt; ++i) request.prompt.push_back((family + i * i) % 40);
  request.max_tokens = 1 + bytes.Below(kContext);
  request.priority = bytes.Below(3);
  if (bytes.Below(2) == 1) request.stop_tokens = {bytes.Below(40)};
  switch (bytes.Below(6)) {
    case 0:
      request.n = 1 + bytes.Below(6);
      request.best_of = bytes.Below(2) == 0 ? 0 : request.n + bytes.Below(3);
      request.sampling.temperature = 1;
      break;
    case 1:
      request.pooling = Pooling::kMean;
      break;
    case 2:
      request.prompt_logprobs = 1;
      [[fallthrough]];
    case 3:
    case 4:
      request.beam.width = 1 + bytes.Below(16);
      request.n = 1 + bytes.Below(request.beam.width);
      request.beam.early_stopping = static_cast<BeamSearch::EarlyStopping>(bytes.Below(3));
      break;
    default:
      break;
  }
  return request;
}

struct Clients {
  std::unique_ptr<Engine> engine;
  std::map<int64_t, int> open = {};  // by request: the answers that have not ended
  int64_t submitted = 0;
  int idle = 0;

  void Step() {
    const EngineStats before = engine->stats();
    for (const TokenEvent& event : engine->Step()) {
      const auto it = open.find(event.request);
      if (it == open.end()) Fail("an event of a request that has ended");
      if (event.finish == FinishReason::kError) Fail(event.error);
      if (event.finish != FinishReason::kNone && --it->second < 0) Fail("an answer ends twice");
      if (event.last != (it->second == 0)) Fail("the last event is not that of the last answer");
      if (event.last) open.erase(it);
    }
    if (engine->fault()) Fail(engine->fault()->message());
    if (const std::string flaw = EngineInternals::CheckInvariants(*engine); !flaw.empty()) Fail(flaw);
    const bool idles = before.running + before.waiting > 0 && engine->stats().steps == before.steps;
    idle = idles ? idle + 1 : 0;
    if (idle > 1) Fail("no sequence makes progress");
  }
};

void Run(Bytes bytes) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point later = Clock::now() + std::chrono::hours(100);
  Clients clients{EngineOf(bytes)};
  for (int deadlines = 0; !bytes.empty();) {
    switch (const int command = bytes.Below(16)) {
      case 0:
      case 1:
      case 2: {
        if (clients.submitted >= kMostRequests) break;
        Request request = RequestOf(bytes);
        if (command == 2) request.deadline = later + std::chrono::seconds(deadlines + bytes.Below(4));
        const int answers = request.n;
        const auto id = clients.engine->Submit(std::move(request));
        if (!id) break;
        clients.open[*id] = answers;
        ++clients.submitted;
        break;
      }
      case 3:
        clients.engine->Cancel(1 + bytes.Below(kMostRequests));
        clients.idle = 0;
        break;
      case 4:
        EngineInternals::ExpireDeadlines(*clients.engine, later + std::chrono::seconds(++deadlines));
        clients.idle = 0;
        break;
      default:
        for (int i = 0; i < command && clients.engine->HasWork(); ++i) clients.Step();
    }
  }
  // At worst they run one after the other, recomputed for every token.
  for (int step = 0; clients.engine->HasWork(); ++step) {
    if (step > 400000) Fail("the requests never end");
    clients.Step();
  }
  const EngineStats stats = clients.engine->stats();
  if (!clients.open.empty()) Fail("a request never ended");
  if (stats.kv_blocks_used + stats.kv_host_blocks_used + stats.running + stats.waiting > 0)
    Fail("something is left");
}

}  // namespace
}  // namespace celer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  celer::Run({data, std::min<size_t>(size, 2048)});
  return 0;
}
