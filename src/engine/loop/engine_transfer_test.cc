// Blocks of one engine in the cache of another, and blocks that are held for one.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/kv/kv_identity.h"
#include "engine/loop/adapters_test_util.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

using Held = EngineInternals::HeldPrefix;

std::unique_ptr<Engine> MakeEngine(int64_t blocks = 64, int64_t states = 0,
                                   EngineOptions options = {.chunk = 64}) {
  SimulatedRunner::Options runner{.model = {.vocab = 64, .seed = 7}};
  runner.info.context = 512;
  runner.info.kv_blocks = blocks;
  runner.info.state_slots = states;
  return EngineInternals::Make(std::make_unique<SimulatedRunner>(std::move(runner)), options);
}

Request Ask(int64_t prompt, int64_t max_tokens = 20) {
  Request request{.max_tokens = max_tokens, .lora = nullptr};
  for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<int32_t>(i * i % 61));
  return request;
}

struct Answer {
  std::vector<int32_t> tokens;
  int64_t cached = -1;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

Answer Answered(Engine& engine, const Request& request) {
  Answer answer;
  const auto id = engine.Submit(request);
  EXPECT_TRUE(id);
  while (engine.HasWork())
    for (const TokenEvent& event : engine.Step()) {
      if (answer.cached < 0) answer.cached = event.cached_tokens;
      if (event.token != TokenEvent::kNoToken) answer.tokens.push_back(event.token);
      answer.finish = event.finish;
      answer.error = event.error;
    }
  EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
  return answer;
}

std::vector<std::byte> ReadAll(Engine& engine, const Held& held, int64_t first = 0) {
  const int64_t count = std::ssize(held.blocks) - first;
  std::vector<std::byte> bytes(static_cast<size_t>(count * *EngineInternals::TransferBlockBytes(engine)));
  const Status read = EngineInternals::ReadHeld(engine, held.hold, first, count, bytes);
  EXPECT_TRUE(read);
  return bytes;
}

TEST(EngineTransfer, AnotherEngineGoesOnWithTheBlocks) {
  auto a = MakeEngine(), b = MakeEngine(), alone = MakeEngine();
  const Request request = Ask(100);
  Request first = request;
  first.max_tokens = 1;
  Answered(*a, first);
  const Held there = EngineInternals::HoldPrefix(*a, request);
  EXPECT_EQ(there.tokens(), 96);
  EXPECT_EQ(EngineInternals::PrefixOf(*a, request).Hash(6), EngineInternals::PrefixOf(*b, request).Hash(6));
  const std::vector<std::byte> bytes = ReadAll(*a, there);
  int64_t hold = 0;
  const auto half = std::span(bytes).first(bytes.size() / 2), rest = std::span(bytes).subspan(half.size());
  EXPECT_EQ(*EngineInternals::StoreBlocks(*b, request, 0, half, &hold), 3);
  EXPECT_EQ(*EngineInternals::StoreBlocks(*b, request, 3, rest, &hold), 3);
  EXPECT_EQ(*EngineInternals::StoreBlocks(*b, request, 3, rest, &hold), 0) << "they are not the next ones";
  EXPECT_EQ(b->stats().kv_blocks_used, 6);
  EXPECT_EQ(EngineInternals::CheckInvariants(*b), "");
  const Answer answer = Answered(*b, request);
  EXPECT_EQ(answer.cached, 96);
  EXPECT_EQ(answer.tokens, Answered(*alone, request).tokens);
  EXPECT_LT(b->stats().computed_tokens, 30) << "the prompt was not computed";
  EngineInternals::ReleaseHold(*b, hold);
  EngineInternals::ReleaseHold(*a, there.hold);
  EXPECT_EQ(a->stats().kv_blocks_used + b->stats().kv_blocks_used, 0);
}

// The runner checks what each step reads.
TEST(EngineTransfer, OtherBytesWouldBeNoticed) {
  auto a = MakeEngine(), b = MakeEngine();
  const Request request = Ask(40);
  Answered(*a, request);
  std::vector<std::byte> bytes = ReadAll(*a, EngineInternals::HoldPrefix(*a, request));
  bytes[0] ^= std::byte{1};
  int64_t hold = 0;
  EXPECT_EQ(*EngineInternals::StoreBlocks(*b, request, 0, bytes, &hold), 2);
  EXPECT_EQ(Answered(*b, request).finish, FinishReason::kError);
}

TEST(EngineTransfer, APartThatIsCachedIsNotStoredAgain) {
  auto a = MakeEngine(), b = MakeEngine();
  const Request request = Ask(100);
  Answered(*a, request);
  Answered(*b, Ask(40, 1));
  const Held there = EngineInternals::HoldPrefix(*a, request);
  const Held here = EngineInternals::HoldPrefix(*b, request);
  EXPECT_EQ(here.tokens(), 32);
  int64_t hold = here.hold;
  EXPECT_EQ(*EngineInternals::StoreBlocks(*b, request, 2, ReadAll(*a, there, 2), &hold), 4);
  EXPECT_EQ(Answered(*b, request).cached, 96);
}

TEST(EngineTransfer, SaltsAdaptersAndPromptsSeparate) {
  auto a = MakeEngine(), b = MakeEngine();
  const Request request = Ask(100);
  Answered(*a, request);
  Request salted = request, adapted = request, other = request;
  salted.cache_salt = "x";
  const auto mix = [](const char* name, const char* content) {
    return *LoraMix::Make({{MakeEmptyLora({.name = name, .path = "", .content = content}), 1}});
  };
  adapted.lora = mix("a", "11");
  other.prompt[3] ^= 1;
  for (const Request& one : {salted, adapted, other}) {
    EXPECT_EQ(EngineInternals::HoldPrefix(*a, one).hold, 0);
    EXPECT_NE(EngineInternals::PrefixOf(*a, one).Hash(6), EngineInternals::PrefixOf(*a, request).Hash(6));
  }
  // By content, whatever an adapter is called.
  Request again = request;
  again.lora = mix("again", "11");
  EXPECT_EQ(EngineInternals::PrefixOf(*a, adapted).Hash(6), EngineInternals::PrefixOf(*b, again).Hash(6));
  int64_t hold = 0;
  Answered(*a, adapted);
  EXPECT_EQ(*EngineInternals::StoreBlocks(*b, again, 0, ReadAll(*a, EngineInternals::HoldPrefix(*a, adapted)),
                                          &hold),
            6);
  EXPECT_EQ(Answered(*b, again).cached, 96);
  EXPECT_EQ(Answered(*b, request).cached, 0);
}

TEST(EngineTransfer, SequencesGoFirst) {
  auto a = MakeEngine(20), b = MakeEngine(20);
  const Request request = Ask(160, 1);
  Answered(*a, request);
  const Held held = EngineInternals::HoldPrefix(*a, request);
  EXPECT_EQ(held.tokens(), 144);
  // It needs 17 blocks of the 11 that are left, which are given up instead of refusing it.
  Request large = Ask(256);
  std::ranges::reverse(large.prompt);
  const Answer answer = Answered(*a, large);
  EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error;
  std::vector<std::byte> bytes(static_cast<size_t>(*EngineInternals::TransferBlockBytes(*a)));
  EXPECT_FALSE(EngineInternals::ReadHeld(*a, held.hold, 0, 1, bytes));
  // All that is held is half of the pool at most, and of a fetched prompt the first blocks.
  Request longer = Ask(300, 1);
  Answered(*a, longer);
  EXPECT_EQ(EngineInternals::HoldPrefix(*a, longer).tokens(), 160);
  EXPECT_EQ(a->stats().kv_blocks_used, 10);
  auto wide = MakeEngine(64);
  Answered(*wide, longer);
  int64_t hold = 0;
  EXPECT_EQ(*EngineInternals::StoreBlocks(*b, longer, 0,
                                          ReadAll(*wide, EngineInternals::HoldPrefix(*wide, longer)), &hold),
            10);
  EXPECT_EQ(Answered(*b, longer).cached, 160);
}

TEST(EngineTransfer, DiscardedBlocksAreHeldNoLonger) {
  auto engine = MakeEngine();
  const Request request = Ask(100, 1);
  Answered(*engine, request);
  const Held held = EngineInternals::HoldPrefix(*engine, request);
  ASSERT_NE(held.hold, 0);
  ASSERT_TRUE(EngineInternals::DiscardKv(*engine));
  std::vector<std::byte> bytes(static_cast<size_t>(*EngineInternals::TransferBlockBytes(*engine)));
  EXPECT_FALSE(EngineInternals::ReadHeld(*engine, held.hold, 0, 1, bytes));
  EXPECT_EQ(engine->stats().kv_blocks_used, 0);
}

TEST(EngineTransfer, WhatCannotBeTransferredIsSaid) {
  EXPECT_FALSE(EngineInternals::TransferBlockBytes(*MakeEngine(64, 4))) << "recurrent layers";
  EXPECT_FALSE(EngineInternals::TransferBlockBytes(*MakeEngine(64, 0, {.prefix_cache = false})));
  Request scored = Ask(100, 1);
  auto engine = MakeEngine();
  Answered(*engine, scored);
  scored.prompt_logprobs = 0;
  EXPECT_EQ(EngineInternals::HoldPrefix(*engine, scored).hold, 0);
}

TEST(KvIdentity, NamesTheFirstDifference) {
  const KvIdentity own{.fields = {{"model", "a"}, {"kv", "f16"}, {"weights", "q8_0"}}, .block_bytes = 64};
  EXPECT_EQ(DifferenceOf(own, own), "");
  KvIdentity other = own;
  other.fields["kv"] = "int8";
  EXPECT_EQ(DifferenceOf(other, own), "its kv is 'int8', and here it is 'f16'");
  other = own;
  other.block_bytes = 65;
  EXPECT_EQ(DifferenceOf(other, own), "its blocks have 65 bytes, and here they have 64");
  other = own;
  other.fields["more"] = "";
  EXPECT_NE(DifferenceOf(other, own), "");
}

}  // namespace
}  // namespace celer
