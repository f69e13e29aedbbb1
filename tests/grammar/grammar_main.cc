// Runs grammars from JSON lines, so that a script can judge what they allow.
//   celer_grammar_run TOKENIZER      (a model folder, tokenizer.json, tokenizer.model or GGUF)
//   in:  {"schema" | "regex" | "gbnf" | "choice" | "triggers": {...}, "space", "strict_types",
//         "sample": how many texts, "seed", "max_tokens", "accept": [texts]}
//   out: {"samples": [texts in hex], "accepted": [booleans], "mask_us", "masks", "compile_ms", "states"}
//        or {"error"}
//
// A sample takes tokens that are allowed, all with the same probability, as a model with random weights
// would. After max_tokens it goes on with the shortest text that ends it, spelled by the tokenizer. Every
// token's mask is compared with what the state then accepts.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer/load_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using celer::Grammar;
using celer::GrammarState;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double Microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

celer::Result<Grammar::Pointer> Compile(const Json& request, const Grammar::Table& table) {
  celer::JsonOptions options;
  const std::string space = request.value("space", "flexible");
  options.space = space == "none"     ? celer::JsonSpace::kNone
                  : space == "single" ? celer::JsonSpace::kSingle
                                      : celer::JsonSpace::kFlexible;
  options.type_from_keywords = !request.value("strict_types", false);
  if (request.contains("schema")) return Grammar::FromJsonSchema(request["schema"].dump(), table, options);
  if (request.contains("schema_text"))
    return Grammar::FromJsonSchema(request["schema_text"].get<std::string>(), table, options);
  if (request.contains("regex")) return Grammar::FromRegex(request["regex"].get<std::string>(), table);
  if (request.contains("gbnf")) return Grammar::FromGbnf(request["gbnf"].get<std::string>(), table);
  if (request.contains("choice"))
    return Grammar::FromChoice(request["choice"].get<std::vector<std::string>>(), table);
  if (request.contains("triggers")) {
    const Json& given = request["triggers"];
    celer::TriggerOptions triggers;
    triggers.json = options;
    triggers.triggers = given.value("triggers", std::vector<std::string>());
    triggers.free_text = given.value("free_text", true);
    triggers.at_least_one = given.value("at_least_one", false);
    triggers.several = given.value("several", true);
    std::vector<celer::TriggeredPart> parts;
    for (const Json& part : given["parts"])
      parts.push_back(
          {part["begin"].get<std::string>(), part["schema"].dump(), part["end"].get<std::string>()});
    return Grammar::FromTriggers(parts, triggers, table);
  }
  return celer::Error::Invalid("the request names no grammar");
}

struct Totals {
  double mask_us = 0;
  double worst_us = 0;
  long masks = 0;
  long disagreements = 0;
};

// The bytes of one random text.
std::string Sample(const Grammar::Pointer& grammar, std::mt19937& random, int max_tokens, Totals& totals) {
  const celer::TokenTable& table = grammar->table();
  GrammarState state(grammar);
  std::vector<uint32_t> bits(table.mask_words());
  std::vector<int32_t> allowed;
  std::string text;
  for (int i = 0; i < max_tokens; ++i) {
    const auto before = Clock::now();
    state.Mask(bits);
    const double us = Microseconds(Clock::now() - before);
    totals.mask_us += us;
    totals.worst_us = std::max(totals.worst_us, us);
    ++totals.masks;
    allowed.clear();
    for (size_t word = 0; word < bits.size(); ++word)
      for (uint32_t rest = bits[word]; rest != 0; rest &= rest - 1)
        allowed.push_back(static_cast<int32_t>(word * 32) + __builtin_ctz(rest));
    if (allowed.empty()) return text + "<stuck>";
    // A token that the mask leaves out must not be accepted either.
    for (int probe = 0; probe < 20; ++probe) {
      const auto id = static_cast<int32_t>(random() % static_cast<uint32_t>(table.vocab_size()));
      GrammarState copy = state;
      if (copy.Accept(id) != static_cast<bool>(bits[id / 32] >> id % 32 & 1)) ++totals.disagreements;
    }
    const int32_t token = allowed[random() % allowed.size()];
    if (!state.Accept(token)) {
      ++totals.disagreements;
      return text + "<refused>";
    }
    if (table.IsEnd(token)) return text;
    text += table.Bytes(token);
  }
  const std::string rest = state.ShortestEnd();
  if (!state.AcceptBytes(rest) || !state.may_end()) return text + rest + "<no end>";
  return text + rest;
}

using TokensByText = std::unordered_map<std::string, int32_t>;

// As one piece and in random tokens, whose masks must agree with the verdict.
bool Accepts(const Grammar::Pointer& grammar, const std::string& text, const TokensByText& tokens,
             std::mt19937& random, Totals& totals) {
  GrammarState whole(grammar);
  const bool verdict = whole.AcceptBytes(text) && whole.may_end();
  GrammarState state(grammar);
  std::vector<uint32_t> bits(grammar->table().mask_words());
  bool in_tokens = true;
  for (size_t at = 0; at < text.size() && in_tokens;) {
    std::vector<int32_t> fitting;
    for (size_t length = 1; length <= std::min<size_t>(16, text.size() - at); ++length)
      if (const auto found = tokens.find(text.substr(at, length)); found != tokens.end())
        fitting.push_back(found->second);
    if (fitting.empty()) return verdict;  // the vocabulary cannot spell it
    const int32_t id = fitting[random() % fitting.size()];
    state.Mask(bits);
    in_tokens = state.Accept(id);
    if (in_tokens != static_cast<bool>(bits[id / 32] >> id % 32 & 1)) ++totals.disagreements;
    at += grammar->table().Bytes(id).size();
  }
  if (verdict != (in_tokens && state.may_end())) ++totals.disagreements;
  return verdict;
}

std::string Hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    out += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    out += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

Json Answer(const Json& request, const TokensByText& tokens, const Grammar::Table& table) {
  const auto before = Clock::now();
  const auto grammar = Compile(request, table);
  const double compile_us = Microseconds(Clock::now() - before);
  if (!grammar) return {{"error", grammar.error().message()}, {"compile_ms", compile_us / 1000}};
  Json answer{{"compile_ms", compile_us / 1000}, {"states", (*grammar)->states()}};
  std::mt19937 random(request.value("seed", 1u));
  Totals totals;
  Json samples = Json::array();
  for (int i = 0; i < request.value("sample", 0); ++i)
    samples.push_back(Hex(Sample(*grammar, random, request.value("max_tokens", 100), totals)));
  answer["samples"] = samples;
  Json accepted = Json::array();
  for (const Json& text : request.value("accept", Json::array()))
    accepted.push_back(Accepts(*grammar, text.get<std::string>(), tokens, random, totals));
  answer["accepted"] = accepted;
  answer["mask_us"] = totals.masks ? totals.mask_us / static_cast<double>(totals.masks) : 0.0;
  answer["worst_mask_us"] = totals.worst_us;
  answer["masks"] = totals.masks;
  answer["disagreements"] = totals.disagreements;
  answer["bytes"] = (*grammar)->bytes();
  return answer;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s TOKENIZER\n", argv[0]);
    return 2;
  }
  const auto tokenizer = celer::LoadTokenizer(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "error: %s\n", tokenizer.error().message().c_str());
    return 1;
  }
  const auto table = celer::TokenTable::FromTokenizer(**tokenizer);
  TokensByText tokens;
  for (int32_t id = 0; id < table->vocab_size(); ++id)
    if (!table->Bytes(id).empty()) tokens.emplace(table->Bytes(id), id);
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line, nullptr, false);
    const Json answer = request.is_object() ? Answer(request, tokens, table)
                                            : Json{{"error", "the line is not a JSON object"}};
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  }
}
