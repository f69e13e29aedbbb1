// Prometheus metrics, with vLLM's names and meanings, so that its dashboards and routers work.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "celer/engine.h"

namespace celer::server {

class KvPublisher;
class KvTransfer;

// What a key of --key-limits has had so far.
struct KeyFigures {
  std::string name;  // never the key
  int64_t requests = 0, rejected = 0, tokens = 0;
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void Observe(double value);
  // As if `times` values had been observed that are in the same bucket as `value` and sum up to `sum`.
  void Add(double value, int64_t times, double sum);
  // The lines of one series. `labels`: as in a="b",c="d".
  void Print(const std::string& name, const std::string& labels, std::string* out) const;
  int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;   // ascending; the last bucket is infinity
  std::vector<int64_t> counts_;  // per bucket, not summed up
  int64_t count_ = 0;
  double sum_ = 0;
};

// How fast the engine was while it had work, and how near the machine's limit that is.
struct LimitShare {
  double ratio = -1;  // below 0: unknown, this machine was not measured (celer probe)
  double bytes_per_s = 0, flops_per_s = 0, tokens_per_s = 0;

  // `now` is later than `before`, and busy for longer.
  static LimitShare Between(const EngineStats& before, const EngineStats& now);
};

// Of the requests that one engine ran.
struct EngineFigures {
  EngineFigures();

  Histogram prompt_tokens, generation_tokens, ttft, inter_token, per_output_token, e2e, queue_time,
      inference_time, prefill_time, decode_time;
  std::map<std::string, int64_t> finished;  // by reason
  LimitShare limit;
};

// All on the loop's thread.
struct Metrics {
  Metrics();

  std::vector<EngineFigures> engines;                            // by rank; one at least
  std::map<std::pair<std::string, int>, int64_t> http_requests;  // by route and status
  std::map<std::string, int64_t> rejected;                       // with 429, by reason

  struct EngineNow {
    EngineStats stats = {};
    int64_t kv_tokens = 0;
    // LoRA adapters by name, of requests that run and that wait.
    std::set<std::string> running_adapters = {}, waiting_adapters = {};
    const KvPublisher* kv_events = nullptr;  // may be none
  };
  struct Now {
    std::string model;
    std::vector<EngineNow> engines;  // as many as above
    bool prefix_cache = true;
    int64_t connections = 0, body_bytes = 0, jobs = 0;
    bool healthy = false;
    // LoRA adapters: how many are loaded, may be, and their bytes.
    int64_t adapters = 0, max_adapters = 0, adapter_bytes = 0;
    std::vector<KeyFigures> keys = {};
    int sleep_level = -1;                     // -1: awake
    const KvTransfer* kv_transfer = nullptr;  // may be none
  };
  // What belongs to an engine has its rank as the label `engine`, the rest that of the first.
  std::string Print(const std::string& prefix, const Now& now) const;
};

}  // namespace celer::server
