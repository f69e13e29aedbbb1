#include "text/grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/utf8.h"
#include "text/grammar/grammar_test_tokens.h"

namespace celer {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Grammar::Pointer Schema(std::string_view schema, const JsonOptions& options = {},
                        const GrammarLimits& limits = {}) {
  auto grammar = Grammar::FromJsonSchema(schema, TestTokens::Make(), options, limits);
  EXPECT_TRUE(grammar) << schema << ": " << (grammar ? "" : grammar.error().message());
  return grammar ? *grammar : nullptr;
}

std::string Refusal(std::string_view schema, const GrammarLimits& limits = {}) {
  const auto grammar = Grammar::FromJsonSchema(schema, TestTokens::Make(), {}, limits);
  return grammar ? "accepted" : grammar.error().message();
}

Grammar::Pointer Gbnf(std::string_view text) {
  auto grammar = Grammar::FromGbnf(text, TestTokens::Make());
  EXPECT_TRUE(grammar) << text << ": " << (grammar ? "" : grammar.error().message());
  return grammar ? *grammar : nullptr;
}

std::string GbnfRefusal(std::string_view text) {
  const auto grammar = Grammar::FromGbnf(text, TestTokens::Make());
  return grammar ? "accepted" : grammar.error().message();
}

int32_t Token(const TokenTable& table, std::string_view bytes) {
  for (int32_t id = table.vocab_size() - 1; id >= 0; --id)
    if (table.Bytes(id) == bytes) return id;
  return -1;
}

// The mask has exactly the tokens that the state accepts.
void ExpectMaskIsExact(const GrammarState& state) {
  const std::vector<int32_t> allowed = Allowed(state);
  for (int32_t id = 0; id < state.grammar().table().vocab_size(); ++id) {
    GrammarState copy = state;
    ASSERT_EQ(copy.Accept(id), std::binary_search(allowed.begin(), allowed.end(), id))
        << id << " '" << state.grammar().table().Bytes(id) << "'";
  }
}

// Random tokens to the end, with every mask checked; the text.
std::string Sample(const Grammar::Pointer& grammar, uint32_t seed, int max_tokens) {
  std::mt19937 random(seed);
  GrammarState state(grammar);
  std::string text;
  for (int i = 0; i < max_tokens; ++i) {
    ExpectMaskIsExact(state);
    const std::vector<int32_t> allowed = Allowed(state);
    EXPECT_THAT(allowed, Not(IsEmpty())) << text;
    if (allowed.empty()) return text;
    const int32_t token = allowed[random() % allowed.size()];
    EXPECT_TRUE(state.Accept(token));
    if (token == TestTokens::kEnd) return text;
    text += grammar->table().Bytes(token);
  }
  const std::string rest = state.ShortestEnd();
  EXPECT_TRUE(state.AcceptBytes(rest) && state.may_end()) << text << "|" << rest;
  return text + rest;
}

TEST(TokenTable, TrieHasEveryTokenOnce) {
  const auto table = TokenTable::FromBytes({"a", "ab", "", "b", "ab", "<end>", "abc\xE6"}, {5, 99});
  EXPECT_EQ(table->longest(), 4u);
  EXPECT_THAT(table->end_tokens(), ElementsAre(5));
  EXPECT_EQ(table->Bytes(5), "");
  EXPECT_THAT(std::vector<int32_t>(table->tokens().begin(), table->tokens().end()),
              ElementsAre(0, 1, 4, 6, 3));
  ASSERT_EQ(table->node_count(), 5u);
  EXPECT_EQ(table->nodes()[0].end, 4u);  // a, with ab, abc and abc\xE6 below
  EXPECT_EQ(table->nodes()[1].first_token + 2, table->nodes()[2].first_token);
  EXPECT_EQ(table->nodes()[4].byte, 'b');
}

TEST(GrammarState, EndTokensComeOnlyAtAnEnd) {
  const std::vector<std::string> choices{"a", "abc"};
  const auto grammar = Grammar::FromChoice(choices, TestTokens::Make());
  ASSERT_TRUE(grammar);
  GrammarState state(*grammar);
  EXPECT_THAT(Allowed(state), ElementsAre('a', Token((*grammar)->table(), "abc")));
  EXPECT_FALSE(state.may_end());
  EXPECT_FALSE(state.Accept(TestTokens::kEnd));
  ASSERT_TRUE(state.Accept('a'));
  EXPECT_THAT(Allowed(state), ElementsAre('b', TestTokens::kEnd));
  EXPECT_TRUE(state.may_end());
  EXPECT_FALSE(state.must_end());
  EXPECT_FALSE(state.Accept('x'));
  EXPECT_FALSE(state.Accept(257));  // a special token
  EXPECT_FALSE(state.Accept(-1));
  EXPECT_FALSE(state.Accept(1 << 30));
  ASSERT_TRUE(state.Accept('b'));
  ASSERT_TRUE(state.Accept('c'));
  EXPECT_TRUE(state.must_end());
  EXPECT_THAT(Allowed(state), ElementsAre(TestTokens::kEnd));
  ASSERT_TRUE(state.Accept(TestTokens::kEnd));
  EXPECT_THAT(Allowed(state), ElementsAre(TestTokens::kEnd));
  EXPECT_FALSE(state.Accept('c'));
}

TEST(GrammarState, CopiesAreIndependent) {
  const auto grammar = Schema(R"({"type": "array", "items": {"type": "integer"}})");
  GrammarState state(grammar);
  ASSERT_TRUE(state.AcceptBytes("[1,"));
  GrammarState before = state;
  ASSERT_TRUE(state.AcceptBytes("2]"));
  EXPECT_TRUE(state.must_end());
  EXPECT_FALSE(before.may_end());
  EXPECT_TRUE(before.AcceptBytes("3,4]"));
  EXPECT_TRUE(before.must_end());
}

TEST(GrammarState, TokensMayHoldPartsOfCharacters) {
  const auto grammar = Schema(R"({"const": "日本é"})");
  GrammarState state(grammar);
  const TokenTable& table = grammar->table();
  for (const char* part : {"\"", "\xE6\x97", "\xA5\xE6\x9C", "\xAC", "é", "\""}) {
    ExpectMaskIsExact(state);
    ASSERT_TRUE(state.Accept(Token(table, part))) << part;
  }
  EXPECT_TRUE(state.must_end());
  // A string never holds half a character.
  GrammarState any(Schema(R"({"type": "string"})"));
  ASSERT_TRUE(any.AcceptBytes("\"\xE6\x97"));
  EXPECT_FALSE(any.AcceptBytes("\""));
  EXPECT_FALSE(any.AcceptBytes("\xE6"));
  EXPECT_TRUE(any.AcceptBytes("\xA5\""));
  for (const char* wrong :
       {"\"\x80", "\"\xC0\x80", "\"\xED\xA0\x80", "\"\xF4\x90", "\"\n", "\"\\x", "\"\\ud800\"", "\"\\udc00"})
    EXPECT_FALSE(GrammarState(Schema(R"({"type": "string"})")).AcceptBytes(wrong)) << wrong;
  for (const char* right : {R"("\ud83d\ude00")", R"("\u00e9\n\"\\\/")", "\"\x7f\xF4\x8F\xBF\xBF\""})
    EXPECT_TRUE(Accepts(Schema(R"({"type": "string"})"), right)) << right;
}

TEST(Grammar, MasksAreExactOnRandomPaths) {
  const char* schemas[] = {
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "integer"}}, "required": ["b"]})",
      R"({"type": "array", "items": {"enum": ["a", "ab", "abc", null]}, "maxItems": 3})",
      R"({"$defs": {"t": {"type": "object", "properties": {"k": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "additionalProperties": false}}, "$ref": "#/$defs/t"})",
      R"({"anyOf": [{"type": "string", "pattern": "^a+b{2,40}$"}, {"type": "number", "minimum": -1.5, "maximum": 20}]})",
      R"({})"};
  for (const char* schema : schemas)
    for (const JsonSpace space : {JsonSpace::kNone, JsonSpace::kSingle, JsonSpace::kFlexible})
      for (uint32_t seed = 0; seed < 3; ++seed) {
        const std::string text = Sample(Schema(schema, {.space = space}), seed, 30);
        EXPECT_TRUE(utf8::IsValid(text));
        EXPECT_FALSE(nlohmann::json::parse(text, nullptr, false).is_discarded()) << text;
      }
  const char* grammars[] = {"root ::= (\"a\" | \"ab\" | \"abc\")* \"c\"?",
                            "root ::= \"[\" root* \"]\" | [a-c]{3,9}",
                            "root ::= a b | b a\na ::= \"\" | \"hello\" a\nb ::= [^x]"};
  for (const char* text : grammars)
    for (uint32_t seed = 0; seed < 5; ++seed) Sample(Gbnf(text), seed, 30);
}

TEST(Grammar, LongRepetitionsShareTheirMasks) {
  // A place in the middle allows the same as any other; near the ends it does not.
  const auto grammar = Grammar::FromRegex("[a-z]{20,300}!", TestTokens::Make());
  ASSERT_TRUE(grammar);
  GrammarState state(*grammar);
  for (int i = 0; i < 300; ++i) {
    ExpectMaskIsExact(state);
    EXPECT_EQ(GrammarState(state).AcceptBytes("!"), i >= 20) << i;
    ASSERT_TRUE(state.AcceptBytes("q"));
  }
  EXPECT_THAT(Allowed(state), ElementsAre('!'));
  // Nested, in strings, and with a part that may be empty.
  for (const char* pattern :
       {"(x[a-c]{2,60}){1,50}", "(ab[a-z]{1,9}){0,5}!", "[^\\n]{0,14}hello", "(x|y[ ]{0,7})(!|z)?",
        "a(b?|c[a-z]{0,6})", "([ab]{0,8}c?){0,9}", "(ab|a){5,90}b*", "[a-z]{0,40}[a-z]*"}) {
    const auto nested = Grammar::FromRegex(pattern, TestTokens::Make());
    ASSERT_TRUE(nested) << pattern;
    for (uint32_t seed = 0; seed < 4; ++seed) Sample(*nested, seed, 80);
  }
  for (const char* schema :
       {R"({"type": "string", "minLength": 3, "maxLength": 60})", R"({"type": "string", "maxLength": 3000})",
        R"({"type": "string", "maxLength": 9, "pattern": "^[a-z]*$"})"})
    for (uint32_t seed = 0; seed < 4; ++seed) Sample(Schema(schema), seed, 60);
}

TEST(Grammar, NestingIsBounded) {
  const auto grammar = Schema(R"({})", {}, {.max_depth = 24});
  GrammarState state(grammar);
  int depth = 0;
  while (state.AcceptBytes("[")) {
    ExpectMaskIsExact(state);
    ++depth;
    ASSERT_LT(depth, 100);
  }
  EXPECT_GT(depth, 8);
  // What is open can be closed, whatever was written.
  EXPECT_THAT(Allowed(state), Not(IsEmpty()));
  const std::string rest = state.ShortestEnd();
  EXPECT_EQ(rest, std::string(depth, ']'));
  for (uint32_t seed = 0; seed < 20; ++seed) Sample(grammar, seed, 60);
  EXPECT_THAT(Refusal(R"({"type": "array", "items": {}, "minItems": 1})", {.max_depth = 0}),
              HasSubstr("rules deep"));
  // A list that is written by right recursion does not nest.
  GrammarState list(Gbnf("root ::= \"a\" root | \"b\""));
  EXPECT_TRUE(list.AcceptBytes(std::string(100'000, 'a') + "b"));
}

TEST(Grammar, ThreadsShareIt) {
  const auto grammar = Schema(
      R"({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": 9}}}})",
      {}, {.max_mask_steps = 0});
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i)
    threads.emplace_back([&, i] {
      std::mt19937 random(7);
      GrammarState state(grammar);
      for (int step = 0; step < 200; ++step) {
        const std::vector<int32_t> allowed = Allowed(state);
        const int32_t token = allowed[random() % allowed.size()];
        if (token == TestTokens::kEnd || !state.Accept(token)) break;
        texts[i] += grammar->table().Bytes(token);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  EXPECT_GT(texts[0].size(), 2u);
}

TEST(Grammar, CacheIsBounded) {
  const auto table = TestTokens::Make();
  const auto small =
      Grammar::FromJsonSchema(R"({})", table, {}, {.max_mask_steps = 0, .max_cache_bytes = 2000});
  ASSERT_TRUE(small);
  for (uint32_t seed = 0; seed < 10; ++seed) Sample(*small, seed, 60);
  EXPECT_LT((*small)->bytes(), 200'000u);
}

TEST(JsonSchema, PropertiesComeInOrder) {
  const auto grammar = Schema(
      R"({"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "boolean"}, "m": {"type": "null"}},
                                  "required": ["a"], "additionalProperties": false})");
  for (const char* right : {R"({"a":true})", R"({"z":1,"a":true})", R"({"z": 1, "a": false, "m": null})",
                            R"({"a":true,"m":null})", "{\n  \"z\": 1,\n  \"a\": true\n}", R"({ "a": true })"})
    EXPECT_TRUE(Accepts(grammar, right)) << right;
  for (const char* wrong :
       {R"({})", R"({"z":1})", R"({"a":true,"z":1})", R"({"a":true,"a":true})", R"({"a":true,})",
        R"({"a":true,"q":1})", R"({"a":true} )", R"( {"a":true})", "{  \"a\":true}", R"({"a" :true})"})
    EXPECT_FALSE(Accepts(grammar, wrong)) << wrong;
}

TEST(JsonSchema, OtherPropertiesAreNotTheListedOnes) {
  const auto grammar =
      Schema(R"({"type": "object", "properties": {"ab": {"type": "null"}, "a\"": {"type": "null"}},
                                  "additionalProperties": {"type": "integer"}})");
  for (const char* right :
       {R"({"a":1})", R"({"abc":1})", R"({"":1})", R"({"ab":null,"x":1,"y":2})", R"({"a\"":null,"a\\":2})"})
    EXPECT_TRUE(Accepts(grammar, right)) << right;
  for (const char* wrong :
       {R"({"ab":1})", R"({"a":null})", R"({"x":1,"ab":null})", R"({"a\u0062":1})", R"({"a\"":1})"})
    EXPECT_FALSE(Accepts(grammar, wrong)) << wrong;
}

TEST(JsonSchema, NumbersAreExact) {
  struct Case {
    const char* schema;
    std::vector<const char*> right, wrong;
  };
  const Case cases[] = {
      {R"({"type": "integer", "minimum": -12, "maximum": 105})",
       {"-12", "-9", "0", "7", "99", "100", "105"},
       {"-13", "-0", "106", "1000", "01", "1.0", "1e1"}},
      {R"({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 11})",
       {"10"},
       {"9", "11", "1", "100", "-10"}},
      {R"({"type": "integer", "minimum": 2.5})", {"3", "100"}, {"2", "-3", "0"}},
      {R"({"type": "number", "minimum": -1.25, "exclusiveMaximum": 0.5})",
       {"-1.25", "-1.2", "-1", "0", "0.49999", "0.4"},
       {"-1.26", "0.5", "0.50", "1", "-2", "0.51"}},
      {R"({"type": "number", "exclusiveMinimum": 10, "maximum": 20.75})",
       {"10.01", "11", "20.75", "20.7500"},
       {"10", "10.0", "9", "20.751", "21", "100"}},
      {R"({"type": "integer", "multipleOf": 12, "minimum": 0})", {"0", "12", "144"}, {"6", "13", "-12"}},
      {R"({"type": "number", "minimum": 5, "maximum": 5})", {"5", "5.0"}, {"4", "6", "5.1"}},
      {R"({"enum": [1, 2.0, 3.5, 40], "minimum": 2, "maximum": 5})", {"2", "2.0", "3.5"}, {"1", "40"}},
  };
  for (const Case& c : cases) {
    const auto grammar = Schema(c.schema);
    for (const char* text : c.right) EXPECT_TRUE(Accepts(grammar, text)) << c.schema << " " << text;
    for (const char* text : c.wrong) EXPECT_FALSE(Accepts(grammar, text)) << c.schema << " " << text;
  }
}

TEST(JsonSchema, StringsArePatternsAndLengths) {
  const auto pattern = Schema(R"({"type": "string", "pattern": "b+$", "minLength": 2, "maxLength": 4})");
  for (const char* text : {R"("ab")", R"("bb")", R"("éééb")", R"("\n\"b")"})
    EXPECT_TRUE(Accepts(pattern, text)) << text;
  for (const char* text : {R"("b")", R"("ba")", R"("ééééb")", R"("a\n")"})
    EXPECT_FALSE(Accepts(pattern, text)) << text;
  const auto date = Schema(R"({"type": "string", "format": "date"})");
  for (const char* text : {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")"})
    EXPECT_TRUE(Accepts(date, text)) << text;
  for (const char* text :
       {R"("2023-02-29")", R"("1900-02-29")", R"("1999-13-01")", R"("1999-04-31")", R"("0000-01-01")"})
    EXPECT_FALSE(Accepts(date, text)) << text;
}

TEST(JsonSchema, WhatIsNotSupportedIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties": {"a/b": {"not": {}}}})", "'#/properties/a~1b/not' is not supported"},
      {R"({"if": {}, "then": {}})", "'#/if'"},
      {R"({"dependentSchemas": {}})", "'#/dependentSchemas'"},
      {R"({"items": {"uniqueItems": true}})", "'#/items/uniqueItems'"},
      {R"({"contains": {}})", "'#/contains'"},
      {R"({"multipleOf": 0.1})", "'#/multipleOf'"},
      {R"({"format": "idn-email"})", "'idn-email' is not one of date"},
      {R"x({"pattern": "(?=a)"})x", "lookahead"},
      {R"x({"pattern": "(a)\\1"})x", "back reference"},
      {R"({"$ref": "http://example.com/x"})", "'#/$ref'"},
      {R"({"$ref": "#/$defs/x"})", "is not there"},
      {R"({"minimun": 3})", "'#/minimun'"},
      {R"({"oneOf": [{"type": "string"}, {"minLength": 2, "type": "string"}]})", "branch 0 and branch 1"},
      {R"({"type": "strng"})", "'#/type' must be"},
      {R"({"maxItems": -1})", "'#/maxItems' must be"},
      {R"({"required": "a"})", "'#/required' must be"},
      {R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "no text matches"},
      {R"({"$ref": "#"})", "accepted"},  // says nothing
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "no text matches"},
      {R"([1])", "must be an object or a boolean"},
      {R"({"a")", "not valid JSON"},
      {R"(false)", "no text matches"},
      {R"({"x-note": 1, "title": "t"})", "accepted"},
  };
  for (const auto& [schema, message] : cases) EXPECT_THAT(Refusal(schema), HasSubstr(message)) << schema;
  EXPECT_THAT(Refusal(R"({"type": "object", "minProperties": 3})"), HasSubstr("minProperties"));
  EXPECT_THAT(Refusal(R"({"patternProperties": {"^a": {}, "b$": {}}})"), HasSubstr("two patterns"));
}

TEST(JsonSchema, TypesFollowFromKeywordsOnlyIfAsked) {
  const char* schema = R"({"properties": {"a": {"type": "null"}}})";
  EXPECT_FALSE(Accepts(Schema(schema), "3"));
  EXPECT_TRUE(Accepts(Schema(schema, {.type_from_keywords = false}), "3"));
  EXPECT_FALSE(Accepts(Schema(schema, {.type_from_keywords = false}), R"({"a":3})"));
}

TEST(JsonSchema, LimitsHold) {
  const auto refusal = [](std::string_view pattern) {
    const auto grammar = Grammar::FromRegex(pattern, TestTokens::Make());
    return grammar ? "accepted" : grammar.error().message();
  };
  EXPECT_THAT(refusal("(a{1000}){1000}"), HasSubstr("states"));
  EXPECT_THAT(refusal("((((a{99}){99}){99}){99}){99}"), HasSubstr("states"));
  EXPECT_THAT(refusal("(a|b)*a(a|b){60}"), testing::AnyOf(HasSubstr("states"), HasSubstr("too long")));
  EXPECT_THAT(refusal("a{999999}"), HasSubstr("count above"));
  EXPECT_THAT(refusal(std::string(2000, '(')), HasSubstr("nesting"));
  EXPECT_THAT(refusal(std::string(2 << 20, 'a')), HasSubstr("bytes"));
  EXPECT_THAT(Refusal(R"({"type": "array", "items": {}, "maxItems": 100000000})"), HasSubstr("maxItems"));
  EXPECT_THAT(Refusal(R"({"type": "string", "maxLength": 100000000})"), HasSubstr("lengths"));
  EXPECT_THAT(Refusal(std::string(100, '[') + std::string(100, ']')), HasSubstr("nested"));
}

TEST(Gbnf, LimitsHold) {
  std::string chain = "root ::= a0\n";  // each rule may be empty if the next may
  for (int i = 0; i < 30'000; ++i) chain += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + "\n";
  chain += "a30000 ::= \"\"";
  EXPECT_THAT(GbnfRefusal(chain), HasSubstr("too long"));
  EXPECT_THAT(GbnfRefusal("root ::= " + std::string(5000, '(')), HasSubstr("too deeply"));
  EXPECT_THAT(GbnfRefusal("root ::= \"a\"" + std::string(5000, '?')), HasSubstr("too many repetitions"));
  // Readings of a text grow with its length.
  GrammarState state(Gbnf("root ::= a*\na ::= \"x\" b? \"x\"\nb ::= \"x\" b | a \"x\" | a a"));
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(state.AcceptBytes("x")) << i;
    EXPECT_THAT(Allowed(state), Contains('x'));
  }
}

// Nested ambiguity: every blank may belong to four rules, and words may be cut anywhere.
constexpr const char* kAmbiguous = R"(root ::= (a | b | c | d)* "7"
a ::= [a-z]+ (" " a)?
b ::= [a-z ]+ c?
c ::= " "? [a-z]+ (" " [a-z]+)*
d ::= (a | b | c)+ "," d?)";

// Every byte, and words of up to nine letters, half of them behind a blank.
std::shared_ptr<const TokenTable> Words(int count) {
  std::mt19937 random(3);
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.emplace_back("<end>");
  while (static_cast<int>(bytes.size()) < count) {
    std::string word = random() % 2 ? " " : "";
    for (unsigned i = 0, length = 2 + random() % 8; i < length; ++i)
      word += static_cast<char>('a' + random() % 26);
    bytes.push_back(word);
  }
  return TokenTable::FromBytes(std::move(bytes), {256});
}

// The work of random answers: the most of one token's, and of all.
struct Work {
  uint64_t most = 0, all = 0;
};
Work WorkOf(const Grammar::Pointer& grammar, int tokens) {
  std::mt19937 random(5);
  std::vector<uint32_t> bits(grammar->table().mask_words());
  GrammarState state(grammar);
  Work work;
  for (int i = 0; i < tokens; ++i) {
    grammar::Effort effort{grammar->limits().max_token_steps};
    EXPECT_TRUE(state.Mask(bits, effort));
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < grammar->table().vocab_size(); ++id)
      if (bits[id / 32] >> id % 32 & 1 && !grammar->table().IsEnd(id) && id != '7') allowed.push_back(id);
    if (allowed.empty()) break;
    EXPECT_EQ(state.Accept(allowed[random() % allowed.size()], effort), GrammarState::Step::kTaken);
    work.most = std::max(work.most, effort.spent);
    work.all += effort.spent;
  }
  return work;
}

TEST(Gbnf, AmbiguityCostsNoMoreThanTheStatesOfTheGrammar) {
  const auto table = Words(4000);
  const uint64_t nodes = table->node_count();
  const auto grammar = Grammar::FromGbnf(kAmbiguous, table);
  ASSERT_TRUE(grammar);
  // A plain repetition visits every node of the trie once. Each reading of its own would be thousands of
  // times as much here.
  const Work work = WorkOf(*grammar, 60);
  EXPECT_LT(work.most, 60 * nodes);
  // Masks that were made once are there.
  EXPECT_LT(work.all, 200 * nodes);
  // Stacks that differ below the top are one: 2^40 of them after 40 bytes.
  const auto stacks = Grammar::FromGbnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"x\"", table);
  ASSERT_TRUE(stacks);
  GrammarState state(*stacks);
  for (int i = 0; i < 40; ++i) {
    grammar::Effort effort{2000};
    EXPECT_EQ(state.Accept('a', effort), GrammarState::Step::kTaken) << i;
  }
  EXPECT_TRUE(state.AcceptBytes("x"));
  for (int i = 0; i < 40; ++i) {
    EXPECT_FALSE(state.may_end());
    EXPECT_THAT(Allowed(state), AllOf(Contains('b'), Contains('c'), Not(Contains('a'))));
    EXPECT_TRUE(state.AcceptBytes(i % 3 ? "b" : "c"));
  }
  EXPECT_TRUE(state.must_end());
}

TEST(Gbnf, MergedReadingsAreExact) {
  // The same texts without ambiguity.
  const auto plain = Gbnf("root ::= ([a-z] | \" \" | \",\")* \"7\"");
  const auto ambiguous = Gbnf(kAmbiguous);
  std::mt19937 random(7);
  const std::string letters = "ab ,7";
  int both = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (unsigned k = 0, length = random() % 12; k < length; ++k) text += letters[random() % 4];
    text += "7";
    const bool accepted = Accepts(ambiguous, text);
    both += accepted;
    EXPECT_TRUE(Accepts(plain, text));
    // A comma ends a `d`, so one stands behind something.
    EXPECT_EQ(accepted, text[0] != ',' && text.find(",,") == std::string::npos) << text;
  }
  EXPECT_GT(both, 50);
  for (uint32_t seed = 0; seed < 3; ++seed) Sample(ambiguous, seed, 12);
  const char* const grammars[] = {
      "root ::= s+\ns ::= \"a\" s? \"b\"? | \"a\" s \"c\" | \"(\" s s? \")\"",
      "root ::= x x x \"!\"\nx ::= \"a\"* y?\ny ::= \"a\" x \"b\"?",
      "root ::= e\ne ::= t (\"+\" e)? | t \"+\" e\nt ::= \"1\"+ | \"(\" e \")\" | \"(\" t \")\"",
  };
  for (const char* text : grammars)
    for (uint32_t seed = 0; seed < 3; ++seed) Sample(Gbnf(text), seed, 15);
}

TEST(Gbnf, TooMuchWorkIsRefusedWithItsRule) {
  const auto grammar = Grammar::FromGbnf(kAmbiguous, Words(4000), {.max_token_steps = 1000});
  ASSERT_TRUE(grammar);
  GrammarState state(*grammar);
  ASSERT_TRUE(state.AcceptBytes("a b"));
  std::vector<uint32_t> bits((*grammar)->table().mask_words(), ~0u);
  grammar::Effort effort{1000};
  // Made beforehand or not, the masks of so few steps are not there for all places after some tokens.
  bool refused = false;
  for (int i = 0; i < 20 && !refused; ++i) {
    effort = {50};
    refused = !state.Mask(bits, effort);
    state.AcceptBytes(" b");
  }
  ASSERT_TRUE(refused);
  EXPECT_LE(effort.spent, 2000u);
  EXPECT_TRUE(std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; }));
  const std::string message = state.TooMuchWork().message();
  EXPECT_THAT(message, HasSubstr("rules '"));
  EXPECT_THAT(message, HasSubstr("more than 1000 steps"));
  EXPECT_THAT(message, HasSubstr("let alternatives begin differently"));
}

TEST(GrammarState, MasksHeldAreBounded) {
  const auto table = Words(4000);
  const char* const schema =
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
      "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}}}, "required": ["name", "age", "tags"]})";
  const auto ample = Grammar::FromJsonSchema(schema, table);
  const auto scarce = Grammar::FromJsonSchema(schema, table, {}, {.max_cache_bytes = 4096});
  ASSERT_TRUE(ample && scarce);
  std::mt19937 random(1);
  for (int answer = 0; answer < 3; ++answer) {
    GrammarState one(*ample), other(*scarce);
    for (int i = 0; i < 60 && !one.must_end(); ++i) {
      const std::vector<int32_t> allowed = Allowed(one);
      ASSERT_EQ(allowed, Allowed(other));
      const int32_t token = allowed[random() % allowed.size()];
      ASSERT_TRUE(one.Accept(token) && other.Accept(token));
    }
  }
  // The tables, and one mask more than the bound allows.
  const auto tables = Grammar::FromJsonSchema(schema, table, {}, {.max_mask_steps = 0});
  ASSERT_TRUE(tables);
  EXPECT_LE((*scarce)->bytes(), (*tables)->bytes() + 4096 + 64 * 1024);
  EXPECT_GT((*ample)->bytes(), (*scarce)->bytes());
}

TEST(Gbnf, Syntax) {
  const auto arithmetic = Gbnf(R"x(
# a comment
root  ::= expr "\n"
expr  ::= term (("+" | "-") term)*
term  ::= number
        | "(" expr ")"     # over two lines
number ::= [0-9]{1,3} ("." [0-9]+)?
)x");
  for (const char* text : {"1\n", "1+2.5-(3+4)\n", "((7))\n"}) EXPECT_TRUE(Accepts(arithmetic, text)) << text;
  for (const char* text : {"1", "1234\n", "1+\n", "(1\n", "1.\n"})
    EXPECT_FALSE(Accepts(arithmetic, text)) << text;
  const auto classes = Gbnf(R"(root ::= [^a-z\]] "\x41\u00e9\U0001F600" . [\-x]? [a-])");
  EXPECT_TRUE(Accepts(classes, "ZAé😀q--"));
  EXPECT_TRUE(Accepts(classes, "日Aé😀日a"));
  EXPECT_FALSE(Accepts(classes, "zAé😀qxa"));
  EXPECT_FALSE(Accepts(classes, "]Aé😀qxa"));
}

TEST(Gbnf, MistakesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= root \"a\" | \"b\"", "rule 'root' calls itself"},
      {"root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a \"y\" | \"z\"", "(a -> c -> a)"},
      {"root ::= x", "'x' is used and not defined"},
      {"a ::= \"x\"", "no rule 'root'"},
      {"root ::= \"a", "closing quote"},
      {"root ::= (\"a\"", "'(' without ')'"},
      {"root ::= \"a\")", "')' without '('"},
      {"root ::= [z-a]", "ends before it begins"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"root = \"a\"", "expected '::='"},
      {"\n\nroot ::= \"\\q\"", "line 3: unknown escape"},
      {"root ::= \"x\" root", "no text matches"},
      {"root ::= \"a\"{3,2}", "least is above"},
  };
  for (const auto& [text, message] : cases) EXPECT_THAT(GbnfRefusal(text), HasSubstr(message)) << text;
}

TEST(Regex, Dialect) {
  struct Case {
    const char* pattern;
    std::vector<const char*> right, wrong;
  };
  const Case cases[] = {
      {"^a|b$", {"a", "b"}, {"ab", ""}},
      {"a.c", {"abc", "aéc", "a😀c"}, {"ac", "a\nc"}},
      {"(?:ab)+?(?<n>c)(?P<m>d)*", {"abc", "ababcdd"}, {"ab", "c"}},
      {"[\\d\\-x]{2,3}", {"1-", "x9x"}, {"1", "1234", "ab"}},
      {"[^\\w\\s]", {"!", "é"}, {"a", "_", " "}},
      {"\\u00e9\\x41\\.\\/\\$", {"éA./$"}, {"éA./"}},
      {"a{,2}b{2}{", {"bb{", "aabb{"}, {"aaabb{"}},
      {"", {""}, {"a"}},
      {"(a||b)", {"", "a", "b"}, {"ab"}},
      {"a^b", {}, {"ab", "a^b"}},
  };
  for (const Case& c : cases) {
    const auto grammar = Grammar::FromRegex(c.pattern, TestTokens::Make());
    if (c.right.empty()) {
      EXPECT_FALSE(grammar) << c.pattern;
      continue;
    }
    ASSERT_TRUE(grammar) << c.pattern << ": " << grammar.error().message();
    for (const char* text : c.right) EXPECT_TRUE(Accepts(*grammar, text)) << c.pattern << " " << text;
    for (const char* text : c.wrong) EXPECT_FALSE(Accepts(*grammar, text)) << c.pattern << " " << text;
  }
}

TEST(Triggers, FreeTextUntilOneIsWritten) {
  const TriggeredPart parts[] = {
      {R"(<tool_call>{"name": "f", "arguments": )",
       R"({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})", "}</tool_call>"},
      {R"(<tool_call>{"name": "g", "arguments": )", "", "}</tool_call>"}};
  const auto make = [&](const TriggerOptions& options) {
    const auto grammar = Grammar::FromTriggers(parts, options, TestTokens::Make());
    EXPECT_TRUE(grammar) << grammar.error().message();
    return *grammar;
  };
  const std::string call_f = R"(<tool_call>{"name": "f", "arguments": {"x":3}}</tool_call>)";
  const std::string call_g = R"(<tool_call>{"name": "g", "arguments": {}}</tool_call>)";
  const auto free = make({.triggers = {"<tool_call>"}});
  for (const std::string& text : {std::string("hello"), std::string("<tool"), std::string("<<tool_call"),
                                  call_f, "x" + call_f + "y" + call_g + "z\xFF"})
    EXPECT_TRUE(Accepts(free, text)) << text;
  for (const std::string& text : {std::string("<tool_call> "), std::string("<<tool_call>x"),
                                  R"(<tool_call>{"name": "h")" + std::string()})
    EXPECT_FALSE(GrammarState(free).AcceptBytes(text)) << text;
  for (uint32_t seed = 0; seed < 5; ++seed) Sample(free, seed, 40);
  // The token "x<tool_call>" holds the trigger and a letter before it.
  GrammarState state(free);
  ASSERT_TRUE(state.Accept(Token(free->table(), "x<tool_call>")));
  EXPECT_THAT(Allowed(state), ElementsAre('{', Token(free->table(), "{\"")));

  const auto once = make({.triggers = {"<tool_call>"}, .at_least_one = true, .several = false});
  EXPECT_FALSE(Accepts(once, "hello"));
  EXPECT_TRUE(Accepts(once, "hello" + call_g));
  EXPECT_FALSE(Accepts(once, call_f + "x"));
  const auto required = make({.free_text = false, .at_least_one = true, .between = "\n"});
  EXPECT_FALSE(Accepts(required, ""));
  EXPECT_FALSE(Accepts(required, "x" + call_f));
  EXPECT_TRUE(Accepts(required, call_f + "\n" + call_g));
  EXPECT_FALSE(Grammar::FromTriggers(parts, {.triggers = {"<call>"}}, TestTokens::Make()));
  EXPECT_FALSE(Grammar::FromTriggers({}, {}, TestTokens::Make()));
}

}  // namespace
}  // namespace celer
