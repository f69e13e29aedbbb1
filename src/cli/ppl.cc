// celer ppl MODEL FILE: perplexity, as llama.cpp computes it or with a sliding window.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/generate_flags.h"
#include "cli/interrupt.h"
#include "io/json.h"

namespace celer::cli {
namespace {

struct Flags {
  ModelFlags model;
  std::string file;
  int64_t window = 512;
  int64_t stride = 0;
  int64_t chunks = 0;
  bool json = false;
};

// Mean and its standard error of the negative log-likelihoods seen so far.
struct Average {
  double sum = 0, squares = 0;
  int64_t count = 0;

  void Add(float logprob) {
    sum -= logprob;
    squares += double{logprob} * logprob;
    ++count;
  }
  double perplexity() const { return std::exp(sum / static_cast<double>(count)); }
  double error() const {  // of the perplexity
    const auto n = static_cast<double>(count);
    const double variance = squares / n - (sum / n) * (sum / n);
    return n > 1 && variance > 0 ? perplexity() * std::sqrt(variance / (n - 1)) : 0;
  }
};

Result<int> Run(Flags& flags) {
  if (flags.window < 4) return Error::Invalid("--window ", flags.window, ": expected 4 or more");
  if (flags.stride < 0 || flags.stride >= flags.window)
    return Error::Invalid("--stride ", flags.stride, ": expected 1 to ", flags.window - 1,
                          ", or 0 for llama.cpp's method");
  CELER_ASSIGN(const std::string text, ReadTextFile(flags.file, size_t{1} << 30));
  if (flags.model.options.engine.context == 0) flags.model.options.engine.context = flags.window;
  CELER_ASSIGN(TextModel model, flags.model.Load());

  const std::vector<int32_t> tokens = model.EncodeText(text);
  const auto bos = model.tokenizer().bos_id();
  const bool adds_bos = bos && !tokens.empty() && tokens[0] == *bos;
  const auto count = static_cast<int64_t>(tokens.size());
  if (count < flags.window)
    return Error::Invalid(flags.file, ": ", count, " tokens are fewer than one window of ", flags.window,
                          "; give a longer text or a smaller --window");

  // llama.cpp: windows side by side, the second half of each is scored, each begins with BOS if the
  // vocabulary has it. Strided: windows overlap, and each scores the `stride` tokens that the one before has
  // not.
  const int64_t step = flags.stride > 0 ? flags.stride : flags.window;
  int64_t windows = flags.stride > 0 ? (count - flags.window) / step + 1 : count / flags.window;
  if (flags.chunks > 0) windows = std::min(windows, flags.chunks);

  const InterruptGuard guard;
  Average average;
  int64_t done = 0;
  for (; done < windows && !InterruptGuard::Pending(); ++done) {
    std::vector<int32_t> window(tokens.begin() + done * step, tokens.begin() + done * step + flags.window);
    int64_t first = flags.window / 2 + 1;
    if (flags.stride > 0)
      first = done == 0 ? 1 : flags.window - step;
    else if (adds_bos)
      window[0] = *bos;
    CELER_ASSIGN(const std::vector<float> logprobs, model.engine().Score(window, first));
    for (const float logprob : logprobs) average.Add(logprob);
    if (isatty(STDERR_FILENO) || done % 20 == 0)
      fmt::print(stderr, "\r{}/{} windows, perplexity {:.4f}  ", done + 1, windows, average.perplexity());
  }
  fmt::print(stderr, "\n");
  if (average.count == 0) return int{kInterrupted};
  if (flags.json) {
    const nlohmann::ordered_json json = {{"perplexity", average.perplexity()},
                                         {"error", average.error()},
                                         {"tokens", average.count},
                                         {"windows", done},
                                         {"window", flags.window},
                                         {"stride", flags.stride},
                                         {"method", flags.stride > 0 ? "strided" : "llama.cpp"}};
    fmt::print("{}\n", JsonText(json, 2));
  } else {
    fmt::print("perplexity {:.4f} +- {:.4f} ({} tokens scored in {} windows of {}, {})\n",
               average.perplexity(), average.error(), average.count, done, flags.window,
               flags.stride > 0 ? fmt::format("stride {}", flags.stride) : "llama.cpp's method");
  }
  return int{done < windows ? kInterrupted : kOk};
}

}  // namespace

int PplCommand(const std::vector<std::string>& args) {
  Flags flags;
  CommandLine app("ppl", "perplexity of a model on a text", "celer ppl smollm2 wiki.test.raw --window 512");
  flags.model.AddTo(app);
  app.add_option("FILE", flags.file, "a text file")->required();
  app.add_option("--window", flags.window, "tokens of one window");
  app.add_option("--stride", flags.stride,
                 "overlapping windows that advance by this much; 0: llama.cpp's method");
  app.add_option("--chunks", flags.chunks, "stop after so many windows (0: all)");
  app.add_flag("--json", flags.json, "print JSON");
  if (const auto stop = Parse(app, args)) return *stop;
  const auto code = Run(flags);
  return code ? *code : Fail(code.error());
}

}  // namespace celer::cli
