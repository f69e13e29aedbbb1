// The text that celer quantize learns from, and the line that says how far it is.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "quantize/llm/quantize.h"

namespace celer::cli {

struct TextChoice {
  std::string file;  // empty: the built-in text
  std::string tokenizer;
  int64_t samples = 32, window = 512;
};

// The ratio to which zlib compresses about a MiB of a text; 1 for less than a KiB, which says little.
// Texts of any language come to 0.2 to 0.6, base64 to 0.76, and noise to 1.
double CompressionRatio(std::string_view text);
// Why this text is doubtful for calibration, with the figure that shows it; empty: it is not.
std::string CheckCalibrationText(std::string_view text, int64_t tokens);

// Windows spread over the whole text, as tokens of the model.
Result<CalibrationText> ReadCalibration(const TextChoice& choice, const std::string& model);

// The message after an interrupt. `kept`: a folder that finished layers stay in.
std::string InterruptedText(const std::string& kept);

// Layers or bytes done, as a line with the time that is left; ends the work when asked to.
QuantizeProgress Progress(const std::string& label, bool layers, const std::string& kept = "");

}  // namespace celer::cli
