// What a tensor becomes, and by which rules: a name such as "q4_k_m" or "int4-g64", and patterns that say
// otherwise for some tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/shape.h"

namespace celer {

// The format of one tensor.
struct Target {
  enum class Kind : uint8_t {
    kKeep,    // as it lies in the file
    kStored,  // a plain type or a GGUF block
    kInt,     // integers in groups, as compressed-tensors stores them
    kFp8,     // e4m3 with one scale to a row, likewise
  } kind = Kind::kKeep;
  DType dtype = DType::kF32;  // of kStored
  int bits = 0;               // of kInt: 4 or 8
  int64_t group = 0;          // of kInt: columns that share a scale; 0: a whole row
  bool symmetric = false;     // of kInt: no zero point
  // Of kInt with 8 bits and one scale to a row: whoever runs it rounds activations to eight bits too, with
  // one scale to a token ("W8A8").
  bool int8_inputs = false;

  static Target Stored(DType dtype) { return {.kind = Kind::kStored, .dtype = dtype}; }
  static Result<Target> Parse(
      std::string_view text);  // "q4_k", "int4-g64", "int8-sym", "w8a8", "fp8", "keep"
  std::string Name() const;
  double BitsPerWeight(int64_t cols) const;  // scales and zero points included; kKeep: 0
  bool Fits(int64_t cols) const;
  bool operator==(const Target&) const = default;
};

// What a tensor is for, as far as mixes distinguish.
enum class Part : uint8_t { kVector, kEmbedding, kHead, kQ, kK, kV, kO, kGate, kUp, kDown, kRouter, kOther };

struct TensorPlace {
  Part part = Part::kOther;
  int64_t layer = -1, layers = 0;
};
// By its name in a GGUF or a Hugging Face file; `tied`: the embedding is the head too.
TensorPlace PlaceOf(std::string_view name, const Shape& shape, int64_t layers, bool tied);

struct Recipe {
  struct Rule {
    std::string pattern;  // of names; '*' stands for any text
    Target target;
  };
  std::string weights = "q4_k_m";  // a format, or a mix of them
  std::vector<Rule> rules;         // the last that fits counts

  // {"weights": "q4_k_m", "tensors": {"*.attn_v.weight": "q6_k"}}
  static Result<Recipe> Read(const std::filesystem::path& path);
  Status AddRule(std::string_view text);  // "PATTERN=FORMAT"
  Status Check() const;                   // `weights` is a known name

  // Where rows are not whole blocks, the next larger type takes the place of the one that was meant.
  Target For(std::string_view name, const TensorPlace& place, int64_t cols) const;
};

bool MatchesPattern(std::string_view pattern, std::string_view text);
std::string TargetNames();  // for help and errors

// What bits can be spent on, smallest first: GGUF blocks, or integers for a folder.
std::vector<Target> BudgetTargets(bool gguf);

}  // namespace celer
