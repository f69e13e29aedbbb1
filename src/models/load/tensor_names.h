// The names of tensors as TensorRules have them (models/config/tensor_rules.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace celer {

// A name as rules have it, "model.layers.%.mlp.experts.#.w1.weight", and the two numbers.
struct PatternName {
  std::string pattern;
  std::string layer, expert;
};

PatternName PatternOf(std::string_view name);
// Of a part, with the numbers of a tensor's name. `expert` takes the place of that tensor's.
std::string NameOf(std::string part, const PatternName& in_file, int64_t expert = -1);

}  // namespace celer
