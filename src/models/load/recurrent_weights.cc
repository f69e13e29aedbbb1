#include "models/load/recurrent_weights.h"

#include <cmath>
#include <string>

#include "models/config/part_names.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

class RecurrentLoader {
 public:
  RecurrentLoader(const DecoderConfig& config, bool gguf, int64_t layer, WeightReader& reader)
      : config_(config),
        r_(config.recurrent),
        names_(gguf ? kGgufNames : kHfNames),
        gguf_(gguf),
        layer_(layer),
        reader_(reader),
        keys_(r_.key_heads * r_.key_dim),
        values_(r_.value_heads * r_.value_dim) {}

  Status Run(LayerWeights* layer) {
    RecurrentWeights* const w = &layer->recurrent;
    CELER_RETURN_IF_ERROR(r_.kind == RecurrentKind::kMamba2 ? Mamba2(w) : GatedDelta(w));
    CELER_ASSIGN(w->out, reader_.Matrix(Name(names_.state_out), config_.hidden, values_));
    if (r_.bias) {
      CELER_ASSIGN(layer->o_bias,
                   reader_.ScaledVector(Name(names_.state_out_bias), config_.hidden, config_.residual_scale));
    }
    CELER_ASSIGN(w->conv, reader_.Vector(Name(names_.state_conv), ConvChannels(r_) * r_.conv_kernel));
    CELER_ASSIGN(w->dt_bias, reader_.Vector(Name(names_.state_dt_bias), r_.value_heads));
    CELER_ASSIGN(const float* const a_log, reader_.Vector(Name(names_.state_a_log), r_.value_heads));
    for (int64_t h = 0; h < r_.value_heads; ++h) w->rate.push_back(gguf_ ? -a_log[h] : std::exp(a_log[h]));
    return {};
  }

 private:
  std::string Name(const char* pattern) const {
    std::string name = pattern;
    name.replace(name.find('%'), 1, std::to_string(layer_));
    return name;
  }

  struct Part {
    const char* name;
    int64_t rows;
    WeightView* weights;
    const char* bias_name = nullptr;
    const float** bias = nullptr;
  };
  Status Projections(std::initializer_list<Part> parts) {
    for (const Part& part : parts) {
      CELER_ASSIGN(*part.weights, reader_.Matrix(Name(part.name), part.rows, config_.hidden));
      if (r_.bias && part.bias) {
        CELER_ASSIGN(*part.bias, reader_.Vector(Name(part.bias_name), part.rows));
      }
    }
    return {};
  }

  Status GatedDelta(RecurrentWeights* w) {
    CELER_RETURN_IF_ERROR(Projections({{names_.state_q, keys_, &w->q},
                                       {names_.state_k, keys_, &w->k},
                                       {names_.state_v, values_, &w->v},
                                       {names_.state_z, values_, &w->z},
                                       {names_.state_b, r_.value_heads, &w->b},
                                       {names_.state_a, r_.value_heads, &w->a}}));
    CELER_ASSIGN(w->norm, reader_.Vector(Name(names_.state_norm), r_.value_dim));
    return {};
  }

  Status Mamba2(RecurrentWeights* w) {
    CELER_RETURN_IF_ERROR(Projections(
        {{names_.state_z, values_, &w->z, names_.state_z_bias, &w->z_bias},
         {names_.state_mixed, ConvChannels(r_), &w->mixed, names_.state_mixed_bias, &w->mixed_bias},
         {names_.state_a, r_.value_heads, &w->a, names_.state_a_bias, &w->a_bias}}));
    if (r_.conv_bias) {
      CELER_ASSIGN(w->conv_bias, reader_.Vector(Name(names_.state_conv_bias), ConvChannels(r_)));
    }
    CELER_ASSIGN(w->skip, reader_.Vector(Name(names_.state_skip), r_.value_heads));
    CELER_ASSIGN(w->norm, reader_.Vector(Name(names_.state_norm), values_));
    return {};
  }

  const DecoderConfig& config_;
  const RecurrentConfig& r_;
  const PartNames& names_;
  bool gguf_;
  int64_t layer_;
  WeightReader& reader_;
  int64_t keys_, values_;
};

}  // namespace

Status LoadRecurrent(const DecoderConfig& config, bool gguf, int64_t i, WeightReader& reader,
                     LayerWeights* layer) {
  return RecurrentLoader(config, gguf, i, reader).Run(layer);
}

}  // namespace celer
