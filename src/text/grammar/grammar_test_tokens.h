// A small vocabulary for tests: every byte, and tokens that cross the borders of what a grammar is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"

namespace celer {

struct TestTokens {
  static constexpr int32_t kEnd = 256;

  static std::shared_ptr<const TokenTable> Make() {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.push_back("<end>");  // an end token; its name is not text
    bytes.push_back("");       // a special token
    for (const char* token : {"\"",
                              "\":",
                              "\": ",
                              "\",",
                              "\"}",
                              "{\"",
                              "}}",
                              "},",
                              "]]",
                              "[[",
                              "null",
                              "true",
                              "false",
                              "12",
                              "345",
                              "abc",
                              "hello world",
                              "\xE6\x97",
                              "\xA5\xE6\x9C",
                              "\xAC",
                              "é",
                              "日本",
                              "\\n",
                              "\\u00",
                              "  ",
                              "\n",
                              "\n  \"",
                              "a\":1,\"b",
                              "<tool",
                              "_call>",
                              "tool_call>{\"",
                              "x<tool_call>"})
      bytes.emplace_back(token);
    return TokenTable::FromBytes(std::move(bytes), {kEnd});
  }
};

// Whether the whole text is accepted, byte by byte and in every greedy split into tokens alike.
inline bool Accepts(const Grammar::Pointer& grammar, std::string_view text) {
  GrammarState state(grammar);
  return state.AcceptBytes(text) && state.may_end();
}

inline std::vector<int32_t> Allowed(const GrammarState& state) {
  std::vector<uint32_t> bits(state.grammar().table().mask_words() + 1, ~uint32_t{0});
  state.Mask(bits);
  std::vector<int32_t> out;
  for (int32_t id = 0; id < static_cast<int32_t>(bits.size() * 32); ++id)
    if (bits[id / 32] >> id % 32 & 1) out.push_back(id);
  return out;
}

}  // namespace celer
