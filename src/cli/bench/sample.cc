#include "cli/bench/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <ctime>
#include <random>
#include <span>

#include "engine/sample/sampler.h"

namespace celer::cli {
namespace {

constexpr int64_t kVocabs[] = {32'000, 49'152, 128'256, 256'000};
constexpr size_t kRows = 4;  // in turn: a row was just written by the step before, so it is in the cache
constexpr int kSampledTokens = 64;  // of one repetition

struct Setting {
  const char* name;
  SamplingParams params;
};

std::vector<Setting> Settings() {
  SamplingParams warm;
  warm.temperature = 0.8f;
  std::vector<Setting> out = {{"greedy", {}}, {"temperature 0.8", warm}};
  const auto add = [&](const char* name, auto change) {
    SamplingParams params = warm;
    change(params);
    out.push_back({name, params});
  };
  add("+ top-p 0.95", [](SamplingParams& p) { p.top_p = 0.95f; });
  add("+ top-k 40", [](SamplingParams& p) { p.top_k = 40; });
  add("+ min-p 0.05", [](SamplingParams& p) { p.min_p = 0.05f; });
  add("+ typical-p 0.95", [](SamplingParams& p) { p.typical_p = 0.95f; });
  add("+ all four", [](SamplingParams& p) {
    p.top_p = 0.95f;
    p.top_k = 40;
    p.min_p = 0.05f;
    p.typical_p = 0.95f;
  });
  return out;
}

// Peaked: as language models write them, a bell of all tokens with a few hundred that stand out. Flat: a bell
// so narrow that thousands of tokens share the probability, as a model with random weights writes them.
std::vector<float> MakeLogits(int64_t vocab, bool peaked, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> bell(0, peaked ? 2.5f : 1.0f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& logit : logits) logit = bell(random);
  if (peaked) {
    std::uniform_int_distribution<size_t> any(0, logits.size() - 1);
    std::exponential_distribution<float> stands_out(0.5f);
    for (int i = 0; i < 300; ++i) logits[any(random)] = 8 + stands_out(random);
  }
  return logits;
}

// Every bit matters, so nothing can be left out.
uint64_t ReadOnce(std::span<const float> row) {
  constexpr size_t kLanes = 16;
  uint32_t lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] ^= std::bit_cast<uint32_t>(row[i + j]);
  uint64_t sum = 0;
  for (const uint32_t lane : lanes) sum += lane;
  return sum;
}

// The mean of kSampledTokens calls, in time of this thread: what else runs on the machine does not count.
double TimeOf(const auto& once) {
  const auto now = [] {
    timespec t = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  for (int i = 0; i < kSampledTokens; ++i) once(static_cast<size_t>(i) % kRows);
  return (now() - start) / kSampledTokens;
}

}  // namespace

double SampleResult::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

SampleReport MeasureSampling(int64_t repeat) {
  SampleReport report{.repeat = repeat, .results = {}};
  volatile uint64_t sink = 0;
  for (const int64_t vocab : kVocabs)
    for (const bool peaked : {true, false}) {
      std::vector<std::vector<float>> rows;
      for (size_t r = 0; r < kRows; ++r) rows.push_back(MakeLogits(vocab, peaked, r + 1));
      double read = TimeOf([&](size_t r) { sink = sink + ReadOnce(rows[r]); });
      for (int64_t i = 0; i < repeat; ++i)
        read = std::min(read, TimeOf([&](size_t r) { sink = sink + ReadOnce(rows[r]); }));
      for (const Setting& setting : Settings()) {
        SampleResult result{.vocab = vocab,
                            .logits = peaked ? "peaked" : "flat",
                            .setting = setting.name,
                            .seconds = {},
                            .read_seconds = read};
        Sampler sampler(setting.params, {});
        const auto once = [&](size_t r) { sink = sink + static_cast<uint64_t>(sampler.Next(rows[r]).token); };
        TimeOf(once);  // to warm up
        for (int64_t i = 0; i < repeat; ++i) result.seconds.push_back(TimeOf(once));
        report.results.push_back(std::move(result));
      }
    }
  return report;
}

std::string SampleText(const SampleReport& report) {
  Table table{.title = "choosing the next token on the CPU, one thread",
              .header = {"vocabulary", "logits", "setting", "us/token", "read once", "ratio"}};
  table.keys = 3;
  for (const SampleResult& r : report.results)
    table.rows.push_back({fmt::format("{}", r.vocab), r.logits, r.setting,
                          fmt::format("{:.1f}", 1e6 * r.median()),
                          fmt::format("{:.1f} us", 1e6 * r.read_seconds), fmt::format("{:.2f}", r.ratio())});
  table.notes.push_back(
      fmt::format("median of {} repetitions of {} tokens. peaked: logits as language models write them; "
                  "flat: thousands of "
                  "tokens share the probability. read once: the time to read the logits, from the cache they "
                  "were written "
                  "to; ratio: of it to the measured time, 1 is the limit.",
                  report.repeat, kSampledTokens));
  return TableText(table);
}

nlohmann::ordered_json SampleJson(const SampleReport& report) {
  nlohmann::ordered_json json = {{"repeat", report.repeat}, {"tokens", kSampledTokens}};
  json["results"] = nlohmann::ordered_json::array();
  for (const SampleResult& r : report.results)
    json["results"].push_back({{"vocab", r.vocab},
                               {"logits", r.logits},
                               {"setting", r.setting},
                               {"seconds", r.seconds},
                               {"seconds_per_token", r.median()},
                               {"limit_seconds", r.read_seconds},
                               {"ratio", r.ratio()}});
  return json;
}

}  // namespace celer::cli
