#include "plan/load.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/split_mix.h"

namespace celer::cli {
namespace {

constexpr uint64_t kSeed = 41;
constexpr size_t kWholeTrace = 2000;  // requests
constexpr size_t kRoutedBlocks = 3;   // of a prompt, that say where its conversation is

// 0 to 1, the same for requests that belong together.
double PlaceOf(const Trace& trace, size_t i) {
  const std::vector<int64_t>& hashes = trace.requests[i].hashes;
  uint64_t hash = SplitMix64(kSeed + (hashes.empty() ? i : 0));
  for (size_t k = 0; k < std::min(kRoutedBlocks, hashes.size()); ++k)
    hash = SplitMix64(hash ^ SplitMix64(static_cast<uint64_t>(hashes[k])));
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

// The first of `count` requests in a row that come in the shortest time.
size_t Busiest(const Trace& trace, size_t count) {
  size_t best = 0;
  double shortest = -1;
  for (size_t i = 0; i + count <= trace.requests.size(); ++i) {
    const double seconds = trace.requests[i + count - 1].arrival_s - trace.requests[i].arrival_s;
    if (shortest >= 0 && seconds >= shortest) continue;
    shortest = seconds;
    best = i;
  }
  return best;
}

}  // namespace

PlanLoad RandomLoad(double rate, int64_t prompt, int64_t output) {
  return {.rate = rate, .prompt = prompt, .output = output, .longest = prompt + output};
}

Result<PlanLoad> TraceLoad(Trace trace) {
  PlanLoad load;
  const auto count = static_cast<double>(trace.requests.size());
  if (!(trace.seconds() > 0))
    return Error::Invalid(trace.name,
                          ": all requests come at once, so there is no rate; describe them with --rate, "
                          "--prompt and --output");
  load.rate = (count - 1) / trace.seconds();
  std::unordered_set<int64_t> seen;
  double prompts = 0, outputs = 0, shared = 0;
  for (const TraceRequest& request : trace.requests) {
    prompts += static_cast<double>(request.prompt);
    outputs += static_cast<double>(request.output);
    load.longest = std::max(load.longest, request.prompt + request.output);
    size_t known = 0;
    while (known < request.hashes.size() && seen.contains(request.hashes[known])) ++known;
    shared +=
        std::min(static_cast<double>(known) * trace.block_tokens, static_cast<double>(request.prompt - 1));
    seen.insert(request.hashes.begin(), request.hashes.end());
  }
  load.prompt = std::max<int64_t>(1, std::llround(prompts / count));
  load.output = std::max<int64_t>(1, std::llround(outputs / count));
  load.shared = shared / prompts;
  load.trace = std::move(trace);
  return load;
}

MachineShare ShareOf(const PlanLoad& load, double rate, int64_t requests) {
  if (!load.has_trace())
    return {
        .traces = {PoissonTrace(rate, requests, load.prompt, load.output, kSeed)}, .from = 0.4, .to = 0.8};
  const double share = std::min(1.0, rate / load.rate);
  const size_t all = load.trace.requests.size();
  const auto wanted =
      static_cast<size_t>(std::min(static_cast<double>(requests) / share, static_cast<double>(all)));
  // What one replica takes as it is, and is not long, is played whole.
  const bool whole = share == 1 && all <= kWholeTrace;
  const size_t count = whole ? all : std::clamp<size_t>(wanted, 1, all),
               begin = count < all ? Busiest(load.trace, count) : 0;
  MachineShare out;
  if (count < all) out.from = 0.2;
  int64_t found = 0;
  for (int64_t machine = 0; found < requests && static_cast<double>(machine + 1) * share <= 1 + 1e-9;
       ++machine) {
    Trace trace{.name = load.trace.name, .block_tokens = load.trace.block_tokens};
    for (size_t i = begin; i < begin + count; ++i) {
      const double place = share < 1 ? PlaceOf(load.trace, i) / share - static_cast<double>(machine) : 0;
      if (place < 0 || place >= 1) continue;
      trace.requests.push_back(load.trace.requests[i]);
      trace.requests.back().arrival_s -= load.trace.requests[begin].arrival_s;
    }
    found += std::ssize(trace.requests);
    if (!trace.requests.empty()) out.traces.push_back(std::move(trace));
    constexpr int64_t kMostMachines = 64;
    if (machine + 1 == kMostMachines) break;
  }
  return out;
}

}  // namespace celer::cli
