// Patterns and texts that take a backtracking matcher, or a careless tokenizer, quadratic time or worse. Here
// they are linear, or end at a limit.
#include <benchmark/benchmark.h>

#include <string>

#include "text/regex/regex.h"

namespace celer {
namespace {

void FindAll(benchmark::State& state, const char* pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  if (!regex) return state.SkipWithError(regex.error().message().c_str());
  for (auto _ : state) {
    Regex::Matches matches;
    RegexBudget budget(text.size());
    regex->FindAll(text, budget, matches);
    benchmark::DoNotOptimize(matches.size());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void Blanks(benchmark::State& state) {
  FindAll(state, "\\s+$", std::string(static_cast<size_t>(state.range(0)), ' ') + "x");
}
BENCHMARK(Blanks)->Arg(100000)->Arg(1000000)->Unit(benchmark::kMillisecond);

void NestedRepeats(benchmark::State& state) {
  FindAll(state, "(a+)+$|(a|aa)+b", std::string(static_cast<size_t>(state.range(0)), 'a') + "c");
}
BENCHMARK(NestedRepeats)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

void QuadraticStarts(benchmark::State& state) {
  FindAll(state, "a*?[^a]$", std::string(static_cast<size_t>(state.range(0)), 'a') + "bc");
}
BENCHMARK(QuadraticStarts)->Arg(30000)->Arg(300000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace celer
