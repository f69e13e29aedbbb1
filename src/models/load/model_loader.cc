// From a file to a Model: reads each part under its name, checks every shape.
#include "models/load/model_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "formats/decode.h"
#include "models/config/family.h"
#include "models/config/part_names.h"
#include "models/config/rope_config.h"
#include "models/load/latent_weights.h"
#include "models/load/layer_extras.h"
#include "models/load/layer_loader.h"
#include "models/load/model.h"
#include "models/load/open_model.h"
#include "models/load/recurrent_weights.h"
#include "weights/shard_source.h"

namespace celer {
namespace {

std::string InLayer(const char* pattern, int64_t layer) {
  std::string name = pattern;
  name.replace(name.find('%'), 1, std::to_string(layer));
  return name;
}

// Of all experts, one after the other: those of Hugging Face files are vectors that rules of their family make.
struct ExpertBiasNames {
  const char *gate, *up, *down;
};
constexpr ExpertBiasNames kHfExpertBiases = {"model.layers.%.mlp.experts.gate_proj.bias",
                                             "model.layers.%.mlp.experts.up_proj.bias",
                                             "model.layers.%.mlp.experts.down_proj.bias"};
constexpr ExpertBiasNames kGgufExpertBiases = {"blk.%.ffn_gate_exps.bias", "blk.%.ffn_up_exps.bias",
                                               "blk.%.ffn_down_exps.bias"};

constexpr const char *kGgufRouter = "blk.%.ffn_gate_inp.weight",
                     *kGgufSharedGate = "blk.%.ffn_gate_inp_shexp.weight";

std::string LayerPrefix(bool gguf, int64_t layer) {
  return fmt::format(fmt::runtime(gguf ? "blk.{}." : "model.layers.{}."), layer);
}

class Loader {
 public:
  Loader(const DecoderConfig& config, bool gguf, std::string embedding, WeightReader& reader)
      : config_(config),
        gguf_(gguf),
        names_(gguf ? kGgufNames : kHfNames),
        embedding_(std::move(embedding)),
        reader_(reader) {}

  Result<DecoderWeights> Run(const LayerRange& range) {
    const DecoderConfig& c = config_;
    DecoderWeights w;
    const int64_t end = range.count < 0 ? c.layers : range.end();
    const bool embeds = range.first == 0, heads = end == c.layers;
    const int64_t width = c.embedding_dim > 0 ? c.embedding_dim : c.hidden;
    if (embeds || (heads && c.tied_embeddings)) {
      CELER_ASSIGN(w.embedding, reader_.Matrix(embedding_, c.vocab, width));
    }
    for (int64_t i = range.first; i < end; ++i) {
      CELER_ASSIGN(LayerWeights layer, Layer(i));
      w.layers.push_back(std::move(layer));
    }
    if (embeds) CELER_RETURN_IF_ERROR(EmbeddingParts(&w));
    if (embeds && c.embedding_dim > 0) {
      CELER_ASSIGN(w.project_in, reader_.Matrix(names_.project_in, c.hidden, c.embedding_dim));
    }
    if (heads && c.embedding_dim > 0) {
      CELER_ASSIGN(w.project_out, reader_.Matrix(names_.project_out, c.embedding_dim, c.hidden));
    }
    CELER_RETURN_IF_ERROR(LoadModelExtras(c, gguf_, reader_, &w));
    if (!heads) return w;
    if (c.final_norm) {
      CELER_ASSIGN(w.norm, reader_.Vector(names_.norm, c.hidden));
    }
    if (c.final_norm && c.norm_bias) {
      CELER_ASSIGN(w.norm_bias, reader_.Vector(names_.norm_bias, c.hidden));
    }
    if (c.tied_embeddings) {
      w.head = w.embedding;
      if (!embeds) w.embedding = {};
    } else {
      CELER_ASSIGN(w.head, reader_.Matrix(names_.head, c.vocab, width));
    }
    if (c.head_bias) {
      CELER_ASSIGN(w.head_bias, reader_.Vector(names_.head_bias, c.vocab));
    }
    return w;
  }

  // Of these layers, the experts of those that have some.
  Result<DecoderWeights> Experts(const LayerRange& range) {
    DecoderWeights w;
    for (int64_t i = range.first; i < range.end(); ++i) {
      LayerWeights layer;
      CELER_RETURN_IF_ERROR(Norms(i, &layer));
      if (config_.IsSparse(i)) CELER_RETURN_IF_ERROR(SparseFfn(i, &layer));
      w.layers.push_back(std::move(layer));
    }
    return w;
  }

  Result<LayerWeights> OneLayer(int64_t i) { return Layer(i); }

 private:
  // What is added to the embedding or done with it.
  Status EmbeddingParts(DecoderWeights* w) {
    const DecoderConfig& c = config_;
    if (c.embedding_norm) {
      CELER_ASSIGN(w->embedding_norm, reader_.Vector(names_.embedding_norm, c.hidden));
      if (c.norm_bias) {
        CELER_ASSIGN(w->embedding_norm_bias, reader_.Vector(names_.embedding_norm_bias, c.hidden));
      }
    }
    if (c.position_rows > 0) {
      CELER_ASSIGN(w->positions, reader_.Matrix(names_.positions, c.position_rows, c.hidden));
    }
    return {};
  }

  Result<LayerWeights> Layer(int64_t i) {
    const DecoderConfig& c = config_;
    LayerWeights w;
    CELER_RETURN_IF_ERROR(Norms(i, &w));
    CELER_RETURN_IF_ERROR(LoadLayerExtras(c, gguf_, LayerPrefix(gguf_, i), reader_, &w));
    if (c.HasMixer(i)) {
      CELER_RETURN_IF_ERROR(c.IsRecurrent(i) ? LoadRecurrent(c, gguf_, i, reader_, &w) : Attention(i, &w));
    }
    if (!c.HasFfn(i)) return w;
    if (c.IsSparse(i)) {
      CELER_RETURN_IF_ERROR(SparseFfn(i, &w));
      if (!c.moe.beside_dense) return w;
    }
    CELER_ASSIGN(w.dense, Ffn(InLayer(names_.gate, i), InLayer(names_.up, i), InLayer(names_.down, i),
                              c.Intermediate(i)));
    if (c.mlp_bias) {
      if (c.gated_mlp) {
        CELER_ASSIGN(w.gate_bias, reader_.Vector(InLayer(names_.gate_bias, i), c.intermediate));
      }
      CELER_ASSIGN(w.up_bias, reader_.Vector(InLayer(names_.up_bias, i), c.intermediate));
      CELER_ASSIGN(w.down_bias,
                   reader_.ScaledVector(InLayer(names_.down_bias, i), c.hidden, c.residual_scale));
    }
    return w;
  }

  Status SparseFfn(int64_t i, LayerWeights* w) {
    CELER_RETURN_IF_ERROR(gguf_ ? GgufExperts(i, w) : HfExperts(i, w));
    CELER_RETURN_IF_ERROR(RouterVectors(i, w));
    return ExpertBiases(i, w);
  }

  Status Norms(int64_t i, LayerWeights* w) {
    const DecoderConfig& c = config_;
    const bool one = c.parallel_block && !c.parallel_norms;  // of both branches
    const bool mixer = c.pre_norm && c.HasMixer(i), ffn = c.pre_norm && !one && c.HasFfn(i);
    const struct {
      bool used;
      const char* name;
      const float** weights;
    } norms[] = {
        {mixer, names_.attention_norm, &w->attention_norm},
        {mixer && c.norm_bias, names_.attention_norm_bias, &w->attention_norm_bias},
        {c.post_norm || c.residual_norm, names_.attention_post_norm, &w->attention_post_norm},
        {c.residual_norm && c.norm_bias, names_.attention_post_norm_bias, &w->attention_post_norm_bias},
        {ffn, names_.ffn_norm, &w->ffn_norm},
        {ffn && c.norm_bias, names_.ffn_norm_bias, &w->ffn_norm_bias},
        {c.post_norm || c.residual_norm, names_.ffn_post_norm, &w->ffn_post_norm},
        {c.residual_norm && c.norm_bias, names_.ffn_post_norm_bias, &w->ffn_post_norm_bias},
    };
    for (const auto& norm : norms)
      if (norm.used) {
        CELER_ASSIGN(*norm.weights, reader_.Vector(InLayer(norm.name, i), c.hidden));
      }
    if (one) {
      w->ffn_norm = w->attention_norm;
      w->ffn_norm_bias = w->attention_norm_bias;
    }
    return {};
  }

  Status Attention(int64_t i, LayerWeights* w) {
    const DecoderConfig& c = config_;
    if (c.IsLatent()) return LatentAttention(i, w);
    const int64_t q_rows = c.heads * c.HeadDim(i);
    const int64_t q_with_gate = c.output_gate ? 2 * q_rows : q_rows;
    CELER_ASSIGN(w->q, reader_.Matrix(InLayer(names_.q, i), q_with_gate, c.hidden));
    CELER_RETURN_IF_ERROR(KeysAndValues(i, w));
    CELER_ASSIGN(w->o, reader_.Matrix(InLayer(names_.o, i), c.hidden, q_rows));
    if (c.qkv_bias) {
      CELER_ASSIGN(w->q_bias, reader_.Vector(InLayer(names_.q_bias, i), q_with_gate));
    }
    if (c.o_bias) {
      CELER_ASSIGN(w->o_bias, reader_.ScaledVector(InLayer(names_.o_bias, i), c.hidden, c.residual_scale));
    }
    if (c.qk_norm && c.qk_norm_weights) {
      CELER_RETURN_IF_ERROR(QkNorm(i, w));
    }
    if (c.attention_sinks) {
      CELER_ASSIGN(w->sinks, reader_.Vector(InLayer(names_.sinks, i), c.heads));
    }
    return {};
  }

  Status KeysAndValues(int64_t i, LayerWeights* w) {
    const DecoderConfig& c = config_;
    if (c.KvFrom(i) != i) {  // some files hold what such layers do not need
      for (const char* name : {names_.k, names_.v, names_.k_bias, names_.v_bias, names_.k_norm})
        reader_.Skip(InLayer(name, i));
      return {};
    }
    const int64_t rows = c.KvHeads(i) * c.HeadDim(i);
    CELER_ASSIGN(w->k, reader_.Matrix(InLayer(names_.k, i), rows, c.hidden));
    if (c.qkv_bias) {
      CELER_ASSIGN(w->k_bias, reader_.Vector(InLayer(names_.k_bias, i), rows));
    }
    if (c.ValuesAreKeys(i)) return {};
    CELER_ASSIGN(w->v, reader_.Matrix(InLayer(names_.v, i), rows, c.hidden));
    if (c.qkv_bias) {
      CELER_ASSIGN(w->v_bias, reader_.Vector(InLayer(names_.v_bias, i), rows));
    }
    return {};
  }

  Status LatentAttention(int64_t i, LayerWeights* w) {
    const DecoderConfig& c = config_;
    CELER_RETURN_IF_ERROR(LoadLatent(c, gguf_, LayerPrefix(gguf_, i), reader_, w));
    CELER_ASSIGN(w->o, reader_.Matrix(InLayer(names_.o, i), c.hidden, c.heads * c.latent.value_dim));
    if (c.o_bias) {
      CELER_ASSIGN(w->o_bias, reader_.ScaledVector(InLayer(names_.o_bias, i), c.hidden, c.residual_scale));
    }
    return {};
  }

  Status QkNorm(int64_t i, LayerWeights* w) {
    const DecoderConfig& c = config_;
    const std::string q = InLayer(names_.q_norm, i), k = InLayer(names_.k_norm, i);
    if (c.qk_norm_span == QkNormSpan::kOwn) {
      CELER_ASSIGN(w->q_norm, reader_.Table(q, c.heads, c.head_dim));
      CELER_ASSIGN(w->k_norm, reader_.Table(k, c.kv_heads, c.head_dim));
      return {};
    }
    const bool head = c.qk_norm_span == QkNormSpan::kHead;
    const int64_t dim = c.HeadDim(i), q_size = head ? dim : c.heads * dim,
                  k_size = head ? dim : c.KvHeads(i) * dim;
    CELER_ASSIGN(w->q_norm, reader_.Vector(q, q_size));
    if (c.KvFrom(i) != i) return {};
    CELER_ASSIGN(w->k_norm, reader_.Vector(k, k_size));
    if (c.qk_norm_kind == NormKind::kLayer) {
      CELER_ASSIGN(w->q_norm_bias, reader_.Vector(InLayer(names_.q_norm_bias, i), q_size));
      CELER_ASSIGN(w->k_norm_bias, reader_.Vector(InLayer(names_.k_norm_bias, i), k_size));
    }
    return {};
  }

  Result<ExpertWeights> Ffn(const std::string& gate, const std::string& up, const std::string& down,
                            int64_t width) {
    ExpertWeights w;
    if (config_.gated_mlp) {
      CELER_ASSIGN(w.gate, reader_.Matrix(gate, width, config_.hidden));
    }
    CELER_ASSIGN(w.up, reader_.Matrix(up, width, config_.hidden));
    CELER_ASSIGN(w.down, reader_.Matrix(down, config_.hidden, width));
    return w;
  }

  // A configuration out of a GGUF file may have what no folder of its family has.
  Status CheckExpertNames(const ExpertNames& names) const {
    const MoeConfig& moe = config_.moe;
    const bool shared = moe.shared_intermediate > 0;
    if (names.experts && (names.shared || !shared) && (names.shared_gate || !shared || !moe.shared_gated) &&
        (names.router_bias || !moe.router_bias) && (names.choice_bias || !moe.choice_bias))
      return {};
    return Error::Unsupported("folders of models of the type '", config_.family,
                              "' have no names for all parts of this mixture of experts");
  }

  Status HfExperts(int64_t i, LayerWeights* w) {
    const ExpertNames& names = FindFamily(config_.family)->experts;
    const MoeConfig& moe = config_.moe;
    CELER_RETURN_IF_ERROR(CheckExpertNames(names));
    const std::string prefix = fmt::format("model.layers.{}.", i);
    CELER_ASSIGN(w->router, reader_.Matrix(prefix + names.router, moe.experts, config_.hidden));
    for (int64_t e = 0; e < moe.experts; ++e) {
      const std::string expert = prefix + names.experts + std::to_string(e);
      CELER_ASSIGN(ExpertWeights one,
                   Ffn(expert + names.gate, expert + names.up, expert + names.down, moe.intermediate));
      w->experts.push_back(one);
    }
    if (moe.shared_intermediate > 0) {
      const std::string shared = prefix + names.shared;
      CELER_ASSIGN(w->shared,
                   Ffn(shared + names.gate, shared + names.up, shared + names.down, moe.shared_intermediate));
      if (config_.mlp_bias) CELER_RETURN_IF_ERROR(SharedBiases(shared, &w->shared));
      if (moe.shared_gated) {
        CELER_ASSIGN(w->shared_gate, reader_.Matrix(prefix + names.shared_gate, 1, config_.hidden));
      }
    }
    return {};
  }

  Status SharedBiases(const std::string& shared, ExpertWeights* w) {
    if (config_.gated_mlp) {
      CELER_ASSIGN(w->gate_bias, reader_.Vector(shared + ".gate_proj.bias", config_.moe.shared_intermediate));
    }
    CELER_ASSIGN(w->up_bias, reader_.Vector(shared + ".up_proj.bias", config_.moe.shared_intermediate));
    CELER_ASSIGN(w->down_bias, reader_.Vector(shared + ".down_proj.bias", config_.hidden));
    return {};
  }

  Status RouterVectors(int64_t i, LayerWeights* w) {
    const MoeConfig& moe = config_.moe;
    const ExpertNames& names = FindFamily(config_.family)->experts;
    const std::string prefix = fmt::format("{}.{}.", gguf_ ? "blk" : "model.layers", i);
    if (moe.router_bias) {
      CELER_ASSIGN(w->router_bias,
                   reader_.Vector(prefix + (gguf_ ? "ffn_gate_inp.bias" : names.router_bias), moe.experts));
    }
    if (moe.choice_bias) {
      CELER_ASSIGN(w->choice_bias,
                   reader_.Vector(prefix + (gguf_ ? "exp_probs_b.bias" : names.choice_bias), moe.experts));
    }
    return {};
  }

  Status ExpertBiases(int64_t i, LayerWeights* w) {
    const MoeConfig& moe = config_.moe;
    if (!moe.expert_bias) return {};
    const ExpertBiasNames& names = gguf_ ? kGgufExpertBiases : kHfExpertBiases;
    CELER_ASSIGN(const float* gate, reader_.Vector(InLayer(names.gate, i), moe.experts * moe.intermediate));
    CELER_ASSIGN(const float* up, reader_.Vector(InLayer(names.up, i), moe.experts * moe.intermediate));
    CELER_ASSIGN(const float* down, reader_.Vector(InLayer(names.down, i), moe.experts * config_.hidden));
    for (int64_t e = 0; e < moe.experts; ++e) {
      w->experts[e].gate_bias = gate + e * moe.intermediate;
      w->experts[e].up_bias = up + e * moe.intermediate;
      w->experts[e].down_bias = down + e * config_.hidden;
    }
    return {};
  }

  Status GgufExperts(int64_t i, LayerWeights* w) {
    const MoeConfig& moe = config_.moe;
    const std::string prefix = fmt::format("blk.{}.", i);
    CELER_ASSIGN(w->router, reader_.Matrix(InLayer(kGgufRouter, i), moe.experts, config_.hidden));
    std::vector<WeightView> gates(moe.experts);
    if (config_.gated_mlp) {
      CELER_ASSIGN(gates, reader_.Stack(prefix + "ffn_gate_exps.weight", moe.experts, moe.intermediate,
                                        config_.hidden));
    }
    CELER_ASSIGN(const auto ups,
                 reader_.Stack(prefix + "ffn_up_exps.weight", moe.experts, moe.intermediate, config_.hidden));
    CELER_ASSIGN(const auto downs, reader_.Stack(prefix + "ffn_down_exps.weight", moe.experts, config_.hidden,
                                                 moe.intermediate));
    for (size_t e = 0; e < gates.size(); ++e)
      w->experts.push_back({.gate = gates[e], .up = ups[e], .down = downs[e]});
    if (moe.shared_intermediate > 0) {
      CELER_ASSIGN(w->shared, Ffn(prefix + "ffn_gate_shexp.weight", prefix + "ffn_up_shexp.weight",
                                  prefix + "ffn_down_shexp.weight", moe.shared_intermediate));
      if (moe.shared_gated) {
        CELER_ASSIGN(w->shared_gate, reader_.Matrix(InLayer(kGgufSharedGate, i), 1, config_.hidden));
      }
    }
    return {};
  }

  const DecoderConfig& config_;
  bool gguf_;
  const PartNames& names_;
  std::string embedding_;
  WeightReader& reader_;
};

// As transformers does where the scale is a tensor beside the embedding.
void RoundScale(const TensorRecord* embedding, float* scale) {
  if (!embedding || (embedding->dtype != DType::kBf16 && embedding->dtype != DType::kF16)) return;
  std::byte rounded[2];
  EncodeRow(embedding->dtype, scale, 1, rounded);
  DecodeRow(embedding->dtype, rounded, 1, scale);
}

// Of names, types, shapes, and of some bytes in the middle of each tensor (FNV-1a).
int64_t Fingerprint(const TensorSource& source) {
  constexpr uint64_t kPrime = 0x100000001b3;
  constexpr size_t kSample = 64;
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<uint64_t>(byte)) * kPrime;
  };
  for (const TensorRecord& record : source.tensors()) {
    add(std::as_bytes(std::span(record.name)));
    add(std::as_bytes(std::span(&record.dtype, 1)));
    add(std::as_bytes(record.shape.dims()));
    add(record.bytes.subspan(record.bytes.size() / 2)
            .first(std::min(kSample, (record.bytes.size() + 1) / 2)));
  }
  return static_cast<int64_t>(hash);
}

// What is added to a sum over all ranks is added by the first one.
void DropSummedBiases(DecoderWeights* weights) {
  for (LayerWeights& layer : weights->layers) {
    layer.o_bias = layer.down_bias = layer.shared.down_bias = nullptr;
    for (ExpertWeights& expert : layer.experts) expert.down_bias = nullptr;
  }
}

}  // namespace

WeightPlan::Roles DecoderRoles(const DecoderConfig& c, bool gguf, const std::string& embedding) {
  WeightPlan::Roles roles;
  roles[embedding] = c.tied_embeddings ? WeightRole::kVocabulary : WeightRole::kTable;
  if (!c.tied_embeddings) roles[gguf ? kGgufNames.head : kHfNames.head] = WeightRole::kVocabulary;
  if (c.position_rows > 0) roles[gguf ? kGgufNames.positions : kHfNames.positions] = WeightRole::kTable;
  AddExtraRoles(c, gguf, &roles);
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.IsLatent()) AddLatentRoles(LayerPrefix(gguf, i), gguf, &roles);
    // As small as a router, and as easily upset: they say how long a state lasts.
    const PartNames& parts = gguf ? kGgufNames : kHfNames;
    if (c.IsRecurrent(i))
      roles[InLayer(parts.state_a, i)] = roles[InLayer(parts.state_b, i)] = WeightRole::kRouter;
    if (!c.IsSparse(i)) continue;
    if (gguf) {
      roles[InLayer(kGgufRouter, i)] = roles[InLayer(kGgufSharedGate, i)] = WeightRole::kRouter;
    } else {
      const ExpertNames& names = FindFamily(c.family)->experts;
      const std::string prefix = fmt::format("model.layers.{}.", i);
      roles[prefix + names.router] = WeightRole::kRouter;
      if (names.shared_gate) roles[prefix + names.shared_gate] = WeightRole::kRouter;
    }
  }
  return roles;
}

Result<DecoderWeights> ReadDecoder(const DecoderConfig& config, bool gguf, const std::string& embedding,
                                   WeightReader& reader, const LayerRange& layers, bool experts_alone) {
  Loader loader(config, gguf, embedding, reader);
  return experts_alone ? loader.Experts(layers) : loader.Run(layers);
}

Result<LayerWeights> LoadLayer(const DecoderConfig& config, bool gguf, int64_t layer, WeightReader& reader) {
  return Loader(config, gguf, "", reader).OneLayer(layer);
}

Result<Model> Model::Load(const std::filesystem::path& path, const LoadOptions& options, ThreadPool& pool) {
  CELER_ASSIGN(Opened opened, OpenModel(path, options.keep_fp8));
  Model model;
  model.config_ = std::move(opened.config);
  model.source_ = std::move(opened.source);
  const std::string embedding =
      opened.gguf ? kGgufNames.embedding : ResolveTiedHead(*model.source_, &model.config_);
  if (model.config_.embedding_scale_rounded) {
    RoundScale(model.source_->Find(embedding), &model.config_.embedding_scale);
    RoundScale(model.source_->Find(PerLayerEmbeddingName(opened.gguf)), &model.config_.per_layer_scale);
  }
  for (const std::string& warning : model.config_.warnings) log::WarningOnce("{}", warning);
  WeightPlan plan =
      WeightPlan::Make(options.weights, *model.source_, DecoderRoles(model.config_, opened.gguf, embedding));
  std::filesystem::path pack_cache = options.pack_cache;
  const bool some = options.layers.count >= 0;  // and not all
  if (some || options.shard.size > 1) model.fingerprint_ = Fingerprint(*model.source_);
  if (options.shard.size > 1) {
    CELER_RETURN_IF_ERROR(model.Cut(opened.gguf, embedding, options.shard, &plan));
    if (!pack_cache.empty())
      pack_cache /= fmt::format("rank-{}-of-{}", options.shard.rank, options.shard.size);
  }
  if (some && !pack_cache.empty())
    pack_cache /= fmt::format("{}-{}-to-{}", options.experts_alone ? "experts" : "layers",
                              options.layers.first, options.layers.end());
  if (options.shard.rank == 0 && options.layers.first == 0)
    for (const std::string& line : plan.Lines()) log::Info("{}", line);
  model.store_ = std::make_unique<WeightStore>(*model.source_, std::move(plan), pool,
                                               options.pack ? &ChosenMatmul() : nullptr, pack_cache);
  CELER_ASSIGN(model.weights_, ReadDecoder(model.config_, opened.gguf, embedding, *model.store_,
                                           options.layers, options.experts_alone));
  if (opened.gguf) {  // Llama 3.1's rope scaling comes as a tensor here
    RopeConfig& rope = model.config_.rope;
    CELER_ASSIGN(const float* factors, model.store_->Vector("rope_freqs.weight", rope.dim / 2, false));
    if (factors) rope.freq_factors.assign(factors, factors + rope.dim / 2);
    if (rope.scaling == RopeConfig::Scaling::kLongRope)  // read with the configuration
      for (const char* name : {kGgufShortFactors, kGgufLongFactors}) model.store_->Skip(name);
    CELER_RETURN_IF_ERROR(Validate(model.config_, path.string()));
  }
  // Some files store a tied head once more; it is the same matrix.
  if (model.config_.tied_embeddings && !opened.gguf) model.store_->Skip(kHfNames.head);
  if (!some) CELER_RETURN_IF_ERROR(model.store_->CheckNoUnusedTensors(model.config_.architecture));
  model.store_->WritePackCache();
  if (some) model.KeepLayers(options.layers);
  if (options.shard.rank > 0) DropSummedBiases(&model.weights_);
  if (model.whole_config_) model.whole_config_->rope = model.config_.rope;
  return model;
}

void Model::KeepLayers(const LayerRange& layers) {
  if (!whole_config_) whole_config_ = config_;
  config_ = SliceLayers(config_, layers);
  // Behind the first layers there is a head without an embedding that it could be.
  if (layers.first > 0) config_.tied_embeddings = false;
}

Status Model::Cut(bool gguf, const std::string& embedding, const ShardOf& of, WeightPlan* plan) {
  CELER_ASSIGN(Shard shard, PlanShard(config_, gguf, embedding, *source_, *plan, of));
  CELER_ASSIGN(source_, ShardSource::Open(std::move(source_), shard.slices));
  CELER_ASSIGN(*plan, plan->Cut(shard.slices));
  whole_config_ = std::exchange(config_, std::move(shard.config));
  vocab_parts_ = std::move(shard.vocab);
  return {};
}

Result<DecoderConfig> LoadDecoderConfig(const std::filesystem::path& path) {
  if (path.filename() == "config.json") return ReadHfConfig(path);
  if (std::filesystem::is_directory(path)) return ReadHfConfig(path / "config.json");
  CELER_ASSIGN(const Opened opened, OpenModel(path, /*keep_fp8=*/false));
  return opened.config;
}

}  // namespace celer
