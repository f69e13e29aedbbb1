#include "engine/runners/place/place_patterns.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <string_view>

namespace celer {
namespace {

constexpr const char* kWhatCan =
    "what can be placed is a whole layer, and the experts of a layer with their router";

void AddName(const WeightView& view, std::vector<std::string>* names) {
  if (!view.name.empty() && std::find(names->begin(), names->end(), view.name) == names->end())
    names->emplace_back(view.name);
}

// The patterns with what they have found so far.
class Finder {
 public:
  explicit Finder(const PlaceQuery& query) : query_(query), found_(query.patterns.size()) {
    for (const PlacePattern& each : query.patterns) compiled_.emplace_back(each.pattern);
  }

  std::optional<size_t> First(const std::string& name) const {
    for (size_t i = 0; i < compiled_.size(); ++i)
      if (std::regex_search(name, compiled_[i])) return i;
    return {};
  }

  // The device of all of them, or none if no pattern finds any.
  Result<std::optional<Device>> OfAll(std::span<const std::string> names) {
    std::optional<Device> device;
    for (size_t n = 0; n < names.size(); ++n) {
      const std::optional<size_t> which = First(names[n]);
      if (which) found_[*which] = true;
      const std::optional<Device> here = which ? std::optional(query_.devices[*which]) : std::nullopt;
      if (n == 0) device = here;
      if (here == device) continue;
      const auto where = [](const std::optional<Device>& on) {
        return on ? "on " + on->ToString() : std::string("not placed");
      };
      return Error::Unsupported("`place`: '", names[0], "' would be ", where(device), " and '", names[n],
                                "' ", where(here), "; ", kWhatCan);
    }
    return device;
  }

  // The first pattern that has found nothing.
  std::optional<size_t> Idle() const {
    const auto idle = std::find(found_.begin(), found_.end(), false);
    return idle == found_.end() ? std::nullopt : std::optional(static_cast<size_t>(idle - found_.begin()));
  }
  bool Finds(size_t pattern, const std::string& name) const {
    return !name.empty() && std::regex_search(name, compiled_[pattern]);
  }

 private:
  const PlaceQuery& query_;
  std::vector<std::regex> compiled_;
  std::vector<bool> found_;
};

Error NothingFound(const PlaceQuery& query, const Finder& finder, size_t pattern) {
  const std::string& text = query.patterns[pattern].pattern;
  for (const std::string* name : {&query.embedding, &query.head})
    if (finder.Finds(pattern, *name))
      return Error::Unsupported(
          "`place` '", text, "' finds '", *name,
          "': the embedding is with the first layer, and the output head with the last; ", kWhatCan);
  bool shadowed = false;
  for (const LayerTensors& layer : query.layers)
    for (const auto* names : {&layer.own, &layer.experts, &layer.beside_experts})
      for (const std::string& name : *names) shadowed = shadowed || finder.Finds(pattern, name);
  if (shadowed)
    return Error::Invalid("`place` '", text, "' finds only tensors that patterns in front of it have found");
  const auto& names = query.layers.front().own;
  return Error::Invalid("`place` '", text, "' finds no tensor of a layer",
                        names.empty() ? "" : "; they are called such as '" + names.front() + "'");
}

}  // namespace

LayerTensors TensorsOf(const LayerWeights& l) {
  LayerTensors names;
  const RecurrentWeights& r = l.recurrent;
  const LatentWeights& latent = l.latent;
  for (const WeightView* view :
       {&l.q, &l.k, &l.v, &l.o, &r.q, &r.k, &r.v, &r.z, &r.b, &r.a, &r.out, &latent.q_a, &latent.q_b,
        &latent.kv_a, &latent.k_b, &latent.v_b, &l.dense.gate, &l.dense.up, &l.dense.down})
    AddName(*view, &names.own);
  for (const ExpertWeights& expert : l.experts)
    for (const WeightView* view : {&expert.gate, &expert.up, &expert.down}) AddName(*view, &names.experts);
  for (const WeightView* view : {&l.router, &l.shared.gate, &l.shared.up, &l.shared.down, &l.shared_gate})
    AddName(*view, &names.beside_experts);
  return names;
}

Result<PlacedTensors> PlaceByPatterns(const PlaceQuery& query) {
  Finder finder(query);
  PlacedTensors placed;
  bool any_layer = false, any_experts = false;
  for (const LayerTensors& names : query.layers) {
    CELER_ASSIGN(const std::optional<Device> own, finder.OfAll(names.own));
    CELER_ASSIGN(const std::optional<Device> experts, finder.OfAll(names.experts));
    CELER_ASSIGN(const std::optional<Device> beside, finder.OfAll(names.beside_experts));
    const Device layer = own.value_or(query.rest);
    const Device of_experts = experts.value_or(layer);
    const auto refuse = [&](const std::string& name, const Device& device, const char* why) {
      return Error::Unsupported("`place` puts '", name, "' on ", device.ToString(), ", ", why, "; ", kWhatCan,
                                ": experts on the CPU, or where their layer is");
    };
    if (!names.experts.empty() && of_experts != layer && !of_experts.is_cpu())
      return refuse(names.experts[0], of_experts, "and the rest of its layer elsewhere");
    // As `rest` says, it need not be said of the experts.
    if (!names.experts.empty() && own && own->is_cpu() && !experts)
      return refuse(names.own[0], *own, "and not the experts of its layer");
    if (beside && *beside != of_experts && *beside != layer)
      return refuse(names.beside_experts[0], *beside, "and the experts elsewhere");
    any_layer = any_layer || own.has_value();
    placed.layers.push_back(layer);
    placed.cpu_experts.push_back(!names.experts.empty() && of_experts.is_cpu() && !layer.is_cpu());
    any_experts = any_experts || placed.cpu_experts.back();
  }
  if (const auto idle = finder.Idle()) return NothingFound(query, finder, *idle);
  if (!any_layer) placed.layers.clear();
  if (!any_experts) placed.cpu_experts.clear();
  return placed;
}

}  // namespace celer
