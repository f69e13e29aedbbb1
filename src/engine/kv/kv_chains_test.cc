// The hashes of vLLM, and an index that is fed by the events alone: it knows what a prompt would find in the cache.
#include "engine/kv/kv_chains.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/kv/block_manager.h"

namespace celer {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<int32_t>;
using Content = PrefixCache::Content;

constexpr const char* kSeed = "vllm-none-hash";

std::string Hex(const KvHash& hash) {
  std::string text;
  for (const std::byte byte : hash) {
    text += "0123456789abcdef"[std::to_integer<int>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<int>(byte) & 15];
  }
  return text;
}

// Python: hashlib.sha256(cbor2.dumps((before, tokens, keys), canonical=True)), which is vLLM's sha256_cbor.
TEST(KvHash, IsThatOfVllm) {
  const KvHash seed = KvSeedHash(kSeed);
  EXPECT_EQ(Hex(seed), "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  Tokens tokens(kKvBlockTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  const KvHash first = KvBlockHash(seed, tokens, {});
  EXPECT_EQ(Hex(first), "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749");
  tokens = {23, 24, 255, 256, 65535, 65536, 2147483647};
  tokens.resize(kKvBlockTokens, 7);
  const KvScope scope{.lora_name = "sql", .lora_content = "abc", .rope_length = -1, .cache_salt = "salt"};
  EXPECT_EQ(Hex(KvBlockHash(first, tokens, KvKeysOf(&scope, true))),
            "d83e0ba2e6f4eaf7243440f69fc3eb2cb8df334eb43bc3a0da81536ffbacc71d");
  EXPECT_EQ(KvKeysOf(&scope, false).size(), 3u) << "the salt belongs to the first block alone";
  EXPECT_TRUE(KvKeysOf(nullptr, true).empty());
}

// What a router keeps: hashes alone, out of the events.
struct Index {
  std::set<KvHash> hashes;

  void Apply(std::span<const KvEvent> events) {
    for (const KvEvent& event : events) {
      if (event.kind == KvEvent::Kind::kCleared) hashes.clear();
      if (event.kind == KvEvent::Kind::kRemoved) {
        for (const KvHash& hash : event.hashes) ASSERT_EQ(hashes.erase(hash), 1u) << "removed twice";
      }
      if (event.kind != KvEvent::Kind::kStored) continue;
      ASSERT_EQ(event.tokens.size(), event.hashes.size() * kKvBlockTokens);
      ASSERT_TRUE(!event.before || hashes.contains(*event.before)) << "follows what is not there";
      // Whoever reads the event can compute the hashes.
      KvHash before = event.before.value_or(KvSeedHash(kSeed));
      for (size_t i = 0; i < event.hashes.size(); ++i) {
        const auto tokens = std::span(event.tokens).subspan(i * kKvBlockTokens, kKvBlockTokens);
        before = KvBlockHash(before, tokens, KvKeysOf(event.scope.get(), i == 0 && !event.before));
        ASSERT_EQ(before, event.hashes[i]);
        ASSERT_TRUE(hashes.insert(before).second) << "stored twice";
      }
    }
  }
  int64_t Match(const Tokens& tokens, const KvScope* scope) const {
    KvHash before = KvSeedHash(kSeed);
    int64_t blocks = 0;
    for (size_t at = 0; at + kKvBlockTokens <= tokens.size(); at += kKvBlockTokens, ++blocks) {
      before = KvBlockHash(before, std::span(tokens).subspan(at, kKvBlockTokens), KvKeysOf(scope, at == 0));
      if (!hashes.contains(before)) break;
    }
    return blocks;
  }
};

// Requests with common prefixes on few blocks, several at a time: prefixes are computed twice, and chains lose their
// first blocks.
class Traffic {
 public:
  Traffic(int64_t blocks, uint32_t seed) : blocks_(blocks), random_(seed) {
    for (const char* name : {"", "sql", "chat"})
      for (const char* salt : {"", "a"})
        scopes_.push_back(std::make_shared<const KvScope>(
            KvScope{.lora_name = name, .lora_content = name, .cache_salt = salt}));
    log_.Attach(blocks);
    blocks_.cache().set_log(&log_);
  }

  int64_t Below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }
  BlockManager& blocks() { return blocks_; }
  KvEventLog& log() { return log_; }

  Tokens Prompt() {
    Tokens tokens;
    for (int64_t block = 1 + Below(10); block > 0; --block)
      tokens.insert(tokens.end(), kKvBlockTokens, static_cast<int32_t>(Below(3)));
    return tokens;
  }
  std::shared_ptr<const KvScope> Scope() {
    return Below(2) == 0 ? nullptr : scopes_[static_cast<size_t>(Below(std::ssize(scopes_)))];
  }
  static std::string Salt(const KvScope* scope) {
    return scope ? scope->lora_name + '/' + scope->cache_salt : "/";
  }

  void Begin() {
    Running request{.tokens = Prompt(), .scope = Scope()};
    request.root = request.content = blocks_.cache().TakeRoot(Salt(request.scope.get()), request.scope);
    blocks_.Attach(&request.table, request.tokens, &request.content);
    request.published = std::ssize(request.table);
    running_.push_back(std::move(request));
  }
  // A block of one of them is computed, or it ends.
  void Step() {
    if (running_.empty()) return;
    const size_t chosen = static_cast<size_t>(Below(std::ssize(running_)));
    Running& request = running_[chosen];
    const int64_t done = request.published * kKvBlockTokens;
    std::vector<BlockMove> moves;
    const int64_t evicted = blocks_.evictions();
    if (done < std::ssize(request.tokens) && Below(20) > 0 &&
        blocks_.Prepare(&request.table, done, done + kKvBlockTokens, &moves)) {
      const auto computed = std::span(request.tokens).first(static_cast<size_t>(done + kKvBlockTokens));
      blocks_.Publish(request.table, computed, request.root, &request.published, &request.content);
      cut_ += blocks_.evictions() - evicted > 1 ? 1 : 0;
      EXPECT_EQ(blocks_.CountCached(computed, request.root), std::ssize(computed) / kKvBlockTokens);
      return;
    }
    if (Below(200) == 0) blocks_.Uncache(request.table);  // its logits were not finite
    blocks_.Shrink(&request.table, 0);
    blocks_.cache().DropRoot(request.root);
    running_.erase(running_.begin() + static_cast<int64_t>(chosen));
  }
  size_t running() const { return running_.size(); }
  int64_t cut() const { return cut_; }  // chains that lost a block before their last one

  // What of the cache can be found, by hashes computed here.
  std::set<KvHash> Reachable() const {
    std::map<Content, std::pair<KvHash, std::shared_ptr<const KvScope>>> found;
    std::set<KvHash> hashes;
    blocks_.cache().ForEach([&](const KvChange& stored) {
      const auto before = found.find(stored.before);
      if (!stored.first && before == found.end()) return;
      const auto scope = stored.first ? stored.scope : before->second.second;
      const KvHash hash = KvBlockHash(stored.first ? KvSeedHash(kSeed) : before->second.first, stored.tokens,
                                      KvKeysOf(scope.get(), stored.first));
      found[stored.content] = {hash, scope};
      EXPECT_TRUE(hashes.insert(hash).second) << "two blocks with one hash";
    });
    return hashes;
  }
  // How much of a prompt the cache has, asked as a request would.
  int64_t Find(const Tokens& tokens, const std::shared_ptr<const KvScope>& scope) {
    const Content root = blocks_.cache().TakeRoot(Salt(scope.get()), scope);
    const int64_t blocks = blocks_.CountCached(tokens, root);
    blocks_.cache().DropRoot(root);
    return blocks;
  }

 private:
  struct Running {
    Tokens tokens;
    std::shared_ptr<const KvScope> scope;
    Content root = 0, content = 0;
    BlockTable table = {};
    int64_t published = 0;
  };

  BlockManager blocks_;
  KvEventLog log_;
  std::mt19937 random_;
  std::vector<std::shared_ptr<const KvScope>> scopes_;
  std::vector<Running> running_;
  int64_t cut_ = 0;
};

TEST(KvChains, AnIndexOfTheEventsEqualsTheCacheAfterTenThousandRequests) {
  Traffic traffic(48, 1);
  KvChains chains(kSeed);
  Index index;
  int64_t requests = 0, hits = 0;
  for (int64_t step = 0; requests < 10'000; ++step) {
    if (traffic.running() < 5 && traffic.Below(2) == 0) {
      traffic.Begin();
      ++requests;
    }
    traffic.Step();
    traffic.log().EndStep(traffic.blocks().cache());
    if (step % 3 != 0) continue;  // the reader may come later
    index.Apply(chains.Read(traffic.log().Take(0ms)));
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "step " << step;
    ASSERT_EQ(chains.size(), std::ssize(index.hashes));
    ASSERT_EQ(chains.size(), traffic.blocks().cache().size()) << "a block that nobody can find";
    if (step % 30 != 0) continue;
    ASSERT_EQ(index.hashes, traffic.Reachable()) << "step " << step;
    const Tokens prompt = traffic.Prompt();
    const auto scope = traffic.Scope();
    const int64_t found = traffic.Find(prompt, scope);
    ASSERT_EQ(index.Match(prompt, scope.get()), found) << "step " << step;
    hits += found;
  }
  EXPECT_GT(traffic.blocks().evictions(), 10'000);
  EXPECT_GT(traffic.cut(), 0) << "no chain lost its first blocks: the test does not show what it should";
  EXPECT_GT(hits, 0);
  EXPECT_EQ(traffic.log().dropped(), 0);
}

TEST(KvChains, AReaderThatWasTooSlowGetsTheWholeCache) {
  Traffic traffic(64, 2);
  KvChains chains(kSeed);
  Index index;
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      if (traffic.running() < 4) traffic.Begin();
      traffic.Step();
      traffic.log().EndStep(traffic.blocks().cache());
    }
  };
  const auto read = [&] { index.Apply(chains.Read(traffic.log().Take(0ms))); };
  run(100);
  read();
  ASSERT_FALSE(index.hashes.empty());
  while (traffic.log().dropped() == 0) run(1000);
  run(1000);
  // Nothing is claimed that may be gone.
  read();
  EXPECT_TRUE(index.hashes.empty());
  EXPECT_TRUE(traffic.log().Take(0ms).empty());
  const int64_t dropped = traffic.log().dropped();
  for (int i = 0; i < 100; ++i) {
    run(1);
    read();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    ASSERT_EQ(index.hashes, traffic.Reachable());
  }
  EXPECT_FALSE(index.hashes.empty());
  EXPECT_LE(traffic.log().dropped(), dropped + 100);
}

TEST(KvChains, BlocksOfOneStepAndOneChainAreOneEvent) {
  Traffic traffic(8, 3);
  PrefixCache& cache = traffic.blocks().cache();
  KvChains chains(kSeed);
  const auto scope = std::make_shared<const KvScope>(KvScope{.lora_name = "sql", .lora_id = 4});
  const Content root = cache.TakeRoot("sql", scope);
  Content content = root;
  Tokens tokens(3 * kKvBlockTokens);
  std::iota(tokens.begin(), tokens.end(), 100);
  for (size_t block = 0; block < 3; ++block)
    content = cache.Insert(content, std::span(tokens).subspan(block * kKvBlockTokens).first<kKvBlockTokens>(),
                           static_cast<int32_t>(block));
  traffic.log().EndStep(cache);
  std::vector<KvEvent> events = chains.Read(traffic.log().Take(0ms));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, KvEvent::Kind::kCleared);
  EXPECT_EQ(events[1].kind, KvEvent::Kind::kStored);
  EXPECT_EQ(events[1].hashes.size(), 3u);
  EXPECT_FALSE(events[1].before);
  EXPECT_EQ(events[1].tokens, tokens);
  EXPECT_EQ(events[1].scope, scope);
  // Without its first block the chain is gone.
  const KvHash last = events[1].hashes[2];
  EXPECT_EQ(cache.Erase(0).size(), 3u);
  EXPECT_TRUE(cache.Erase(2).empty());
  traffic.log().EndStep(cache);
  events = chains.Read(traffic.log().Take(0ms));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, KvEvent::Kind::kRemoved);
  EXPECT_EQ(events[0].hashes.size(), 3u);
  EXPECT_EQ(events[0].hashes[0], last) << "each before the one that it stands behind";
  EXPECT_EQ(chains.size(), 0);
  traffic.blocks().UncacheAll();
  traffic.log().EndStep(cache);
  events = chains.Read(traffic.log().Take(0ms));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, KvEvent::Kind::kCleared);
  EXPECT_EQ(cache.size(), 0);
  cache.DropRoot(root);
}

TEST(KvEventLog, StopEndsTheWait) {
  KvEventLog log;
  log.Stop();
  EXPECT_TRUE(log.Take(1h).empty());
}

}  // namespace
}  // namespace celer
