// Fairness between API keys: how many requests and tokens a key may have per minute, and its share while requests wait. On
// the loop's thread.
//
// Each limit is a token bucket of one minute. A request takes its prompt's tokens when it is admitted and its answer's when
// it ends, so that a bucket may go below zero; nothing is admitted until it is above again.
//
// Waiting requests are ordered by start-time fair queuing: a key's virtual time advances by tokens / weight, and does not
// fall behind that of what runs. With twice the weight a key gets twice the tokens, if it asks for them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/api/api_keys.h"
#include "server/service/admission.h"

namespace celer::server {

class KeyLimits {
 public:
  struct Key {
    KeyFigures figures;
    double requests_per_minute = 0;  // 0: any number
    double tokens_per_minute = 0;    // likewise
    double weight = 1;
    double requests_left = 0, tokens_left = 0;  // of the buckets
    double virtual_time = 0;
  };

  KeyLimits() = default;  // none
  // Lines of "KEY name=NAME rpm=60 tpm=100000 weight=2"; all but the name may be left out. "*" is each other key of `keys`.
  static Result<KeyLimits> Load(const std::filesystem::path& file, const ApiKeys& keys);

  bool any() const { return !keys_.empty(); }
  std::vector<KeyFigures> figures() const;

  // Before a request is read, and again with its tokens: 429 if its key has none left.
  Refusal Check(size_t key, Clock::time_point now, Admission& admission);
  // Admits it. Its place among those that wait: Request::priority.
  int Take(size_t key, int64_t prompt_tokens);
  void Begin(int place);  // the engine computes it
  void End(size_t key, int64_t answer_tokens);

 private:
  static constexpr double kTokensPerPlace = 64;  // so that places of any time fit into an int

  std::vector<Key> keys_;   // by the number that ApiKeys::Find() gives
  double now_running_ = 0;  // the virtual time of what began last
  Clock::time_point filled_ = {};
};

}  // namespace celer::server
