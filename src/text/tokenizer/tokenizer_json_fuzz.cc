// Any bytes as a tokenizer.json; what follows a zero byte is text to encode with it.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view text = zero == std::string_view::npos
                                    ? "the cat, \xE4\xB8\xAD\xE6\x96\x87 \xFF <s>  12\n"
                                    : input.substr(zero + 1);
  const auto root = celer::ParseJson(input.substr(0, zero), "fuzz");
  if (!root) return root.error().message().empty() ? -1 : 0;
  const auto tokenizer = celer::TokenizerFromJson(*root, {}, "fuzz");
  if (!tokenizer) return tokenizer.error().message().empty() ? -1 : 0;
  for (const bool special : {true, false}) {
    std::vector<int32_t> ids = (*tokenizer)->Encode(text, {special, special});
    for (const int32_t id : ids)
      if (id < 0 || id >= (*tokenizer)->vocab_size()) __builtin_trap();
    ids.push_back((*tokenizer)->vocab_size());  // one that does not exist
    const std::string whole = (*tokenizer)->Decode(ids, special);
    celer::Detokenizer stream(**tokenizer, special);
    std::string parts;
    for (const int32_t id : ids) parts += stream.Push(id);
    parts += stream.Finish();
    if (parts != whole) __builtin_trap();
  }
  return 0;
}
