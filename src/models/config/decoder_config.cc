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
  if (!std::isfinite(moe.jitter) || moe.jitter < 0)
    return Error::Corrupt(path, ": jitter of the router is ", moe.jitter, ", expected 0 or more");
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
      {"exponent of the last slope of ALiBi", c.alibi_max, 0},
      {"bound of queries, keys and values", c.qkv_clip, 0},
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

Status ValidateShape(const DecoderConfig& c, int64_t layer, const std::string& path) {
  const LayerShape& shape = c.layer_shapes[layer];
  const struct {
    const char* name;
    int64_t value, min, max;
  } bounds[] = {
      {"head size", shape.head_dim, 2, 4096},
      {"number of kv heads", shape.kv_heads, 1, c.heads},
      {"intermediate size", shape.intermediate, 1, kMaxWidth},
      {"source of keys and values", shape.kv_from, 0, layer},
  };
  for (const auto& bound : bounds)
    if (bound.value < bound.min || bound.value > bound.max)
      return Error::Corrupt(path, ": ", bound.name, " of layer ", layer, " is ", bound.value, ", expected ",
                            bound.min, " to ", bound.max);
  if (c.heads % shape.kv_heads != 0)
    return Error::Corrupt(path, ": ", c.heads, " heads cannot share the ", shape.kv_heads,
                          " kv heads of layer ", layer, " evenly");
  const int64_t turned = c.local_rope && c.Window(layer) > 0 ? c.local_rope->dim : c.rope.dim;
  if (turned > shape.head_dim)
    return Error::Corrupt(path, ": layer ", layer, " rotates ", turned, " dimensions of heads with ",
                          shape.head_dim);
  const LayerShape& from = c.layer_shapes[shape.kv_from];
  if (from.kv_from != shape.kv_from || from.head_dim != shape.head_dim || from.kv_heads != shape.kv_heads)
    return Error::Corrupt(path, ": layer ", layer, " cannot read the keys and values of layer ",
                          shape.kv_from, ", which has other ones");
  return {};
}

Status ValidateLayers(const DecoderConfig& c, const std::string& path) {
  if (c.layer_shapes.empty()) return {};
  if (std::ssize(c.layer_shapes) != c.layers)
    return Error::Corrupt(path, ": shapes of ", c.layer_shapes.size(), " of ", c.layers, " layers");
  if (c.IsLatent() || !c.recurrent.layer.empty() || c.parallel_block)
    return Error::Unsupported(path, ": layers of several shapes that are not of plain attention");
  for (int64_t i = 0; i < c.layers; ++i) CELER_RETURN_IF_ERROR(ValidateShape(c, i, path));
  return {};
}

Status ValidateExtras(const DecoderConfig& c, const std::string& path) {
  constexpr int64_t kMostStreams = 64;
  const AltUpConfig& altup = c.altup;
  const struct {
    const char* name;
    int64_t value, min, max;
  } bounds[] = {
      {"size of the embeddings of each layer", c.per_layer_dim, altup.streams > 0 ? 1 : 0, kMaxWidth},
      {"vocabulary of the embeddings of each layer", c.per_layer_vocab, c.per_layer_dim > 0 ? 1 : 0,
       kMaxVocab},
      {"size of the embeddings of all layers", c.layers * c.per_layer_dim, 0, kMaxWidth},
      {"number of residual streams", altup.streams, 0, kMostStreams},
      {"active residual stream", altup.active, 0, std::max<int64_t>(0, altup.streams - 1)},
      {"rank of the branch beside attention", c.laurel_rank, 0, kMaxWidth},
      {"pairs that turn", c.rope.turning_pairs, 0, c.rope.dim / 2},
  };
  for (const auto& bound : bounds)
    if (bound.value < bound.min || bound.value > bound.max)
      return Error::Corrupt(path, ": ", bound.name, " is ", bound.value, ", expected ", bound.min, " to ",
                            bound.max);
  if (!c.gate_sparsity.empty() && std::ssize(c.gate_sparsity) != c.layers)
    return Error::Corrupt(path, ": sparsities of ", c.gate_sparsity.size(), " of ", c.layers, " layers");
  for (const float share : c.gate_sparsity)
    if (!(share >= 0 && share < 1))
      return Error::Corrupt(path, ": sparsity of a gate is ", share, ", expected 0 or more and less than 1");
  return {};
}

Status ValidateMamba2(const RecurrentConfig& r, const std::string& path) {
  const int64_t values = r.value_heads * r.value_dim;
  if (r.norm_groups < 1 || values % r.norm_groups != 0)
    return Error::Corrupt(path, ": ", values, " values of Mamba-2 layers cannot be normed in ", r.norm_groups,
                          " equal parts");
  if (!std::isfinite(r.step_min) || r.step_min < 0 || !std::isfinite(r.step_max) || r.step_max < 0)
    return Error::Corrupt(path, ": time steps of Mamba-2 layers from ", r.step_min, " to ", r.step_max,
                          ", expected numbers that are not negative");
  return {};
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
  if (r.kind == RecurrentKind::kMamba2) CELER_RETURN_IF_ERROR(ValidateMamba2(r, path));
  if (static_cast<int64_t>(r.layer.size()) != c.layers)
    return Error::Corrupt(path, ": recurrent layers are named among ", r.layer.size(), " of ", c.layers,
                          " layers");
  return {};
}

// Which layers have attention, a state, a feed-forward block.
Status ValidateLayerParts(const DecoderConfig& c, const std::string& path) {
  for (const std::vector<bool>* parts : {&c.mixer_layer, &c.ffn_layer})
    if (!parts->empty() && static_cast<int64_t>(parts->size()) != c.layers)
      return Error::Corrupt(path, ": the parts of layers are named for ", parts->size(), " of ", c.layers,
                            " layers");
  bool attention = false;
  for (int64_t i = 0; i < c.layers; ++i) {
    if ((c.IsRecurrent(i) && !c.HasMixer(i)) || (c.IsSparse(i) && !c.HasFfn(i)))
      return Error::Corrupt(path, ": layer ", i, " is said to have a part that it has not");
    attention = attention || c.HasAttention(i);
  }
  if (!attention)
    return Error::Unsupported(path, ": none of ", c.layers,
                              " layers has attention; at least one with attention is needed");
  return {};
}

}  // namespace

Status Validate(const DecoderConfig& c, const std::string& path) {
  struct Range {
    const char* name;
    int64_t value, min, max;
  };
  const bool dense = c.moe.experts == 0, latent = c.IsLatent();
  const bool ffn =
      c.ffn_layer.empty() || std::find(c.ffn_layer.begin(), c.ffn_layer.end(), true) != c.ffn_layer.end();
  const Range bounds[] = {
      {"number of layers", c.layers, 1, kMaxLayers},
      {"hidden size", c.hidden, 1, kMaxWidth},
      {"intermediate size", c.intermediate, dense && ffn ? 1 : 0, kMaxWidth},
      {"number of heads", c.heads, 1, kMaxWidth},
      {"number of kv heads", c.kv_heads, 1, c.heads},
      {"head size", c.head_dim, 2, 4096},
      {"rotated dimensions", c.rope.dim, 2, c.MaxHeadDim()},
      {"rotated dimensions in layers with a sliding window", c.local_rope ? c.local_rope->dim : 2, 2,
       c.MaxHeadDim()},
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
  if (c.embedding_dim < 0 || c.embedding_dim > kMaxWidth)
    return Error::Corrupt(path, ": width of the embedding is ", c.embedding_dim, ", expected 0 to ",
                          kMaxWidth);
  if (c.residual_norm && (c.norm != NormKind::kLayer || c.parallel_block || c.moe.experts > 0))
    return Error::Unsupported(path, ": norms on the residual of layers that no family here has");
  CELER_RETURN_IF_ERROR(ValidateLayers(c, path));
  CELER_RETURN_IF_ERROR(ValidateExtras(c, path));
  if (c.post_norm && c.moe.experts > 0 && !c.moe.beside_dense)
    return Error::Unsupported(path, ": norms behind experts, which no family here has");
  CELER_RETURN_IF_ERROR(ValidateRecurrent(c, path));
  CELER_RETURN_IF_ERROR(ValidateLayerParts(c, path));
  if (!dense) CELER_RETURN_IF_ERROR(ValidateRouter(c.moe, path));
  if (!std::isfinite(c.swiglu_limit) || c.swiglu_limit < 0)
    return Error::Corrupt(path, ": limit of SwiGLU is ", c.swiglu_limit, ", expected 0 or more");
  if (c.sliding_window > 0 && static_cast<int64_t>(c.windowed_layer.size()) != c.layers)
    return Error::Corrupt(path, ": a sliding window is named for ", c.windowed_layer.size(), " of ", c.layers,
                          " layers");
  return {};
}

namespace {

// What a configuration has that Llama's and Qwen3's do not, and whether the GPU's strategy `general` runs it.
struct Beyond {
  bool has;
  bool on_gpu;
  const char* what;
  bool calibrated = false;  // by the quantizer's forward pass
};

std::vector<Beyond> BeyondLlama(const DecoderConfig& config) {
  const MoeConfig& moe = config.moe;
  const bool rotates =
      config.rope_layer.empty() ||
      std::find(config.rope_layer.begin(), config.rope_layer.end(), false) == config.rope_layer.end();
  // The GPU divides what the residual is made of by this scale.
  const bool plain_residual = config.residual_scale >= 1e-3f && config.residual_scale <= 1e3f &&
                              !config.post_norm && !config.embedding_norm && config.position_rows == 0;
  return {
      {config.mlp_bias, true, "a bias on its feed-forward layers", true},
      {config.o_bias, true, "a bias on the output of its attention", true},
      {config.head_bias, true, "a bias on its output head"},
      {config.embedding_scale != 1, true, "a scale on its embeddings"},
      {config.residual_scale != 1, plain_residual, "a scale on its residual branches"},
      {config.logit_scale != 1, true, "a scale on its logits"},
      {config.logit_softcap != 0, true, "a softcap on its logits"},
      {config.attention_scale != 0, true, "a scale of its own on attention scores"},
      {config.attention_softcap != 0, true, "a softcap on attention scores"},
      {config.query_scale.beta != 0, true, "queries scaled by position"},
      {config.attention_sinks, true, "attention sinks"},
      {config.norm != NormKind::kRms || config.norm_bias, moe.experts == 0, "LayerNorm"},
      {!config.pre_norm || config.post_norm, config.pre_norm || moe.experts == 0,
       "norms after attention and the feed-forward block"},
      {config.qk_norm && (config.qk_norm_span != QkNormSpan::kHead || config.qk_norm_kind != NormKind::kRms ||
                          config.qk_norm_after_rope),
       true, "a qk-norm other than RMSNorm over each head before rope"},
      {config.embedding_norm, true, "a norm on its embeddings"},
      {config.parallel_block, true, "attention and feed-forward blocks in parallel"},
      {!config.gated_mlp, true, "a feed-forward block without a gate"},
      {config.position_rows > 0, true, "learned positions"},
      {config.local_rope.has_value(), true, "rope of its own in layers with a sliding window"},
      {!rotates, true, "layers without rope"},
      {moe.experts > 0 && !config.gated_mlp, false, "experts without a gate"},
      {moe.score == RouterScore::kSparseMixer, false, "a sparse mixer"},
      {moe.score != RouterScore::kSoftmax || moe.choice_bias || moe.groups > 1 || moe.routed_scale != 1, true,
       "a router other than softmax"},
      {moe.router_bias || moe.expert_bias, true, "biases in its mixture of experts"},
      {!config.recurrent.layer.empty() && config.recurrent.kind != RecurrentKind::kMamba2, true,
       "recurrent layers"},
      {!config.recurrent.layer.empty() && config.recurrent.kind == RecurrentKind::kMamba2, false,
       "Mamba-2 layers"},
      {!config.mixer_layer.empty() || !config.ffn_layer.empty(), false,
       "layers without attention or a feed-forward block"},
      {config.residual_norm, false, "norms on the residual"},
      {!config.final_norm, false, "no norm before its output head"},
      {config.alibi_max != 0, false, "ALiBi"},
      {config.qkv_clip != 0, false, "bounds on queries, keys and values"},
      {config.embedding_dim != 0, false, "a projection of its embeddings"},
      {config.latent.kv_rank > 0, true, "latent attention"},
      {config.output_gate, config.rope.layout == RopeLayout::kHalf, "a gate on the output of its attention"},
      {config.swiglu_limit != 0, true, "a clamped SwiGLU"},
      {config.activation == Activation::kRelu2, true, "a squared ReLU"},
      {!config.layer_shapes.empty(), false, "layers of several shapes"},
      {config.per_layer_dim > 0, false, "embeddings for each layer"},
      {config.layer_scale, false, "a scale on each layer's output"},
      {config.v_norm, false, "a norm on its values"},
      {!config.gate_sparsity.empty(), false, "sparse gates"},
      {config.altup.streams > 0 || config.laurel_rank > 0, false, "several residual streams"},
      {config.chunked_window, false, "attention in chunks"},
      {moe.beside_dense, false, "experts beside a dense feed-forward block"},
      {moe.weight_on_input, false, "weights on what its experts read"},
      {config.rope.turning_pairs > 0, false, "proportional rope"},
  };
}

}  // namespace

const char* BeyondPlainLayers(const DecoderConfig& config) {
  for (const Beyond& row : BeyondLlama(config))
    if (row.has && !row.calibrated) return row.what;
  return nullptr;
}

bool HasPlainLayers(const DecoderConfig& config) {
  const std::vector<Beyond> rows = BeyondLlama(config);
  return std::none_of(rows.begin(), rows.end(), [](const Beyond& row) { return row.has; });
}

Status CheckRunsOnGpu(const DecoderConfig& config, int64_t context) {
  for (const Beyond& row : BeyondLlama(config))
    if (row.has && !row.on_gpu)
      return Error::Unsupported("the model has ", row.what,
                                ", which does not run on the GPU; use `device` cpu");
  const auto original = static_cast<int64_t>(config.rope.original_positions);
  if (config.rope.DependsOnLength() && context > original)
    return Error::Unsupported("the model's rope scaling depends on the length of a sequence beyond ",
                              original, " positions, which does not run on the GPU; use `context` ", original,
                              " or `device` cpu");
  return {};
}

int64_t DecoderConfig::MaxHeadDim() const {
  int64_t most = head_dim;
  for (const LayerShape& layer : layer_shapes) most = std::max(most, layer.head_dim);
  return most;
}

int64_t DecoderConfig::MaxKvWidth() const {
  int64_t most = layer_shapes.empty() ? kv_heads * head_dim : 0;
  for (const LayerShape& layer : layer_shapes) most = std::max(most, layer.kv_heads * layer.head_dim);
  return most;
}

int64_t DecoderConfig::MaxIntermediate() const {
  int64_t most = intermediate;
  for (const LayerShape& layer : layer_shapes) most = std::max(most, layer.intermediate);
  return most;
}

}  // namespace celer
