#include "models/config/decoder_config.h"

#include <algorithm>
#include <cmath>

#include "kernels/llm/causal_conv/causal_conv.h"
#include "models/config/plain_layers.h"

namespace celer {
namespace {

// Far above any model there is, far below what overflows 64 bits when two or three are multiplied.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr int64_t kMaxConvKernel = CausalConvArgs::kMaxKernel;

Status ValidateFactors(const std::vector<float>& factors, const char* name, int64_t count,
                       const std::string& path) {
  if (static_cast<int64_t>(factors.size()) != count)
    return Error::Corrupt(path, ": ", factors.size(), " ", name, ", expected ", count);
  for (const float factor : factors)
    if (!std::isfinite(factor) || factor <= 0)
      return Error::Corrupt(path, ": one of the ", name, " is ", factor, ", expected a positive number");
  return {};
}

Status ValidateScaling(const RopeConfig& rope, const std::string& path) {
  using Scaling = RopeConfig::Scaling;
  struct Positive {
    const char* name;
    double value;
    bool used;
  };
  const bool yarn = rope.scaling == Scaling::kYarn, llama3 = rope.scaling == Scaling::kLlama3;
  const Positive numbers[] = {
      {"rope scaling factor", rope.factor, true},
      {"low frequency factor of rope scaling", rope.low_freq_factor, llama3},
      {"high frequency factor of rope scaling", rope.high_freq_factor, llama3},
      {"beta_fast of rope scaling", rope.beta_fast, yarn},
      {"beta_slow of rope scaling", rope.beta_slow, yarn},
  };
  for (const Positive& number : numbers)
    if (number.used && !(std::isfinite(number.value) && number.value > 0))
      return Error::Corrupt(path, ": ", number.name, " is ", number.value, ", expected a positive number");
  const bool extended = rope.scaling != Scaling::kNone && rope.scaling != Scaling::kLinear;
  if (extended && !(std::isfinite(rope.original_positions) && rope.original_positions >= 1))
    return Error::Corrupt(path, ": rope scaling names ", rope.original_positions,
                          " original positions, expected 1 or more");
  if (!std::isfinite(rope.attention_factor) || rope.attention_factor < 0)
    return Error::Corrupt(path, ": attention factor of rope scaling is ", rope.attention_factor,
                          ", expected 0 or more");
  if (llama3 && rope.low_freq_factor == rope.high_freq_factor)
    return Error::Corrupt(path, ": low and high frequency factor of rope scaling are both ",
                          rope.low_freq_factor, ", expected two numbers");
  if (yarn && rope.theta == 1)
    return Error::Corrupt(path, ": rope theta is 1, which rope scaling 'yarn' cannot extend");
  if (rope.scaling == Scaling::kDynamic && rope.dim <= 2)
    return Error::Corrupt(path, ": ", rope.dim,
                          " rotated dimensions, which rope scaling 'dynamic' cannot extend");
  if (rope.scaling == Scaling::kLongRope) {
    CELER_RETURN_IF_ERROR(ValidateFactors(rope.short_factors, "short rope factors", rope.dim / 2, path));
    CELER_RETURN_IF_ERROR(ValidateFactors(rope.long_factors, "long rope factors", rope.dim / 2, path));
  }
  if (rope.freq_factors.empty()) return {};
  return ValidateFactors(rope.freq_factors, "rope frequency factors", rope.dim / 2, path);
}

Status ValidateRouter(const MoeConfig& moe, const std::string& path) {
  if (moe.groups < 1 || moe.experts % moe.groups != 0)
    return Error::Corrupt(path, ": ", moe.experts, " experts cannot form ", moe.groups, " equal groups");
  const int64_t size = moe.experts / moe.groups;
  if (moe.groups_used < 1 || moe.groups_used > moe.groups)
    return Error::Corrupt(path, ": ", moe.groups_used, " groups of experts are used, expected 1 to ",
                          moe.groups);
  if (moe.experts_per_token > moe.groups_used * size)
    return Error::Corrupt(path, ": ", moe.experts_per_token, " experts per token, and ", moe.groups_used,
                          " groups have ", moe.groups_used * size);
  if (!std::isfinite(moe.routed_scale))
    return Error::Corrupt(path, ": scale of routed experts is ", moe.routed_scale, ", expected a number");
  if (!std::isfinite(moe.normalize_eps) || moe.normalize_eps < 0)
    return Error::Corrupt(path, ": epsilon of router weights is ", moe.normalize_eps, ", expected 0 or more");
  return {};
}

// Multipliers of a whole pass: whatever they are, they must leave numbers.
Status ValidateScalars(const DecoderConfig& c, const std::string& path) {
  constexpr double kMost = 1e6;
  const struct {
    const char* name;
    double value, min;
  } scalars[] = {
      {"scale of the embedding", c.embedding_scale, -kMost},
      {"scale of the residual branches", c.residual_scale, -kMost},
      {"scale of the logits", c.logit_scale, -kMost},
      {"scale of the attention scores", c.attention_scale, -kMost},
      {"growth of the queries with their position", c.query_scale.beta, -kMost},
      {"positions to each step of the queries' growth", c.query_scale.positions, 1},
  };
  for (const auto& scalar : scalars) {
    const double most = std::max(kMost, static_cast<double>(kMaxPositions));
    if (!std::isfinite(scalar.value) || scalar.value < scalar.min || scalar.value > most)
      return Error::Corrupt(path, ": ", scalar.name, " is ", scalar.value, ", expected ", scalar.min, " to ",
                            most);
  }
  return {};
}

Status ValidateRope(const RopeConfig& rope, const std::string& path) {
  if (rope.dim % 2 != 0)
    return Error::Corrupt(path, ": ", rope.dim, " rotated dimensions, expected an even number");
  if (!std::isfinite(rope.theta) || rope.theta <= 0)
    return Error::Corrupt(path, ": rope theta is ", rope.theta, ", expected a positive number");
  return ValidateScaling(rope, path);
}

// Caps outside of these bounds would leave nothing of what they cap, or do nothing to it.
Status ValidateSoftcap(float cap, const char* of, const std::string& path) {
  if (cap == 0 || (cap >= 1e-3f && cap <= 1e6f)) return {};
  return Error::Corrupt(path, ": the softcap on ", of, " is ", cap, ", expected 0.001 to 1000000");
}

Status ValidateRecurrent(const DecoderConfig& c, const std::string& path) {
  const RecurrentConfig& r = c.recurrent;
  if (r.layer.empty()) return {};
  constexpr int64_t kMostDim = 4096;  // of a head
  const struct {
    const char* name;
    int64_t value, max;
  } bounds[] = {
      {"convolution kernel of recurrent layers", r.conv_kernel, kMaxConvKernel},
      {"number of key heads of recurrent layers", r.key_heads, 65536},
      {"number of value heads of recurrent layers", r.value_heads, 65536},
      {"key head size of recurrent layers", r.key_dim, kMostDim},
      {"value head size of recurrent layers", r.value_dim, kMostDim},
      {"width of recurrent layers", r.key_heads * r.key_dim, kMaxWidth},
      {"width of recurrent layers", r.value_heads * r.value_dim, kMaxWidth},
  };
  for (const auto& bound : bounds)
    if (bound.value < 1 || bound.value > bound.max)
      return Error::Corrupt(path, ": ", bound.name, " is ", bound.value, ", expected 1 to ", bound.max);
  if (r.value_heads % r.key_heads != 0)
    return Error::Corrupt(path, ": ", r.value_heads, " value heads of recurrent layers cannot share ",
                          r.key_heads, " key heads evenly");
  if (static_cast<int64_t>(r.layer.size()) != c.layers)
    return Error::Corrupt(path, ": recurrent layers are named among ", r.layer.size(), " of ", c.layers,
                          " layers");
  if (std::find(r.layer.begin(), r.layer.end(), false) == r.layer.end())
    return Error::Unsupported(path, ": all ", c.layers,
                              " layers are recurrent; at least one with attention is needed");
  return {};
}

}  // namespace

Status Validate(const DecoderConfig& c, const std::string& path) {
  struct Range {
    const char* name;
    int64_t value, min, max;
  };
  const bool dense = c.moe.experts == 0, latent = c.IsLatent();
  const Range bounds[] = {
      {"number of layers", c.layers, 1, kMaxLayers},
      {"hidden size", c.hidden, 1, kMaxWidth},
      {"intermediate size", c.intermediate, dense ? 1 : 0, kMaxWidth},
      {"number of heads", c.heads, 1, kMaxWidth},
      {"number of kv heads", c.kv_heads, 1, c.heads},
      {"head size", c.head_dim, 2, 4096},
      {"rotated dimensions", c.rope.dim, 2, c.head_dim},
      {"rotated dimensions in layers with a sliding window", c.local_rope ? c.local_rope->dim : 2, 2,
       c.head_dim},
      {"vocabulary size", c.vocab, 1, kMaxVocab},
      {"maximum position", c.max_positions, 1, kMaxPositions},
      {"sliding window", c.sliding_window, 0, kMaxPositions},
      {"number of experts", c.moe.experts, 0, 65536},
      {"experts per token", c.moe.experts_per_token, dense ? 0 : 1, std::max<int64_t>(c.moe.experts, 0)},
      {"expert intermediate size", c.moe.intermediate, dense ? 0 : 1, kMaxWidth},
      {"shared expert intermediate size", c.moe.shared_intermediate, 0, kMaxWidth},
      {"number of learned positions", c.position_rows, 0, kMaxPositions},
      {"offset of learned positions", c.position_offset, 0, kMaxPositions},
      {"rank of queries", c.latent.q_rank, 0, kMaxWidth},
      {"head size of values", c.latent.value_dim, latent, 4096},
      {"unrotated head size", c.latent.nope_dim, latent, 4096},
  };
  for (const Range& bound : bounds)
    if (bound.value < bound.min || bound.value > bound.max)
      return Error::Corrupt(path, ": ", bound.name, " is ", bound.value, ", expected ", bound.min, " to ",
                            bound.max);
  if (c.heads % c.kv_heads != 0)
    return Error::Corrupt(path, ": ", c.heads, " heads cannot share ", c.kv_heads, " kv heads evenly");
  if (c.position_rows > 0 && c.position_rows < c.max_positions + c.position_offset)
    return Error::Corrupt(path, ": ", c.position_rows, " learned positions, the first at ", c.position_offset,
                          ", are too few for ", c.max_positions, " positions");
  if (c.parallel_block && c.moe.experts > 0)
    return Error::Unsupported(path, ": experts in parallel with attention, which no family here has");
  if (!std::isfinite(c.norm_eps) || c.norm_eps < 0 || c.norm_eps > 1)
    return Error::Corrupt(path, ": norm epsilon is ", c.norm_eps, ", expected 0 to 1");
  CELER_RETURN_IF_ERROR(ValidateScalars(c, path));
  CELER_RETURN_IF_ERROR(ValidateRope(c.rope, path));
  if (c.local_rope) CELER_RETURN_IF_ERROR(ValidateRope(*c.local_rope, path));
  CELER_RETURN_IF_ERROR(ValidateSoftcap(c.attention_softcap, "attention scores", path));
  CELER_RETURN_IF_ERROR(ValidateSoftcap(c.logit_softcap, "logits", path));
  if (c.post_norm && c.moe.experts > 0)
    return Error::Unsupported(path, ": norms behind experts, which no family here has");
  CELER_RETURN_IF_ERROR(ValidateRecurrent(c, path));
  if (!dense) CELER_RETURN_IF_ERROR(ValidateRouter(c.moe, path));
  if (!std::isfinite(c.swiglu_limit) || c.swiglu_limit < 0)
    return Error::Corrupt(path, ": limit of SwiGLU is ", c.swiglu_limit, ", expected 0 or more");
  if (c.sliding_window > 0 && static_cast<int64_t>(c.windowed_layer.size()) != c.layers)
    return Error::Corrupt(path, ": a sliding window is named for ", c.windowed_layer.size(), " of ", c.layers,
                          " layers");
  return {};
}

const char* BeyondPlainLayers(const DecoderConfig& config) {
  const MoeConfig& moe = config.moe;
  const bool rotates =
      config.rope_layer.empty() ||
      std::find(config.rope_layer.begin(), config.rope_layer.end(), false) == config.rope_layer.end();
  const struct {
    bool has;
    const char* what;
  } rows[] = {
      {config.head_bias, "a bias on its output head"},
      {config.embedding_scale != 1, "a scale on its embeddings"},
      {config.residual_scale != 1, "a scale on its residual branches"},
      {config.logit_scale != 1, "a scale on its logits"},
      {config.logit_softcap != 0, "a softcap on its logits"},
      {config.attention_scale != 0, "a scale of its own on attention scores"},
      {config.attention_softcap != 0, "a softcap on attention scores"},
      {config.query_scale.beta != 0, "queries scaled by position"},
      {config.attention_sinks, "attention sinks"},
      {config.norm != NormKind::kRms || config.norm_bias, "LayerNorm"},
      {!config.pre_norm || config.post_norm, "norms after attention and the feed-forward block"},
      {config.qk_norm && (config.qk_norm_span != QkNormSpan::kHead || config.qk_norm_kind != NormKind::kRms ||
                          config.qk_norm_after_rope),
       "a qk-norm other than RMSNorm over each head before rope"},
      {config.embedding_norm, "a norm on its embeddings"},
      {config.parallel_block, "attention and feed-forward blocks in parallel"},
      {!config.gated_mlp, "a feed-forward block without a gate"},
      {config.position_rows > 0, "learned positions"},
      {config.local_rope.has_value(), "rope of its own in layers with a sliding window"},
      {!rotates, "layers without rope"},
      {moe.score != RouterScore::kSoftmax || moe.choice_bias || moe.groups > 1 || moe.routed_scale != 1,
       "a router other than softmax"},
      {moe.router_bias || moe.expert_bias, "biases in its mixture of experts"},
      {!config.recurrent.layer.empty(), "recurrent layers"},
      {config.latent.kv_rank > 0, "latent attention"},
      {config.output_gate, "a gate on the output of its attention"},
      {config.swiglu_limit != 0, "a clamped SwiGLU"},
      {config.activation == Activation::kRelu2, "a squared ReLU"},
  };
  for (const auto& row : rows)
    if (row.has) return row.what;
  return nullptr;
}

Status CheckRunsOnGpu(const DecoderConfig& config, int64_t context) {
  const char* missing = BeyondPlainLayers(config);
  if (config.mlp_bias) missing = "a bias on its feed-forward layers";
  if (config.o_bias) missing = "a bias on the output of its attention";
  if (missing)
    return Error::Unsupported("the model has ", missing, ", which does not run on the GPU; use `device` cpu");
  const auto original = static_cast<int64_t>(config.rope.original_positions);
  if (config.rope.DependsOnLength() && context > original)
    return Error::Unsupported("the model's rope scaling depends on the length of a sequence beyond ",
                              original, " positions, which does not run on the GPU; use `context` ", original,
                              " or `device` cpu");
  return {};
}

DecoderConfig FromLlmShape(const LlmShape& shape) {
  DecoderConfig c;
  static_cast<ModelShape&>(c) = shape;
  static_cast<ExpertShape&>(c.moe) = shape;
  c.family = c.architecture = "llama";
  c.rope.dim = shape.head_dim;
  c.max_positions = 131072;
  if (shape.experts > 0) {
    c.moe.intermediate = shape.intermediate;
    c.moe.sparse_layer.assign(shape.layers, true);
  }
  return c;
}

LlmShape ToLlmShape(const DecoderConfig& c, const std::string& name) {
  LlmShape shape{c, c.moe, name};
  if (c.moe.experts > 0) shape.intermediate = c.moe.intermediate;
  return shape;
}

}  // namespace celer
