#include "server/service/key_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <sstream>

#include "io/json/json.h"

namespace celer::server {
namespace {

constexpr double kMost = 1e12;

// Requests at once, also of a key that may have less than one per minute.
double RoomOf(const KeyLimits::Key& key) {
  return std::max(1.0, key.requests_per_minute);
}

// "rpm=60": a number from `low` on.
bool ReadNumber(std::string_view text, double low, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= low && *out <= kMost;
}

// The words behind the key; what is wrong with them, or "".
std::string ReadFields(std::istringstream& words, KeyLimits::Key* key) {
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals),
                      value = equals == std::string::npos ? "" : word.substr(equals + 1);
    bool valid = false;
    if (name == "name") {
      key->figures.name = value;
      valid = !value.empty() && value.size() <= 64;
    } else if (name == "rpm") {
      valid = ReadNumber(value, 0, &key->requests_per_minute);
    } else if (name == "tpm") {
      valid = ReadNumber(value, 0, &key->tokens_per_minute);
    } else if (name == "weight") {
      valid = ReadNumber(value, 1e-3, &key->weight);
    } else {
      return "has the unknown field " + Quoted(name) + "; name, rpm, tpm and weight are known";
    }
    if (!valid)
      return "has " + name + "=" + Quoted(value) +
             (name == "name"     ? ", expected 1 to 64 characters"
              : name == "weight" ? ", expected a number from 0.001 on"
                                 : ", expected a number per minute, or 0 for no limit");
  }
  return key->figures.name.empty() ? "has no name=NAME, which metrics and messages call the key by" : "";
}

}  // namespace

Result<KeyLimits> KeyLimits::Load(const std::filesystem::path& file, const ApiKeys& keys) {
  CELER_ASSIGN(const std::string text, ReadTextFile(file, size_t{1} << 20));
  std::vector<std::optional<Key>> by_key(keys.size());
  std::optional<Key> others;
  std::set<std::string> names;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    std::string key;
    if (!(words >> key) || key[0] == '#') continue;
    // A message must not show the key.
    const auto wrong = [&](const std::string& what) {
      return Error::Invalid(file.string(), ": line ", number, " ", what);
    };
    Key limits;
    if (const std::string what = ReadFields(words, &limits); !what.empty()) return wrong(what);
    if (!names.insert(limits.figures.name).second) return wrong("has the name of an earlier line");
    const std::optional<size_t> known = keys.Find(key);
    if (key != "*" && !known) return wrong("has a key that --api-key-file does not have; add it there");
    std::optional<Key>& place = known ? by_key[*known] : others;
    if (place) return wrong("has the key of an earlier line");
    place = std::move(limits);
  }
  KeyLimits made;
  for (size_t i = 0; i < by_key.size(); ++i) {
    Key key = by_key[i].value_or(others.value_or(Key{.figures = {.name = "key"}}));
    if (!by_key[i]) {
      const std::string common = key.figures.name + "-";
      size_t suffix = i + 1;  // a line of the file may have this very name
      while (!names.insert(common + std::to_string(suffix)).second) suffix += by_key.size();
      key.figures.name = common + std::to_string(suffix);
    }
    key.requests_left = RoomOf(key);
    key.tokens_left = key.tokens_per_minute;
    made.keys_.push_back(std::move(key));
  }
  return made;
}

std::vector<KeyFigures> KeyLimits::figures() const {
  std::vector<KeyFigures> figures;
  for (const Key& key : keys_) figures.push_back(key.figures);
  return figures;
}

Refusal KeyLimits::Check(size_t key, Clock::time_point now, Admission& admission) {
  const double minutes =
      filled_ == Clock::time_point() ? 0 : std::chrono::duration<double>(now - filled_).count() / 60;
  filled_ = now;
  for (Key& one : keys_) {
    one.requests_left = std::min(RoomOf(one), one.requests_left + minutes * one.requests_per_minute);
    one.tokens_left = std::min(one.tokens_per_minute, one.tokens_left + minutes * one.tokens_per_minute);
  }
  Key& k = keys_[key];
  const auto refuse = [&](const char* what, double limit, double missing) {
    ++k.figures.rejected;
    return admission.TooManyRequests(
        "key", fmt::format("{} may have {} {} per minute (--key-limits)", k.figures.name, limit, what),
        60 * missing / limit);
  };
  if (k.requests_per_minute > 0 && k.requests_left < 1)
    return refuse("requests", k.requests_per_minute, 1 - k.requests_left);
  if (k.tokens_per_minute > 0 && k.tokens_left <= 0)
    return refuse("tokens", k.tokens_per_minute, 1 - k.tokens_left);
  return {};
}

int KeyLimits::Take(size_t key, int64_t prompt_tokens) {
  Key& k = keys_[key];
  const auto tokens = static_cast<double>(prompt_tokens);
  ++k.figures.requests;
  k.figures.tokens += prompt_tokens;
  k.requests_left -= 1;
  k.tokens_left -= tokens;
  k.virtual_time = std::max(k.virtual_time, now_running_);
  const double place = k.virtual_time / kTokensPerPlace;
  k.virtual_time += tokens / k.weight;
  return static_cast<int>(std::min<double>(place, std::numeric_limits<int>::max()));
}

void KeyLimits::Begin(int place) {
  now_running_ = std::max(now_running_, place * kTokensPerPlace);
}

void KeyLimits::End(size_t key, int64_t answer_tokens) {
  Key& k = keys_[key];
  k.figures.tokens += answer_tokens;
  k.tokens_left -= static_cast<double>(answer_tokens);
  k.virtual_time += static_cast<double>(answer_tokens) / k.weight;
}

}  // namespace celer::server
