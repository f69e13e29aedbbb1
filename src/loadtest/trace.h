// Who asks for what and when: a recorded trace, or requests that arrive at random.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace celer::cli {

struct TraceRequest {
  double arrival_s = 0;              // after the first one
  int64_t prompt = 0, output = 0;    // tokens
  std::vector<int64_t> hashes = {};  // of the prompt's blocks; empty: it is like no other
};

struct Trace {
  std::string name;         // the file, or "random arrivals, 4/s"
  double block_tokens = 0;  // that one of the hashes stands for; not whole once lengths are scaled
  std::vector<TraceRequest> requests = {};  // by arrival

  double seconds() const { return requests.empty() ? 0 : requests.back().arrival_s; }
};

// CSV as Azure publishes it (TIMESTAMP,ContextTokens,GeneratedTokens), or JSON lines as Mooncake does
// (timestamp in ms, input_length, output_length, hash_ids of blocks of 512 tokens); also packed with gzip. An
// error names the line.
Result<Trace> ReadTrace(const std::filesystem::path& path);
Result<Trace> ParseTrace(std::string_view text, const std::string& source);

// `count` requests, `rate` of them in a second on average, each independent of the others.
Trace PoissonTrace(double rate, int64_t count, int64_t prompt, int64_t output, uint64_t seed);

// `count` requests that come whenever they may.
Trace UntimedTrace(int64_t count, int64_t prompt, int64_t output);

struct TraceScale {
  double rate = 1;       // requests per second times this
  double length = 1;     // prompts, answers and hashed blocks times this
  int64_t requests = 0;  // the first so many; 0: all
};
Trace Scaled(Trace trace, const TraceScale& scale);

// The prompt of request i: equal hashes give equal tokens.
std::vector<int32_t> PromptOf(const Trace& trace, size_t i, int64_t vocab);

// Of each request's prompt, the tokens that a cache has in whole blocks of `block` tokens when it arrives, if
// all before it are done. At least one token is always computed. The cache holds `capacity` blocks of prompts
// and answers, and drops those that were not used for the longest time; 0: it drops none.
std::vector<int64_t> SharedTokens(const Trace& trace, int64_t vocab, int64_t block, int64_t capacity = 0);

}  // namespace celer::cli
