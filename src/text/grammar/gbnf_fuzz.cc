// Any bytes as a grammar. It must compile or be refused within its limits; what compiles must never lead
// nowhere.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/grammar/grammar_fuzz_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto table = celer::TestTokens::Make();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto grammar = celer::Grammar::FromGbnf(text, table, celer::FuzzLimits());
  if (grammar) celer::WalkGrammar(*grammar);
  return 0;
}
