// A model like Llama as llama2.c's .bin, with a tokenizer.bin beside it.
#include <cmath>
#include <system_error>

#include "convert/source.h"
#include "io/file/atomic_file.h"
#include "io/file/disk_space.h"
#include "io/llama2c/llama2c_writer.h"
#include "models/lora/row_order.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr double kTheta = 10000, kEps = 1e-5;  // constants of run.c

// Why run.c would compute something else; "" if it would not.
std::string WhyNot(const DecoderConfig& c) {
  const bool llama = c.family == "llama" || c.family == "mistral";
  if (!llama) return "models of the type '" + c.family + "' are not like Llama in every detail";
  if (c.sliding_window > 0 && c.sliding_window < c.max_positions) return "it has a sliding window";
  if (c.qkv_bias || c.o_bias || c.mlp_bias) return "it has biases";
  if (c.head_dim * c.heads != c.hidden)
    return "its " + std::to_string(c.heads) + " heads of " + std::to_string(c.head_dim) +
           " are not its hidden size, " + std::to_string(c.hidden);
  if (c.rope.scaling != RopeConfig::Scaling::kNone || !c.rope.freq_factors.empty())
    return "its rope is scaled";
  if (c.rope.dim != c.head_dim) return "a part of each head rotates";
  if (c.rope.theta != kTheta)
    return "its rope has theta " + std::to_string(static_cast<int64_t>(c.rope.theta)) +
           ", and llama2.c has 10000";
  if (std::abs(c.norm_eps - kEps) > 1e-3 * kEps)
    return "the epsilon of its norms is not 1e-5, which llama2.c has";
  if (c.activation != Activation::kSilu) return "its activation is not silu";
  return "";
}

}  // namespace

Result<Converted> ConvertToLlama2c(ConvertSource source, const fs::path& out, const ConvertOptions& options,
                                   ThreadPool&) {
  const DecoderConfig& c = source.parts.config();
  if (!options.weights.empty())
    return Error::Invalid(
        "--weights ", options.weights,
        ": a llama2.c file has f32 in versions 0 and 1 and int8 in version 2; give --llama2c-version");
  if (const std::string why = WhyNot(c); !why.empty())
    return Error::Unsupported(source.path.string(), ": ", why,
                              ", and a llama2.c file cannot say so; take GGUF");
  Llama2cFile::Config config;
  static_cast<ModelShape&>(config) = c;
  config.max_positions = c.max_positions;
  config.version = options.llama2c_version;
  if (config.version == 2) config.group_size = static_cast<int>(Llama2cGroup(c));
  std::string tokenizer;
  if (source.vocabulary) {
    auto made = source.vocabulary->Llama2cBytes(c.vocab);
    if (made)
      tokenizer = *std::move(made);
    else
      source.notes.push_back(source.path.string() + ": " + made.error().message() +
                             "; the output has no tokenizer.bin beside it");
  }
  const int64_t bytes = Llama2cBytes(config);
  CELER_RETURN_IF_ERROR(CheckFreeSpace(out, bytes + std::ssize(tokenizer), kNoRoomRemedy));
  const auto fill = [&](const std::string& name, int64_t rows, int64_t cols,
                        std::vector<float>* values) -> Status {
    if (rows == 1) {
      CELER_ASSIGN(*values, source.parts.Vector(name, cols));
      return {};
    }
    CELER_ASSIGN(const ModelParts::Part part, source.parts.Matrix(name, rows, cols));
    const bool turned = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
    const std::vector<int32_t> order = turned ? InterleavedRows(rows, c.head_dim) : std::vector<int32_t>();
    for (int64_t r = 0; r < rows; ++r)
      if (!source.parts.Row(part, order.empty() ? r : order[r], values->data() + r * cols))
        return source.parts.NotFinite(part);
    source.parts.Done(part);
    return {};
  };
  const auto progress = [&](int64_t done) {
    return options.progress ? options.progress(done, bytes) : Status();
  };
  CELER_RETURN_IF_ERROR(WriteLlama2c(out, config, fill, progress));
  Converted done{.model = c.family, .weights = config.version == 2 ? "int8" : "f32", .bytes = bytes};
  if (!tokenizer.empty()) {
    const fs::path beside = out.parent_path() / "tokenizer.bin";
    std::error_code error;
    if (fs::exists(beside, error)) {
      source.notes.push_back(beside.string() +
                             ": is there already and stays as it is; see that it is this model's");
    } else {
      CELER_RETURN_IF_ERROR(WriteWholeFile(beside, tokenizer));
      done.files.push_back(beside.string());
    }
  }
  done.notes = std::move(source.notes);
  return done;
}

}  // namespace celer
