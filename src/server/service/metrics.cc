#include "server/service/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "server/kv_events/kv_publisher.h"

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
  Printer(const std::string& prefix, const std::string& labels) : prefix_(prefix), labels_(labels) {}

  void Type(const char* name, const char* type, const char* help) {
    out += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix_, name, help, type);
  }
  void Value(const char* name, double value, const std::string& more = "") {
    out += fmt::format("{}{}{{{}{}}} {}\n", prefix_, name, labels_, more.empty() ? "" : "," + more, value);
  }
  void Gauge(const char* name, double value, const char* help) {
    Type(name, "gauge", help);
    Value(name, value);
  }
  void Counter(const char* name, int64_t value, const char* help) {
    Total(name, static_cast<double>(value), help);
  }
  void Total(const char* name, double value, const char* help) {
    Type(name, "counter", help);
    Value(name, value);
  }
  void Series(const char* name, const Histogram& histogram, const char* help) {
    Type(name, "histogram", help);
    histogram.Print(prefix_ + name, labels_, &out);
  }

  std::string out;

 private:
  const std::string& prefix_;
  const std::string& labels_;
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

Metrics::Metrics()
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

void PrintKvEvents(const KvPublisher& events, Printer& p) {
  p.Counter("kv_event_messages_total", events.messages(), "Messages about the prefix cache.");
  p.Counter("kv_event_blocks_stored_total", events.blocks_stored(), "Blocks that they say are stored.");
  p.Counter("kv_event_blocks_removed_total", events.blocks_removed(), "Blocks that they say are removed.");
  p.Counter("kv_event_changes_dropped_total", events.dropped(),
            "Changes that the publisher was too slow for; the whole cache was published instead.");
}

void PrintSleep(int level, Printer& p) {
  p.Type("engine_sleep_state", "gauge", "1 for what holds: awake, or asleep at level 1 or 2.");
  p.Value("engine_sleep_state", level < 0 ? 1 : 0, "sleep_state=\"awake\"");
  p.Value("engine_sleep_state", level == 1 ? 1 : 0, "sleep_state=\"weights_offloaded\"");
  p.Value("engine_sleep_state", level == 2 ? 1 : 0, "sleep_state=\"discard_all\"");
}

}  // namespace

std::string Metrics::Print(const std::string& prefix, const Now& now) const {
  const EngineStats& s = now.engine;
  const std::string labels = fmt::format("model_name=\"{}\",engine=\"0\"", Label(now.model));
  Printer p(prefix, labels);
  const double usage =
      s.kv_blocks > 0 ? static_cast<double>(s.kv_blocks_used) / static_cast<double>(s.kv_blocks) : 0;
  const double hit_rate = s.looked_up_tokens > 0
                              ? static_cast<double>(s.cached_tokens) / static_cast<double>(s.looked_up_tokens)
                              : 0;
  p.Gauge("num_requests_running", static_cast<double>(s.running), "Sequences in the running batch.");
  p.Gauge("num_requests_waiting", static_cast<double>(s.waiting), "Sequences that wait to be scheduled.");
  p.Gauge("num_requests_swapped", static_cast<double>(s.swapped), "Sequences swapped out to host memory.");
  p.Gauge("kv_cache_usage_perc", usage, "Share of the KV blocks in use by sequences; 1 is all.");
  const int64_t block = s.kv_blocks > 0 ? now.info.kv_tokens / s.kv_blocks : 16;
  p.Type("cache_config_info", "gauge", "How the KV cache is laid out.");
  p.Value("cache_config_info", 1,
          fmt::format(
              "block_size=\"{}\",num_gpu_blocks=\"{}\",num_cpu_blocks=\"{}\",enable_prefix_caching=\"{}\"",
              block, s.kv_blocks, s.kv_host_blocks, now.prefix_cache ? "True" : "False"));
  // vLLM's value is a time, so that a scraper takes the series with the latest one.
  p.Type("lora_requests_info", "gauge", "LoRA adapters of the requests that run and that wait.");
  p.Value("lora_requests_info",
          std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
          fmt::format("max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
                      now.max_adapters, Label(fmt::format("{}", fmt::join(now.running_adapters, ","))),
                      Label(fmt::format("{}", fmt::join(now.waiting_adapters, ",")))));
  p.Counter("prefix_cache_queries_total", s.looked_up_tokens, "Prompt tokens looked up in the prefix cache.");
  p.Counter("prefix_cache_hits_total", s.cached_tokens, "Prompt tokens found in the prefix cache.");
  p.Counter("num_preemptions_total", s.swaps + s.recomputations, "Preempted sequences.");
  p.Counter("prompt_tokens_total", s.prompt_tokens, "Prompt tokens of the requests begun.");
  p.Counter("prompt_tokens_cached_total", s.cached_tokens, "Of those, found in the prefix cache.");
  p.Counter("generation_tokens_total", s.generated_tokens, "Tokens generated.");
  p.Counter("spec_decode_num_draft_tokens_total", s.drafted_tokens, "Drafted tokens.");
  p.Counter("spec_decode_num_accepted_tokens_total", s.accepted_tokens, "Drafted tokens that were accepted.");
  int64_t drafts = 0;
  for (const int64_t verified : s.accepted) drafts += verified;
  p.Counter("spec_decode_num_drafts_total", drafts, "Drafts that were verified.");
  p.Type("request_success_total", "counter", "Requests that ended, by reason.");
  for (const auto& [reason, count] : finished)
    p.Value("request_success_total", static_cast<double>(count), "finished_reason=\"" + reason + "\"");
  PrintSleep(now.sleep_level, p);
  // The older names, which routers still read.
  p.Gauge("gpu_cache_usage_perc", usage, "kv_cache_usage_perc by its older name.");
  p.Gauge("gpu_prefix_cache_hit_rate", hit_rate, "Hits per query of the prefix cache.");
  p.Counter("gpu_prefix_cache_queries_total", s.looked_up_tokens, "prefix_cache_queries by its older name.");
  p.Counter("gpu_prefix_cache_hits_total", s.cached_tokens, "prefix_cache_hits by its older name.");

  p.Gauge("cpu_cache_usage_perc",
          s.kv_host_blocks > 0
              ? static_cast<double>(s.kv_host_blocks_used) / static_cast<double>(s.kv_host_blocks)
              : 0,
          "Share of the host blocks in use by sequences that were swapped out.");
  p.Series("time_per_output_token_seconds", inter_token, "inter_token_latency_seconds by its older name.");

  p.Series("request_prompt_tokens", prompt_tokens, "Prompt tokens per request.");
  p.Series("request_generation_tokens", generation_tokens, "Generated tokens per request.");
  p.Series("iteration_tokens_total", IterationTokens(s), "Tokens computed per step.");
  p.Series("time_to_first_token_seconds", ttft, "From the request's arrival to its first token.");
  p.Series("inter_token_latency_seconds", inter_token, "Between two tokens of an answer.");
  p.Series("request_time_per_output_token_seconds", per_output_token, "Mean time per token after the first.");
  p.Series("e2e_request_latency_seconds", e2e, "From a request's arrival to its last token.");
  p.Series("request_queue_time_seconds", queue_time, "From submission to the first step with the request.");
  p.Series("request_inference_time_seconds", inference_time, "From there to the last token.");
  p.Series("request_prefill_time_seconds", prefill_time, "From there to the first token.");
  p.Series("request_decode_time_seconds", decode_time, "From the first token to the last.");

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
  p.Gauge("tokens_per_second", limit.tokens_per_s, "Tokens computed per second with work.");
  p.Gauge("bytes_per_second", limit.bytes_per_s, "Weights and KV that had to be read, per second with work.");
  p.Gauge("flops_per_second", limit.flops_per_s, "Arithmetic that had to be done, per second with work.");
  if (limit.ratio >= 0)
    p.Gauge("limit_ratio", limit.ratio, "Share of this machine's limit that the engine ran at; 1 is all.");
  p.Counter("engine_steps_total", s.steps, "Steps of the engine.");
  p.Total("work_bytes_total", s.work_bytes, "Weights and KV that had to be read.");
  p.Total("work_flops_total", s.work_flops, "Arithmetic that had to be done.");
  p.Total("busy_seconds_total", s.busy_seconds, "Time in which the engine had work.");
  p.Total("limit_seconds_total", s.limit_seconds,
          "What that work takes at this machine's limit; 0 if it was not measured.");
  p.Counter("kv_evictions_total", s.evictions, "Cached blocks that were evicted.");
  p.Gauge("kv_blocks_cached", static_cast<double>(s.kv_blocks_cached), "Free blocks in the prefix cache.");
  PrintKeys(now.keys, p);
  if (now.kv_events) PrintKvEvents(*now.kv_events, p);
  p.Type("http_requests_total", "counter", "Requests by route and status.");
  for (const auto& [key, count] : http_requests)
    p.Value("http_requests_total", static_cast<double>(count),
            fmt::format("route=\"{}\",status=\"{}\"", Label(key.first), key.second));
  return p.out;
}

}  // namespace celer::server
