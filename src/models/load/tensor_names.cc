#include "models/load/tensor_names.h"

#include <algorithm>

namespace celer {
namespace {

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

void Fill(std::string* name, char sign, const std::string& value) {
  if (const size_t at = name->find(sign); at != std::string::npos) name->replace(at, 1, value);
}

}  // namespace

PatternName PatternOf(std::string_view name) {
  PatternName out;
  while (true) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view word = name.substr(0, dot);
    std::string* const number = out.layer.empty() ? &out.layer : out.expert.empty() ? &out.expert : nullptr;
    if (number && IsNumber(word)) {
      *number = word;
      out.pattern += number == &out.layer ? '%' : '#';
    } else {
      out.pattern += word;
    }
    if (dot == name.size()) return out;
    out.pattern += '.';
    name.remove_prefix(dot + 1);
  }
}

std::string NameOf(std::string part, const PatternName& in_file, int64_t expert) {
  Fill(&part, '%', in_file.layer);
  Fill(&part, '#', expert >= 0 ? std::to_string(expert) : in_file.expert);
  return part;
}

}  // namespace celer
