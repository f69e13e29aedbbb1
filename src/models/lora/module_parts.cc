#include "models/lora/module_parts.h"

#include <charconv>

#include "models/load/open_model.h"
#include "models/load/tensor_names.h"

namespace celer {
namespace {

RowMap AllRows(int64_t rows) {
  return {.first = 0, .run = rows, .period = rows};
}

// Modules that some classes have where others have several: an adapter may come from either.
struct FusedNames {
  const char* fused;
  std::vector<const char*> parts;
};
const std::vector<FusedNames>& Fusions() {
  static const std::vector<FusedNames> fusions = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                                                  {"gate_up_proj", {"gate_proj", "up_proj"}}};
  return fusions;
}

}  // namespace

ModuleParts::ModuleParts(const DecoderConfig& config, bool gguf)
    : config_(config),
      gguf_(gguf),
      rules_(RulesOf(config, gguf, /*nested=*/!gguf)),
      places_(PlacesOf(config, gguf)) {}

void ModuleParts::Add(const std::string& part, const RowMap& rows, std::vector<ModulePart>* out) const {
  const auto found = places_.find(part);
  if (found == places_.end()) return;
  out->push_back({.at = found->second, .rows = rows.run > 0 ? rows : AllRows(found->second.rows)});
}

std::vector<ModulePart> ModuleParts::Of(const std::string& tensor) const {
  const std::string name = WithoutPrefix(rules_, tensor);
  std::vector<ModulePart> out;
  const TensorRule* const rule = RuleOf(rules_, name);
  const PatternName pattern = PatternOf(name);
  if (!rule) {
    Add(name, {}, &out);
  } else {
    for (size_t p = 0; p < rule->parts.size(); ++p) {
      const TensorPart& part = rule->parts[p];
      const RowMap map = rule->renames() ? RowMap{} : MapOf(*rule, p);
      const bool stack = part.name.find('#') != std::string::npos && pattern.expert.empty();
      for (int64_t e = 0; stack && e < config_.moe.experts; ++e) {
        Add(NameOf(part.name, pattern, e), map, &out);
        if (!out.empty()) out.back().stacked = true;
      }
      if (!stack) Add(NameOf(part.name, pattern), map, &out);
    }
    for (ModulePart& part : out) part.transposed = rule->transposed;
    // A part that is none of a product cannot be left out.
    const size_t expected = rule->parts.size();
    if (!out.empty() && !out[0].stacked && out.size() != expected) out.clear();
  }
  if (out.empty()) out = Fused(name);
  int64_t rows = 0;
  for (const ModulePart& part : out)
    if (!part.stacked || part.at.place.expert == 0) rows += part.at.rows;
  for (ModulePart& part : out) {
    part.module_rows = rows;
    part.stacked |= part.at.place.expert == LoraPlace::kAll;
  }
  return out;
}

std::vector<ModulePart> ModuleParts::Fused(const std::string& name) const {
  std::vector<ModulePart> out;
  for (const FusedNames& fusion : Fusions()) {
    const std::string word = std::string(".") + fusion.fused + ".";
    const size_t at = name.find(word);
    if (at == std::string::npos) continue;
    int64_t first = 0;
    for (const char* part : fusion.parts) {
      std::string one = name;
      one.replace(at + 1, word.size() - 2, part);
      const auto found = places_.find(one);
      if (found == places_.end()) return {};
      const int64_t rows = found->second.rows;
      out.push_back({.at = found->second, .rows = {.first = first, .run = rows, .period = rows}});
      first += rows;
    }
  }
  return out;
}

std::vector<ModulePart> ModuleParts::ExpertsOf(const std::string& module, bool down) const {
  std::vector<ModulePart> out;
  const PatternName pattern = PatternOf(WithoutPrefix(rules_, module));
  int64_t layer = -1;
  std::from_chars(pattern.layer.data(), pattern.layer.data() + pattern.layer.size(), layer);
  // gate and up alternate in some files.
  const TensorRule* const rule =
      RuleOf(rules_, WithoutPrefix(rules_, module) + (down ? ".down_proj" : ".gate_up_proj"));
  for (const auto& [name, at] : places_) {
    const LoraPart part = at.place.part;
    if (at.place.layer != layer || at.place.expert < 0) continue;
    const bool first = part == LoraPart::kExpertGate, second = part == LoraPart::kExpertUp;
    if (down ? part != LoraPart::kExpertDown : !first && !second) continue;
    RowMap map = AllRows(at.rows);
    if (!down && config_.gated_mlp) {
      map = {.first = second ? at.rows : 0, .run = at.rows, .period = 2 * at.rows};
      if (rule && rule->groups > 1) map = MapOf(*rule, second ? 1 : 0);
    }
    out.push_back({.at = at,
                   .rows = map,
                   .module_rows = !down && config_.gated_mlp ? 2 * at.rows : at.rows,
                   .transposed = rule && rule->transposed,
                   .stacked = true});
  }
  return out;
}

}  // namespace celer
