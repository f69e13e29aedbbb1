#include "celer/adapters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <thread>

#include "celer/engine_thread.h"
#include "engine/loop/adapters.h"
#include "engine/loop/adapters_test_util.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"

namespace celer {
namespace {

TEST(LoraSpec, ReadsNamePathAndScale) {
  const auto plain = LoraSpec::Parse("sql=adapters/sql");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->name, "sql");
  EXPECT_EQ(plain->path, "adapters/sql");
  EXPECT_EQ(plain->scale, 1);
  const auto scaled = LoraSpec::Parse("a=C:/x/y.gguf:0.5");
  ASSERT_TRUE(scaled);
  EXPECT_EQ(scaled->path, "C:/x/y.gguf");
  EXPECT_EQ(scaled->scale, 0.5f);
  EXPECT_EQ(LoraSpec::Parse("a=x:-1")->scale, -1);
  EXPECT_EQ(LoraSpec::Parse("a=C:/x")->path, "C:/x");  // what follows the colon is no number
  EXPECT_EQ(LoraSpec::Parse("dir/story.gguf")->name, "story");
  EXPECT_EQ(LoraSpec::Parse("dir/story/")->name, "story");
  for (const char* wrong : {"", "=x", "a=", "a=:2", "a=x:nan", "a=x:inf", "..", "a/.."})
    EXPECT_FALSE(LoraSpec::Parse(wrong)) << wrong;
}

TEST(Adapters, RefusesWhatCannotBeAnAdapter) {
  const auto adapters = MakeAdapters("no-model", {});
  for (const LoraSpec& wrong :
       {LoraSpec{.path = "x"}, LoraSpec{.name = "a"}, LoraSpec{.name = "a\nb", .path = "x"},
        LoraSpec{.name = std::string(1000, 'a'), .path = "x"},
        LoraSpec{.name = "a", .path = "x", .scale = INFINITY}})
    EXPECT_FALSE(adapters->Load(wrong)) << wrong.name;
  const auto missing = adapters->Load({.name = "a", .path = "no-such-folder/.."});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message().find("no-such-folder"), std::string::npos) << missing.error().message();
  EXPECT_EQ(adapters->Unload("a").error().code(), Error::Code::kNotFound);
  EXPECT_EQ(adapters->Mix(std::vector<AdapterScale>{{"a", 1}}).error().code(), Error::Code::kNotFound);
  EXPECT_EQ(*adapters->Mix({}), nullptr);
  EXPECT_EQ(adapters->Standing(), nullptr);
  EXPECT_TRUE(adapters->List().empty());
  EXPECT_EQ(adapters->bytes(), 0);
}

TEST(Adapters, TakesNoneOnceItsEngineIsGone) {
  const auto adapters = MakeAdapters("no-model", {});
  adapters->impl().Detach();
  EXPECT_EQ(adapters->Load({.name = "a", .path = "x"}).error().code(), Error::Code::kCancelled);
}

// Reads nothing: an adapter's path is its content.
void UseFakes(Adapters& adapters) {
  adapters.impl().load = [](const LoraSpec& spec) -> Result<std::shared_ptr<const LoraAdapter>> {
    return MakeEmptyLora({.name = spec.name,
                          .path = spec.path.string(),
                          .content = spec.path.string(),
                          .bytes = 100,
                          .rank = spec.path == "wide" ? 64 : 8,
                          .matrices = 4});
  };
}

std::unique_ptr<Engine> MakeEngine(const LoraOptions& lora = {}) {
  SimulatedRunner::Options runner{.model = {.vocab = 64, .seed = 7}};
  runner.info.config.vocab = 64;
  runner.info.kv_blocks = 400;
  runner.info.context = 200;
  auto adapters = MakeAdapters("no-model", lora);
  UseFakes(*adapters);
  return EngineInternals::Make(std::make_unique<SimulatedRunner>(std::move(runner)), {}, nullptr, adapters);
}

Request Ask(std::optional<std::shared_ptr<const LoraMix>> lora, int64_t tokens = 12) {
  Request request{.prompt = std::vector<int32_t>(70, 3), .max_tokens = tokens};
  request.lora = std::move(lora);
  return request;
}

struct Outcome {
  std::vector<int32_t> tokens;
  int64_t cached = 0;
};
std::map<int64_t, Outcome> RunAll(Engine& engine) {
  std::map<int64_t, Outcome> all;
  while (engine.HasWork())
    for (const TokenEvent& event : engine.Step()) {
      EXPECT_NE(event.finish, FinishReason::kError) << event.error;
      all[event.request].cached += event.cached_tokens;
      if (event.token >= 0) all[event.request].tokens.push_back(event.token);
    }
  return all;
}
Outcome RunOne(Engine& engine, Request request) {
  const auto id = engine.Submit(std::move(request));
  EXPECT_TRUE(id);
  return RunAll(engine)[*id];
}

std::shared_ptr<const LoraMix> MixOf(const Adapters& adapters, const std::string& name, float scale = 1) {
  const auto mix = adapters.Mix(std::vector<AdapterScale>{{name, scale}});
  EXPECT_TRUE(mix) << mix.error().message();
  return mix ? *mix : nullptr;
}

TEST(Adapters, EightSequencesWithFiveAdaptersAreEachAsAlone) {
  std::vector<Outcome> alone;
  for (const bool together : {false, true}) {
    const auto engine = MakeEngine();
    for (const char* name : {"a", "b", "c", "d", "e"})
      ASSERT_TRUE(engine->adapters()->Load({.name = name, .path = name}));
    std::vector<int64_t> ids;
    for (const char* name : {"a", "", "b", "c", "a", "d", "", "e"}) {
      const auto lora = *name ? MixOf(*engine->adapters(), name) : nullptr;
      if (!together) {
        alone.push_back(RunOne(*MakeEngine(), Ask(lora)));
        continue;
      }
      const auto id = engine->Submit(Ask(lora));
      ASSERT_TRUE(id);
      ids.push_back(*id);
    }
    if (!together) continue;
    auto all = RunAll(*engine);
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(all[ids[i]].tokens, alone[i].tokens) << i;
  }
  EXPECT_NE(alone[0].tokens, alone[1].tokens);
  EXPECT_NE(alone[0].tokens, alone[2].tokens);
  EXPECT_EQ(alone[0].tokens, alone[4].tokens);
}

TEST(Adapters, PrefixesAreSharedByContentAndNotByName) {
  const auto engine = MakeEngine();
  Adapters& adapters = *engine->adapters();
  ASSERT_TRUE(adapters.Load({.name = "a", .path = "one"}));
  ASSERT_TRUE(adapters.Load({.name = "same", .path = "one"}));
  ASSERT_TRUE(adapters.Load({.name = "b", .path = "two"}));
  EXPECT_EQ(adapters.bytes(), 200);  // equal contents share their memory
  const auto cached = [&](std::shared_ptr<const LoraMix> lora, std::string salt = "") {
    Request request = Ask(std::move(lora));
    request.cache_salt = std::move(salt);
    return RunOne(*engine, std::move(request)).cached;
  };
  EXPECT_EQ(cached(nullptr), 0);
  EXPECT_EQ(cached(MixOf(adapters, "a")), 0);
  EXPECT_EQ(cached(MixOf(adapters, "same")), 64);
  EXPECT_EQ(cached(MixOf(adapters, "b")), 0);
  EXPECT_EQ(cached(MixOf(adapters, "a", 0.5f)), 0);
  EXPECT_EQ(cached(MixOf(adapters, "a", 0)), 64);  // is the model without it
  EXPECT_EQ(cached(MixOf(adapters, "a"), "tenant"), 0);
  // A salt cannot be written so that it looks like an adapter.
  EXPECT_EQ(cached(nullptr, MixOf(adapters, "a")->key()), 0);
}

TEST(Adapters, AnUnloadedOneStaysWithItsRequests) {
  const auto engine = MakeEngine();
  Adapters& adapters = *engine->adapters();
  ASSERT_TRUE(adapters.Load({.name = "a", .path = "one"}));
  const Outcome expected = RunOne(*MakeEngine(), Ask(MixOf(adapters, "a")));
  const auto id = engine->Submit(Ask(MixOf(adapters, "a")));
  ASSERT_TRUE(id);
  engine->Step();
  EXPECT_TRUE(adapters.List()[0].in_use);
  ASSERT_TRUE(adapters.Unload("a"));
  EXPECT_FALSE(adapters.Unload("a"));
  EXPECT_TRUE(adapters.List().empty());
  EXPECT_EQ(adapters.bytes(), 100);
  EXPECT_EQ(adapters.Mix(std::vector<AdapterScale>{{"a", 1}}).error().code(), Error::Code::kNotFound);
  // Another one of that name does not disturb it.
  ASSERT_TRUE(adapters.Load({.name = "a", .path = "two"}));
  EXPECT_EQ(adapters.List()[0].id, 1);
  auto all = RunAll(*engine);
  EXPECT_EQ(std::ssize(all[*id].tokens) + 1, std::ssize(expected.tokens));  // one came with the first step
  EXPECT_TRUE(std::equal(all[*id].tokens.rbegin(), all[*id].tokens.rend(), expected.tokens.rbegin()));
  EXPECT_EQ(adapters.bytes(), 100);
  ASSERT_TRUE(adapters.Unload("a"));
  EXPECT_EQ(adapters.bytes(), 0);
}

TEST(Adapters, ANameIsTakenUnlessItIsReplaced) {
  const auto engine = MakeEngine({.max_rank = 16});
  Adapters& adapters = *engine->adapters();
  ASSERT_TRUE(adapters.Load({.name = "a", .path = "one"}));
  EXPECT_EQ(adapters.Load({.name = "a", .path = "one"}).error().code(), Error::Code::kInvalid);
  EXPECT_FALSE(adapters.Load({.name = "b", .path = "wide"}));  // rank 64
  ASSERT_TRUE(adapters.Load({.name = "a", .path = "two"}, {.replace = true}));
  EXPECT_EQ(adapters.List().size(), 1u);
  EXPECT_EQ(adapters.List()[0].content, "two");
  EXPECT_EQ(adapters.List()[0].id, 0);
  EXPECT_EQ(adapters.bytes(), 100);
}

TEST(Adapters, TheLeastRecentlyUsedIdleOneMakesRoom) {
  const auto engine = MakeEngine({.max_adapters = 2});
  Adapters& adapters = *engine->adapters();
  const auto names = [&] {
    std::string all;
    for (const Adapters::Info& info : adapters.List()) all += info.name;
    return all;
  };
  ASSERT_TRUE(adapters.Load({.name = "a", .path = "a"}));
  ASSERT_TRUE(adapters.Load({.name = "b", .path = "b"}));
  EXPECT_FALSE(adapters.Load({.name = "c", .path = "c"}));
  const Adapters::LoadOptions unload{.when_full = Adapters::WhenFull::kUnloadIdle};
  MixOf(adapters, "a");
  ASSERT_TRUE(adapters.Load({.name = "c", .path = "c"}, unload));
  EXPECT_EQ(names(), "ac");
  const auto held = MixOf(adapters, "a");
  MixOf(adapters, "c");
  ASSERT_TRUE(adapters.Load({.name = "d", .path = "d"}, unload));
  EXPECT_EQ(names(), "ad");
  const auto also = MixOf(adapters, "d");
  EXPECT_FALSE(adapters.Load({.name = "e", .path = "e"}, unload));
  EXPECT_EQ(names(), "ad");
}

TEST(Adapters, StandingScalesHoldForRequestsThatSayNothing) {
  const auto engine = MakeEngine();
  Adapters& adapters = *engine->adapters();
  ASSERT_TRUE(adapters.Load({.name = "a", .path = "one"}));
  ASSERT_TRUE(adapters.Load({.name = "b", .path = "two"}));
  const auto plain = RunOne(*engine, Ask(nullptr)).tokens,
             with = RunOne(*engine, Ask(MixOf(adapters, "a"))).tokens;
  EXPECT_EQ(RunOne(*engine, Ask(std::nullopt)).tokens, plain);
  ASSERT_TRUE(adapters.SetStanding(std::vector<AdapterScale>{{"a", 1}}));
  EXPECT_EQ(RunOne(*engine, Ask(std::nullopt)).tokens, with);
  EXPECT_EQ(RunOne(*engine, Ask(nullptr)).tokens, plain);
  EXPECT_FALSE(adapters.SetStanding(std::vector<AdapterScale>{{"c", 1}}));
  EXPECT_FALSE(adapters.SetStanding(std::vector<AdapterScale>{{"a", 1}, {"a", 2}}));
  EXPECT_EQ(adapters.List()[0].standing_scale, 1);
  ASSERT_TRUE(adapters.Unload("a"));
  EXPECT_EQ(RunOne(*engine, Ask(std::nullopt)).tokens, plain);
}

TEST(Adapters, AThousandTimesLoadedAndUnloadedUnderLoad) {
  auto engine = MakeEngine();
  const std::shared_ptr<Adapters> adapters = engine->adapters();
  EngineThread thread(std::move(engine));
  std::atomic<bool> stop = false;
  std::atomic<int64_t> with = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c)
    clients.emplace_back([&] {
      while (!stop) {
        auto mix = adapters->Mix(std::vector<AdapterScale>{{"a", 1}});
        with += mix ? 1 : 0;
        auto ticket = thread.Submit(Ask(mix ? *mix : nullptr, 3));
        ASSERT_TRUE(ticket) << ticket.error().message();
        while (const auto event = ticket->Next())
          ASSERT_NE(event->finish, FinishReason::kError) << event->error;
      }
    });
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(adapters->Load({.name = "a", .path = i % 2 == 0 ? "one" : "two"}));
    if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_TRUE(adapters->Unload("a"));
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_GT(with, 0);
  thread.Stop(EngineThread::Ending::kDrain);
  EXPECT_EQ(adapters->bytes(), 0);
  EXPECT_TRUE(adapters->List().empty());
}

}  // namespace
}  // namespace celer
