#include "models/lora/places.h"

#include <fmt/format.h>

#include "models/config/family.h"
#include "models/config/part_names.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

// Below a layer's prefix, where kHfNames and kGgufNames have none.
struct MoreNames {
  const char *latent_q, *latent_q_a, *latent_q_b, *latent_kv_a, *latent_kv_b;
  const char *per_layer_gate, *per_layer_out, *laurel_left, *laurel_right;
  const char *stream_router, *stream_predict, *stream_correct;
  const char* per_layer_projection;  // of the model
};
constexpr MoreNames kMoreHf = {
    .latent_q = "self_attn.q_proj.weight",
    .latent_q_a = "self_attn.q_a_proj.weight",
    .latent_q_b = "self_attn.q_b_proj.weight",
    .latent_kv_a = "self_attn.kv_a_proj_with_mqa.weight",
    .latent_kv_b = "self_attn.kv_b_proj.weight",
    .per_layer_gate = "per_layer_input_gate.weight",
    .per_layer_out = "per_layer_projection.weight",
    .laurel_left = "laurel.linear_left.weight",
    .laurel_right = "laurel.linear_right.weight",
    .stream_router = "altup.modality_router.weight",
    .stream_predict = "altup.prediction_coefs.weight",
    .stream_correct = "altup.correction_coefs.weight",
    .per_layer_projection = "model.per_layer_model_projection.weight",
};
constexpr MoreNames kMoreGguf = {
    .latent_q = "attn_q.weight",
    .latent_q_a = "attn_q_a.weight",
    .latent_q_b = "attn_q_b.weight",
    .latent_kv_a = "attn_kv_a_mqa.weight",
    .latent_kv_b = "attn_kv_b.weight",
    .per_layer_gate = "inp_gate.weight",
    .per_layer_out = "proj.weight",
    .laurel_left = "laurel_l.weight",
    .laurel_right = "laurel_r.weight",
    .stream_router = "altup_router.weight",
    .stream_predict = "altup_predict_coef.weight",
    .stream_correct = "altup_correct_coef.weight",
    .per_layer_projection = "per_layer_model_proj.weight",
};

class Places {
 public:
  Places(const DecoderConfig& config, bool gguf)
      : c_(config),
        gguf_(gguf),
        names_(gguf ? kGgufNames : kHfNames),
        more_(gguf ? kMoreGguf : kMoreHf),
        family_(*FindFamily(config.family)),
        experts_(family_.experts.experts ? family_.experts : FindFamily("mixtral")->experts) {}

  std::map<std::string, PlacedMatrix> Run() {
    const int64_t width = c_.embedding_dim > 0 ? c_.embedding_dim : c_.hidden;
    Add(names_.embedding, LoraPart::kEmbedding, c_.vocab, width);
    Add(names_.head, LoraPart::kHead, c_.vocab, width);
    if (c_.embedding_dim > 0) {
      Add(names_.project_in, LoraPart::kProjectIn, c_.hidden, width);
      Add(names_.project_out, LoraPart::kProjectOut, width, c_.hidden);
    }
    if (c_.per_layer_dim > 0)
      Add(more_.per_layer_projection, LoraPart::kPerLayerProjection, c_.layers * c_.per_layer_dim, c_.hidden);
    for (int64_t s = 0; !gguf_ && s + 1 < c_.altup.streams; ++s) {
      place_ = {.expert = s};
      Add(fmt::format("model.altup_projections.{}.weight", s), LoraPart::kStreamIn, c_.hidden, c_.hidden);
      Add(fmt::format("model.altup_unembed_projections.{}.weight", s), LoraPart::kStreamOut, c_.hidden,
          c_.hidden);
    }
    for (int64_t i = 0; i < c_.layers; ++i) Layer(i);
    return std::move(places_);
  }

 private:
  void Add(std::string name, LoraPart part, int64_t rows, int64_t cols) {
    if (const size_t at = name.find('%'); at != std::string::npos)
      name.replace(at, 1, std::to_string(place_.layer));
    place_.part = part;
    places_[std::move(name)] = {place_, rows, cols};
  }
  void Below(const char* name, LoraPart part, int64_t rows, int64_t cols) {
    Add(prefix_ + name, part, rows, cols);
  }

  void Layer(int64_t i) {
    place_ = {.layer = i};
    prefix_ = fmt::format("{}{}.", gguf_ ? "blk." : "model.layers.", i);
    if (c_.HasMixer(i)) {
      if (c_.IsRecurrent(i))
        Recurrent();
      else
        c_.IsLatent() ? Latent() : Attention(i);
    }
    if (c_.HasFfn(i)) {
      if (c_.IsSparse(i)) gguf_ ? GgufExperts() : HfExperts();
      place_.expert = -1;
      if (!c_.IsSparse(i) || c_.moe.beside_dense) {
        const int64_t width = c_.Intermediate(i);
        if (c_.gated_mlp) Add(names_.gate, LoraPart::kGate, width, c_.hidden);
        Add(names_.up, LoraPart::kUp, width, c_.hidden);
        Add(names_.down, LoraPart::kDown, c_.hidden, width);
      }
    }
    Extras();
  }

  void Attention(int64_t i) {
    const int64_t q = c_.heads * c_.HeadDim(i), kv = c_.KvHeads(i) * c_.HeadDim(i);
    const bool own = c_.KvFrom(i) == i;
    Add(names_.q, LoraPart::kQ, c_.output_gate ? 2 * q : q, c_.hidden);
    Add(names_.k, own ? LoraPart::kK : LoraPart::kUnused, kv, c_.hidden);
    if (!c_.ValuesAreKeys(i)) Add(names_.v, own ? LoraPart::kV : LoraPart::kUnused, kv, c_.hidden);
    Add(names_.o, LoraPart::kO, c_.hidden, q);
  }

  void Latent() {
    const LatentConfig& l = c_.latent;
    const int64_t q = c_.heads * (l.nope_dim + l.rope_dim);
    if (l.q_rank == 0) {
      Below(more_.latent_q, LoraPart::kLatentQB, q, c_.hidden);
    } else {
      Below(more_.latent_q_a, LoraPart::kLatentQA, l.q_rank, c_.hidden);
      Below(more_.latent_q_b, LoraPart::kLatentQB, q, l.q_rank);
    }
    Below(more_.latent_kv_a, LoraPart::kLatentKvA, l.kv_rank + l.rope_dim, c_.hidden);
    Below(more_.latent_kv_b, LoraPart::kLatentKvB, c_.heads * (l.nope_dim + l.value_dim), l.kv_rank);
    Add(names_.o, LoraPart::kO, c_.hidden, c_.heads * l.value_dim);
  }

  void Recurrent() {
    const RecurrentConfig& r = c_.recurrent;
    const int64_t keys = r.key_heads * r.key_dim, values = r.value_heads * r.value_dim;
    Add(names_.state_z, LoraPart::kStateZ, values, c_.hidden);
    Add(names_.state_a, LoraPart::kStateA, r.value_heads, c_.hidden);
    Add(names_.state_out, LoraPart::kStateOut, c_.hidden, values);
    if (r.kind == RecurrentKind::kMamba2)
      return Add(names_.state_mixed, LoraPart::kStateMixed, ConvChannels(r), c_.hidden);
    Add(names_.state_q, LoraPart::kStateQ, keys, c_.hidden);
    Add(names_.state_k, LoraPart::kStateK, keys, c_.hidden);
    Add(names_.state_v, LoraPart::kStateV, values, c_.hidden);
    Add(names_.state_b, LoraPart::kStateB, r.value_heads, c_.hidden);
  }

  // Gate, up and down of experts with this inner width.
  void Ffn(const std::string& gate, const std::string& up, const std::string& down, LoraPart first,
           int64_t width) {
    const auto part = [&](int step) { return static_cast<LoraPart>(static_cast<int>(first) + step); };
    if (c_.gated_mlp) Add(gate, part(0), width, c_.hidden);
    Add(up, part(1), width, c_.hidden);
    Add(down, part(2), c_.hidden, width);
  }

  void HfExperts() {
    const MoeConfig& moe = c_.moe;
    Below(experts_.router, LoraPart::kRouter, moe.experts, c_.hidden);
    for (int64_t e = 0; e < moe.experts; ++e) {
      place_.expert = e;
      const std::string expert = prefix_ + experts_.experts + std::to_string(e);
      Ffn(expert + experts_.gate, expert + experts_.up, expert + experts_.down, LoraPart::kExpertGate,
          moe.intermediate);
    }
    place_.expert = -1;
    if (moe.shared_intermediate == 0 || !experts_.shared) return;
    const std::string shared = prefix_ + experts_.shared;
    Ffn(shared + experts_.gate, shared + experts_.up, shared + experts_.down, LoraPart::kSharedGate,
        moe.shared_intermediate);
    if (moe.shared_gated && experts_.shared_gate)
      Below(experts_.shared_gate, LoraPart::kSharedWeight, 1, c_.hidden);
  }

  void GgufExperts() {
    const MoeConfig& moe = c_.moe;
    Below("ffn_gate_inp.weight", LoraPart::kRouter, moe.experts, c_.hidden);
    place_.expert = LoraPlace::kAll;
    Ffn(prefix_ + "ffn_gate_exps.weight", prefix_ + "ffn_up_exps.weight", prefix_ + "ffn_down_exps.weight",
        LoraPart::kExpertGate, moe.intermediate);
    place_.expert = -1;
    if (moe.shared_intermediate == 0) return;
    Ffn(prefix_ + "ffn_gate_shexp.weight", prefix_ + "ffn_up_shexp.weight", prefix_ + "ffn_down_shexp.weight",
        LoraPart::kSharedGate, moe.shared_intermediate);
    if (moe.shared_gated) Below("ffn_gate_inp_shexp.weight", LoraPart::kSharedWeight, 1, c_.hidden);
  }

  void Extras() {
    if (c_.per_layer_dim > 0) {
      Below(more_.per_layer_gate, LoraPart::kPerLayerGate, c_.per_layer_dim, c_.hidden);
      Below(more_.per_layer_out, LoraPart::kPerLayerOut, c_.hidden, c_.per_layer_dim);
    }
    if (c_.laurel_rank > 0) {
      Below(more_.laurel_left, LoraPart::kLaurelLeft, c_.laurel_rank, c_.hidden);
      Below(more_.laurel_right, LoraPart::kLaurelRight, c_.hidden, c_.laurel_rank);
    }
    const int64_t n = c_.altup.streams;
    if (n == 0) return;
    Below(more_.stream_router, LoraPart::kStreamRouter, n, c_.hidden);
    Below(more_.stream_predict, LoraPart::kStreamPredict, n * n, n);
    Below(more_.stream_correct, LoraPart::kStreamCorrect, n, n);
  }

  const DecoderConfig& c_;
  bool gguf_;
  const PartNames& names_;
  const MoreNames& more_;
  const Family& family_;
  const ExpertNames& experts_;
  LoraPlace place_;
  std::string prefix_;
  std::map<std::string, PlacedMatrix> places_;
};

WeightView ModelMatrix(const DecoderWeights& w, const LoraPlace& place) {
  switch (place.part) {
    case LoraPart::kHead:
      return w.head;
    case LoraPart::kProjectIn:
      return w.project_in;
    case LoraPart::kProjectOut:
      return w.project_out;
    case LoraPart::kPerLayerProjection:
      return w.per_layer_projection;
    case LoraPart::kStreamIn:
      return w.streams_in[place.expert];
    case LoraPart::kStreamOut:
      return w.streams_out[place.expert];
    default:
      return w.embedding;
  }
}

WeightView MixerMatrix(const LayerWeights& w, LoraPart part) {
  switch (part) {
    case LoraPart::kQ:
      return w.q;
    case LoraPart::kK:
      return w.k;
    case LoraPart::kV:
      return w.v;
    case LoraPart::kO:
      return w.o;
    case LoraPart::kLatentQA:
      return w.latent.q_a;
    case LoraPart::kLatentQB:
      return w.latent.q_b;
    case LoraPart::kLatentKvA:
      return w.latent.kv_a;
    case LoraPart::kStateQ:
      return w.recurrent.q;
    case LoraPart::kStateK:
      return w.recurrent.k;
    case LoraPart::kStateV:
      return w.recurrent.v;
    case LoraPart::kStateZ:
      return w.recurrent.z;
    case LoraPart::kStateB:
      return w.recurrent.b;
    case LoraPart::kStateA:
      return w.recurrent.a;
    case LoraPart::kStateMixed:
      return w.recurrent.mixed;
    case LoraPart::kStateOut:
      return w.recurrent.out;
    default:
      return {};
  }
}

WeightView FfnMatrix(const LayerWeights& w, const LoraPlace& place) {
  switch (place.part) {
    case LoraPart::kGate:
      return w.dense.gate;
    case LoraPart::kUp:
      return w.dense.up;
    case LoraPart::kDown:
      return w.dense.down;
    case LoraPart::kRouter:
      return w.router;
    case LoraPart::kExpertGate:
      return w.experts[place.expert].gate;
    case LoraPart::kExpertUp:
      return w.experts[place.expert].up;
    case LoraPart::kExpertDown:
      return w.experts[place.expert].down;
    case LoraPart::kSharedGate:
      return w.shared.gate;
    case LoraPart::kSharedUp:
      return w.shared.up;
    case LoraPart::kSharedDown:
      return w.shared.down;
    case LoraPart::kSharedWeight:
      return w.shared_gate;
    case LoraPart::kPerLayerGate:
      return w.per_layer_gate;
    case LoraPart::kPerLayerOut:
      return w.per_layer_out;
    case LoraPart::kLaurelLeft:
      return w.laurel_left;
    case LoraPart::kLaurelRight:
      return w.laurel_right;
    case LoraPart::kStreamRouter:
      return w.altup.router;
    case LoraPart::kStreamPredict:
      return w.altup.predict;
    case LoraPart::kStreamCorrect:
      return w.altup.correct;
    default:
      return {};
  }
}

}  // namespace

std::map<std::string, PlacedMatrix> PlacesOf(const DecoderConfig& config, bool gguf) {
  return Places(config, gguf).Run();
}

std::map<LoraPlace, PlacedMatrix> PlacesByPlace(const DecoderConfig& config) {
  std::map<LoraPlace, PlacedMatrix> out;
  for (const auto& [name, at] : PlacesOf(config, /*gguf=*/false)) out[at.place] = at;
  return out;
}

WeightView MatrixAt(const DecoderWeights& weights, const LoraPlace& place) {
  if (place.layer < 0) return ModelMatrix(weights, place);
  const LayerWeights& w = weights.layers[place.layer];
  return place.part < LoraPart::kGate ? MixerMatrix(w, place.part) : FfnMatrix(w, place);
}

const float* BiasAt(const DecoderWeights& weights, const LoraPlace& place) {
  if (place.part == LoraPart::kHead) return weights.head_bias;
  if (place.layer < 0) return nullptr;
  const LayerWeights& w = weights.layers[place.layer];
  switch (place.part) {
    case LoraPart::kQ:
    case LoraPart::kLatentQA:
      return w.q_bias;
    case LoraPart::kK:
    case LoraPart::kLatentKvA:
      return w.k_bias;
    case LoraPart::kV:
      return w.v_bias;
    case LoraPart::kO:
    case LoraPart::kStateOut:
      return w.o_bias;
    case LoraPart::kStateZ:
      return w.recurrent.z_bias;
    case LoraPart::kStateMixed:
      return w.recurrent.mixed_bias;
    case LoraPart::kStateA:
      return w.recurrent.a_bias;
    case LoraPart::kGate:
      return w.gate_bias;
    case LoraPart::kUp:
      return w.up_bias;
    case LoraPart::kDown:
      return w.down_bias;
    case LoraPart::kRouter:
      return w.router_bias;
    case LoraPart::kSharedGate:
      return w.shared.gate_bias;
    case LoraPart::kSharedUp:
      return w.shared.up_bias;
    case LoraPart::kSharedDown:
      return w.shared.down_bias;
    default:
      return nullptr;
  }
}

}  // namespace celer
