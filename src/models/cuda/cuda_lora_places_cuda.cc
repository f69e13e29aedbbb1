#include "models/cuda/cuda_lora_places.h"

#include <algorithm>
#include <initializer_list>

namespace celer {
namespace {

// Of an expert's three.
std::optional<int> StepOf(LoraPart part) {
  switch (part) {
    case LoraPart::kExpertGate:
    case LoraPart::kSharedGate:
      return 0;
    case LoraPart::kExpertUp:
    case LoraPart::kSharedUp:
      return 1;
    case LoraPart::kExpertDown:
    case LoraPart::kSharedDown:
      return 2;
    default:
      return std::nullopt;
  }
}

bool IsShared(LoraPart part) {
  return part == LoraPart::kSharedGate || part == LoraPart::kSharedUp || part == LoraPart::kSharedDown;
}

LoraPart Plus(LoraPart part, int step) {
  return static_cast<LoraPart>(static_cast<int>(part) + step);
}

}  // namespace

std::vector<LoraPart> CudaLoraPlaces::PartsOf(const DecoderConfig& c) {
  using enum LoraPart;
  std::vector<LoraPart> parts;
  const auto add = [&](bool has, std::initializer_list<LoraPart> more) {
    for (const LoraPart part : more)
      if (has) parts.push_back(part);
  };
  add(true, {kQ, kK, kV, kO, kGate, kUp, kDown});
  add(c.IsLatent(), {kLatentQA, kLatentQB, kLatentKvA, kLatentKvB});
  add(!c.recurrent.layer.empty(), {kStateQ, kStateK, kStateV, kStateZ, kStateB, kStateA, kStateOut});
  add(c.moe.experts > 0, {kRouter, kSharedWeight});
  return parts;
}

int64_t CudaLoraPlaces::ExpertsOf(const DecoderConfig& c) {
  return c.moe.experts > 0 ? c.moe.experts + CudaModel::SharedExperts(c.moe) : 0;
}

// Those of the layers, head and embedding, and those of the layers' experts.
int64_t CudaLoraPlaces::Count(const DecoderConfig& c) {
  return c.layers * (std::ssize(PartsOf(c)) + ExpertsOf(c) * kOfExpert) + 2;
}

int CudaLoraPlaces::Of(const LoraPlace& place) const {
  const DecoderConfig& c = model_.config;
  const int64_t of_layers = c.layers * std::ssize(parts_);
  if (place.part == LoraPart::kHead) return static_cast<int>(of_layers);
  if (place.part == LoraPart::kEmbedding) return static_cast<int>(of_layers) + 1;
  if (place.layer < 0 || place.layer >= c.layers) return -1;
  const std::optional<int> step = StepOf(place.part);
  if (step && !IsShared(place.part)) {
    if (place.expert < 0 || place.expert >= ExpertsOf(c)) return -1;
    return static_cast<int>(of_layers + 2 + (place.layer * ExpertsOf(c) + place.expert) * kOfExpert + *step);
  }
  // A shared expert apart has the places of a dense layer's MLP, which is none there.
  const LoraPart part = step ? Plus(LoraPart::kGate, *step) : place.part;
  const auto found = std::find(parts_.begin(), parts_.end(), part);
  if (found == parts_.end()) return -1;
  return static_cast<int>(place.layer * std::ssize(parts_) + (found - parts_.begin()));
}

const DeviceMatrix* CudaLoraPlaces::MatrixOf(const DeviceLayer& l, LoraPart part) const {
  using enum LoraPart;
  const bool mixture = l.router != nullptr, dense = !l.sparse(), apart = mixture && l.shared_experts == 0;
  switch (part) {
    case kQ:
      return &l.q;
    case kK:
      return &l.k;
    case kV:
      return &l.v;
    case kO:
      return &l.o;
    case kLatentQA:
      return &l.latent.q_a;
    case kLatentQB:
      return &l.latent.q_b;
    case kLatentKvA:
      return &l.latent.kv_a;
    case kStateQ:
      return &l.recurrent.q;
    case kStateK:
      return &l.recurrent.k;
    case kStateV:
      return &l.recurrent.v;
    case kStateZ:
      return &l.recurrent.z;
    case kStateB:
      return &l.recurrent.b;
    case kStateA:
      return &l.recurrent.a;
    case kStateOut:
      return &l.recurrent.out;
    case kGate:
      return dense ? &l.gate : nullptr;
    case kUp:
      return dense ? &l.up : nullptr;
    case kDown:
      return dense ? &l.down : nullptr;
    case kExpertGate:
      return mixture ? &l.expert_gate_up.first : nullptr;
    case kExpertUp:
      return mixture ? &l.expert_gate_up.up : nullptr;
    case kExpertDown:
      return mixture ? &l.expert_down.first : nullptr;
    case kSharedGate:
      return apart ? &l.gate : nullptr;
    case kSharedUp:
      return apart ? &l.up : nullptr;
    case kSharedDown:
      return apart ? &l.down : nullptr;
    default:
      return nullptr;
  }
}

std::optional<std::pair<int64_t, int64_t>> CudaLoraPlaces::ShapeOf(const LoraPlace& place) const {
  const DecoderConfig& c = model_.config;
  const auto of = [](const DeviceMatrix* m) -> std::optional<std::pair<int64_t, int64_t>> {
    if (!m || !*m) return std::nullopt;
    return std::pair<int64_t, int64_t>(m->rows, m->cols);
  };
  if (place.part == LoraPart::kHead) return of(&model_.head);
  if (place.part == LoraPart::kEmbedding) return of(&model_.embedding);
  if (PiecesOf(place).empty()) return std::nullopt;
  const DeviceLayer& l = model_.layers[static_cast<size_t>(place.layer)];
  const LatentConfig& latent = c.latent;
  if (place.part == LoraPart::kLatentKvB) {
    if (!l.latent.k_b) return std::nullopt;
    return std::pair(c.heads * (latent.nope_dim + latent.value_dim), latent.kv_rank);
  }
  if (place.part == LoraPart::kRouter || place.part == LoraPart::kSharedWeight) {
    const bool router = place.part == LoraPart::kRouter;
    if (!l.router || (!router && !l.shared_gate)) return std::nullopt;
    return std::pair(router ? c.moe.experts : 1, c.hidden);
  }
  if (IsShared(place.part) && l.shared_experts > 0)
    return place.part == LoraPart::kSharedDown ? std::pair(c.hidden, c.moe.shared_intermediate)
                                               : std::pair(c.moe.shared_intermediate, c.hidden);
  return of(MatrixOf(l, place.part));
}

std::vector<CudaLoraPlaces::Piece> CudaLoraPlaces::PiecesOf(const LoraPlace& place) const {
  const DecoderConfig& c = model_.config;
  const bool in_layer = place.layer >= 0 && place.layer < c.layers;
  const int parts = in_layer ? model_.layers[static_cast<size_t>(place.layer)].shared_experts : 0;
  if (!IsShared(place.part) || parts == 0) {
    const bool real = place.expert < c.moe.experts;  // those behind them are parts of the shared one
    const int at = real ? Of(place) : -1;
    return at < 0 ? std::vector<Piece>() : std::vector<Piece>{{.place = at, .part = place.part}};
  }
  std::vector<Piece> pieces;
  const LoraPart part = Plus(LoraPart::kExpertGate, *StepOf(place.part));
  for (int i = 0; i < parts; ++i) {
    const int64_t at = i * c.moe.intermediate;
    const bool down = part == LoraPart::kExpertDown;
    pieces.push_back({.place = Of({.part = part, .layer = place.layer, .expert = c.moe.experts + i}),
                      .part = part,
                      .row = down ? 0 : at,
                      .col = down ? at : 0});
  }
  return pieces;
}

}  // namespace celer
