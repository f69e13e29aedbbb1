// From a file to a Model: opens the container, maps each part to the name it has there, checks every
// shape.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "formats/decode.h"
#include "io/file/detect.h"
#include "io/gguf/gguf.h"
#include "io/json/json.h"
#include "io/llama2c/llama2c.h"
#include "io/safetensors/safetensors.h"
#include "models/config/family.h"
#include "models/config/rope_config.h"
#include "models/load/model.h"
#include "weights/published/published_source.h"

namespace celer {
namespace {

// What a part of the model is called in each container. "%" is the layer.
struct PartNames {
  const char *embedding, *norm, *head;
  const char *attention_norm, *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
  const char *ffn_norm, *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
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
    "model.layers.%.self_attn.o_proj.bias",
    "model.layers.%.self_attn.q_norm.weight",
    "model.layers.%.self_attn.k_norm.weight",
    "model.layers.%.post_attention_layernorm.weight",
    "model.layers.%.mlp.gate_proj.weight",
    "model.layers.%.mlp.up_proj.weight",
    "model.layers.%.mlp.down_proj.weight",
    "model.layers.%.mlp.gate_proj.bias",
    "model.layers.%.mlp.up_proj.bias",
    "model.layers.%.mlp.down_proj.bias",
};

constexpr PartNames kGgufNames = {
    "token_embd.weight",        "output_norm.weight",       "output.weight",
    "blk.%.attn_norm.weight",   "blk.%.attn_q.weight",      "blk.%.attn_k.weight",
    "blk.%.attn_v.weight",      "blk.%.attn_output.weight", "blk.%.attn_q.bias",
    "blk.%.attn_k.bias",        "blk.%.attn_v.bias",        "blk.%.attn_output.bias",
    "blk.%.attn_q_norm.weight", "blk.%.attn_k_norm.weight", "blk.%.ffn_norm.weight",
    "blk.%.ffn_gate.weight",    "blk.%.ffn_up.weight",      "blk.%.ffn_down.weight",
    "blk.%.ffn_gate.bias",      "blk.%.ffn_up.bias",        "blk.%.ffn_down.bias",
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
  static_cast<ModelShape&>(config) = header;
  config.family = config.architecture = "llama";
  config.max_positions = header.max_positions;
  config.norm_eps = 1e-5f;
  config.rope.dim = config.head_dim;
  config.rope.layout = RopeLayout::kInterleaved;
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

Result<std::unique_ptr<TensorSource>> HfSource(const std::filesystem::path& path, bool keep_fp8) {
  CELER_ASSIGN(std::unique_ptr<TensorSource> source, published::OpenFolder(path, keep_fp8));
  if (const auto* coded = dynamic_cast<const published::PublishedSource*>(source.get())) {
    log::Info("{}: {}", path.string(), coded->scheme());
    for (const std::string& line : coded->Warnings()) log::WarningOnce("{}", line);
    for (const std::string& line : coded->Notes()) log::Info("{}", line);
  }
  return source;
}

Result<Opened> Open(const std::filesystem::path& path, bool keep_fp8) {
  CELER_ASSIGN(const FileKind kind, DetectFile(path));
  Opened opened;
  switch (kind) {
    case FileKind::kHfDirectory: {
      CELER_ASSIGN(opened.config, HfConfig(path / "config.json"));
      CELER_ASSIGN(opened.source, HfSource(path, keep_fp8));
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

constexpr const char *kGgufRouter = "blk.%.ffn_gate_inp.weight",
                     *kGgufSharedGate = "blk.%.ffn_gate_inp_shexp.weight";

// The roles of tensors that are not projections.
WeightPlan::Roles RolesOf(const DecoderConfig& c, bool gguf, const std::string& embedding) {
  WeightPlan::Roles roles;
  roles[embedding] = c.tied_embeddings ? WeightRole::kVocabulary : WeightRole::kTable;
  if (!c.tied_embeddings) roles[gguf ? kGgufNames.head : kHfNames.head] = WeightRole::kVocabulary;
  for (int64_t i = 0; i < c.layers; ++i) {
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

class Loader {
 public:
  // `embedding` is the name of the tensor to take for it.
  Loader(const DecoderConfig& config, bool gguf, std::string embedding, WeightStore& store)
      : config_(config),
        gguf_(gguf),
        names_(gguf ? kGgufNames : kHfNames),
        embedding_(std::move(embedding)),
        store_(store) {}

  Result<DecoderWeights> Run() {
    const DecoderConfig& c = config_;
    DecoderWeights w;
    CELER_ASSIGN(w.embedding, store_.Matrix(embedding_, c.vocab, c.hidden));
    for (int64_t i = 0; i < c.layers; ++i) {
      CELER_ASSIGN(LayerWeights layer, Layer(i));
      w.layers.push_back(std::move(layer));
    }
    CELER_ASSIGN(w.norm, store_.Vector(names_.norm, c.hidden));
    if (c.tied_embeddings) {
      w.head = w.embedding;
    } else {
      CELER_ASSIGN(w.head, store_.Matrix(names_.head, c.vocab, c.hidden));
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
    if (c.o_bias) {
      CELER_ASSIGN(w.o_bias, store_.Vector(InLayer(names_.o_bias, i), c.hidden));
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
      if (c.mlp_bias) {
        CELER_ASSIGN(w.gate_bias, store_.Vector(InLayer(names_.gate_bias, i), c.intermediate));
        CELER_ASSIGN(w.up_bias, store_.Vector(InLayer(names_.up_bias, i), c.intermediate));
        CELER_ASSIGN(w.down_bias, store_.Vector(InLayer(names_.down_bias, i), c.hidden));
      }
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
    CELER_ASSIGN(w->router, store_.Matrix(InLayer(kGgufRouter, i), moe.experts, config_.hidden));
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
      CELER_ASSIGN(w->shared_gate, store_.Matrix(InLayer(kGgufSharedGate, i), 1, config_.hidden));
    }
    return {};
  }

  const DecoderConfig& config_;
  bool gguf_;
  const PartNames& names_;
  std::string embedding_;
  WeightStore& store_;
};

bool SameValues(const TensorRecord& a, const TensorRecord& b) {
  if (a.shape != b.shape) return false;
  if (a.dtype == b.dtype) return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
  if (a.shape.rank() != 2 || !CanDecode(a.dtype) || !CanDecode(b.dtype)) return false;
  const int64_t rows = a.shape[0], cols = a.shape[1];
  const auto a_bytes = BytesFor(a.dtype, cols), b_bytes = BytesFor(b.dtype, cols);
  if (!a_bytes || !b_bytes) return false;
  std::vector<float> a_row(cols), b_row(a_row.size());
  for (int64_t r = 0; r < rows; ++r) {
    DecodeRow(a.dtype, a.bytes.data() + r * *a_bytes, cols, a_row.data());
    DecodeRow(b.dtype, b.bytes.data() + r * *b_bytes, cols, b_row.data());
    if (a_row != b_row) return false;
  }
  return true;
}

// A Hugging Face file whose config.json says that the head is the embedding may still hold both. Does
// as transformers does: if they differ, the head counts. Gives the name of the embedding's tensor.
std::string ResolveTiedHead(const TensorSource& source, DecoderConfig* config) {
  const TensorRecord* embedding = source.Find(kHfNames.embedding);
  const TensorRecord* head = source.Find(kHfNames.head);
  if (!config->tied_embeddings || !head) return kHfNames.embedding;
  if (!embedding) return kHfNames.head;
  // A quantized head is not the embedding.
  if (source.Coded(embedding->name) || source.Coded(head->name) || !SameValues(*embedding, *head)) {
    config->tied_embeddings = false;
    config->warnings.push_back(
        fmt::format("{}: 'tie_word_embeddings' is true and yet '{}' is not '{}'; both are used as they are",
                    source.path(), kHfNames.head, kHfNames.embedding));
  }
  source.DropPages(*embedding);
  source.DropPages(*head);
  return kHfNames.embedding;
}

}  // namespace

Result<Model> Model::Load(const std::filesystem::path& path, const LoadOptions& options, ThreadPool& pool) {
  CELER_ASSIGN(Opened opened, Open(path, options.keep_fp8));
  Model model;
  model.config_ = std::move(opened.config);
  model.source_ = std::move(opened.source);
  const std::string embedding =
      opened.gguf ? kGgufNames.embedding : ResolveTiedHead(*model.source_, &model.config_);
  for (const std::string& warning : model.config_.warnings) log::WarningOnce("{}", warning);
  WeightPlan plan =
      WeightPlan::Make(options.weights, *model.source_, RolesOf(model.config_, opened.gguf, embedding));
  for (const std::string& line : plan.Lines()) log::Info("{}", line);
  model.store_ = std::make_unique<WeightStore>(*model.source_, std::move(plan), pool,
                                               options.pack ? &ChosenMatmul() : nullptr, options.pack_cache);
  CELER_ASSIGN(model.weights_, Loader(model.config_, opened.gguf, embedding, *model.store_).Run());
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
  CELER_RETURN_IF_ERROR(model.store_->CheckNoUnusedTensors(model.config_.architecture));
  model.store_->WritePackCache();
  return model;
}

Result<DecoderConfig> LoadDecoderConfig(const std::filesystem::path& path) {
  if (path.filename() == "config.json") return HfConfig(path);
  if (std::filesystem::is_directory(path)) return HfConfig(path / "config.json");
  CELER_ASSIGN(const Opened opened, Open(path, /*keep_fp8=*/false));
  return opened.config;
}

}  // namespace celer
