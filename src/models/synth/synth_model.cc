// What a synthetic model is called and made of, in both containers.
#include <fmt/format.h>

#include <string_view>

#include "base/check.h"
#include "models/synth/synth.h"

namespace celer {
namespace {

// Facts that a shape does not hold, from the config.json of each series. The longest prefix of the name wins.
struct Series {
  std::string_view prefix;
  double theta;
  int64_t positions;
  double norm_eps;
  int64_t sliding_window = 0;
  double llama3_factor = 0;  // 0: no scaling
};

constexpr Series kSeries[] = {
    {"", 10000, 4096, 1e-5},
    {"llama-2", 10000, 4096, 1e-5},
    {"llama-3", 500000, 8192, 1e-5},
    {"llama-3.1", 500000, 131072, 1e-5, 0, 8},
    {"llama-3.2", 500000, 131072, 1e-5, 0, 32},
    {"llama-3.3", 500000, 131072, 1e-5, 0, 8},
    {"tinyllama", 10000, 2048, 1e-5},
    {"smollm2", 100000, 8192, 1e-5},
    {"smollm2-1.7b", 130000, 8192, 1e-5},
    {"qwen1.5", 1000000, 32768, 1e-6},
    {"qwen2.5", 1000000, 32768, 1e-6},
    {"qwen3", 1000000, 40960, 1e-6},
    {"mistral", 10000, 32768, 1e-5, 4096},
    {"mixtral", 1000000, 32768, 1e-5},
    {"mixtral-8x22b", 1000000, 65536, 1e-5},
};

const Series& SeriesOf(std::string_view name) {
  const Series* best = &kSeries[0];
  for (const Series& series : kSeries)
    if (name.starts_with(series.prefix) && series.prefix.size() > best->prefix.size()) best = &series;
  return *best;
}

const char* FamilyName(const LlmShape& shape) {
  if (shape.experts > 0)
    return shape.shared_intermediate > 0 ? "qwen2_moe" : shape.qk_norm ? "qwen3_moe" : "mixtral";
  if (shape.qk_norm) return "qwen3";
  if (shape.qkv_bias) return "qwen2";
  return shape.name.starts_with("mistral") ? "mistral" : "llama";
}

// Collects tensors under the names of one container.
class Builder {
 public:
  Builder(const SynthModel& model, SynthContainer container)
      : model_(model),
        gguf_(container == SynthContainer::kGguf),
        interleave_(gguf_ && model.gguf_architecture() == "llama") {}

  std::vector<SynthTensor> Build() {
    const LlmShape& s = model_.shape;
    Matrix("token_embd.weight", "model.embed_tokens.weight", s.vocab, s.hidden);
    if (gguf_ && model_.rope.scaling == RopeConfig::Scaling::kLlama3)
      Add("rope_freqs.weight", "", DType::kF32, {model_.rope.dim / 2}, SynthTensor::Values::kRopeFactors);
    for (int64_t i = 0; i < s.layers; ++i) Layer(i);
    Norm("output_norm.weight", "model.norm.weight", s.hidden);
    if (!s.tied_embeddings) Matrix("output.weight", "lm_head.weight", s.vocab, s.hidden);
    return std::move(tensors_);
  }

 private:
  void Layer(int64_t i) {
    const LlmShape& s = model_.shape;
    const int64_t q_rows = s.heads * s.head_dim, kv_rows = s.kv_heads * s.head_dim;
    const std::string g = fmt::format("blk.{}.", i), h = fmt::format("model.layers.{}.", i);
    Norm(g + "attn_norm.weight", h + "input_layernorm.weight", s.hidden);
    Heads(g + "attn_q.", h + "self_attn.q_proj.", q_rows, s.hidden);
    Heads(g + "attn_k.", h + "self_attn.k_proj.", kv_rows, s.hidden);
    Matrix(g + "attn_v.weight", h + "self_attn.v_proj.weight", kv_rows, s.hidden);
    if (s.qkv_bias) Vector(g + "attn_v.bias", h + "self_attn.v_proj.bias", kv_rows);
    Matrix(g + "attn_output.weight", h + "self_attn.o_proj.weight", s.hidden, q_rows);
    if (s.qk_norm) {
      Norm(g + "attn_q_norm.weight", h + "self_attn.q_norm.weight", s.head_dim);
      Norm(g + "attn_k_norm.weight", h + "self_attn.k_norm.weight", s.head_dim);
    }
    Norm(g + "ffn_norm.weight", h + "post_attention_layernorm.weight", s.hidden);
    if (s.experts > 0) {
      Experts(g, h);
    } else {
      Matrix(g + "ffn_gate.weight", h + "mlp.gate_proj.weight", s.intermediate, s.hidden);
      Matrix(g + "ffn_up.weight", h + "mlp.up_proj.weight", s.intermediate, s.hidden);
      Matrix(g + "ffn_down.weight", h + "mlp.down_proj.weight", s.hidden, s.intermediate);
    }
  }

  void Experts(const std::string& g, const std::string& h) {
    const LlmShape& s = model_.shape;
    const ExpertNames& names = model_.family->experts;
    Add(g + "ffn_gate_inp.weight", h + names.router, Small(), {s.experts, s.hidden});
    const std::string experts = h + names.experts;
    if (gguf_) {
      Stack(g + "ffn_gate_exps.weight", experts, names.gate, s.intermediate, s.hidden);
      Stack(g + "ffn_up_exps.weight", experts, names.up, s.intermediate, s.hidden);
      Stack(g + "ffn_down_exps.weight", experts, names.down, s.hidden, s.intermediate);
    } else {
      for (int64_t e = 0; e < s.experts; ++e) {
        const std::string expert = experts + std::to_string(e);
        Matrix("", expert + names.gate, s.intermediate, s.hidden);
        Matrix("", expert + names.up, s.intermediate, s.hidden);
        Matrix("", expert + names.down, s.hidden, s.intermediate);
      }
    }
    if (s.shared_intermediate > 0) {
      const std::string shared = h + names.shared;
      Matrix(g + "ffn_gate_shexp.weight", shared + names.gate, s.shared_intermediate, s.hidden);
      Matrix(g + "ffn_up_shexp.weight", shared + names.up, s.shared_intermediate, s.hidden);
      Matrix(g + "ffn_down_shexp.weight", shared + names.down, s.hidden, s.shared_intermediate);
      Add(g + "ffn_gate_inp_shexp.weight", h + names.shared_gate, Small(),
          gguf_ ? Shape{s.hidden} : Shape{1, s.hidden});
    }
  }

  DType Small() const { return gguf_ ? DType::kF32 : model_.weights; }

  SynthTensor& Add(const std::string& gguf, const std::string& hf, DType dtype, Shape shape,
                   SynthTensor::Values values = SynthTensor::Values::kNormal) {
    tensors_.push_back({{gguf_ ? gguf : hf, dtype, shape}, values, {hf}, 0});
    return tensors_.back();
  }
  void Norm(const std::string& gguf, const std::string& hf, int64_t n) {
    Add(gguf, hf, Small(), {n}, SynthTensor::Values::kOnes);
  }
  void Vector(const std::string& gguf, const std::string& hf, int64_t n) { Add(gguf, hf, Small(), {n}); }
  void Matrix(const std::string& gguf, const std::string& hf, int64_t rows, int64_t cols) {
    Add(gguf, hf, model_.weights, {rows, cols});
  }
  // A projection to heads that are rotated, with its bias.
  void Heads(const std::string& gguf, const std::string& hf, int64_t rows, int64_t cols) {
    SynthTensor& matrix = Add(gguf + "weight", hf + "weight", model_.weights, {rows, cols});
    if (interleave_) matrix.interleave_head = model_.shape.head_dim;
    if (model_.shape.qkv_bias) Vector(gguf + "bias", hf + "bias", rows);
  }
  void Stack(const std::string& gguf, const std::string& experts, const char* part, int64_t rows,
             int64_t cols) {
    SynthTensor& tensor = Add(gguf, "", model_.weights, {model_.shape.experts, rows, cols});
    tensor.parts.clear();
    for (int64_t e = 0; e < model_.shape.experts; ++e)
      tensor.parts.push_back(experts + std::to_string(e) + part);
  }

  const SynthModel& model_;
  bool gguf_, interleave_;
  std::vector<SynthTensor> tensors_;
};

}  // namespace

std::string_view SynthModel::gguf_architecture() const {
  return family->gguf ? family->gguf : "llama";
}

// The published mixtures of the Qwen kind have dense layers as wide as the experts that one token uses.
int64_t SynthModel::dense_intermediate() const {
  const bool qwen_moe = shape.experts > 0 && std::string_view(family->name) != "mixtral";
  return qwen_moe ? shape.intermediate * shape.experts_per_token : shape.intermediate;
}

Result<SynthModel> MakeSynthModel(const LlmShape& shape, DType weights, uint64_t seed) {
  CELER_RETURN_IF_ERROR(Validate(shape));
  if (shape.head_dim % 2 != 0)
    return Error::Invalid(shape.name, ": heads of ", shape.head_dim,
                          " elements cannot be rotated; give an even number");
  if (shape.vocab < kSynthMinVocab)
    return Error::Invalid(shape.name, ": a vocabulary of ", shape.vocab, " tokens does not hold the ",
                          kSynthMinVocab - 1, " bytes and an end token; give ", kSynthMinVocab, " or more");
  const Series& series = SeriesOf(shape.name);
  SynthModel model;
  model.shape = shape;
  model.family = FindFamily(FamilyName(shape));
  CELER_CHECK(model.family != nullptr);
  model.rope.theta = series.theta;
  model.rope.dim = shape.head_dim;
  if (series.llama3_factor > 0) {
    model.rope.scaling = RopeConfig::Scaling::kLlama3;
    model.rope.factor = series.llama3_factor;
    model.rope.original_positions = 8192;
  }
  model.positions = series.positions;
  model.norm_eps = series.norm_eps;
  model.sliding_window = series.sliding_window;
  model.weights = weights;
  model.seed = seed;
  for (const SynthTensor& tensor : SynthTensors(model, SynthContainer::kGguf)) {
    const int64_t cols = tensor.spec.shape[tensor.spec.shape.rank() - 1];
    if (const int block = Info(tensor.spec.dtype).block; cols % block != 0)
      return Error::Invalid(
          shape.name, ": '", tensor.spec.name, "' has rows of ", cols, " elements, and ",
          Name(tensor.spec.dtype), " needs a multiple of ", block,
          block > 32 && cols % 32 == 0 ? "; take q4_0, q5_0 or q8_0" : "; take f16 or bf16");
  }
  return model;
}

std::vector<SynthTensor> SynthTensors(const SynthModel& model, SynthContainer container) {
  return Builder(model, container).Build();
}

}  // namespace celer
