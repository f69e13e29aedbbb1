#include "models/load/hf_rope_keys.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "models/config/words.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;
using Scaling = RopeConfig::Scaling;

// GGUF has the frequencies' divisors, transformers what they follow from.
std::optional<Json> Llama3Scaling(const std::vector<float>& factors, double theta, int64_t dim) {
  constexpr double kLow = 1, kHigh = 4;  // as in all published models
  const double factor = *std::max_element(factors.begin(), factors.end());
  for (int64_t original = 16; original <= int64_t{1} << 24; original *= 2) {
    const auto positions = static_cast<double>(original);
    bool same = std::ssize(factors) == dim / 2;
    for (int64_t i = 0; same && i < dim / 2; ++i) {
      const double length = 2 * M_PI * std::pow(theta, 2 * static_cast<double>(i) / static_cast<double>(dim));
      double expected = 1;
      if (length > positions / kLow) {
        expected = factor;
      } else if (length >= positions / kHigh) {
        const double smooth = (positions / length - kLow) / (kHigh - kLow);
        expected = 1 / ((1 - smooth) / factor + smooth);
      }
      same = std::abs(factors[i] - expected) < 1e-4 * expected;
    }
    if (same)
      return Json{{"rope_type", "llama3"},
                  {"factor", std::round(factor * 1e4) / 1e4},
                  {"low_freq_factor", kLow},
                  {"high_freq_factor", kHigh},
                  {"original_max_position_embeddings", original}};
  }
  return std::nullopt;
}

class RopeWriter {
 public:
  RopeWriter(const DecoderConfig& config, const std::string& family) : c_(config), family_(family) {}

  Result<Json> Run() {
    CELER_RETURN_IF_ERROR(Rope());
    return std::move(json_);
  }

 private:
  bool Is(Words families) const { return Holds(families, family_); }
  template <class T>
  void Set(const char* key, T value) {
    json_[key] = std::move(value);
  }

  // Of one kind of layers.
  Result<Json> RopeOf(const RopeConfig& rope, int64_t head_dim) const {
    Json out = {{"rope_type", "default"}, {"rope_theta", rope.theta}};
    switch (rope.scaling) {
      case Scaling::kLinear:
        out.update(Json{{"rope_type", "linear"}, {"factor", rope.factor}});
        break;
      case Scaling::kYarn:
        out.update(Yarn(rope));
        break;
      case Scaling::kLongRope:
        out.update(Json{{"rope_type", "longrope"},
                        {"short_factor", rope.short_factors},
                        {"long_factor", rope.long_factors},
                        {"factor", static_cast<double>(c_.max_positions) / rope.original_positions},
                        {"attention_factor", rope.attention_factor},
                        {"original_max_position_embeddings", static_cast<int64_t>(rope.original_positions)}});
        break;
      default:
        break;
    }
    if (!rope.freq_factors.empty()) CELER_RETURN_IF_ERROR(FromFactors(rope, &out));
    if (rope.dim != head_dim && !out.contains("partial_rotary_factor"))
      out["partial_rotary_factor"] = Share(rope.dim, head_dim);
    return out;
  }

  // Whose product with `all`, rounded down, is `some`.
  static double Share(int64_t some, int64_t all) {
    double share = static_cast<double>(some) / static_cast<double>(all);
    if (static_cast<int64_t>(share * static_cast<double>(all)) < some) share = std::nextafter(share, 1.0);
    return share;
  }

  Json Yarn(const RopeConfig& rope) const {
    Json out = {{"rope_type", "yarn"},
                {"factor", rope.factor},
                {"original_max_position_embeddings", static_cast<int64_t>(rope.original_positions)},
                {"beta_fast", rope.beta_fast},
                {"beta_slow", rope.beta_slow},
                {"attention_factor", rope.attention_factor}};
    if (!c_.IsLatent()) return out;
    // What sharpens the scores: scale = mscale * mscale / sqrt(head).
    const auto head = static_cast<double>(c_.latent.nope_dim + c_.latent.rope_dim);
    const double sharper = std::sqrt(c_.attention_scale * std::sqrt(head));
    if (rope.factor > 1 && std::abs(sharper - 1) > 1e-6) {
      out["mscale_all_dim"] = std::round((sharper - 1) / (0.1 * std::log(rope.factor)) * 1e5) / 1e5;
      out["mscale"] = out["mscale_all_dim"];
    }
    return out;
  }

  Status FromFactors(const RopeConfig& rope, Json* out) const {
    constexpr float kStill = 1e29f;
    const auto& factors = rope.freq_factors;
    const auto turning = std::count_if(factors.begin(), factors.end(), [](float f) { return f < kStill; });
    if (turning < std::ssize(factors)) {
      if (!Is("gemma4"))
        return Error::Unsupported(
            "tensor 'rope_freqs.weight' lets pairs stand still, which models of the type '", family_,
            "' do not have in transformers");
      out->update(Json{{"rope_type", "proportional"},
                       {"partial_rotary_factor", Share(turning, std::ssize(factors))}});
      return {};
    }
    if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1; })) return {};
    const auto scaling = Llama3Scaling(factors, rope.theta, rope.dim);
    if (!scaling)
      return Error::Unsupported(
          "tensor 'rope_freqs.weight' does not follow from the rope type 'llama3', which is all that a "
          "config.json says");
    out->update(*scaling);
    return {};
  }

  // Families whose classes are newer than the object "rope_parameters". The others get the older keys, which every version
  // of transformers reads.
  bool HasRopeParameters() const {
    return Is("gemma4 olmo3 ministral3 minimax_m2 qwen3_5_text qwen3_5_moe_text");
  }

  Status Rope() {
    if (Is("bloom mpt gpt2 nemotron_h")) return {};
    if (!c_.rope_layer.empty() &&
        std::find(c_.rope_layer.begin(), c_.rope_layer.end(), true) == c_.rope_layer.end())
      return {};
    const bool by_kind = Is("gemma3 gemma3n gemma4 olmo3");
    const int64_t head = by_kind ? HeadDimOfFullLayers(c_) : c_.IsLatent() ? c_.rope.dim : c_.head_dim;
    CELER_ASSIGN(Json rope, RopeOf(c_.rope, head));
    RopeConfig local;
    local.theta = c_.rope.theta;
    local.dim = c_.head_dim;
    if (c_.local_rope) local = *c_.local_rope;
    if (by_kind && HasRopeParameters()) {
      CELER_ASSIGN(const Json windowed, RopeOf(local, c_.head_dim));
      Set("rope_parameters", Json{{"full_attention", rope}, {"sliding_attention", windowed}});
      return {};
    }
    if (by_kind) Set("rope_local_base_freq", local.theta);
    if (Is("ministral3")) {
      rope["llama_4_scaling_beta"] = c_.query_scale.beta;
      rope["original_max_position_embeddings"] = static_cast<int64_t>(c_.query_scale.positions);
    }
    if (HasRopeParameters())
      Set("rope_parameters", std::move(rope));
    else
      OlderRope(std::move(rope));
    return {};
  }

  void OlderRope(Json rope) {
    Set("rope_theta", rope["rope_theta"]);
    rope.erase("rope_theta");
    if (rope.contains("partial_rotary_factor")) {
      Set("partial_rotary_factor", rope["partial_rotary_factor"]);
      rope.erase("partial_rotary_factor");
    }
    if (Is("phi3") && rope["rope_type"] == "longrope") {  // its class takes three keys and no more
      Set("original_max_position_embeddings", static_cast<int64_t>(c_.rope.original_positions));
      rope = {
          {"type", "longrope"}, {"short_factor", rope["short_factor"]}, {"long_factor", rope["long_factor"]}};
    }
    const bool plain = rope.size() == 1;                                           // its type alone
    rope["type"] = rope.contains("rope_type") ? rope["rope_type"] : rope["type"];  // the oldest name
    Set("rope_scaling", plain ? Json(nullptr) : std::move(rope));
  }

  const DecoderConfig& c_;
  const std::string& family_;
  Json json_ = Json::object();
};

}  // namespace

int64_t HeadDimOfFullLayers(const DecoderConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.Window(i) == 0) return config.HeadDim(i);
  return config.head_dim;
}

Result<Json> HfRopeKeys(const DecoderConfig& config, const std::string& family) {
  return RopeWriter(config, family).Run();
}

}  // namespace celer
