// vLLM's sleep mode: memory is given back while nothing is asked, and the process stays.
//
// Level 0 takes no requests. Level 1 also empties the KV, and gives back its memory and the pages of mapped weights; on a
// device other than the CPU, the weights' memory, too. Level 2 gives back everything. What is not there any more is loaded
// again by /wake_up.
#include <algorithm>

#include "base/log.h"
#include "device/allocator.h"
#include "engine/loop/engine_internals.h"
#include "server/service/service.h"

namespace celer::server {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);

// The values of "name=value&...", none of which needs an escape.
std::vector<std::string> Values(std::string_view query, std::string_view name) {
  std::vector<std::string> values;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=')
      values.emplace_back(pair.substr(name.size() + 1));
  }
  return values;
}

// Other parameters are refused: a slip in "mode=wait" would end all requests.
Refusal OnlyParams(std::string_view query, std::initializer_list<std::string_view> once,
                   std::string_view repeated = {}) {
  std::vector<std::string_view> seen;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::string_view name = pair.substr(0, pair.find('='));
    if (name.empty() && pair.empty()) continue;
    const bool known = std::find(once.begin(), once.end(), name) != once.end();
    if (!known && (name != repeated || repeated.empty())) return NotSupported(name, "");
    if (known && std::find(seen.begin(), seen.end(), name) != seen.end())
      return ApiError{.message = std::string(name) + " is given twice, expected once",
                      .param = std::string(name)};
    seen.push_back(name);
  }
  return {};
}

ApiError Wrong(const char* param, const std::string& value, const char* expected) {
  return {.message = std::string(param) + " is " + Quoted(value) + ", expected " + expected, .param = param};
}

}  // namespace

void Service::SendOutcome(const std::shared_ptr<Exchange>& exchange, const Refusal& refusal) {
  if (!refusal) return exchange->Send({.content_type = ""});
  exchange->note = refusal->message;
  exchange->Send(refusal->ToResponse(FormOf(exchange->request())));
}

Refusal Service::CheckSleepMode(const HttpRequest& request) const {
  if (!options_.sleep_mode)
    return ApiError{.status = 404,
                    .message = request.path +
                               " is off, because every client could stop the others; start the server with "
                               "--enable-sleep-mode",
                    .code = "not_found"};
  if (sleep_.changing)
    return ApiError{.status = 409,
                    .message = "the server is just falling asleep or waking up",
                    .code = "sleep_changes",
                    .retry_after = 1};
  if (state_ == State::kReady) return {};
  return CheckReady();
}

void Service::IsSleeping(const std::shared_ptr<Exchange>& exchange) {
  exchange->Send({.body = Dump(Json{{"is_sleeping", sleep_.level >= 0}})});
}

void Service::SleepRoute(const std::shared_ptr<Exchange>& exchange) {
  const std::string& query = exchange->request().query;
  const std::vector<std::string> levels = Values(query, "level"), modes = Values(query, "mode");
  const std::string level = levels.empty() ? "1" : levels.back(),
                    mode = modes.empty() ? "abort" : modes.back();
  Refusal refusal = CheckSleepMode(exchange->request());
  if (!refusal) refusal = OnlyParams(query, {"level", "mode"});
  if (!refusal && level != "0" && level != "1" && level != "2") refusal = Wrong("level", level, "0, 1 or 2");
  if (!refusal && mode != "abort" && mode != "wait")
    refusal =
        Wrong("mode", mode, "abort, which ends the requests in flight, or wait, which lets them finish");
  const int wanted = level[0] - '0';
  if (refusal || wanted <= sleep_.level) return SendOutcome(exchange, refusal);
  sleep_.level = wanted;  // no request is taken from now on
  sleep_.changing = true;
  sleep_.awake_tags.clear();
  log::Info("sleeping at level {}: {} requests in flight", wanted, generations_.size());
  if (mode == "abort")
    while (!generations_.empty()) {
      const std::shared_ptr<Generation> generation = generations_.begin()->second;
      generation->Fail(
          {.status = 503, .message = "the server was put to sleep", .code = "sleeping", .retry_after = 1});
      generation->Cancel();
      End(*generation);
    }
  FallAsleep(exchange);
}

void Service::FallAsleep(std::shared_ptr<Exchange> exchange) {
  if (state_ == State::kDraining || state_ == State::kFaulted) {
    sleep_ = {};
    return SendOutcome(exchange, CheckReady());
  }
  if (!generations_.empty()) {
    sleep_.timer = loop_.After(kPoll, [this, exchange] { FallAsleep(exchange); });
    return;
  }
  if (sleep_.level == 0 || !replicas_) return EndSleepChange(exchange, {});
  const bool release = sleep_.level == 2 || !replicas_->engine(0).info().device.starts_with("cpu");
  workers_->Post([this, release, exchange = std::move(exchange),
                  replicas = release ? std::exchange(replicas_, nullptr) : replicas_,
                  alive = std::weak_ptr<int>(alive_)]() mutable {
    for (int64_t rank = 0; rank < replicas->size(); ++rank) {
      Status discarded;
      const Status ran =
          replicas->engine(rank).Run([&](Engine& of) { discarded = EngineInternals::DiscardKv(of); });
      if (ran && !discarded) log::Warning("going to sleep: {}", discarded.error().message());
    }
    replicas.reset();
    // The pools of GPUs keep freed memory for the next allocation; other programs wait for it now.
    const size_t bytes = release ? ReleaseCachedMemory() : 0;
    if (bytes > 0) log::Info("{} went back to the GPU's driver", FormatBytes(bytes));
    // The exchange belongs to the loop's thread, and must not be destroyed here.
    loop_.Post([this, exchange = std::move(exchange), alive] {
      if (!alive.expired()) EndSleepChange(exchange, {});
    });
  });
}

void Service::EndSleepChange(const std::shared_ptr<Exchange>& exchange, const Refusal& refusal) {
  sleep_.changing = false;
  sleep_.timer.reset();
  log::Info("{}", sleep_.level < 0 ? "awake" : "asleep");
  SendOutcome(exchange, refusal);
}

void Service::WakeRoute(const std::shared_ptr<Exchange>& exchange) {
  Refusal refusal = CheckSleepMode(exchange->request());
  if (!refusal) refusal = OnlyParams(exchange->request().query, {}, "tags");
  const std::vector<std::string> tags = Values(exchange->request().query, "tags");
  for (const std::string& tag : tags)
    if (!refusal && tag != "weights" && tag != "kv_cache" && tag != "scheduling")
      refusal = Wrong("tags", tag, "weights, kv_cache or scheduling");
  if (refusal || sleep_.level < 0) return SendOutcome(exchange, refusal);
  // All that sleeps comes back with the last of its parts.
  sleep_.awake_tags.insert(tags.begin(), tags.end());
  const bool scheduling = sleep_.level == 0 && sleep_.awake_tags.contains("scheduling");
  const bool both = sleep_.awake_tags.contains("weights") && sleep_.awake_tags.contains("kv_cache");
  if (!tags.empty() && !scheduling && !both) return SendOutcome(exchange, {});
  sleep_.awake_tags.clear();
  if (replicas_) {
    sleep_.level = -1;
    return EndSleepChange(exchange, {});
  }
  sleep_.changing = true;
  Load([this, exchange](const Status& loaded) {
    if (loaded) {
      sleep_.level = -1;
      return EndSleepChange(exchange, {});
    }
    // Asleep as before, so that waking up may be tried again.
    if (state_ == State::kLoading) state_ = State::kReady;
    log::Warning("the model could not be loaded: {}", loaded.error().message());
    EndSleepChange(exchange, ApiError{.status = 500, .message = loaded.error().message()});
  });
}

}  // namespace celer::server
