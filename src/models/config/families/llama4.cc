// Llama 4: layers with rope see chunks of the text, those without all of it, with queries that grow by position. An
// expert's weight multiplies what it reads.
#include <algorithm>

#include "io/file/printable.h"
#include "models/config/families/families.h"
#include "models/load/gguf_reader.h"

namespace celer::families {
namespace {

constexpr int64_t kAny = int64_t{1} << 30;  // Validate() knows the true bounds
constexpr int64_t kPeriod = 4;              // the last layer of so many has no rope
constexpr int64_t kChunk = 8192;            // also the step of the queries' growth

void CommonOfBoth(DecoderConfig* config) {
  config->rope.layout = RopeLayout::kInterleaved;
  config->qk_norm_after_rope = true;
  config->qk_norm_weights = false;
  config->chunked_window = true;
  config->query_scale = {.beta = 0.1, .positions = kChunk, .offset = 1, .without_rope = true};
  MoeConfig& moe = config->moe;
  moe.score = RouterScore::kSigmoid;
  moe.normalize_top = false;
  moe.shared_gated = false;
  moe.weight_on_input = true;
}

void LastOfEachWithoutRope(int64_t period, DecoderConfig* config) {
  config->rope_layer.clear();
  for (int64_t i = 0; i < config->layers; ++i) config->rope_layer.push_back((i + 1) % period != 0);
}

Status RopeLayers(const JsonFields& json, DecoderConfig* config) {
  CELER_ASSIGN(const int64_t period, HfInt(json, "no_rope_layer_interval", 1, kAny, kPeriod));
  LastOfEachWithoutRope(period, config);
  if (!json.Has("no_rope_layers") || json.Find("no_rope_layers")->empty()) return {};
  CELER_ASSIGN(const std::vector<int64_t> rotates, json.GetInts("no_rope_layers"));
  if (std::ssize(rotates) < config->layers)
    return Error::Corrupt(json.where(), ": 'no_rope_layers' has ", rotates.size(), " numbers for ",
                          config->layers, " layers");
  for (int64_t i = 0; i < config->layers; ++i) config->rope_layer[i] = rotates[i] != 0;
  return {};
}

// "layer_types", and if there are none, chunks for the layers with rope.
Status Chunks(const JsonFields& json, DecoderConfig* config) {
  config->windowed_layer = config->rope_layer;
  if (const nlohmann::json* types = json.Find("layer_types")) {
    if (!types->is_array() || std::ssize(*types) != config->layers)
      return Error::Corrupt(json.where(), ": 'layer_types' is not a list of ", config->layers,
                            " names, one for each layer");
    for (int64_t i = 0; i < config->layers; ++i) {
      const nlohmann::json& type = (*types)[i];
      if (type != "chunked_attention" && type != "full_attention")
        return Error::Unsupported(json.where(), ": 'layer_types' names ", Printable(JsonText(type), 60),
                                  "; supported are \"full_attention\" and \"chunked_attention\"");
      config->windowed_layer[i] = type == "chunked_attention";
    }
  }
  const auto& chunked = config->windowed_layer;
  if (std::find(chunked.begin(), chunked.end(), true) == chunked.end()) {
    config->chunked_window = false;
    return {};
  }
  CELER_ASSIGN(config->sliding_window, HfInt(json, "attention_chunk_size", 1, kAny, kChunk));
  return {};
}

Status SparseLayers(const JsonFields& json, DecoderConfig* config) {
  std::vector<bool>& sparse = config->moe.sparse_layer;
  sparse.assign(config->layers, false);
  if (json.Has("moe_layers")) {
    CELER_ASSIGN(const std::vector<int64_t> layers, json.GetInts("moe_layers"));
    for (const int64_t layer : layers)
      if (layer >= 0 && layer < config->layers) sparse[layer] = true;
    return {};
  }
  CELER_ASSIGN(const int64_t step, HfInt(json, "interleave_moe_layer_step", 1, kAny, 1));
  for (int64_t i = step - 1; i < config->layers; i += step) sparse[i] = true;
  return {};
}

// A number in some files.
Result<bool> Flag(const JsonFields& json, const char* key, bool if_missing) {
  if (const nlohmann::json* value = json.Find(key); value && value->is_number()) return *value != 0;
  return json.GetBool(key, if_missing);
}

}  // namespace

Status Llama4FromHf(const JsonFields& json, DecoderConfig* config) {
  CommonOfBoth(config);
  CELER_ASSIGN(config->qkv_bias, json.GetBool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  CELER_ASSIGN(config->qk_norm, json.GetBool("use_qk_norm", true));
  CELER_RETURN_IF_ERROR(RopeLayers(json, config));
  CELER_RETURN_IF_ERROR(Chunks(json, config));
  CELER_ASSIGN(const bool grows, Flag(json, "attn_temperature_tuning", true));
  CELER_ASSIGN(const double growth, json.GetDouble("attn_scale", 0.1));
  CELER_ASSIGN(const int64_t step, HfInt(json, "floor_scale", 1, kAny, kChunk));
  config->query_scale.beta = grows ? growth : 0;
  config->query_scale.positions = static_cast<double>(step);
  CELER_RETURN_IF_ERROR(SparseLayers(json, config));
  MoeConfig& moe = config->moe;
  moe.intermediate = moe.shared_intermediate = config->intermediate;
  CELER_ASSIGN(config->intermediate, HfInt(json, "intermediate_size_mlp", 1, kAny, 16384));
  if (std::find(moe.sparse_layer.begin(), moe.sparse_layer.end(), true) == moe.sparse_layer.end()) {
    moe = {};
    return {};
  }
  CELER_ASSIGN(moe.experts, HfInt(json, "num_local_experts", 1, kAny, 16));
  CELER_ASSIGN(moe.experts_per_token, HfInt(json, "num_experts_per_tok", 1, kAny, 1));
  return {};
}

void Llama4HfTensors(const DecoderConfig& c, TensorRules* rules) {
  const PartNames& to = rules->parts();
  const std::string block = "model.layers.%.feed_forward.", experts = block + "experts.",
                    expert = experts + "#.";
  rules->Rename(block + "gate_proj.weight", to.gate);
  rules->Rename(block + "up_proj.weight", to.up);
  rules->Rename(block + "down_proj.weight", to.down);
  rules->SplitTransposed(experts + "gate_up_proj", {{expert + "gate_proj.weight", c.moe.intermediate},
                                                    {expert + "up_proj.weight", c.moe.intermediate}});
  rules->SplitTransposed(experts + "down_proj", {{expert + "down_proj.weight", c.hidden}});
}

// The numbers that llama.cpp has as constants are those of the published models.
Status Llama4FromGguf(const GgufFile& file, DecoderConfig* config) {
  const GgufReader reader(file, file.source(), "llama4");
  if (reader.Has("attention.sliding_window"))
    return Error::Unsupported(file.source(),
                              ": metadata key 'llama4.attention.sliding_window' is there, which is "
                              "not implemented for the architecture 'llama4'");
  CommonOfBoth(config);
  constexpr int64_t kExpertsWithoutNorm = 128;
  config->qk_norm = config->moe.experts != kExpertsWithoutNorm;
  config->sliding_window = kChunk;
  CELER_ASSIGN(config->windowed_layer, reader.WindowedLayers(config->layers, kPeriod));
  LastOfEachWithoutRope(kPeriod, config);
  const auto& sparse = config->moe.sparse_layer;
  const auto first = std::find(sparse.begin(), sparse.end(), true);
  if (first == sparse.end())
    return Error::Unsupported(file.source(), ": no layer has experts, which every Llama 4 has");
  config->moe.shared_intermediate = config->moe.intermediate;
  return {};
}

}  // namespace celer::families
