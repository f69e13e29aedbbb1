#include "models/load/gguf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "models/config/family.h"
#include "models/config/words.h"
#include "models/cpu/rope.h"

namespace celer {
namespace {

using Scaling = RopeConfig::Scaling;

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The z-score below which a share of a normal distribution lies, as files state the sparsity of gates.
float DeviationsOf(float share) {
  if (share <= 0) return -INFINITY;
  double low = -10, high = 10;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < share ? low : high) = middle;
  }
  return static_cast<float>(low);
}

class Keys {
 public:
  Keys(const DecoderConfig& config, std::string_view family, std::string architecture, GgufWriter* writer)
      : c_(config), family_(family), architecture_(std::move(architecture)), writer_(writer) {}

  void Write() {
    writer_->SetString("general.architecture", architecture_);
    Int("vocab_size", c_.vocab);
    Int("context_length", c_.max_positions);
    Int("embedding_length", c_.hidden);
    Int("block_count", c_.layers);
    FeedForward();
    Heads();
    Float(c_.norm == NormKind::kLayer ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
          c_.norm_eps);
    Window();
    Rope();
    if (c_.moe.experts > 0) Experts();
    Scalars();
    if (!c_.recurrent.layer.empty()) Recurrent();
    Extras();
  }

 private:
  bool Is(Words families) const { return Holds(families, family_); }
  std::string Whole(const char* key) const { return architecture_ + "." + key; }
  void Int(const char* key, int64_t value) { writer_->SetUint32(Whole(key), static_cast<uint32_t>(value)); }
  void Float(const char* key, double value) { writer_->SetFloat32(Whole(key), static_cast<float>(value)); }
  void Bool(const char* key, bool value) { writer_->SetBool(Whole(key), value); }
  template <class F>
  void InLayers(const char* key, F&& of_layer) {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < c_.layers; ++i) values.push_back(static_cast<int32_t>(of_layer(i)));
    writer_->SetIntArray(Whole(key), values);
  }

  void FeedForward() {
    if (!c_.layer_shapes.empty())
      return InLayers("feed_forward_length", [&](int64_t i) { return c_.Intermediate(i); });
    if (!c_.ffn_layer.empty())
      return InLayers("feed_forward_length",
                      [&](int64_t i) { return c_.HasFfn(i) && !c_.IsSparse(i) ? c_.intermediate : 0; });
    Int("feed_forward_length", c_.intermediate);
  }

  void Heads() {
    Int("attention.head_count", c_.heads);
    if (c_.IsLatent()) return LatentHeads();
    if (!c_.layer_shapes.empty())
      InLayers("attention.head_count_kv", [&](int64_t i) { return c_.KvHeads(i); });
    else if (Is("granitemoehybrid nemotron_h"))
      InLayers("attention.head_count_kv", [&](int64_t i) { return c_.HasAttention(i) ? c_.kv_heads : 0; });
    else
      Int("attention.head_count_kv", c_.kv_heads);
    int64_t full = c_.head_dim;
    if (!c_.layer_shapes.empty())
      for (int64_t i = 0; i < c_.layers; ++i)
        if (c_.Window(i) == 0) full = c_.HeadDim(i);
    Int("attention.key_length", full);
    Int("attention.value_length", full);
    if (!Is("gemma4")) return;
    Int("attention.key_length_swa", c_.head_dim);
    Int("attention.value_length_swa", c_.head_dim);
  }

  void LatentHeads() {
    const LatentConfig& l = c_.latent;
    const bool absorbed = !Is("minicpm3");  // as the cache has them
    Int("attention.head_count_kv", absorbed ? 1 : c_.heads);
    if (l.q_rank > 0) Int("attention.q_lora_rank", l.q_rank);
    Int("attention.kv_lora_rank", l.kv_rank);
    Int("attention.key_length", absorbed ? l.kv_rank + l.rope_dim : l.nope_dim + l.rope_dim);
    Int("attention.value_length", absorbed ? l.kv_rank : l.value_dim);
    if (!absorbed) return;
    Int("attention.key_length_mla", l.nope_dim + l.rope_dim);
    Int("attention.value_length_mla", l.value_dim);
  }

  void Window() {
    if (c_.sliding_window == 0 || c_.chunked_window) return;
    Int("attention.sliding_window", c_.sliding_window);
    if (!Is("gemma2 gemma3 gemma3n gemma4 olmo2 exaone4")) return;
    std::vector<bool> windowed;
    for (int64_t i = 0; i < c_.layers; ++i) windowed.push_back(c_.Window(i) > 0);
    writer_->SetBoolArray(Whole("attention.sliding_window_pattern"), windowed);
  }

  void Rope() {
    const RopeConfig& rope = c_.rope;
    if (Is("bloom mpt gpt2")) return;  // positions are no angles there
    const bool none =
        !c_.rope_layer.empty() && std::count(c_.rope_layer.begin(), c_.rope_layer.end(), true) == 0;
    Int("rope.dimension_count", none ? c_.head_dim : rope.dim);
    Float("rope.freq_base", rope.theta);
    if (Is("granitemoehybrid")) Bool("rope.scaling.finetuned", !none);
    if (c_.local_rope) {
      Float("rope.freq_base_swa", c_.local_rope->theta);
      if (Is("gemma4")) Int("rope.dimension_count_swa", c_.local_rope->dim);
    }
    if (rope.scaling == Scaling::kLinear) {
      writer_->SetString(Whole("rope.scaling.type"), "linear");
      Float("rope.scaling.factor", rope.factor);
    } else if (rope.scaling == Scaling::kYarn) {
      Yarn();
    } else if (rope.scaling == Scaling::kLongRope) {
      Int("rope.scaling.original_context_length", static_cast<int64_t>(rope.original_positions));
      Float("rope.scaling.attn_factor", rope.attention_factor);
    }
  }

  void Yarn() {
    const RopeConfig& rope = c_.rope;
    writer_->SetString(Whole("rope.scaling.type"), "yarn");
    Float("rope.scaling.factor", rope.factor);
    Int("rope.scaling.original_context_length", static_cast<int64_t>(rope.original_positions));
    if (rope.beta_fast != 32) Float("rope.scaling.yarn_beta_fast", rope.beta_fast);
    if (rope.beta_slow != 1) Float("rope.scaling.yarn_beta_slow", rope.beta_slow);
    double attention = rope.attention_factor / YarnScale(rope.factor, 1);
    if (Is("deepseek_v2") && c_.attention_scale > 0) {
      // The scores' scale is mscale * mscale / sqrt(head); the key has a tenth of mscale_all_dim.
      const auto head = static_cast<double>(c_.latent.nope_dim + c_.latent.rope_dim);
      const double mscale = std::sqrt(c_.attention_scale * std::sqrt(head));
      const double all_dim = rope.factor > 1 ? (mscale - 1) / (0.1 * std::log(rope.factor)) : 0;
      if (std::abs(all_dim) > 1e-4) {
        Float("rope.scaling.yarn_log_multiplier", 0.1 * all_dim);
        attention = rope.attention_factor;
      }
    }
    if (std::abs(attention - 1) > 1e-6) Float("rope.scaling.attn_factor", attention);
  }

  void Experts() {
    const MoeConfig& moe = c_.moe;
    Int("expert_count", moe.experts);
    Int("expert_used_count", moe.experts_per_token);
    Int("expert_feed_forward_length", moe.intermediate);
    if (moe.shared_intermediate > 0) Int("expert_shared_feed_forward_length", moe.shared_intermediate);
    const auto first = std::find(moe.sparse_layer.begin(), moe.sparse_layer.end(), true);
    if (first != moe.sparse_layer.begin() && c_.ffn_layer.empty())
      Int("leading_dense_block_count", first - moe.sparse_layer.begin());
    if (!Is("gpt_oss glm4_moe ernie4_5_moe minimax_m2 hunyuan_v1_moe deepseek_v2 nemotron_h")) return;
    Int("expert_gating_func", moe.score == RouterScore::kSigmoid ? 2 : 1);
    if (!Is("gpt_oss")) Bool("expert_weights_norm", moe.normalize_top);
    if (moe.routed_scale != 1) Float("expert_weights_scale", moe.routed_scale);
    if (moe.groups <= 1) return;
    Int("expert_group_count", moe.groups);
    Int("expert_group_used_count", moe.groups_used);
  }

  void Scalars() {
    if (Is("granite granitemoe granitemoehybrid minicpm")) {
      Float("embedding_scale", c_.embedding_scale);
      Float("residual_scale", c_.residual_scale);
      Float("logit_scale", 1 / c_.logit_scale);
      if (!Is("minicpm") && c_.attention_scale != 0) Float("attention.scale", c_.attention_scale);
    }
    if (Is("cohere cohere2")) Float("logit_scale", c_.logit_scale);
    if (Is("gemma2")) Float("attn_logit_softcapping", c_.attention_softcap);
    if (Is("gemma2 gemma3 gemma3n gemma4")) Float("final_logit_softcapping", c_.logit_softcap);
    if (Is("ministral3") && c_.query_scale.beta != 0)
      Float("attention.temperature_scale", c_.query_scale.beta);
    if (Is("mpt")) {
      Float("attention.max_alibi_bias", c_.alibi_max);
      if (c_.qkv_clip > 0) Float("attention.clamp_kqv", c_.qkv_clip);
    }
    if (Is("gpt_neox stablelm")) Bool("use_parallel_residual", c_.parallel_block);
  }

  void Recurrent() {
    const RecurrentConfig& r = c_.recurrent;
    Int("ssm.conv_kernel", r.conv_kernel);
    Int("ssm.state_size", r.key_dim);
    Int("ssm.group_count", r.key_heads);
    Int("ssm.time_step_rank", r.value_heads);
    Int("ssm.inner_size", r.value_heads * r.value_dim);
    if (r.kind != RecurrentKind::kGatedDelta) return;
    const auto attention = std::find(r.layer.begin(), r.layer.end(), false);
    Int("full_attention_interval", attention - r.layer.begin() + 1);
  }

  void Extras() {
    if (c_.per_layer_dim > 0) Int("embedding_length_per_layer_input", c_.per_layer_dim);
    if (!c_.layer_shapes.empty()) {
      int64_t shared = 0;
      for (int64_t i = 0; i < c_.layers; ++i) shared += c_.KvFrom(i) != i;
      Int("attention.shared_kv_layers", shared);
    }
    if (!Is("gemma3n")) return;
    std::vector<float> deviations;
    for (const float share : c_.gate_sparsity) deviations.push_back(DeviationsOf(share));
    if (!deviations.empty()) writer_->SetFloatArray(Whole("activation_sparsity_scale"), deviations);
    Int("altup.num_inputs", c_.altup.streams);
    Int("altup.active_idx", c_.altup.active);
  }

  const DecoderConfig& c_;
  std::string_view family_;
  std::string architecture_;
  GgufWriter* writer_;
};

constexpr Words kInterleaving = "llama ministral3 smollm3 granite granitemoe granitemoehybrid minicpm";

}  // namespace

Result<std::string> GgufArchitecture(const DecoderConfig& config) {
  const Family& family = *FindFamily(config.family);
  const Family* const in_gguf = GgufFamily(family);
  if (!in_gguf)
    return Error::Unsupported("models of the type '", family.model_type,
                              "' have no architecture in GGUF that is read here");
  const std::string_view names = in_gguf->gguf;
  const size_t space = names.find(' ');
  if (space == std::string_view::npos) return std::string(names);
  return std::string(config.moe.experts > 0 ? names.substr(space + 1) : names.substr(0, space));
}

bool GgufInterleaves(const DecoderConfig& config) {
  const Family* const family = GgufFamily(*FindFamily(config.family));
  return family && config.rope.layout == RopeLayout::kHalf && Holds(kInterleaving, family->name);
}

std::vector<float> GgufRopeFactors(const RopeConfig& rope) {
  RopeConfig plain = rope;
  plain.scaling = RopeConfig::Scaling::kNone;
  plain.turning_pairs = 0;
  const RopeTable before(plain), after(rope);
  constexpr float kStill = 1e30f;
  std::vector<float> factors;
  for (size_t i = 0; i < before.frequencies().size(); ++i)
    factors.push_back(after.frequencies()[i] == 0 ? kStill
                                                  : before.frequencies()[i] / after.frequencies()[i]);
  return factors;
}

Status SetGgufKeys(const DecoderConfig& config, GgufWriter* writer) {
  CELER_ASSIGN(const std::string architecture, GgufArchitecture(config));
  Keys(config, GgufFamily(*FindFamily(config.family))->name, architecture, writer).Write();
  return {};
}

namespace {

// Collects the first difference.
class Comparison {
 public:
  template <class T>
  void Same(const char* what, const T& a, const T& b) {
    if (a != b && !difference_) difference_ = fmt::format("{} is {} and {}", what, a, b);
  }
  void Close(const char* what, double a, double b) {
    if (std::abs(a - b) > 1e-5 * std::max(std::abs(a), std::abs(b)) && !difference_)
      difference_ = fmt::format("{} is {} and {}", what, a, b);
  }
  const std::optional<std::string>& difference() const { return difference_; }

 private:
  std::optional<std::string> difference_;
};

void CompareRope(const char* what, const RopeConfig& a, const RopeConfig& b, Comparison* out) {
  const auto named = [&](const char* field) { return fmt::format("{} of {}", field, what); };
  out->Same(named("rotated dimensions").c_str(), a.dim, b.dim);
  out->Close(named("theta").c_str(), a.theta, b.theta);
  // GGUF has Llama 3.1's and Gemma 4's as a tensor of factors.
  const bool tensor = a.scaling == Scaling::kLlama3 || b.scaling == Scaling::kLlama3;
  if (!tensor) {
    out->Same(named("scaling").c_str(), static_cast<int>(a.scaling), static_cast<int>(b.scaling));
    if (a.scaling == Scaling::kLinear || a.scaling == Scaling::kYarn)
      out->Close(named("factor").c_str(), a.factor, b.factor);
    out->Close(named("attention factor").c_str(), a.attention_factor, b.attention_factor);
  }
  if (a.scaling == Scaling::kYarn) {
    out->Close(named("original positions").c_str(), a.original_positions, b.original_positions);
    out->Close(named("beta_fast").c_str(), a.beta_fast, b.beta_fast);
    out->Close(named("beta_slow").c_str(), a.beta_slow, b.beta_slow);
    out->Same(named("rounding of YaRN's ramp").c_str(), a.truncate, b.truncate);
  }
}

void CompareLayers(const DecoderConfig& a, const DecoderConfig& b, Comparison* out) {
  for (int64_t i = 0; i < a.layers && i < b.layers; ++i) {
    const auto in_layer = [&](const char* what) { return fmt::format("{} of layer {}", what, i); };
    const auto same = [&](const char* what, auto x, auto y) { out->Same(in_layer(what).c_str(), x, y); };
    same("window", a.Window(i), b.Window(i));
    same("recurrence", a.IsRecurrent(i), b.IsRecurrent(i));
    same("attention", a.HasAttention(i), b.HasAttention(i));
    same("feed-forward block", a.HasFfn(i), b.HasFfn(i));
    same("mixture of experts", a.IsSparse(i), b.IsSparse(i));
    if (a.HasAttention(i)) same("rope", a.Rotates(i), b.Rotates(i));
    same("head size", a.HeadDim(i), b.HeadDim(i));
    same("number of kv heads", a.KvHeads(i), b.KvHeads(i));
    same("source of keys", a.KvFrom(i), b.KvFrom(i));
    if (a.KvFrom(i) == i) same("keys as values", a.ValuesAreKeys(i), b.ValuesAreKeys(i));
    if (!a.IsSparse(i) && a.HasFfn(i)) same("intermediate size", a.Intermediate(i), b.Intermediate(i));
  }
}

void CompareScalars(const DecoderConfig& a, const DecoderConfig& b, Comparison* out) {
  out->Close("norm epsilon", a.norm_eps, b.norm_eps);
  out->Close("scale of the embedding", a.embedding_scale, b.embedding_scale);
  out->Close("scale of the residual branches", a.residual_scale, b.residual_scale);
  out->Close("scale of the logits", a.logit_scale, b.logit_scale);
  out->Close("softcap on logits", a.logit_softcap, b.logit_softcap);
  const auto scale = [](const DecoderConfig& c) {
    return c.attention_scale != 0 ? c.attention_scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
  };
  out->Close("scale of the attention scores", scale(a), scale(b));
  out->Close("softcap on attention scores", a.attention_softcap, b.attention_softcap);
  out->Close("growth of the queries", a.query_scale.beta, b.query_scale.beta);
  out->Close("exponent of the last slope of ALiBi", a.alibi_max, b.alibi_max);
  out->Close("bound of queries, keys and values", a.qkv_clip, b.qkv_clip);
  out->Close("limit of SwiGLU", a.swiglu_limit, b.swiglu_limit);
  out->Close("scale of the embeddings of each layer", a.per_layer_scale, b.per_layer_scale);
  for (size_t i = 0; i < std::min(a.gate_sparsity.size(), b.gate_sparsity.size()); ++i)
    out->Close("sparsity of a gate", a.gate_sparsity[i], b.gate_sparsity[i]);
}

void CompareSwitches(const DecoderConfig& a, const DecoderConfig& b, Comparison* out) {
  const struct {
    const char* what;
    bool a, b;
  } flags[] = {
      {"bias on q, k and v", a.qkv_bias, b.qkv_bias},
      {"bias on the output of attention", a.o_bias, b.o_bias},
      {"bias on feed-forward layers", a.mlp_bias, b.mlp_bias},
      {"bias on the head", a.head_bias, b.head_bias},
      {"gate of feed-forward blocks", a.gated_mlp, b.gated_mlp},
      {"tied embeddings", a.tied_embeddings, b.tied_embeddings},
      {"sinks", a.attention_sinks, b.attention_sinks},
      {"norms before branches", a.pre_norm, b.pre_norm},
      {"norms behind branches", a.post_norm, b.post_norm},
      {"bias on norms", a.norm_bias, b.norm_bias},
      {"norm of q and k", a.qk_norm, b.qk_norm},
      {"norm of values", a.v_norm, b.v_norm},
      {"norm on embeddings", a.embedding_norm, b.embedding_norm},
      {"norm on the residual", a.residual_norm, b.residual_norm},
      {"final norm", a.final_norm, b.final_norm},
      {"parallel block", a.parallel_block, b.parallel_block},
      {"norms of parallel branches", a.parallel_norms, b.parallel_norms},
      {"windows in chunks", a.chunked_window, b.chunked_window},
      {"scale on layers", a.layer_scale, b.layer_scale},
      {"gate on attention", a.output_gate, b.output_gate},
      {"bias of the convolution", a.recurrent.conv_bias, b.recurrent.conv_bias},
      {"bias of recurrent layers", a.recurrent.bias, b.recurrent.bias},
      {"renormalised router weights", a.moe.experts > 0 && a.moe.normalize_top,
       b.moe.experts > 0 && b.moe.normalize_top},
      {"router bias", a.moe.router_bias, b.moe.router_bias},
      {"bias for choosing experts", a.moe.choice_bias, b.moe.choice_bias},
      {"bias of experts", a.moe.expert_bias, b.moe.expert_bias},
      {"gate of the shared expert", a.moe.shared_intermediate > 0 && a.moe.shared_gated,
       b.moe.shared_intermediate > 0 && b.moe.shared_gated},
      {"experts beside a dense block", a.moe.beside_dense, b.moe.beside_dense},
      {"router weights on inputs", a.moe.weight_on_input, b.moe.weight_on_input},
  };
  for (const auto& flag : flags) out->Same(flag.what, flag.a, flag.b);
}

}  // namespace

std::optional<std::string> DifferenceOfModels(const DecoderConfig& a, const DecoderConfig& b) {
  Comparison out;
  const struct {
    const char* what;
    int64_t a, b;
  } numbers[] = {
      {"number of layers", a.layers, b.layers},
      {"hidden size", a.hidden, b.hidden},
      {"number of heads", a.heads, b.heads},
      {"vocabulary size", a.vocab, b.vocab},
      {"maximum position", a.max_positions, b.max_positions},
      {"learned positions", a.position_rows, b.position_rows},
      {"offset of learned positions", a.position_offset, b.position_offset},
      {"width of the embedding", a.embedding_dim, b.embedding_dim},
      {"activation", static_cast<int64_t>(a.activation), static_cast<int64_t>(b.activation)},
      {"kind of norm", static_cast<int64_t>(a.norm), static_cast<int64_t>(b.norm)},
      {"number of experts", a.moe.experts, b.moe.experts},
      {"experts per token", a.moe.experts_per_token, b.moe.experts_per_token},
      {"shared expert's width", a.moe.shared_intermediate, b.moe.shared_intermediate},
      {"expert's width", a.moe.experts > 0 ? a.moe.intermediate : 0,
       b.moe.experts > 0 ? b.moe.intermediate : 0},
      {"groups of experts", a.moe.groups, b.moe.groups},
      {"groups of experts that are used", a.moe.groups_used, b.moe.groups_used},
      {"router score", static_cast<int64_t>(a.moe.score), static_cast<int64_t>(b.moe.score)},
      {"rank of keys and values", a.latent.kv_rank, b.latent.kv_rank},
      {"rank of queries", a.latent.q_rank, b.latent.q_rank},
      {"unrotated head size", a.latent.nope_dim, b.latent.nope_dim},
      {"head size of values", a.latent.value_dim, b.latent.value_dim},
      {"convolution kernel", a.recurrent.conv_kernel, b.recurrent.conv_kernel},
      {"key heads of recurrent layers", a.recurrent.key_heads, b.recurrent.key_heads},
      {"key size of recurrent layers", a.recurrent.key_dim, b.recurrent.key_dim},
      {"value heads of recurrent layers", a.recurrent.value_heads, b.recurrent.value_heads},
      {"value size of recurrent layers", a.recurrent.value_dim, b.recurrent.value_dim},
      {"norm groups of recurrent layers", a.recurrent.norm_groups, b.recurrent.norm_groups},
      {"embedding of each layer", a.per_layer_dim, b.per_layer_dim},
      {"residual streams", a.altup.streams, b.altup.streams},
      {"rank beside attention", a.laurel_rank, b.laurel_rank},
  };
  for (const auto& number : numbers) out.Same(number.what, number.a, number.b);
  CompareSwitches(a, b, &out);
  CompareScalars(a, b, &out);
  const bool rotates = a.rope_layer.empty() || std::count(a.rope_layer.begin(), a.rope_layer.end(), true) > 0;
  if (rotates) CompareRope("rope", a.rope, b.rope, &out);
  if (rotates && !GgufInterleaves(a) && !GgufInterleaves(b))
    out.Same("layout of rope", static_cast<int>(a.rope.layout), static_cast<int>(b.rope.layout));
  if (a.local_rope && b.local_rope)
    CompareRope("rope of layers with a window", *a.local_rope, *b.local_rope, &out);
  CompareLayers(a, b, &out);
  return out.difference();
}

}  // namespace celer
