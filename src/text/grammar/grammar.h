// Structured output: which tokens may come next so that an answer keeps to a JSON schema, a regular
// expression, a list of choices or a grammar. Nothing here looks at a model: the caller masks its logits.
//
//   CELER_ASSIGN(auto grammar, Grammar::FromJsonSchema(schema, TokenTable::FromTokenizer(tokenizer)));
//   GrammarState state(grammar);
//   state.Mask(bits);           // allowed tokens, before each token is chosen
//   state.Accept(token);        // after it
//
// docs/structured_output.md says what of JSON Schema is supported.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar/stack.h"
#include "text/grammar/token_table.h"

namespace celer {

namespace grammar {
struct Compiled;
class Budget;
class RuleSet;
class Walker;
}  // namespace grammar

// What a compilation may cost. Schemas come from requests, so every bound is there to be met.
struct GrammarLimits {
  size_t max_source_bytes = size_t{1} << 20;
  uint32_t max_states = 200'000;
  uint64_t max_steps = 20'000'000;        // a second or so
  uint32_t max_depth = 256;               // rules waiting for another to end, while an answer is written
  uint64_t max_mask_steps = 5'000'000;    // of masks made beforehand; the others are made when first needed
  uint64_t max_token_steps = 16'000'000;  // of one token: its acceptance and the mask after it
  size_t max_cache_bytes = size_t{32} << 20;  // of masks; the least recently used ones go
};

// White space between the parts of JSON.
enum class JsonSpace {
  kNone,    // {"a":1,"b":[]}
  kSingle,  // at most one blank after ':' and ','
  // At most one blank, or a line break with up to 20 blanks or tabs, where people put them: what models write
  // by themselves, be it on one line or indented. Bounded, so that an answer cannot drown in it.
  kFlexible,
};

struct JsonOptions {
  JsonSpace space = JsonSpace::kFlexible;
  // A schema with "properties" and no "type" means an object, though JSON Schema would let anything else pass
  // as well; "items" an array, and so on.
  bool type_from_keywords = true;
};

// One syntax that begins in free text, such as a tool call.
struct TriggeredPart {
  std::string begin;   // <tool_call>{"name": "f", "arguments":
  std::string schema;  // JSON schema of what comes between; "" for any JSON object
  std::string end;     // }</tool_call>
};

struct TriggerOptions {
  // Free text is free until one of these is written; then one of the parts whose `begin` starts with it must
  // follow.
  std::vector<std::string> triggers = {};
  bool free_text = true;  // false: nothing but parts (a tool call is required)
  bool at_least_one = false;
  bool several = true;       // another part may follow
  std::string between = {};  // what stands between two parts when free_text is false
  JsonOptions json = {};
};

// A compiled grammar for one vocabulary. Immutable for its users, and shared by threads.
class Grammar {
 public:
  using Pointer = std::shared_ptr<const Grammar>;
  using Table = std::shared_ptr<const TokenTable>;

  // What is not supported is refused with its name and its JSON pointer.
  static Result<Pointer> FromJsonSchema(std::string_view schema, Table table, const JsonOptions& options = {},
                                        const GrammarLimits& limits = {});
  // Any JSON object.
  static Result<Pointer> FromJsonObject(Table table, const JsonOptions& options = {},
                                        const GrammarLimits& limits = {});
  // The whole text matches.
  static Result<Pointer> FromRegex(std::string_view pattern, Table table, const GrammarLimits& limits = {});
  static Result<Pointer> FromChoice(std::span<const std::string> choices, Table table,
                                    const GrammarLimits& limits = {});
  // llama.cpp's GBNF, which is also the EBNF of vLLM and xgrammar. The start is the rule `root`.
  static Result<Pointer> FromGbnf(std::string_view text, Table table, const GrammarLimits& limits = {});
  static Result<Pointer> FromTriggers(std::span<const TriggeredPart> parts, const TriggerOptions& options,
                                      Table table, const GrammarLimits& limits = {});

  ~Grammar();
  const TokenTable& table() const;
  size_t states() const;
  size_t bytes() const;  // tables and masks held now
  const GrammarLimits& limits() const;

 private:
  friend class GrammarState;
  explicit Grammar(std::unique_ptr<grammar::Compiled> compiled);
  static Result<Pointer> Make(const grammar::RuleSet& rules, uint32_t root, Table table,
                              const GrammarLimits& limits, grammar::Budget& budget);

  std::unique_ptr<grammar::Compiled> compiled_;
};

// The state of one answer. A copy is independent and cheap: for several answers to one prompt, and for
// rollback when draft tokens are rejected.
class GrammarState {
 public:
  explicit GrammarState(Grammar::Pointer grammar);
  GrammarState(const GrammarState&);
  GrammarState(GrammarState&&) noexcept;
  GrammarState& operator=(const GrammarState&);
  GrammarState& operator=(GrammarState&&) noexcept;
  ~GrammarState();

  // Sets bit id % 32 of bits[id / 32] for every token that may come next, and clears all others. The end
  // tokens are among them when the text may end here. `bits` has at least table().mask_words() words; a model
  // whose vocabulary is padded may give more. False, and no bit set: it takes more than the effort allows.
  bool Mask(std::span<uint32_t> bits, grammar::Effort& effort) const;
  void Mask(std::span<uint32_t> bits) const;  // within GrammarLimits::max_token_steps
  // No change unless the token is taken.
  enum class Step : uint8_t { kTaken, kBarred, kExceeded };
  Step Accept(int32_t token, grammar::Effort& effort);
  bool Accept(int32_t token);  // within GrammarLimits::max_token_steps; false: barred or exceeded
  // The same for text that was written by somebody else, such as the beginning of the answer.
  bool AcceptBytes(std::string_view bytes);
  bool may_end() const { return may_end_; }
  // Only an end token may follow; also after an end token.
  bool must_end() const;
  // What to tell whoever gave the grammar, when its limit is exceeded here.
  Error TooMuchWork() const;
  // A shortest text that brings the answer to its end, for one that is cut short; "" where it may end.
  std::string ShortestEnd() const;
  const Grammar& grammar() const { return *grammar_; }

 private:
  Step Walk(std::string_view bytes, grammar::Effort& effort);
  void Take(const grammar::Walker& walker, size_t level);

  Grammar::Pointer grammar_;
  std::vector<grammar::Item> items_;
  std::vector<grammar::Frame> frames_;
  bool may_end_ = false;
  bool ended_ = false;  // an end token was accepted
};

}  // namespace celer
