#include "cli/quantize/calibration_text.h"

#include <fmt/format.h>
#include <zlib.h>

#include <chrono>
#include <memory>
#include <optional>

#include "base/log.h"
#include "celer/text.h"
#include "cli/eval/eval.h"
#include "cli/shared/interrupt.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {

double CompressionRatio(std::string_view text) {
  constexpr size_t kPieces = 16, kPiece = size_t{1} << 16;
  std::string sample;
  if (text.size() <= kPieces * kPiece) {
    sample = text;
  } else {  // spread over the whole
    for (size_t i = 0; i < kPieces; ++i)
      sample += text.substr(i * ((text.size() - kPiece) / (kPieces - 1)), kPiece);
  }
  if (sample.size() < 1024) return 1;
  uLongf packed = compressBound(static_cast<uLong>(sample.size()));
  std::vector<Bytef> out(packed);
  if (compress(out.data(), &packed, reinterpret_cast<const Bytef*>(sample.data()),
               static_cast<uLong>(sample.size())) != Z_OK)
    return 1;
  return static_cast<double>(packed) / static_cast<double>(sample.size());
}

std::string CheckCalibrationText(std::string_view text, int64_t tokens) {
  constexpr double kMost = 0.72, kLeast = 0.01;
  if (text.size() < 1024) return {};
  const double share = CompressionRatio(text);
  const std::string figures =
      fmt::format("packs to {:.1f} % of its size, {:.2f} tokens to a byte", 100 * share,
                  static_cast<double>(tokens) / static_cast<double>(text.size()));
  if (share > kMost)
    return fmt::format("looks like noise, not like text: {}, where texts pack to 20 to 60 %", figures);
  if (share < kLeast) return fmt::format("says the same over and over: {}", figures);
  return {};
}

Result<CalibrationText> ReadCalibration(const TextChoice& choice, const std::string& model) {
  std::string text(EvalText());
  if (!choice.file.empty()) {
    CELER_ASSIGN(text, ReadTextFile(choice.file, size_t{1} << 30));
  }
  CELER_ASSIGN(const Prompter prompter, Prompter::Load({.model = model, .tokenizer = choice.tokenizer}));
  CalibrationText out{prompter.EncodeText(text), choice.window};
  const auto tokens = static_cast<int64_t>(out.tokens.size());
  const std::string name = choice.file.empty() ? "the built-in text" : choice.file;
  if (tokens < choice.window)
    return Error::Invalid(name, ": has ", tokens, " tokens, fewer than one window of ", choice.window,
                          "; give a longer text or a smaller --window");
  if (const std::string doubt = CheckCalibrationText(text, tokens); !doubt.empty())
    log::Warning("{}: {}; what is learned from it does not fit what the model will see", name, doubt);
  const int64_t windows = tokens / choice.window;
  if (windows < choice.samples)
    Say("{}: has {} windows of {} tokens, fewer than --samples {}; all are used\n", name, windows,
        choice.window, choice.samples);
  // Spread over the whole text.
  const int64_t used = std::min(windows, choice.samples);
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < used; ++i) {
    const auto begin = out.tokens.begin() + i * windows / used * choice.window;
    chosen.insert(chosen.end(), begin, begin + choice.window);
  }
  out.tokens = std::move(chosen);
  return out;
}

std::string InterruptedText(const std::string& kept) {
  return kept.empty() ? "interrupted; nothing is kept"
                      : "interrupted; finished layers are kept in " + kept +
                            ", and the same command goes on from there";
}

QuantizeProgress Progress(const std::string& label, bool layers, const std::string& kept) {
  struct State {
    std::optional<ProgressLine> bytes;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    std::optional<int64_t> before;  // layers that were there already
    StatusLine line;
  };
  const auto state = std::make_shared<State>();
  return [=](int64_t done, int64_t total) -> Status {
    if (InterruptGuard::Pending()) return Error::Cancelled(InterruptedText(kept));
    if (layers) {
      if (!state->before) state->before = done - 1;
      const double spent =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - state->start).count();
      const double left =
          spent / static_cast<double>(done - *state->before) * static_cast<double>(total - done);
      state->line.Show(fmt::format("{}: layer {} of {}, {} left", label, done, total, FormatSeconds(left)));
    } else {
      if (!state->bytes) state->bytes.emplace(label, total);
      state->bytes->Update(done);
    }
    return {};
  };
}

}  // namespace celer::cli
