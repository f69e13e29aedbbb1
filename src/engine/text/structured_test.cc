#include "celer/structured.h"

#include <gtest/gtest.h>

#include <array>

#include "io/file/test_folder.h"

namespace celer {
namespace {

class StructuredOutputTest : public ::testing::Test {
 protected:
  StructuredOutputTest() {
    folder_.Write("tokenizer.json",
                  R"({"version":"1.0","added_tokens":[{"id":5,"content":"<end>","single_word":false,
 "lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,
 "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "post_processor":null,
 "decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "model":{"type":"BPE","vocab":{"a":0,"b":1,"{":2,"}":3,"1":4},"merges":[]}})");
    folder_.Write("tokenizer_config.json", R"({"eos_token":"<end>"})");
    auto made = Prompter::Load({.model = folder_.path().string()});
    EXPECT_TRUE(made) << made.error().message();
    prompter_.emplace(*std::move(made));
  }
  // The tokens that may come after these, as bits.
  static uint32_t After(const Result<StructuredOutput::Mask>& mask, const std::vector<int32_t>& tokens) {
    EXPECT_TRUE(mask) << mask.error().message();
    if (!mask) return 0;
    const std::unique_ptr<TokenMask> own = (*mask)->Clone();
    for (const int32_t token : tokens) own->Accept(token);
    const auto prepared = own->Prepare(TokenMask::kAnyWork);
    EXPECT_TRUE(prepared && prepared->ready);
    std::array<uint32_t, 1> bits = {};
    own->Allow(bits);
    return bits[0];
  }

  TestFolder folder_;
  std::optional<Prompter> prompter_;
};

constexpr uint32_t kA = 1, kB = 2, kOpen = 4, kClose = 8, kOne = 16, kEnd = 32;

TEST_F(StructuredOutputTest, EveryForm) {
  const StructuredOutput structured(*prompter_);
  const std::vector<std::string> choices = {"ab", "b"};
  EXPECT_EQ(After(structured.Choice(choices), {}), kA | kB);
  EXPECT_EQ(After(structured.Choice(choices), {0}), kB);
  EXPECT_EQ(After(structured.Choice(choices), {0, 1}), kEnd);
  EXPECT_EQ(After(structured.Regex("a+1?"), {0}), kA | kOne | kEnd);
  EXPECT_EQ(After(structured.Gbnf("root ::= \"{\" [ab] \"}\""), {2, 1}), kClose);
  EXPECT_EQ(After(structured.JsonObject(), {}), kOpen);
  EXPECT_EQ(After(structured.JsonSchema(R"({"type":"object","additionalProperties":false})"), {2}), kClose);
  EXPECT_EQ(After(structured.JsonSchema(R"({"const":1})"), {}), kOne);
}

TEST_F(StructuredOutputTest, Errors) {
  const StructuredOutput structured(*prompter_);
  for (const auto& mask : {structured.JsonSchema(R"({"type":"thing"})"), structured.JsonSchema("{"),
                           structured.Regex("("), structured.Gbnf("root ::= nothing")}) {
    ASSERT_FALSE(mask);
    EXPECT_FALSE(mask.error().message().empty());
  }
}

}  // namespace
}  // namespace celer
