#include "quantize/llm/target.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "formats/codec.h"
#include "formats/decode.h"
#include "io/gguf/gguf.h"
#include "io/json/json.h"

namespace celer {
namespace {

// use_more_bits of llama.cpp: layers at both ends, and every third between them, where errors hurt most.
bool UseMoreBits(int64_t layer, int64_t layers) {
  const int64_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

// A mix: its base type, and what some parts get instead. The same choices as llama.cpp's mixes of that name.
struct Mix {
  std::string_view name;
  DType base;
  DType (*choose)(const TensorPlace& place, DType base);
};

DType ChooseQ3M(const TensorPlace& p, DType base) {
  if (p.part == Part::kV) return p.layer < 2 ? DType::kQ5_K : DType::kQ4_K;
  if (p.part == Part::kDown) return p.layer < p.layers / 16 ? DType::kQ5_K : DType::kQ4_K;
  return p.part == Part::kO ? DType::kQ4_K : base;
}
DType ChooseQ4S(const TensorPlace& p, DType base) {
  if (p.part == Part::kV) return p.layer < 4 ? DType::kQ5_K : base;
  return p.part == Part::kDown && p.layer < p.layers / 8 ? DType::kQ5_K : base;
}
DType ChooseMoreBits(const TensorPlace& p, DType base) {
  const bool more = (p.part == Part::kV || p.part == Part::kDown) && UseMoreBits(p.layer, p.layers);
  return more ? DType::kQ6_K : base;
}

constexpr Mix kMixes[] = {
    {"q3_k_m", DType::kQ3_K, ChooseQ3M},
    {"q4_k_s", DType::kQ4_K, ChooseQ4S},
    {"q4_k_m", DType::kQ4_K, ChooseMoreBits},
    {"q5_k_m", DType::kQ5_K, ChooseMoreBits},
};

const Mix* FindMix(std::string_view name) {
  for (const Mix& mix : kMixes)
    if (mix.name == name) return &mix;
  return nullptr;
}

std::string Lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

// "int4-g64-sym" behind its "int4".
std::optional<Target> ParseInt(std::string_view text) {
  Target out{.kind = Target::Kind::kInt};
  if (text.starts_with("int4"))
    out.bits = 4, out.group = 128;
  else if (text.starts_with("int8"))
    out.bits = 8, out.symmetric = true;
  else
    return std::nullopt;
  text.remove_prefix(4);
  while (!text.empty()) {
    const size_t end = std::min(text.find('-', 1), text.size());
    const std::string_view word = text.substr(0, end);
    if (word == "-sym") {
      out.symmetric = true;
    } else if (word == "-asym") {
      out.symmetric = false;
    } else if (word.starts_with("-g")) {
      const auto [at, error] = std::from_chars(word.data() + 2, word.data() + word.size(), out.group);
      if (error != std::errc() || at != word.data() + word.size()) return std::nullopt;
      if (out.group != 32 && out.group != 64 && out.group != 128) return std::nullopt;
    } else {
      return std::nullopt;
    }
    text.remove_prefix(end);
  }
  return out;
}

}  // namespace

std::string TargetNames() {
  std::string out;
  for (const DType dtype : WeightTypes()) out += std::string(Name(dtype)) + ", ";
  for (const Mix& mix : kMixes) out += std::string(mix.name) + ", ";
  return out + "int4 and int8 with -g32, -g64 or -g128 and -sym or -asym, w8a8, fp8";
}

Result<Target> Target::Parse(std::string_view text) {
  const std::string name = Lower(text);
  if (name == "keep") return Target{};
  if (name == "fp8") return Target{.kind = Kind::kFp8};
  if (name == "w8a8") return Target{.kind = Kind::kInt, .bits = 8, .symmetric = true, .int8_inputs = true};
  if (const auto target = ParseInt(name)) return *target;
  const auto dtype = ParseDType(name);
  if (dtype && std::ranges::find(WeightTypes(), *dtype) != WeightTypes().end()) return Stored(*dtype);
  return Error::Invalid("'", text, "' is no format to quantize to; those are ", TargetNames());
}

std::vector<Target> BudgetTargets(bool gguf) {
  std::vector<Target> out;
  if (gguf) {
    for (const DType dtype : BlockTypes())  // MXFP4 is for weights that were trained so
      if (dtype != DType::kMxfp4) out.push_back(Target::Stored(dtype));
  } else {
    for (const char* name : {"int4-g128", "int4-g64", "int4-g32", "int8"})
      out.push_back(Target::Parse(name).value());
  }
  std::stable_sort(out.begin(), out.end(), [](const Target& a, const Target& b) {
    constexpr int64_t kCols = 1024;
    return a.BitsPerWeight(kCols) < b.BitsPerWeight(kCols);
  });
  return out;
}

std::string Target::Name() const {
  if (kind == Kind::kKeep) return "keep";
  if (kind == Kind::kStored) return std::string(celer::Name(dtype));
  if (kind == Kind::kFp8) return "fp8";
  if (int8_inputs) return "w8a8";
  return "int" + std::to_string(bits) + (group > 0 ? "-g" + std::to_string(group) : "") +
         (symmetric ? "-sym" : "-asym");
}

double Target::BitsPerWeight(int64_t cols) const {
  if (kind == Kind::kKeep) return 0;
  if (kind == Kind::kStored) return BitsPerElement(dtype);
  if (kind == Kind::kFp8) return 8 + 16.0 / static_cast<double>(cols);
  return bits + (16.0 + (symmetric ? 0 : bits)) / static_cast<double>(group > 0 ? group : cols);
}

bool Target::Fits(int64_t cols) const {
  if (kind == Kind::kStored) return cols % Info(dtype).block == 0;
  if (kind == Kind::kInt) return cols % (group > 0 ? group : 32 / bits) == 0;
  return true;
}

TensorPlace PlaceOf(std::string_view name, const Shape& shape, int64_t layers, bool tied) {
  TensorPlace place{.layers = layers};
  const auto after = [&](std::string_view prefix) {
    if (!name.starts_with(prefix)) return false;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), place.layer);
    return true;
  };
  if (!after("blk.")) after("model.layers.");
  const auto has = [&](std::string_view text) { return name.find(text) != std::string_view::npos; };
  // Tables and convolutions have the shapes of matrices; nothing is multiplied by them.
  constexpr std::string_view kTables[] = {"q_norm.", "k_norm.", "conv1d.", "embed_positions.",
                                          "position_embd."};
  constexpr std::string_view kRouters[] = {"ffn_gate_inp",
                                           "mlp.gate.weight",
                                           "block_sparse_moe.gate.weight",
                                           "shared_expert_gate",
                                           ".router.",
                                           "mlp.gate.wg.",
                                           "linear_attn.in_proj_a",
                                           "linear_attn.in_proj_b",
                                           "ssm_alpha.",
                                           "ssm_beta.",
                                           "ssm_ba."};
  const auto any = [&](const auto& texts) { return std::any_of(std::begin(texts), std::end(texts), has); };
  if (shape.rank() < 2 || !name.ends_with("weight") || any(kTables)) {
    place.part = Part::kVector;
  } else if (name == "token_embd.weight" || name == "model.embed_tokens.weight") {
    place.part = tied ? Part::kHead : Part::kEmbedding;
  } else if (name == "output.weight" || name == "lm_head.weight") {
    place.part = Part::kHead;
  } else if (any(kRouters)) {
    place.part = Part::kRouter;
  } else {
    constexpr std::pair<std::string_view, Part> kNames[] = {
        {"attn_q.", Part::kQ},      {"attn_k.", Part::kK},       {"attn_v.", Part::kV},
        {"attn_output.", Part::kO}, {"ffn_gate", Part::kGate},   {"ffn_up", Part::kUp},
        {"ffn_down", Part::kDown},  {".q_proj.", Part::kQ},      {".k_proj.", Part::kK},
        {".v_proj.", Part::kV},     {".o_proj.", Part::kO},      {".gate_proj.", Part::kGate},
        {".up_proj.", Part::kUp},   {".down_proj.", Part::kDown}};
    for (const auto& [text, part] : kNames)
      if (has(text)) place.part = part;
  }
  return place;
}

bool MatchesPattern(std::string_view pattern, std::string_view text) {
  // Greedy glob matching with backtracking: at a mismatch, the last '*' takes one more character.
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Status Recipe::AddRule(std::string_view text) {
  const size_t at = text.rfind('=');
  if (at == std::string_view::npos || at == 0)
    return Error::Invalid("'", text, "': expected PATTERN=FORMAT, for example '*.attn_v.weight=q6_k'");
  CELER_ASSIGN(const Target target, Target::Parse(text.substr(at + 1)));
  rules.push_back({std::string(text.substr(0, at)), target});
  return {};
}

Status Recipe::Check() const {
  if (FindMix(Lower(weights))) return {};
  CELER_ASSIGN(const Target target, Target::Parse(weights));
  (void)target;
  return {};
}

Result<Recipe> Recipe::Read(const std::filesystem::path& path) {
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(path));
  Recipe recipe;
  if (!json.is_object())
    return Error::Corrupt(path.string(), ": a recipe is an object with \"weights\" and \"tensors\"");
  for (const auto& [key, value] : json.items()) {
    if (key == "weights" && value.is_string()) {
      recipe.weights = value.get<std::string>();
    } else if (key == "tensors" && value.is_object()) {
      for (const auto& [pattern, format] : value.items()) {
        if (!format.is_string())
          return Error::Corrupt(path.string(), ": tensors['", pattern, "'] is not the name of a format");
        if (const Status status = recipe.AddRule(pattern + "=" + format.get<std::string>()); !status)
          return Error::Corrupt(path.string(), ": ", status.error().message());
      }
    } else {
      return Error::Corrupt(path.string(), ": '", key,
                            "' is not expected there; a recipe has \"weights\" (a name) and \"tensors\" "
                            "(an object of pattern: format)");
    }
  }
  if (const Status status = recipe.Check(); !status)
    return Error::Corrupt(path.string(), ": ", status.error().message());
  return recipe;
}

Target Recipe::For(std::string_view name, const TensorPlace& place, int64_t cols) const {
  Target target;
  const std::string asked = Lower(weights);
  const Mix* mix = FindMix(asked);
  if (place.part == Part::kVector || place.part == Part::kRouter) {
    target = Target{};  // small, and decides much
  } else if (mix) {
    target = Target::Stored(place.part == Part::kHead ? DType::kQ6_K : mix->choose(place, mix->base));
  } else {
    target = Target::Parse(asked).value();
    // The head is more sensitive than projections, and in a folder of integers it stays as it is.
    if (place.part == Part::kHead || place.part == Part::kEmbedding) {
      if (target.kind == Target::Kind::kInt || target.kind == Target::Kind::kFp8)
        target = Target{};
      else if (place.part == Part::kHead && BitsPerElement(target.dtype) < BitsPerElement(DType::kQ6_K))
        target = Target::Stored(DType::kQ6_K);
    }
  }
  for (const Rule& rule : rules)
    if (MatchesPattern(rule.pattern, name)) target = rule.target;
  while (target.kind == Target::Kind::kStored && !target.Fits(cols))
    target.dtype = FindCodec(target.dtype)->narrow;
  return target;
}

}  // namespace celer
