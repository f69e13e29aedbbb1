#include "loadtest/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <list>
#include <optional>
#include <unordered_map>

#include "base/escape.h"
#include "base/split_mix.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "loadtest/http/gzip.h"

namespace celer::cli {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr int64_t kMaxTraceTokens = int64_t{1} << 24;
constexpr int64_t kMaxLine = 16 << 20;
constexpr double kMooncakeBlock = 512;
constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

std::string ShownLine(std::string_view text) {
  constexpr size_t kMost = 40;
  return Escaped(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "");
}

template <class T>
bool ReadNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// "2023-11-16 18:17:03.9799600", also with +00:00 behind, in seconds since 1970.
std::optional<double> ReadTime(std::string_view text) {
  if (text.ends_with("+00:00")) text.remove_suffix(6);
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || (text[10] != ' ' && text[10] != 'T') ||
      text[13] != ':' || text[16] != ':')
    return std::nullopt;
  int year = 0;
  unsigned month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!ReadNumber(text.substr(0, 4), &year) || !ReadNumber(text.substr(5, 2), &month) ||
      !ReadNumber(text.substr(8, 2), &day) || !ReadNumber(text.substr(11, 2), &hour) ||
      !ReadNumber(text.substr(14, 2), &minute) || !ReadNumber(text.substr(17, 2), &second))
    return std::nullopt;
  double fraction = 0;
  if (text.size() > 19) {
    const std::string_view digits = text.substr(20);
    uint64_t value = 0;
    if (text[19] != '.' || digits.size() > 9 || !ReadNumber(digits, &value)) return std::nullopt;
    fraction = static_cast<double>(value) * std::pow(10, -static_cast<double>(digits.size()));
  }
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86400 + hour * 3600 + minute * 60 + second + fraction;
}

Result<TraceRequest> ParseAzure(std::string_view line, const std::string& where) {
  TraceRequest request;
  const size_t first = line.find(','), second = line.find(',', first + 1);
  if (first == line.npos || second == line.npos || line.find(',', second + 1) != line.npos)
    return Error::Corrupt(where, ": '", ShownLine(line), "' is not ", kAzureHeader);
  const std::optional<double> time = ReadTime(line.substr(0, first));
  if (!time)
    return Error::Corrupt(where, ": TIMESTAMP is '", ShownLine(line.substr(0, first)),
                          "', expected one like 2023-11-16 18:17:03.9799600");
  request.arrival_s = *time;
  const auto tokens = [&](const char* name, std::string_view text, int64_t* into) -> Status {
    if (ReadNumber(text, into) && *into >= 1 && *into <= kMaxTraceTokens) return {};
    return Error::Corrupt(where, ": ", name, " is '", ShownLine(text), "', expected 1 to ", kMaxTraceTokens);
  };
  CELER_RETURN_IF_ERROR(tokens("ContextTokens", line.substr(first + 1, second - first - 1), &request.prompt));
  CELER_RETURN_IF_ERROR(tokens("GeneratedTokens", line.substr(second + 1), &request.output));
  return request;
}

Result<TraceRequest> ParseMooncake(std::string_view line, const std::string& where) {
  CELER_ASSIGN(const nlohmann::json json, ParseJson(line, where));
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, where));
  TraceRequest request;
  CELER_ASSIGN(const double milliseconds, fields.GetDouble("timestamp"));
  constexpr double kLongest = 1e15;
  if (!(milliseconds >= 0 && milliseconds <= kLongest))
    return Error::Corrupt(where, ": 'timestamp' is ", milliseconds, ", expected milliseconds from 0 on");
  request.arrival_s = milliseconds / 1e3;
  CELER_ASSIGN(request.prompt, fields.GetInt("input_length", 1, kMaxTraceTokens));
  CELER_ASSIGN(request.output, fields.GetInt("output_length", 1, kMaxTraceTokens));
  if (!fields.Has("hash_ids")) return request;
  CELER_ASSIGN(request.hashes, fields.GetInts("hash_ids"));
  const auto blocks = static_cast<size_t>(std::ceil(static_cast<double>(request.prompt) / kMooncakeBlock));
  if (request.hashes.size() != blocks)
    return Error::Corrupt(where, ": 'hash_ids' has ", request.hashes.size(), " blocks, but 'input_length' ",
                          request.prompt, " is ", blocks, " blocks of 512 tokens");
  return request;
}

int64_t ScaledCount(int64_t tokens, double scale) {
  return std::clamp<int64_t>(std::llround(static_cast<double>(tokens) * scale), 1, kMaxTraceTokens);
}

}  // namespace

Result<Trace> ReadTrace(const std::filesystem::path& path) {
  CELER_ASSIGN(const std::string text, ReadMaybeGzip(path, kMaxBytes));
  return ParseTrace(text, path.string());
}

Result<Trace> ParseTrace(std::string_view text, const std::string& source) {
  Trace trace{.name = source};
  std::optional<bool> csv;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", source, number);
    if (std::ssize(line) > kMaxLine) return Error::Corrupt(where, ": ", line.size(), " bytes in one line");
    if (!csv) {
      csv = !line.starts_with('{');
      if (*csv && line != kAzureHeader)
        return Error::Corrupt(where, ": '", ShownLine(line), "' begins neither a CSV of ", kAzureHeader,
                              " nor JSON lines with timestamp, input_length and output_length");
      if (*csv) continue;
    }
    CELER_ASSIGN(TraceRequest request, *csv ? ParseAzure(line, where) : ParseMooncake(line, where));
    trace.requests.push_back(std::move(request));
  }
  if (trace.requests.empty()) return Error::Corrupt(source, ": holds no requests");
  if (!*csv) trace.block_tokens = kMooncakeBlock;
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  const double start = trace.requests.front().arrival_s;
  for (TraceRequest& request : trace.requests) request.arrival_s -= start;
  return trace;
}

Trace PoissonTrace(double rate, int64_t count, int64_t prompt, int64_t output, uint64_t seed) {
  Trace trace{.name = fmt::format("random arrivals, {}/s", FormatNumber(rate))};
  double now = 0;
  for (int64_t i = 0; i < count; ++i) {
    trace.requests.push_back({.arrival_s = now, .prompt = prompt, .output = output});
    const double uniform =
        static_cast<double>(SplitMix64(SplitMix64(seed) + static_cast<uint64_t>(i)) >> 11) *
        0x1p-53;  // below 1
    now += -std::log1p(-uniform) / rate;
  }
  return trace;
}

Trace UntimedTrace(int64_t count, int64_t prompt, int64_t output) {
  return {.name = "one after another",
          .requests = {static_cast<size_t>(count), {.prompt = prompt, .output = output}}};
}

Trace Scaled(Trace trace, const TraceScale& scale) {
  if (scale.requests > 0 && scale.requests < std::ssize(trace.requests))
    trace.requests.resize(scale.requests);
  for (TraceRequest& request : trace.requests) {
    request.arrival_s /= scale.rate;
    request.prompt = ScaledCount(request.prompt, scale.length);
    request.output = ScaledCount(request.output, scale.length);
  }
  trace.block_tokens *= scale.length;
  return trace;
}

std::vector<int32_t> PromptOf(const Trace& trace, size_t i, int64_t vocab) {
  const TraceRequest& request = trace.requests[i];
  std::vector<int32_t> tokens(static_cast<size_t>(request.prompt));
  const auto fill = [&](int64_t from, int64_t to, uint64_t text) {
    for (int64_t at = from; at < to; ++at)
      tokens[at] = static_cast<int32_t>(SplitMix64(text + static_cast<uint64_t>(at - from)) %
                                        static_cast<uint64_t>(vocab));
  };
  // What no hash covers is this request's own.
  int64_t covered = 0;
  for (size_t k = 0; k < request.hashes.size(); ++k) {
    const int64_t end =
        std::min(request.prompt, static_cast<int64_t>(static_cast<double>(k + 1) * trace.block_tokens));
    fill(covered, end, SplitMix64(static_cast<uint64_t>(request.hashes[k])));
    covered = std::max(covered, end);
  }
  fill(covered, request.prompt, SplitMix64(~static_cast<uint64_t>(i)));
  return tokens;
}

namespace {

// Prefixes that end with a whole block, by their hash.
class BlockCache {
 public:
  explicit BlockCache(int64_t capacity) : capacity_(capacity) {}

  bool Has(uint64_t prefix) const { return places_.contains(prefix); }
  void Use(uint64_t prefix) {
    const auto [place, is_new] = places_.try_emplace(prefix, order_.end());
    if (capacity_ == 0) return;  // nobody asks for the order
    if (!is_new) order_.erase(place->second);
    place->second = order_.insert(order_.end(), prefix);
    if (std::ssize(places_) <= capacity_) return;
    places_.erase(order_.front());
    order_.pop_front();
  }

 private:
  int64_t capacity_;
  std::list<uint64_t> order_;  // the longest unused first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

}  // namespace

std::vector<int64_t> SharedTokens(const Trace& trace, int64_t vocab, int64_t block, int64_t capacity) {
  BlockCache cache(capacity);
  std::vector<int64_t> shared;
  std::vector<uint64_t> prefixes;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const std::vector<int32_t> tokens = PromptOf(trace, i, vocab);
    const auto count = static_cast<int64_t>(tokens.size());
    prefixes.clear();
    uint64_t hash = 0;
    for (int64_t at = 0; at < count; ++at) {
      hash = SplitMix64(hash ^ SplitMix64(static_cast<uint64_t>(tokens[at])));
      if ((at + 1) % block == 0) prefixes.push_back(hash);
    }
    int64_t found = 0;
    // The last token runs in any case, and its block is whole only with it.
    while (found < std::ssize(prefixes) && (found + 1) * block < count && cache.Has(prefixes[found])) ++found;
    shared.push_back(found * block);
    // The answer is nobody else's, but it takes room.
    if (capacity > 0)
      for (int64_t at = (count / block + 1) * block; at <= count + trace.requests[i].output; at += block)
        cache.Use(SplitMix64(hash + static_cast<uint64_t>(at)));
    // A block is of no use without those before it: they go last.
    for (auto prefix = prefixes.rbegin(); prefix != prefixes.rend(); ++prefix) cache.Use(*prefix);
  }
  return shared;
}

}  // namespace celer::cli
