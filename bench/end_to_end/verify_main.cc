// What verification costs in speculative decoding: a step that computes the logits of several draft tokens of
// one sequence, beside a step that decodes one.
//   celer_verify_bench --model llama-2-7b --weights bf16,int8 --device cuda --tokens 2,5,8
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/runner.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::vector<std::string> models = {"llama-2-7b"}, weights = {"bf16", "int8"};
  std::vector<int64_t> tokens = {2, 3, 5, 8};
  int64_t prompt = 512;
  int repeat = 50;
  std::string device = "cuda";
};

// One sequence with a prompt of its own behind it.
class Text {
 public:
  Text(celer::Runner* runner, int64_t prompt, int64_t room) : runner_(runner), prompt_(prompt) {
    table_.resize(static_cast<size_t>((prompt + room) / celer::kKvBlockTokens + 1));
    std::iota(table_.begin(), table_.end(), 0);
    words_.resize(static_cast<size_t>(std::max(prompt, room)));
    for (size_t i = 0; i < words_.size(); ++i)
      words_[i] = static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(runner->info().config.vocab));
  }

  celer::Status Prefill() { return Run(prompt_, 0, celer::Slice::Rows::kLast); }

  // The median of the seconds from Queue() to the logits or the token in host memory.
  celer::Result<double> Seconds(int64_t tokens, int repeat) {
    std::vector<double> all;
    for (int i = 0; i < repeat + 3; ++i) {
      const auto start = Clock::now();
      CELER_RETURN_IF_ERROR(
          Run(tokens, prompt_, tokens == 1 ? celer::Slice::Rows::kSample : celer::Slice::Rows::kAll));
      if (i >= 3) all.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }

 private:
  celer::Status Run(int64_t tokens, int64_t position, celer::Slice::Rows rows) {
    const celer::Slice slice{.tokens = std::span(words_).first(static_cast<size_t>(tokens)),
                             .position = position,
                             .block_table = table_,
                             .rows = rows,
                             .sampler = rows == celer::Slice::Rows::kSample ? &sampler_ : nullptr,
                             .history = words_};
    CELER_RETURN_IF_ERROR(runner_->Queue(std::span(&slice, 1)));
    const auto output = runner_->Take();
    return output ? celer::Status() : celer::Status(output.error());
  }

  celer::Runner* runner_;
  int64_t prompt_;
  std::vector<int32_t> table_, words_;
  celer::Sampler sampler_{celer::SamplingParams(), {}};
};

celer::Status Bench(const Flags& flags) {
  fmt::print("{:14} {:10} {:>7} {:>8} {:>8}\n", "model", "weights", "tokens", "ms/step", "to one");
  const int64_t most = *std::max_element(flags.tokens.begin(), flags.tokens.end());
  for (const std::string& model : flags.models)
    for (const std::string& weights : flags.weights) {
      CELER_ASSIGN(const celer::WeightOptions format, celer::WeightOptions::Parse(weights));
      CELER_ASSIGN(const celer::DeviceOptions device, celer::DeviceOptions::Parse(flags.device));
      const int64_t context = flags.prompt + most + celer::kKvBlockTokens;
      CELER_ASSIGN(const std::unique_ptr<celer::Runner> runner,
                   celer::MakeRunner({.model = "random:" + model,
                                      .weights = format,
                                      .device = device,
                                      .context = context,
                                      .chunk = std::max<int64_t>(flags.prompt, 512),
                                      .sequences = 1}));
      Text text(runner.get(), flags.prompt, most);
      CELER_RETURN_IF_ERROR(text.Prefill());
      CELER_ASSIGN(const double one, text.Seconds(1, flags.repeat));
      fmt::print("{:14} {:10} {:7} {:8.3f}\n", model, weights, 1, one * 1e3);
      for (const int64_t tokens : flags.tokens) {
        CELER_ASSIGN(const double several, text.Seconds(tokens, flags.repeat));
        fmt::print("{:14} {:10} {:7} {:8.3f} {:8.3f}\n", model, weights, tokens, several * 1e3,
                   several / one);
      }
      std::fflush(stdout);
    }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"steps that verify drafted tokens beside steps that decode one"};
  app.add_option("--model", flags.models, "shapes, as `celer limits --model` knows them")->delimiter(',');
  app.add_option("--weights", flags.weights, "bf16, f16, int8[-gN], int4[-gN], fp8[-gN]")->delimiter(',');
  app.add_option("--tokens", flags.tokens, "tokens of the steps that check")->delimiter(',');
  app.add_option("--prompt", flags.prompt, "tokens before them");
  app.add_option("--repeat", flags.repeat, "steps of each kind; the median counts");
  app.add_option("--device", flags.device, "cuda or cuda:N");
  CLI11_PARSE(app, argc, argv);
  if (const celer::Status status = Bench(flags); !status) {
    fmt::print(stderr, "error: {}\n", status.error().message());
    return 1;
  }
  return 0;
}
