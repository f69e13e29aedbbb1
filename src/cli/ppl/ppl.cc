// celer ppl MODEL FILE: perplexity, as llama.cpp computes it or with a sliding window.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "celer/eval.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "cli/text/generate_flags.h"
#include "device/variant.h"
#include "io/json/json.h"
#include "report/output.h"

namespace celer::cli {
namespace {

struct PplFlags {
  ModelFlags model;
  std::string file;
  int64_t window = 512;
  int64_t stride = 0;
  int64_t chunks = 0;
  bool exact = false;
  bool kv_given = false;
  bool json = false;
};

Result<int> Run(PplFlags& flags) {
  if (flags.window < 4) return Error::Invalid("--window ", flags.window, ": expected 4 or more");
  if (flags.stride < 0 || flags.stride >= flags.window)
    return Error::Invalid("--stride ", flags.stride, ": expected 1 to ", flags.window - 1,
                          ", or 0 for llama.cpp's method");
  CELER_ASSIGN(const std::string text, ReadTextFile(flags.file, size_t{1} << 30));
  if (flags.model.options.engine.context == 0) flags.model.options.engine.context = flags.window;
  if (flags.exact) {
    EngineOptions& engine = flags.model.options.engine;
    if (engine.device.kind == DeviceOptions::Kind::kCuda)
      return Error::Invalid("--exact is f32 arithmetic on the CPU; leave out --device ",
                            engine.device.ToString());
    if (flags.kv_given && engine.kv != KvType::kF32)
      Say("--exact computes with an f32 KV; --kv {} has no effect\n", Name(engine.kv));
    engine.device = {};
    engine.kv = KvType::kF32;
    ForceVariants(kExactVariants);
  }
  CELER_ASSIGN(TextModel model, flags.model.Load());

  const InterruptGuard guard;
  int64_t windows = 0;
  const auto progress = [&windows](const Perplexity& so_far, int64_t all) {
    windows = all;
    if (isatty(STDERR_FILENO) || so_far.windows() % 20 == 1)
      fmt::print(stderr, "\r{}/{} windows, perplexity {:.4f}  ", so_far.windows(), all, so_far.value());
    return !InterruptGuard::Pending();
  };
  CELER_ASSIGN(const Perplexity found, MeasurePerplexity(*model.engine, model.prompter, text,
                                                         {.window = flags.window,
                                                          .stride = flags.stride,
                                                          .at_most = flags.chunks,
                                                          .name = flags.file,
                                                          .progress = progress}));
  fmt::print(stderr, "\n");
  if (flags.json) {
    const nlohmann::ordered_json json = {{"perplexity", found.value()},
                                         {"error", found.error()},
                                         {"tokens", found.tokens()},
                                         {"windows", found.windows()},
                                         {"window", flags.window},
                                         {"stride", flags.stride},
                                         {"method", flags.stride > 0 ? "strided" : "llama.cpp"}};
    fmt::print("{}\n", JsonText(json, 2));
  } else {
    fmt::print("perplexity {:.4f} +- {:.4f} ({} tokens scored in {} windows of {}, {})\n", found.value(),
               found.error(), found.tokens(), found.windows(), flags.window,
               flags.stride > 0 ? fmt::format("stride {}", flags.stride) : "llama.cpp's method");
  }
  return found.windows() < windows ? InterruptGuard::ExitCode() : int{kOk};
}

}  // namespace

int PplCommand(const std::vector<std::string>& args) {
  PplFlags flags;
  CommandLine app("ppl", "perplexity of a model on a text", "celer ppl smollm2 wiki.test.raw --window 512");
  flags.model.AddTo(app);
  app.add_option("FILE", flags.file, "a text file")->required();
  app.add_option("--window", flags.window, "tokens of one window");
  app.add_option("--stride", flags.stride,
                 "overlapping windows that advance by this much; 0: llama.cpp's method");
  app.add_option("--chunks", flags.chunks, "stop after this many windows (0: all)");
  app.add_flag("--exact", flags.exact,
               "f32 arithmetic on the values as stored and f32 KV, on the CPU: slow; what others are "
               "measured against");
  app.add_flag("--json", flags.json, "print JSON");
  if (const auto stop = Parse(app, args)) return *stop;
  flags.kv_given = app.get_option("--kv")->count() > 0;
  const auto code = Run(flags);
  return code ? *code : Fail(code.error());
}

}  // namespace celer::cli
