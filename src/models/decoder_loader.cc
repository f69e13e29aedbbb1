// From a file to DecoderWeights: opens the container, maps each part to the name it has there, checks every
// shape.
#include <fmt/format.h>

#include "core/log.h"
#include "io/detect.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/llama2c.h"
#include "io/safetensors.h"
#include "models/decoder.h"
#include "models/family.h"

namespace celer {
namespace {

// What a part of the model is called in each container. "%" is the layer.
struct PartNames {
  const char *embedding, *norm, *head;
  const char *attention_norm, *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
  const char *ffn_norm, *gate, *up, *down;
};

constexpr PartNames kHfNames = {
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.layers.%.input_layernorm.weight",
    "model.layers.%.self_attn.q_proj.weight",
    "model.layers.%.self_attn.k_proj.weight",
    "model.layers.%.self_attn.v_proj.weight",
    "model.layers.%.self_attn.o_proj.weight",
    "model.layers.%.self_attn.q_proj.bias",
    "model.layers.%.self_attn.k_proj.bias",
    "model.layers.%.self_attn.v_proj.bias",
    "model.layers.%.self_attn.q_norm.weight",
    "model.layers.%.self_attn.k_norm.weight",
    "model.layers.%.post_attention_layernorm.weight",
    "model.layers.%.mlp.gate_proj.weight",
    "model.layers.%.mlp.up_proj.weight",
    "model.layers.%.mlp.down_proj.weight",
};

constexpr PartNames kGgufNames = {
    "token_embd.weight",        "output_norm.weight",    "output.weight",         "blk.%.attn_norm.weight",
    "blk.%.attn_q.weight",      "blk.%.attn_k.weight",   "blk.%.attn_v.weight",   "blk.%.attn_output.weight",
    "blk.%.attn_q.bias",        "blk.%.attn_k.bias",     "blk.%.attn_v.bias",     "blk.%.attn_q_norm.weight",
    "blk.%.attn_k_norm.weight", "blk.%.ffn_norm.weight", "blk.%.ffn_gate.weight", "blk.%.ffn_up.weight",
    "blk.%.ffn_down.weight",
};

std::string InLayer(const char* pattern, int64_t layer) {
  std::string name = pattern;
  name.replace(name.find('%'), 1, std::to_string(layer));
  return name;
}

struct Opened {
  DecoderConfig config;
  std::unique_ptr<TensorSource> source;
  bool gguf = false;
};

DecoderConfig FromLlama2c(const Llama2cFile::Config& header) {
  DecoderConfig config;
  config.family = config.architecture = "llama";
  config.layers = header.n_layers;
  config.hidden = header.dim;
  config.intermediate = header.hidden_dim;
  config.heads = header.n_heads;
  config.kv_heads = header.n_kv_heads;
  config.head_dim = header.head_dim();
  config.vocab = header.vocab_size;
  config.max_positions = header.seq_len;
  config.norm_eps = 1e-5f;
  config.rope.dim = config.head_dim;
  config.rope.layout = RopeLayout::kInterleaved;
  config.tied_embeddings = header.shared_classifier;
  return config;
}

template <class File>
std::unique_ptr<TensorSource> MakeSource(File file, const std::filesystem::path& path) {
  return std::make_unique<FileTensorSource<File>>(std::move(file), path.string());
}

Result<DecoderConfig> HfConfig(const std::filesystem::path& config_path) {
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(config_path));
  return ConfigFromHf(json, config_path.string());
}

Result<Opened> Open(const std::filesystem::path& path) {
  CELER_ASSIGN(const FileKind kind, DetectFile(path));
  Opened opened;
  switch (kind) {
    case FileKind::kHfDirectory: {
      CELER_ASSIGN(opened.config, HfConfig(path / "config.json"));
      CELER_ASSIGN(SafetensorsModel model, SafetensorsModel::Open(path));
      opened.source = MakeSource(std::move(model), path);
      return opened;
    }
    case FileKind::kGguf: {
      CELER_ASSIGN(GgufFile file, GgufFile::Open(path));
      CELER_ASSIGN(opened.config, ConfigFromGguf(file, path.string()));
      opened.source = MakeSource(std::move(file), path);
      opened.gguf = true;
      return opened;
    }
    case FileKind::kLlama2c: {
      CELER_ASSIGN(Llama2cFile file, Llama2cFile::Open(path));
      opened.config = FromLlama2c(file.config());
      CELER_RETURN_IF_ERROR(Validate(opened.config, path.string()));
      opened.source = MakeSource(std::move(file), path);
      return opened;
    }
    case FileKind::kSafetensors:
      return Error::Invalid(
          path.string(),
          ": one safetensors file has no configuration; give the folder that holds it and its config.json");
  }
  return Error::Unsupported(path.string(), ": unknown kind of file");
}

class Loader {
 public:
  Loader(const DecoderConfig& config, bool gguf, WeightStore& store)
      : config_(config), gguf_(gguf), names_(gguf ? kGgufNames : kHfNames), store_(store) {}

  Result<DecoderWeights> Run() {
    const DecoderConfig& c = config_;
    DecoderWeights w;
    CELER_ASSIGN(w.embedding, store_.Matrix(names_.embedding, c.vocab, c.hidden,
                                            c.tied_embeddings ? WeightStore::Role::kVocabulary
                                                              : WeightStore::Role::kTable));
    for (int64_t i = 0; i < c.layers; ++i) {
      CELER_ASSIGN(LayerWeights layer, Layer(i));
      w.layers.push_back(std::move(layer));
    }
    CELER_ASSIGN(w.norm, store_.Vector(names_.norm, c.hidden));
    if (c.tied_embeddings) {
      w.head = w.embedding;
    } else {
      CELER_ASSIGN(w.head, store_.Matrix(names_.head, c.vocab, c.hidden, WeightStore::Role::kVocabulary));
    }
    return w;
  }

 private:
  Result<LayerWeights> Layer(int64_t i) {
    const DecoderConfig& c = config_;
    const int64_t q_rows = c.heads * c.head_dim, kv_rows = c.kv_heads * c.head_dim;
    LayerWeights w;
    CELER_ASSIGN(w.attention_norm, store_.Vector(InLayer(names_.attention_norm, i), c.hidden));
    CELER_ASSIGN(w.q, store_.Matrix(InLayer(names_.q, i), q_rows, c.hidden));
    CELER_ASSIGN(w.k, store_.Matrix(InLayer(names_.k, i), kv_rows, c.hidden));
    CELER_ASSIGN(w.v, store_.Matrix(InLayer(names_.v, i), kv_rows, c.hidden));
    CELER_ASSIGN(w.o, store_.Matrix(InLayer(names_.o, i), c.hidden, q_rows));
    if (c.qkv_bias) {
      CELER_ASSIGN(w.q_bias, store_.Vector(InLayer(names_.q_bias, i), q_rows));
      CELER_ASSIGN(w.k_bias, store_.Vector(InLayer(names_.k_bias, i), kv_rows));
      CELER_ASSIGN(w.v_bias, store_.Vector(InLayer(names_.v_bias, i), kv_rows));
    }
    if (c.qk_norm) {
      CELER_ASSIGN(w.q_norm, store_.Vector(InLayer(names_.q_norm, i), c.head_dim));
      CELER_ASSIGN(w.k_norm, store_.Vector(InLayer(names_.k_norm, i), c.head_dim));
    }
    CELER_ASSIGN(w.ffn_norm, store_.Vector(InLayer(names_.ffn_norm, i), c.hidden));
    if (c.IsSparse(i)) {
      CELER_RETURN_IF_ERROR(gguf_ ? GgufExperts(i, &w) : HfExperts(i, &w));
    } else {
      CELER_ASSIGN(w.dense, Ffn(InLayer(names_.gate, i), InLayer(names_.up, i), InLayer(names_.down, i),
                                c.intermediate));
    }
    return w;
  }

  Result<ExpertWeights> Ffn(const std::string& gate, const std::string& up, const std::string& down,
                            int64_t width) {
    ExpertWeights w;
    CELER_ASSIGN(w.gate, store_.Matrix(gate, width, config_.hidden));
    CELER_ASSIGN(w.up, store_.Matrix(up, width, config_.hidden));
    CELER_ASSIGN(w.down, store_.Matrix(down, config_.hidden, width));
    return w;
  }

  Status HfExperts(int64_t i, LayerWeights* w) {
    const ExpertNames& names = FindFamily(config_.family)->experts;
    const MoeConfig& moe = config_.moe;
    const std::string prefix = fmt::format("model.layers.{}.", i);
    CELER_ASSIGN(w->router, store_.Matrix(prefix + names.router, moe.experts, config_.hidden));
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
      CELER_ASSIGN(w->shared_gate, store_.Matrix(prefix + names.shared_gate, 1, config_.hidden));
    }
    return {};
  }

  Status GgufExperts(int64_t i, LayerWeights* w) {
    const MoeConfig& moe = config_.moe;
    const std::string prefix = fmt::format("blk.{}.", i);
    CELER_ASSIGN(w->router, store_.Matrix(prefix + "ffn_gate_inp.weight", moe.experts, config_.hidden));
    CELER_ASSIGN(const auto gates, store_.Stack(prefix + "ffn_gate_exps.weight", moe.experts,
                                                moe.intermediate, config_.hidden));
    CELER_ASSIGN(const auto ups,
                 store_.Stack(prefix + "ffn_up_exps.weight", moe.experts, moe.intermediate, config_.hidden));
    CELER_ASSIGN(const auto downs, store_.Stack(prefix + "ffn_down_exps.weight", moe.experts, config_.hidden,
                                                moe.intermediate));
    for (size_t e = 0; e < gates.size(); ++e) w->experts.push_back({gates[e], ups[e], downs[e]});
    if (moe.shared_intermediate > 0) {
      CELER_ASSIGN(w->shared, Ffn(prefix + "ffn_gate_shexp.weight", prefix + "ffn_up_shexp.weight",
                                  prefix + "ffn_down_shexp.weight", moe.shared_intermediate));
      CELER_ASSIGN(w->shared_gate, store_.Matrix(prefix + "ffn_gate_inp_shexp.weight", 1, config_.hidden));
    }
    return {};
  }

  const DecoderConfig& config_;
  bool gguf_;
  const PartNames& names_;
  WeightStore& store_;
};

}  // namespace

Result<Decoder> Decoder::Load(const std::filesystem::path& path, const LoadOptions& options,
                              ThreadPool& pool) {
  CELER_ASSIGN(Opened opened, Open(path));
  Decoder decoder;
  decoder.config_ = std::move(opened.config);
  decoder.source_ = std::move(opened.source);
  decoder.store_ = std::make_unique<WeightStore>(*decoder.source_, options.weights, pool, options.pack,
                                                 options.pack_cache);
  decoder.pool_ = &pool;

  CELER_ASSIGN(decoder.weights_, Loader(decoder.config_, opened.gguf, *decoder.store_).Run());
  if (opened.gguf) {  // Llama 3.1's rope scaling comes as a tensor here
    RopeConfig& rope = decoder.config_.rope;
    CELER_ASSIGN(const float* factors, decoder.store_->Vector("rope_freqs.weight", rope.dim / 2, false));
    if (factors) rope.freq_factors.assign(factors, factors + rope.dim / 2);
    CELER_RETURN_IF_ERROR(Validate(decoder.config_, path.string()));
  }
  // Some files store a tied head once more; it is the same matrix.
  if (decoder.config_.tied_embeddings) decoder.store_->Skip(kHfNames.head);
  CELER_RETURN_IF_ERROR(decoder.store_->CheckNothingLeft(decoder.config_.architecture));
  decoder.store_->KeepPacked();
  decoder.rope_.emplace(decoder.config_.rope);
  return decoder;
}

Result<DecoderConfig> LoadDecoderConfig(const std::filesystem::path& path) {
  if (path.filename() == "config.json") return HfConfig(path);
  if (std::filesystem::is_directory(path)) return HfConfig(path / "config.json");
  CELER_ASSIGN(const Opened opened, Open(path));
  return opened.config;
}

}  // namespace celer
