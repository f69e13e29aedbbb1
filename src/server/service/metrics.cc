#include "server/service/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/check.h"
#include "server/kv_events/kv_publisher.h"
#include "server/kv_transfer/kv_transfer.h"

namespace celer::server {
namespace {

// vLLM's buckets, so that its dashboards' quantiles mean the same.
const std::vector<double> kTokens = {1,   2,    5,    10,   20,  50,  100, 200,
                                     500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5};
const std::vector<double> kIteration = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> kFirst = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kBetween = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,  0.3,
                                      0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10.0, 20.0, 40.0, 80.0};
const std::vector<double> kRequest = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                      30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

// A label's value: only a backslash, a quote and a line break need an escape.
std::string Label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

class Printer {
 public:
  Printer(const std::string& prefix, const std::string& model, size_t engines) : prefix_(prefix) {
    for (size_t rank = 0; rank < engines; ++rank)
      labels_.push_back(fmt::format("model_name=\"{}\",engine=\"{}\"", Label(model), rank));
  }

  void Type(const char* name, const char* type, const char* help) {
    out += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix_, name, help, type);
  }
  void Value(const char* name, double value, const std::string& more = "", size_t rank = 0) {
    out +=
        fmt::format("{}{}{{{}{}}} {}\n", prefix_, name, labels_[rank], more.empty() ? "" : "," + more, value);
  }

  // --- one for all engines ---
  void Gauge(const char* name, double value, const char* help) {
    Type(name, "gauge", help);
    Value(name, value);
  }

  void Counter(const char* name, int64_t value, const char* help) {
    Type(name, "counter", help);
    Value(name, static_cast<double>(value));
  }
  void OneSeries(const char* name, const Histogram& histogram, const char* help) {
    Type(name, "histogram", help);
    histogram.Print(prefix_ + name, labels_[0], &out);
  }

  // --- one for each engine: `of` is called with its rank ---
  template <class Of>
  void Each(const char* name, const char* type, const Of& of, const char* help) {
    Type(name, type, help);
    for (size_t rank = 0; rank < labels_.size(); ++rank) Value(name, static_cast<double>(of(rank)), "", rank);
  }
  template <class Of>
  void Gauges(const char* name, const Of& of, const char* help) {
    Each(name, "gauge", of, help);
  }
  template <class Of>
  void Counters(const char* name, const Of& of, const char* help) {
    Each(name, "counter", of, help);
  }
  template <class Of>
  void Series(const char* name, const Of& of, const char* help) {
    Type(name, "histogram", help);
    for (size_t rank = 0; rank < labels_.size(); ++rank) of(rank).Print(prefix_ + name, labels_[rank], &out);
  }

  std::string out;

 private:
  const std::string& prefix_;
  std::vector<std::string> labels_;
};

}  // namespace

void Histogram::Observe(double value) {
  Add(value, 1, value);
}

void Histogram::Add(double value, int64_t times, double sum) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket] += times;
  count_ += times;
  sum_ += sum;
}

void Histogram::Print(const std::string& name, const std::string& labels, std::string* out) const {
  int64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    *out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, below);
  }
  *out += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, count_);
}

EngineFigures::EngineFigures()
    : prompt_tokens(kTokens),
      generation_tokens(kTokens),
      ttft(kFirst),
      inter_token(kBetween),
      per_output_token(kBetween),
      e2e(kRequest),
      queue_time(kRequest),
      inference_time(kRequest),
      prefill_time(kRequest),
      decode_time(kRequest) {
  for (const char* reason : {"stop", "length", "abort", "error"}) finished[reason] = 0;
}

Metrics::Metrics() : engines(1) {
  for (const char* reason : {"queue", "tokens", "ttft", "jobs", "bytes", "key"}) rejected[reason] = 0;
}

LimitShare LimitShare::Between(const EngineStats& before, const EngineStats& now) {
  const double seconds = now.busy_seconds - before.busy_seconds;
  LimitShare share{
      .bytes_per_s = (now.work_bytes - before.work_bytes) / seconds,
      .flops_per_s = (now.work_flops - before.work_flops) / seconds,
      .tokens_per_s = static_cast<double>(now.computed_tokens - before.computed_tokens) / seconds};
  if (now.limit_seconds > 0) share.ratio = (now.limit_seconds - before.limit_seconds) / seconds;
  return share;
}

namespace {

// The engine counts by powers of two, and so are vLLM's bounds.
Histogram IterationTokens(const EngineStats& stats) {
  Histogram histogram(kIteration);
  for (size_t i = 0; i < stats.steps_by_tokens.size(); ++i)
    histogram.Add(static_cast<double>(int64_t{1} << i), stats.steps_by_tokens[i],
                  i == 0 ? static_cast<double>(stats.computed_tokens) : 0);
  return histogram;
}

void PrintKeys(const std::vector<KeyFigures>& keys, Printer& p) {
  const auto by_key = [&](const char* name, int64_t KeyFigures::*figure, const char* help) {
    if (!keys.empty()) p.Type(name, "counter", help);
    for (const KeyFigures& key : keys)
      p.Value(name, static_cast<double>(key.*figure), "key=\"" + Label(key.name) + "\"");
  };
  by_key("key_requests_total", &KeyFigures::requests, "Admitted requests by API key.");
  by_key("key_tokens_total", &KeyFigures::tokens, "Tokens of their prompts and answers.");
  by_key("key_rejected_total", &KeyFigures::rejected, "Requests above the key's limits, which got 429.");
}

using Engines = std::vector<Metrics::EngineNow>;

void PrintKvEvents(const Engines& engines, Printer& p) {
  if (!engines[0].kv_events) return;
  const auto of = [&](size_t rank) -> const KvPublisher& { return *engines[rank].kv_events; };
  p.Counters(
      "kv_event_messages_total", [&](size_t i) { return of(i).messages(); },
      "Messages about the prefix cache.");
  p.Counters(
      "kv_event_blocks_stored_total", [&](size_t i) { return of(i).blocks_stored(); },
      "Blocks that they say are stored.");
  p.Counters(
      "kv_event_blocks_removed_total", [&](size_t i) { return of(i).blocks_removed(); },
      "Blocks that they say are removed.");
  p.Counters(
      "kv_event_changes_dropped_total", [&](size_t i) { return of(i).dropped(); },
      "Changes that the publisher was too slow for; the whole cache was published instead.");
}

// By vLLM's names where it has them; its transfers are NIXL's.
void PrintKvTransfer(const KvTransfer* transfer, Printer& p) {
  if (!transfer) return;
  const KvTransferFigures f = transfer->figures();
  int64_t failed = 0;
  for (const auto& [reason, count] : f.fallbacks) failed += count;
  p.Counter("external_prefix_cache_queries_total", f.queried_tokens,
            "Prompt tokens that another server was asked for.");
  p.Counter("external_prefix_cache_hits_total", f.fetched_tokens, "Of those, fetched and used.");
  p.OneSeries("nixl_xfer_time_seconds", f.seconds, "Time of a fetch of keys and values.");
  p.OneSeries("nixl_bytes_transferred", f.bytes, "Bytes of a fetch.");
  p.Counter("nixl_num_failed_transfers_total", failed,
            "Fetches that did not bring all; the rest was computed.");
  p.Counter("nixl_num_kv_expired_reqs_total", f.expired,
            "Prompts held for another server that nobody fetched.");
  p.Type("kv_transfer_fallbacks_total", "counter", "Fetches that did not bring all, by reason.");
  for (const auto& [reason, count] : f.fallbacks)
    p.Value("kv_transfer_fallbacks_total", static_cast<double>(count), "reason=\"" + reason + "\"");
  p.Type("kv_transfer_bytes_total", "counter", "Bytes of keys and values, fetched and sent.");
  p.Value("kv_transfer_bytes_total", static_cast<double>(f.fetched_bytes), "direction=\"in\"");
  p.Value("kv_transfer_bytes_total", static_cast<double>(f.sent_bytes), "direction=\"out\"");
  p.Counter("kv_transfer_offers_total", f.offers, "Prompts that were held for another server.");
  p.Counter("kv_transfer_sent_total", f.sent, "Of those, fetched.");
  p.Counter("kv_transfer_refused_total", f.refused, "Fetches by other servers that were refused.");
  p.Gauge("kv_transfer_held", static_cast<double>(f.held), "Prompts held for other servers now.");
  p.Gauge("kv_transfer_held_blocks", static_cast<double>(f.held_blocks), "Their blocks.");
}

void PrintSleep(int level, size_t engines, Printer& p) {
  p.Type("engine_sleep_state", "gauge", "1 for what holds: awake, or asleep at level 1 or 2.");
  for (size_t i = 0; i < engines; ++i) {
    p.Value("engine_sleep_state", level < 0 ? 1 : 0, "sleep_state=\"awake\"", i);
    p.Value("engine_sleep_state", level == 1 ? 1 : 0, "sleep_state=\"weights_offloaded\"", i);
    p.Value("engine_sleep_state", level == 2 ? 1 : 0, "sleep_state=\"discard_all\"", i);
  }
}

double Share(int64_t part, int64_t of) {
  return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0;
}

// What the engines say of themselves, by vLLM's names.
void PrintEngines(const Metrics::Now& now, const std::vector<EngineFigures>& figures, Printer& p) {
  const Engines& all = now.engines;
  const auto stats = [&](size_t rank) -> const EngineStats& { return all[rank].stats; };
  const auto usage = [&](size_t i) { return Share(stats(i).kv_blocks_used, stats(i).kv_blocks); };
  const auto looked_up = [&](size_t i) { return stats(i).looked_up_tokens; };
  const auto hits = [&](size_t i) { return stats(i).cached_tokens; };
  p.Gauges(
      "num_requests_running", [&](size_t i) { return stats(i).running; }, "Sequences in the running batch.");
  p.Gauges(
      "num_requests_waiting", [&](size_t i) { return stats(i).waiting; },
      "Sequences that wait to be scheduled.");
  p.Gauges(
      "num_requests_swapped", [&](size_t i) { return stats(i).swapped; },
      "Sequences swapped out to host memory.");
  p.Gauges("kv_cache_usage_perc", usage, "Share of the KV blocks in use by sequences; 1 is all.");
  p.Type("cache_config_info", "gauge", "How the KV cache is laid out.");
  for (size_t i = 0; i < all.size(); ++i) {
    const EngineStats& s = stats(i);
    p.Value("cache_config_info", 1,
            fmt::format(
                "block_size=\"{}\",num_gpu_blocks=\"{}\",num_cpu_blocks=\"{}\",enable_prefix_caching=\"{}\"",
                s.kv_blocks > 0 ? all[i].kv_tokens / s.kv_blocks : 16, s.kv_blocks, s.kv_host_blocks,
                now.prefix_cache ? "True" : "False"),
            i);
  }
  // vLLM's value is a time, so that a scraper takes the series with the latest one.
  p.Type("lora_requests_info", "gauge", "LoRA adapters of the requests that run and that wait.");
  for (size_t i = 0; i < all.size(); ++i)
    p.Value("lora_requests_info",
            std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
            fmt::format("max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
                        now.max_adapters, Label(fmt::format("{}", fmt::join(all[i].running_adapters, ","))),
                        Label(fmt::format("{}", fmt::join(all[i].waiting_adapters, ",")))),
            i);
  p.Counters("prefix_cache_queries_total", looked_up, "Prompt tokens looked up in the prefix cache.");
  p.Counters("prefix_cache_hits_total", hits, "Prompt tokens found in the prefix cache.");
  p.Counters(
      "num_preemptions_total", [&](size_t i) { return stats(i).swaps + stats(i).recomputations; },
      "Preempted sequences.");
  p.Counters(
      "prompt_tokens_total", [&](size_t i) { return stats(i).prompt_tokens; },
      "Prompt tokens of the requests begun.");
  p.Counters("prompt_tokens_cached_total", hits, "Of those, found in the prefix cache.");
  p.Counters(
      "generation_tokens_total", [&](size_t i) { return stats(i).generated_tokens; }, "Tokens generated.");
  p.Counters(
      "spec_decode_num_draft_tokens_total", [&](size_t i) { return stats(i).drafted_tokens; },
      "Drafted tokens.");
  p.Counters(
      "spec_decode_num_accepted_tokens_total", [&](size_t i) { return stats(i).accepted_tokens; },
      "Drafted tokens that were accepted.");
  p.Counters(
      "spec_decode_num_drafts_total",
      [&](size_t i) {
        return std::accumulate(stats(i).accepted.begin(), stats(i).accepted.end(), int64_t{0});
      },
      "Drafts that were verified.");
  p.Type("request_success_total", "counter", "Requests that ended, by reason.");
  for (size_t i = 0; i < figures.size(); ++i)
    for (const auto& [reason, count] : figures[i].finished)
      p.Value("request_success_total", static_cast<double>(count), "finished_reason=\"" + reason + "\"", i);
  PrintSleep(now.sleep_level, all.size(), p);
  // The older names, which routers still read.
  p.Gauges("gpu_cache_usage_perc", usage, "kv_cache_usage_perc by its older name.");
  p.Gauges(
      "gpu_prefix_cache_hit_rate", [&](size_t i) { return Share(hits(i), looked_up(i)); },
      "Hits per query of the prefix cache.");
  p.Counters("gpu_prefix_cache_queries_total", looked_up, "prefix_cache_queries by its older name.");
  p.Counters("gpu_prefix_cache_hits_total", hits, "prefix_cache_hits by its older name.");
  p.Gauges(
      "cpu_cache_usage_perc",
      [&](size_t i) { return Share(stats(i).kv_host_blocks_used, stats(i).kv_host_blocks); },
      "Share of the host blocks in use by sequences that were swapped out.");
}

void PrintSeries(const Metrics::Now& now, const std::vector<EngineFigures>& figures, Printer& p) {
  const auto of = [&](Histogram EngineFigures::*one) {
    return [&figures, one](size_t rank) -> const Histogram& { return figures[rank].*one; };
  };
  using F = EngineFigures;
  p.Series("time_per_output_token_seconds", of(&F::inter_token),
           "inter_token_latency_seconds by its older name.");
  p.Series("request_prompt_tokens", of(&F::prompt_tokens), "Prompt tokens per request.");
  p.Series("request_generation_tokens", of(&F::generation_tokens), "Generated tokens per request.");
  p.Series(
      "iteration_tokens_total", [&](size_t rank) { return IterationTokens(now.engines[rank].stats); },
      "Tokens computed per step.");
  p.Series("time_to_first_token_seconds", of(&F::ttft), "From the request's arrival to its first token.");
  p.Series("inter_token_latency_seconds", of(&F::inter_token), "Between two tokens of an answer.");
  p.Series("request_time_per_output_token_seconds", of(&F::per_output_token),
           "Mean time per token after the first.");
  p.Series("e2e_request_latency_seconds", of(&F::e2e), "From a request's arrival to its last token.");
  p.Series("request_queue_time_seconds", of(&F::queue_time),
           "From submission to the first step with the request.");
  p.Series("request_inference_time_seconds", of(&F::inference_time), "From there to the last token.");
  p.Series("request_prefill_time_seconds", of(&F::prefill_time), "From there to the first token.");
  p.Series("request_decode_time_seconds", of(&F::decode_time), "From the first token to the last.");
}

// celer's own: how near the machine's limit they run.
void PrintWork(const Metrics::Now& now, const std::vector<EngineFigures>& figures, Printer& p) {
  const auto stats = [&](size_t rank) -> const EngineStats& { return now.engines[rank].stats; };
  const auto limit = [&](size_t rank) -> const LimitShare& { return figures[rank].limit; };
  p.Gauges(
      "tokens_per_second", [&](size_t i) { return limit(i).tokens_per_s; },
      "Tokens computed per second with work.");
  p.Gauges(
      "bytes_per_second", [&](size_t i) { return limit(i).bytes_per_s; },
      "Weights and KV that had to be read, per second with work.");
  p.Gauges(
      "flops_per_second", [&](size_t i) { return limit(i).flops_per_s; },
      "Arithmetic that had to be done, per second with work.");
  if (std::any_of(figures.begin(), figures.end(),
                  [](const EngineFigures& f) { return f.limit.ratio >= 0; })) {
    p.Type("limit_ratio", "gauge", "Share of this machine's limit that the engine ran at; 1 is all.");
    for (size_t i = 0; i < figures.size(); ++i)
      if (limit(i).ratio >= 0) p.Value("limit_ratio", limit(i).ratio, "", i);
  }
  p.Counters(
      "engine_steps_total", [&](size_t i) { return stats(i).steps; }, "Steps of the engine.");
  p.Counters(
      "work_bytes_total", [&](size_t i) { return stats(i).work_bytes; },
      "Weights and KV that had to be read.");
  p.Counters(
      "work_flops_total", [&](size_t i) { return stats(i).work_flops; }, "Arithmetic that had to be done.");
  p.Counters(
      "busy_seconds_total", [&](size_t i) { return stats(i).busy_seconds; },
      "Time in which the engine had work.");
  p.Counters(
      "limit_seconds_total", [&](size_t i) { return stats(i).limit_seconds; },
      "What that work takes at this machine's limit; 0 if it was not measured.");
  p.Counters(
      "kv_evictions_total", [&](size_t i) { return stats(i).evictions; }, "Cached blocks that were evicted.");
  p.Gauges(
      "kv_blocks_cached", [&](size_t i) { return stats(i).kv_blocks_cached; },
      "Free blocks in the prefix cache.");
}

}  // namespace

std::string Metrics::Print(const std::string& prefix, const Now& now) const {
  CELER_CHECK_EQ(now.engines.size(), engines.size());
  Printer p(prefix, now.model, engines.size());
  PrintEngines(now, engines, p);
  PrintSeries(now, engines, p);
  p.Gauge("lora_adapters", static_cast<double>(now.adapters), "LoRA adapters that are loaded.");
  p.Gauge("lora_adapter_bytes", static_cast<double>(now.adapter_bytes),
          "Memory of LoRA adapters, with unloaded ones that a request still uses.");
  p.Gauge("healthy", now.healthy ? 1 : 0, "1 if /health says 200.");
  p.Gauge("open_connections", static_cast<double>(now.connections), "Connections of clients.");
  p.Gauge("requests_preparing", static_cast<double>(now.jobs),
          "Requests being read, rendered and tokenized.");
  p.Gauge("request_body_bytes", static_cast<double>(now.body_bytes), "Bytes of the requests in flight.");
  p.Type("requests_rejected_total", "counter", "Requests that got 429, by reason.");
  for (const auto& [reason, count] : rejected)
    p.Value("requests_rejected_total", static_cast<double>(count), "reason=\"" + reason + "\"");
  PrintWork(now, engines, p);
  PrintKeys(now.keys, p);
  PrintKvEvents(now.engines, p);
  PrintKvTransfer(now.kv_transfer, p);
  p.Type("http_requests_total", "counter", "Requests by route and status.");
  for (const auto& [key, count] : http_requests)
    p.Value("http_requests_total", static_cast<double>(count),
            fmt::format("route=\"{}\",status=\"{}\"", Label(key.first), key.second));
  return p.out;
}

}  // namespace celer::server
