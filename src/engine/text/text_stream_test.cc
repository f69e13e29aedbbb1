#include <gtest/gtest.h>

#include "celer/text.h"
#include "io/file/test_folder.h"

namespace celer {
namespace {

// One token per byte, and a special one.
constexpr const char* kTokenizer =
    R"({"version":"1.0","added_tokens":[{"id":5,"content":"<end>","single_word":false,
 "lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,
 "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "post_processor":null,
 "decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
 "model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"Ã":3,"¼":4},"merges":[]}})";

class TextStreamTest : public ::testing::Test {
 protected:
  TextStreamTest() {
    folder_.Write("tokenizer.json", kTokenizer);
    auto made = Prompter::Load({.model = folder_.path().string()});
    EXPECT_TRUE(made) << made.error().message();
    prompter_.emplace(*std::move(made));
  }
  static TokenEvent Event(int32_t token, FinishReason finish = FinishReason::kNone) {
    return {.request = 1, .token = token, .finish = finish, .logprob = -0.5f, .top = {{token, -0.5f}}};
  }

  TestFolder folder_;
  std::optional<Prompter> prompter_;
};

TEST_F(TextStreamTest, WholeCodePointsAndLogprobs) {
  TextStream stream(*prompter_);
  EXPECT_EQ(stream.Push(Event(0)).text, "a");
  const TextDelta half = stream.Push(Event(3));
  EXPECT_EQ(half.text, "");
  ASSERT_TRUE(half.token);
  EXPECT_EQ(half.token->token, 3);
  EXPECT_EQ(half.token->top.size(), 1u);
  EXPECT_EQ(stream.Push(Event(4)).text, "\xC3\xBC");
  const TextDelta last = stream.Push(Event(3, FinishReason::kLength));
  EXPECT_EQ(last.text, "\xEF\xBF\xBD");  // its other half will never come
  EXPECT_EQ(last.finish, FinishReason::kLength);
  EXPECT_FALSE(stream.wants_cancel());
}

TEST_F(TextStreamTest, StopStringsAreHeldBackAndEndIt) {
  TextStream stream(*prompter_, {"bc"});
  EXPECT_EQ(stream.Push(Event(1)).text, "");
  EXPECT_EQ(stream.Push(Event(1)).text, "b");
  const TextDelta last = stream.Push(Event(2));
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_TRUE(stream.wants_cancel());
  // The engine has not been cancelled yet.
  EXPECT_EQ(stream.Push(Event(0)).text, "");
  EXPECT_EQ(stream.Push({.request = 1, .finish = FinishReason::kCancelled}).finish, FinishReason::kStop);
}

TEST_F(TextStreamTest, WhatWasHeldBackForNothingComesAtTheEnd) {
  TextStream stream(*prompter_, {"bc"});
  EXPECT_EQ(stream.Push(Event(1)).text, "");
  const TextDelta last = stream.Push(Event(5, FinishReason::kStop));  // the token that ends a turn is no text
  EXPECT_EQ(last.text, "b");
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_TRUE(last.token);
}

TEST_F(TextStreamTest, ErrorsAndCancellationsHaveNoToken) {
  TextStream stream(*prompter_), other(*prompter_, {"bc"});
  const TextDelta failed = stream.Push({.request = 1, .finish = FinishReason::kError, .error = "not finite"});
  EXPECT_EQ(failed.finish, FinishReason::kError);
  EXPECT_EQ(failed.error, "not finite");
  EXPECT_FALSE(failed.token);
  other.Push(Event(1));
  const TextDelta gone = other.Push({.request = 1, .finish = FinishReason::kCancelled});
  EXPECT_EQ(gone.finish, FinishReason::kCancelled);
  EXPECT_EQ(gone.text, "");
}

}  // namespace
}  // namespace celer
