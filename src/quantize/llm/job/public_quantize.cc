// celer/quantize.h for language models.
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "celer/quantize.h"
#include "quantize/llm/job/job.h"
#include "quantize/llm/quantize.h"
#include "quantize/llm/target.h"

namespace celer {

namespace fs = std::filesystem;

namespace {

Status CheckOutput(const QuantizeSource& source, const QuantizePlan& plan, const fs::path& out,
                   bool replace) {
  CELER_RETURN_IF_ERROR(source.CheckContainer(out));
  if (source.gguf && plan.has_ints())
    return Error::Invalid(out.string(),
                          ": a GGUF file holds no such integers; take q4_k_m, q4_1 or q8_0, or quantize "
                          "the Hugging Face folder");
  std::error_code error;
  if (!fs::exists(out, error)) return {};
  if (fs::equivalent(out, source.path, error))
    return Error::Invalid(out.string(), ": is the model itself; give another name");
  if (replace && source.gguf) return {};
  return Error::Invalid(out.string(), ": is there already; remove it or give another name");
}

Status CheckText(const QuantizeOptions& options, Method method) {
  if (options.window < 16 || options.window > 1 << 16)
    return Error::Invalid("window is ", options.window, ", expected 16 to 65536");
  if (options.calibration.empty() && method == Method::kRtn) return {};
  if (std::ssize(options.calibration) < options.window)
    return Error::Invalid("calibration has ", options.calibration.size(),
                          " tokens, fewer than one window of ", options.window);
  return {};
}

Status CheckTokens(const std::vector<int32_t>& tokens, int64_t vocab) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab)
      return Error::Invalid("calibration has the token ", token, ", and the model has ", vocab, " tokens");
  return {};
}

QuantizeProgress As(const QuantizeOptions& options, const char* what) {
  if (!options.progress) return {};
  return [&options, what](int64_t done, int64_t total) { return options.progress(what, done, total); };
}

}  // namespace

Result<QuantizeReport> QuantizeModel(const fs::path& model, const fs::path& out,
                                     const QuantizeOptions& options) {
  CELER_ASSIGN(const Method method, ParseMethod(options.method));
  CELER_RETURN_IF_ERROR(CheckText(options, method));
  CELER_ASSIGN(const QuantizeSource source,
               QuantizeSource::Open(model, method != Method::kRtn || !options.calibration.empty()));
  CELER_RETURN_IF_ERROR(CheckTokens(options.calibration, source.config.vocab));
  Recipe recipe;
  recipe.weights = !options.weights.empty() ? options.weights : source.gguf ? "q4_k_m" : "int4-g128";
  for (const std::string& rule : options.tensors) CELER_RETURN_IF_ERROR(recipe.AddRule(rule));
  CELER_RETURN_IF_ERROR(recipe.Check());
  CELER_ASSIGN(const QuantizePlan plan,
               MakePlan(*source.tensors, source.config.layers, source.config.tied_embeddings, recipe));
  CELER_RETURN_IF_ERROR(CheckMethod(method, plan));
  CELER_RETURN_IF_ERROR(CheckOutput(source, plan, out, options.replace));
  CELER_RETURN_IF_ERROR(source.CheckChanges(plan));
  WriteJob job{.method = method,
               .work = out.string() + ".work",
               .on_layer = As(options, "calibrating"),
               .on_bytes = As(options, "writing")};
  if (!options.calibration.empty()) {
    CalibrationText text{.tokens = options.calibration, .window = options.window};
    text.tokens.resize(text.tokens.size() - text.tokens.size() % static_cast<size_t>(options.window));
    job.text = std::move(text);
  }
  CELER_RETURN_IF_ERROR(WriteQuantized(source, plan, out, std::move(job)));
  // What is behind the last tensor is written without a call; too late for an error to end it.
  if (options.progress) (void)options.progress("writing", plan.bytes_before(), plan.bytes_before());
  return QuantizeReport{.bytes_before = plan.bytes_before(),
                        .bytes_after = plan.bytes_after(),
                        .bits_per_weight = plan.bits_per_weight()};
}

}  // namespace celer
