#include "models/config/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/file/printable.h"
#include "models/config/words.h"

namespace celer {
namespace {

using Scaling = RopeConfig::Scaling;

struct ScalingName {
  const char* name;
  Scaling scaling;
};
constexpr ScalingName kHfScalings[] = {
    {"default", Scaling::kNone}, {"linear", Scaling::kLinear},   {"llama3", Scaling::kLlama3},
    {"yarn", Scaling::kYarn},    {"dynamic", Scaling::kDynamic}, {"longrope", Scaling::kLongRope},
};
constexpr ScalingName kGgufScalings[] = {
    {"none", Scaling::kNone},
    {"linear", Scaling::kLinear},
    {"yarn", Scaling::kYarn},
    {"longrope", Scaling::kLongRope},
};

Result<Scaling> FindScaling(std::span<const ScalingName> names, const std::string& name,
                            const std::string& where) {
  std::string known;
  for (const ScalingName& row : names) {
    if (name == row.name) return row.scaling;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Error::Unsupported(where, ": rope scaling '", Printable(name, 40),
                            "' is not supported; supported are ", known);
}

// What the paper suggests: attention grows a little sharper as the context grows.
double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Result<std::vector<float>> Floats(const JsonFields& json, const char* key) {
  const nlohmann::json* value = json.Find(key);
  if (!value) return Error::Corrupt(json.where(), ": '", key, "' is missing");
  std::vector<float> out;
  bool good = value->is_array();
  for (const nlohmann::json& item : good ? *value : nlohmann::json::array()) {
    good = good && item.is_number();
    if (good) out.push_back(item.get<float>());
  }
  if (!good)
    return Error::Corrupt(json.where(), ": '", key, "' is ", Printable(JsonText(*value), 60),
                          ", expected a list of numbers");
  return out;
}

// Keys of the object that this kind of scaling does not use: transformers ignores them with a warning, too.
void WarnUnusedKeys(const JsonFields& fields, const std::string& kind, Scaling scaling,
                    DecoderConfig* config) {
  struct Use {
    const char* key;
    std::initializer_list<Scaling> by;
  };
  const Use uses[] = {
      {"factor", {Scaling::kLinear, Scaling::kLlama3, Scaling::kYarn, Scaling::kDynamic, Scaling::kLongRope}},
      {"original_max_position_embeddings", {Scaling::kLlama3, Scaling::kYarn, Scaling::kLongRope}},
      {"low_freq_factor", {Scaling::kLlama3}},
      {"high_freq_factor", {Scaling::kLlama3}},
      {"attention_factor", {Scaling::kYarn, Scaling::kLongRope}},
      {"beta_fast", {Scaling::kYarn}},
      {"beta_slow", {Scaling::kYarn}},
      {"mscale", {Scaling::kYarn}},
      {"mscale_all_dim", {Scaling::kYarn}},
      {"truncate", {Scaling::kYarn}},
      {"short_factor", {Scaling::kLongRope}},
      {"long_factor", {Scaling::kLongRope}},
  };
  for (const auto& item : fields.json().items()) {
    const std::string& key = item.key();  // no structured binding: a lambda below needs it
    const nlohmann::json& value = item.value();
    if (key == "type" || key == "rope_type" || key == "rope_theta" || key == "partial_rotary_factor" ||
        (key.starts_with("mrope_") && config->family.starts_with("qwen3_5")) || value.is_null())
      continue;
    const bool of_queries = key == "llama_4_scaling_beta" || key == "max_position_embeddings";
    if (of_queries && config->family == "ministral3") continue;
    const bool scale = key == "short_mscale" || key == "long_mscale";
    if (scale && config->family == "phimoe") continue;
    const auto use =
        std::find_if(std::begin(uses), std::end(uses), [&](const Use& row) { return row.key == key; });
    if (use != std::end(uses) && std::find(use->by.begin(), use->by.end(), scaling) != use->by.end())
      continue;
    config->warnings.push_back(
        fmt::format("{}: '{}' is {}, which the rope type '{}' does not use; it is ignored", fields.where(),
                    Printable(key, 60), Printable(JsonText(value), 60), Printable(kind, 40)));
  }
}

Status ReadYarn(const JsonFields& fields, double max_positions, RopeConfig* rope) {
  // null, which newer files allow, means the ratio of the two lengths.
  if (!fields.json().contains("factor")) return Error::Corrupt(fields.where(), ": 'factor' is missing");
  CELER_ASSIGN(rope->factor, fields.GetDouble("factor", max_positions / rope->original_positions));
  // Zero means the default.
  CELER_ASSIGN(const double fast, fields.GetDouble("beta_fast", 0));
  CELER_ASSIGN(const double slow, fields.GetDouble("beta_slow", 0));
  if (fast != 0) rope->beta_fast = fast;
  if (slow != 0) rope->beta_slow = slow;
  CELER_ASSIGN(rope->truncate, fields.GetBool("truncate", !fields.json().contains("truncate")));
  CELER_ASSIGN(const double mscale, fields.GetDouble("mscale", 0));
  CELER_ASSIGN(const double mscale_all_dim, fields.GetDouble("mscale_all_dim", 0));
  const double derived = mscale != 0 && mscale_all_dim != 0
                             ? YarnScale(rope->factor, mscale) / YarnScale(rope->factor, mscale_all_dim)
                             : YarnScale(rope->factor, 1);
  CELER_ASSIGN(rope->attention_factor, fields.GetDouble("attention_factor", derived));
  return {};
}

Status ReadLongRope(const JsonFields& fields, double max_positions, RopeConfig* rope) {
  CELER_ASSIGN(rope->short_factors, Floats(fields, "short_factor"));
  CELER_ASSIGN(rope->long_factors, Floats(fields, "long_factor"));
  CELER_ASSIGN(rope->factor, fields.GetDouble("factor", max_positions / rope->original_positions));
  const double derived =
      rope->factor <= 1 ? 1.0 : std::sqrt(1 + std::log(rope->factor) / std::log(rope->original_positions));
  CELER_ASSIGN(rope->attention_factor, fields.GetDouble("attention_factor", derived));
  return {};
}

Result<std::vector<float>> FactorsTensor(const GgufReader& reader, const char* name) {
  const TensorRecord* record = reader.file().Find(name);
  if (!record)
    return Error::Corrupt(reader.path(), ": tensor '", name,
                          "' is missing, which rope scaling 'longrope' needs");
  if (record->dtype != DType::kF32 || record->shape.rank() != 1)
    return Error::Corrupt(reader.path(), ": tensor '", name, "' has type ", Name(record->dtype),
                          " and shape ", record->shape.ToString(), ", expected f32 and one dimension");
  std::vector<float> out(record->shape[0]);
  std::memcpy(out.data(), record->bytes.data(), record->bytes.size());
  return out;
}

// "partial_rotary_factor": the share of a head's leading dimensions that rotate.
constexpr Words kPartialRotary =
    "phi3 glm glm4 glm4_moe phi gpt_neox stablelm nemotron qwen3_next qwen3_5_text qwen3_5_moe_text "
    "minimax_m2 bamba";

Status RotatePart(const JsonFields& json, double share, DecoderConfig* config) {
  if (share == 1) return {};
  if (!Holds(kPartialRotary, config->family))
    return Error::Unsupported(json.where(), ": 'partial_rotary_factor' is ", share,
                              ", which models of the type '", config->architecture,
                              "' do not have: they rotate whole heads");
  if (!(share > 0 && share < 1))
    return Error::Corrupt(json.where(), ": 'partial_rotary_factor' is ", share, ", expected 0 to 1");
  config->rope.dim = static_cast<int64_t>(static_cast<double>(config->head_dim) * share);
  return {};
}

// What Hunyuan calls "dynamic" is one larger base for sequences of any length.
void ScaleThetaByAlpha(double alpha, RopeConfig* rope) {
  const auto dim = static_cast<double>(rope->dim);
  rope->theta *= std::pow(alpha, dim / (dim - 2));
  rope->scaling = Scaling::kNone;
  rope->original_positions = 0;
}

// One object of parameters. `original` are the positions of the training where the object does not say.
Status ReadHfParameters(const JsonFields& fields, double original, double max_positions, RopeConfig* rope,
                        DecoderConfig* config) {
  CELER_ASSIGN(const std::string old_kind, fields.GetString("type", "default"));
  CELER_ASSIGN(std::string kind, fields.GetString("rope_type", old_kind));
  if (config->family == "phi3" && (kind == "su" || kind == "yarn")) kind = "longrope";  // its older names
  CELER_ASSIGN(rope->scaling, FindScaling(kHfScalings, kind, fields.where()));
  CELER_ASSIGN(rope->theta, fields.GetDouble("rope_theta", rope->theta));
  rope->original_positions = original;
  switch (rope->scaling) {
    case Scaling::kNone:
      rope->original_positions = 0;
      break;
    case Scaling::kLinear: {
      CELER_ASSIGN(rope->factor, fields.GetDouble("factor"));
      rope->original_positions = 0;
      break;
    }
    case Scaling::kLlama3: {
      CELER_ASSIGN(rope->factor, fields.GetDouble("factor"));
      CELER_ASSIGN(rope->low_freq_factor, fields.GetDouble("low_freq_factor"));
      CELER_ASSIGN(rope->high_freq_factor, fields.GetDouble("high_freq_factor"));
      break;
    }
    case Scaling::kYarn:
      CELER_RETURN_IF_ERROR(ReadYarn(fields, max_positions, rope));
      break;
    case Scaling::kDynamic: {
      CELER_ASSIGN(const double alpha, fields.GetDouble("alpha", 0));
      if (alpha != 0 && config->family.starts_with("hunyuan")) {
        ScaleThetaByAlpha(alpha, rope);
        return {};
      }
      CELER_ASSIGN(rope->factor, fields.GetDouble("factor"));
      // The file's positions are those of the training; what lies beyond is the point of this kind.
      rope->original_positions = max_positions;
      config->max_positions = static_cast<int64_t>(
          std::clamp(max_positions * rope->factor, max_positions, std::max(max_positions, 0x1p30)));
      break;
    }
    case Scaling::kLongRope:
      CELER_RETURN_IF_ERROR(ReadLongRope(fields, max_positions, rope));
      break;
  }
  WarnUnusedKeys(fields, kind, rope->scaling, config);
  return {};
}

}  // namespace

Status ReadHfRope(const JsonFields& json, double default_theta, DecoderConfig* config) {
  RopeConfig& rope = config->rope;
  rope.dim = config->head_dim;
  CELER_ASSIGN(rope.theta, json.GetDouble("rope_theta", default_theta));
  if (!(rope.theta > 0))  // also where an object of parameters has another one
    return Error::Corrupt(json.where(), ": rope theta is ", rope.theta, ", expected a positive number");
  const auto max_positions = static_cast<double>(config->max_positions);

  // The older name wins where a file has both, as in transformers.
  const nlohmann::json* scaling = json.Find("rope_scaling");
  const bool old = scaling && !(scaling->is_object() && scaling->empty());
  const char* key = old ? "rope_scaling" : "rope_parameters";
  CELER_ASSIGN(const double partial, json.GetDouble("partial_rotary_factor", 1.0));
  double rotated = partial;
  if (json.Has(key)) {
    CELER_ASSIGN(const JsonFields fields, json.GetObject(key));
    for (const auto& [name, value] : fields.json().items())
      if (value.is_object())
        return Error::Unsupported(
            fields.where(), ": '", Printable(name, 60),
            "' holds parameters of some layers; only the same rope in all layers is supported");
    CELER_ASSIGN(rotated, fields.GetDouble("partial_rotary_factor", partial));
    // A top-level field wins over the object's, as in transformers.
    CELER_ASSIGN(const double inner, fields.GetDouble("original_max_position_embeddings", max_positions));
    CELER_ASSIGN(const double original, json.GetDouble("original_max_position_embeddings", inner));
    CELER_RETURN_IF_ERROR(ReadHfParameters(fields, original, max_positions, &rope, config));
  }
  return RotatePart(json, rotated, config);
}

namespace {

int64_t HeadDimOf(const DecoderConfig& config, bool windowed) {
  for (int64_t i = 0; i < config.layers; ++i)
    if ((config.Window(i) > 0) == windowed) return config.HeadDim(i);
  return config.head_dim;
}

// "proportional": only the first pairs turn, with the frequencies of whole heads. What is left in `object` is plain or
// linear.
Status ReadProportional(const std::string& where, nlohmann::json* object, RopeConfig* rope) {
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(*object, where));
  CELER_ASSIGN(const double share, fields.GetDouble("partial_rotary_factor", 1.0));
  const double pairs = std::floor(share * static_cast<double>(rope->dim) / 2);
  if (!(share > 0 && share <= 1) || pairs < 1)
    return Error::Unsupported(where, ": 'partial_rotary_factor' is ", share, ", and of ", rope->dim / 2,
                              " pairs at least one must turn");
  if (share < 1) rope->turning_pairs = static_cast<int64_t>(pairs);
  (*object)["rope_type"] = fields.Has("factor") ? "linear" : "default";
  object->erase("partial_rotary_factor");
  return {};
}

}  // namespace

Status ReadHfRopeOfKinds(const JsonFields& json, double theta, double local_theta, DecoderConfig* config) {
  const auto max_positions = static_cast<double>(config->max_positions);
  const nlohmann::json kinds =
      json.Has("rope_parameters") ? *json.Find("rope_parameters") : nlohmann::json::object();
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(kinds, json.where() + ": 'rope_parameters'"));
  for (const auto& [name, value] : kinds.items())
    if (!(value.is_object() || value.is_null()) || (name != "full_attention" && name != "sliding_attention"))
      return Error::Unsupported(
          fields.where(), ": '", Printable(name, 60),
          "' is not 'full_attention' or 'sliding_attention' with parameters of such layers, "
          "which models of the type '",
          config->architecture, "' need");
  const auto read = [&](const char* kind, const nlohmann::json* scaling, double theta_if_missing,
                        RopeConfig* rope) -> Status {
    nlohmann::json merged = fields.Has(kind) ? *fields.Find(kind) : nlohmann::json{{"rope_type", "default"}};
    if (scaling) merged.update(*scaling);
    rope->dim = HeadDimOf(*config, kind == std::string_view("sliding_attention"));
    if (merged.value("rope_type", nlohmann::json()) == "proportional")
      CELER_RETURN_IF_ERROR(ReadProportional(fields.where() + ": '" + kind + "'", &merged, rope));
    CELER_ASSIGN(const JsonFields object, JsonFields::Of(merged, fields.where() + ": '" + kind + "'"));
    CELER_ASSIGN(const double partial, object.GetDouble("partial_rotary_factor", 1.0));
    if (partial != 1)
      return Error::Unsupported(object.where(), ": 'partial_rotary_factor' is ", partial,
                                ", which models of the type '", config->architecture, "' do not have");
    rope->theta = theta_if_missing;
    CELER_ASSIGN(const double original, object.GetDouble("original_max_position_embeddings", max_positions));
    return ReadHfParameters(object, original, max_positions, rope, config);
  };
  // The older name, of which only layers with full attention know.
  const nlohmann::json* scaling = json.Find("rope_scaling");
  if (scaling && !scaling->is_object())
    return Error::Corrupt(json.where(), ": 'rope_scaling' is ", Printable(JsonText(*scaling), 60),
                          ", expected an object");
  config->rope = {};
  CELER_RETURN_IF_ERROR(read("full_attention", scaling, theta, &config->rope));
  RopeConfig local;
  CELER_RETURN_IF_ERROR(read("sliding_attention", nullptr, local_theta, &local));
  if (local.DependsOnLength())
    return Error::Unsupported(
        fields.where(),
        ": the rope of layers with a sliding window depends on the length of a sequence, "
        "which is supported for layers with full attention alone");
  if (config->sliding_window > 0) config->local_rope = local;
  return {};
}

Status ReadGgufRope(const GgufReader& reader, DecoderConfig* config) {
  RopeConfig& rope = config->rope;
  CELER_ASSIGN(rope.theta, reader.Float("rope.freq_base", 10000));
  CELER_ASSIGN(rope.dim, reader.Int("rope.dimension_count", config->head_dim));
  // A factor without a type means linear, as in llama.cpp. The second name is an older one.
  const std::string factor_key = !reader.Has("rope.scaling.factor") && reader.Has("rope.scale_linear")
                                     ? "rope.scale_linear"
                                     : "rope.scaling.factor";
  CELER_ASSIGN(const std::string kind,
               reader.String("rope.scaling.type", reader.Has(factor_key)                  ? "linear"
                                                  : reader.file().Find(kGgufShortFactors) ? "longrope"
                                                                                          : "none"));
  CELER_ASSIGN(rope.scaling, FindScaling(kGgufScalings, kind, reader.path()));
  const auto max_positions = static_cast<double>(config->max_positions);
  CELER_ASSIGN(const double attention, reader.Float("rope.scaling.attn_factor", 1));
  rope.attention_factor = attention;
  if (rope.scaling == Scaling::kLinear || rope.scaling == Scaling::kYarn) {
    CELER_ASSIGN(rope.factor, reader.Float(factor_key));
    if (rope.factor == 0) rope.factor = 1;  // as llama.cpp reads it
  }
  if (rope.scaling == Scaling::kYarn || rope.scaling == Scaling::kLongRope) {
    CELER_ASSIGN(rope.original_positions,
                 reader.Float("rope.scaling.original_context_length", max_positions));
  }
  if (rope.scaling == Scaling::kLongRope) {
    CELER_ASSIGN(rope.short_factors, FactorsTensor(reader, kGgufShortFactors));
    CELER_ASSIGN(rope.long_factors, FactorsTensor(reader, kGgufLongFactors));
  }
  if (rope.scaling == Scaling::kYarn) {
    CELER_ASSIGN(rope.beta_fast, reader.Float("rope.scaling.yarn_beta_fast", rope.beta_fast));
    CELER_ASSIGN(rope.beta_slow, reader.Float("rope.scaling.yarn_beta_slow", rope.beta_slow));
    CELER_ASSIGN(const double mscale_all_dim, reader.Float("rope.scaling.yarn_log_multiplier", 0));
    rope.attention_factor *= YarnScale(rope.factor, 1);
    if (mscale_all_dim != 0) rope.attention_factor /= YarnScale(rope.factor, mscale_all_dim);
  }
  return {};
}

}  // namespace celer
