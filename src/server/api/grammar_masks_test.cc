#include "server/api/grammar_masks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "engine/text/prompter.h"
#include "text/tokenizer/tokenizer.h"

namespace celer::server {
namespace {

namespace fs = std::filesystem;

// Printable characters, the end, and some tags as control tokens.
Prompter Characters() {
  const fs::path folder = fs::temp_directory_path() / ("celer_masks_test_" + std::to_string(getpid()));
  fs::create_directories(folder);
  Json ids = Json::object(), added = Json::array();
  for (char c = '!'; c <= '~'; ++c) ids[std::string(1, c)] = ids.size();
  for (const char* other : {"Ġ", "Ċ", "ï", "½", "ľ", "â", "ĸ", "ģ"}) ids[other] = ids.size();
  for (const char* tag : {"<|end_of_text|>", "<|channel|>", "<|message|>", "<tool_call>", "[TOOL_CALLS]"})
    added.push_back({{"id", ids.size() + added.size()}, {"content", tag}, {"special", true}});
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model", {{"type", "BPE"}, {"vocab", ids}, {"merges", Json::array()}}}};
  std::ofstream(folder / "tokenizer.json") << tokenizer;
  auto prompter = Prompter::Load({.model = folder.string()});
  fs::remove_all(folder);
  EXPECT_TRUE(prompter) << prompter.error().message();
  return std::move(*prompter);
}

// A text that the mask allows, drawn token by token.
std::string Draw(const TokenMask& mask, const Prompter& prompter, uint32_t seed) {
  const Tokenizer& tokenizer = GetTokenizer(prompter);
  const std::unique_ptr<TokenMask> state = mask.Clone();
  std::mt19937 random(seed);
  std::vector<int32_t> tokens;
  while (tokens.size() < 2000) {
    EXPECT_TRUE(state->Prepare(TokenMask::kAnyWork));
    std::vector<uint32_t> bits(static_cast<size_t>(tokenizer.vocab_size() + 31) / 32);
    state->Allow(bits);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
      if (bits[id / 32] >> (id % 32) & 1) allowed.push_back(id);
    EXPECT_FALSE(allowed.empty());
    if (allowed.empty()) break;
    const int32_t token = allowed[random() % allowed.size()];
    if (tokenizer.IsEndOfTurn(token)) break;
    tokens.push_back(token);
    state->Accept(token);
  }
  return tokenizer.Decode(tokens, false);
}

// What a required call's grammar allows is read as that call.
TEST(GrammarMasks, RequiredCallsOfEverySyntaxAreRead) {
  const Prompter prompter = Characters();
  const Tokenizer& tokenizer = GetTokenizer(prompter);
  std::vector<int32_t> tags;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.IsSpecial(id) && !tokenizer.IsEndOfTurn(id)) tags.push_back(id);
  ASSERT_EQ(tags.size(), 4U);
  Grammars grammars(prompter, tags, "</think>");
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "get_weather", "parameters": {
      "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
      "additionalProperties": false}}}])");
  ToolChoice choice;
  choice.kind = ToolChoice::Kind::kRequired;
  for (const ToolSyntax& syntax : ToolSyntaxes())
    for (uint32_t seed = 0; seed < 3; ++seed) {
      std::shared_ptr<const TokenMask> mask;
      const Refusal refusal = grammars.MakeToolMask(choice, tools, syntax.style, false, false, &mask);
      ASSERT_FALSE(refusal) << syntax.name << ": " << refusal->message;
      const std::string text = Draw(*mask, prompter, seed);
      AnswerParts parts({.tools = syntax.style, .must_call = true});
      std::vector<Part> read = parts.Push(text);
      for (Part& part : parts.Finish()) read.push_back(std::move(part));
      ASSERT_EQ(read.size(), 1U) << syntax.name << ": " << text;
      EXPECT_EQ(read[0].kind, Part::Kind::kCall) << text;
      EXPECT_EQ(read[0].name, "get_weather") << text;
      EXPECT_TRUE(read[0].text == R"({"city":"Oslo"})" || read[0].text == R"({"city":"Rome"})") << text;
    }
}

}  // namespace
}  // namespace celer::server
