#include "text/tokenizer/model/model.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/model/flat_map.h"
#include "text/tokenizer/model/trie.h"

namespace celer {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

// Random words over a few letters, with merges that make them.
struct Random {
  explicit Random(uint32_t seed) : rng(seed) {
    for (const char c : std::string("abc")) tokens.emplace_back(1, c);
    while (tokens.size() < 40) {
      const std::string &a = Pick(), &b = Pick();
      std::string joined = a + b;
      if (joined.size() > 8 || std::find(tokens.begin(), tokens.end(), joined) != tokens.end()) continue;
      merges.emplace_back(a, b);
      tokens.push_back(std::move(joined));
    }
    for (size_t i = 0; i < tokens.size(); ++i) vocabulary.Add(tokens[i], static_cast<int32_t>(i));
  }
  const std::string& Pick() { return tokens[rng() % tokens.size()]; }
  std::string Text(size_t length) {
    std::string out;
    while (out.size() < length) out += "abc"[rng() % 3];
    return out;
  }

  std::mt19937 rng;
  std::vector<std::string> tokens;
  Merges merges;
  Vocabulary vocabulary;
};

// Straight from the definition: again and again the best pair, the leftmost of equals.
std::vector<int32_t> SlowBpe(const Random& random, const std::string& text) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (;;) {
    size_t best = SIZE_MAX, best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      for (size_t rank = 0; rank < random.merges.size() && rank < best_rank; ++rank)
        if (random.merges[rank] == std::pair(parts[i], parts[i + 1])) best = i, best_rank = rank;
    if (best == SIZE_MAX) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(*random.vocabulary.Find(part));
  return ids;
}

std::vector<int32_t> Tokens(const TokenModel& model, std::string_view text) {
  std::vector<int32_t> ids;
  model.Tokenize(text, ids);
  return ids;
}

TEST(Bpe, ShortAndLongWordsFollowTheDefinition) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    auto model = MakeBpe(random.vocabulary, random.merges, {}, {}, "test");
    ASSERT_TRUE(model);
    for (const size_t length : {1u, 2u, 3u, 23u, 24u, 25u, 60u, 150u}) {
      const std::string text = random.Text(length);
      EXPECT_EQ(Tokens(**model, text), SlowBpe(random, text)) << seed << " " << text;
    }
  }
}

TEST(Bpe, WordsAreCutOnlyWhereNoMergeCrosses) {
  const std::string space = "\u2581";
  for (const bool crossing : {false, true}) {
    Vocabulary vocabulary;
    int32_t id = 0;
    for (const std::string& token : {space, std::string("a"), "a" + space, space + "a", std::string("aa")})
      vocabulary.Add(token, id++);
    Merges merges = {{space, "a"}, {"a", "a"}};
    if (crossing) merges.insert(merges.begin(), {"a", space});
    auto model = MakeBpe(vocabulary, merges, {}, {}, "test");
    ASSERT_TRUE(model);
    std::string text;
    for (int i = 0; i < 40; ++i) text += "a" + space;
    const std::vector<int32_t> ids = Tokens(**model, text);
    if (crossing) {
      EXPECT_EQ(ids, std::vector<int32_t>(40, 2));
    } else {
      EXPECT_EQ(ids.size(), 41u);
      EXPECT_EQ(ids[1], 3);
      EXPECT_EQ(ids.back(), 0);
    }
  }
}

TEST(Bpe, UnknownCharacters) {
  Vocabulary vocabulary;
  int32_t id = 0;
  for (const char* token : {"<unk>", "a"}) vocabulary.Add(token, id++);
  const auto run = [&](BpeOptions options, std::string_view text) {
    auto model = MakeBpe(vocabulary, {}, {}, options, "test");
    EXPECT_TRUE(model);
    return Tokens(**model, text);
  };
  EXPECT_EQ(run({}, "axya"), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(run({.unk_token = "<unk>"}, "axya"), (std::vector<int32_t>{1, 0, 0, 1}));
  EXPECT_EQ(run({.unk_token = "<unk>", .fuse_unk = true}, "axya"), (std::vector<int32_t>{1, 0, 1}));
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.Add(ByteTokenName(static_cast<unsigned char>(byte)), id++);
  EXPECT_EQ(run({.unk_token = "<unk>", .byte_fallback = true}, "a\u20AC"),
            (std::vector<int32_t>{1, 2 + 0xE2, 2 + 0x82, 2 + 0xAC}));
}

TEST(Bpe, MergesNameTokensThatExist) {
  Vocabulary vocabulary;
  vocabulary.Add("a", 0);
  vocabulary.Add("b", 1);
  const auto model = MakeBpe(vocabulary, {{"a", "b"}}, {}, {}, "f.json");
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message(), "f.json: merge 0 is 'a' with 'b', but 'ab' is not in the vocabulary");
}

TEST(Bpe, NoMergeMakesAForbiddenToken) {
  Vocabulary vocabulary;
  int32_t id = 0;
  for (const char* token : {"<", "s", ">", "<s", "<s>"}) vocabulary.Add(token, id++);
  std::vector<bool> never(5);
  never[4] = true;
  auto model = MakeBpe(vocabulary, {{"<", "s"}, {"<s", ">"}}, never, {.ignore_merges = true}, "test");
  ASSERT_TRUE(model);
  EXPECT_EQ(Tokens(**model, "<s>"), (std::vector<int32_t>{3, 2}));
}

// run.c of llama2.c, from its definition.
std::vector<int32_t> SlowScored(const Vocabulary& vocabulary, const std::vector<float>& scores,
                                const std::string& text) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (;;) {
    float best_score = -std::numeric_limits<float>::infinity();
    size_t best = SIZE_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      if (const auto id = vocabulary.Find(parts[i] + parts[i + 1]); id && scores[*id] > best_score)
        best = i, best_score = scores[*id];
    if (best == SIZE_MAX) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(*vocabulary.Find(part));
  return ids;
}

TEST(ScoredBpe, FollowsTheDefinition) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    std::vector<float> scores;
    for (size_t i = 0; i < random.tokens.size(); ++i)
      scores.push_back(-static_cast<float>(random.rng() % 30));
    const auto model = MakeScoredBpe(random.vocabulary, scores, {}, std::vector<int32_t>(256, -1), {});
    for (const size_t length : {1u, 2u, 7u, 64u, 200u}) {
      const std::string text = random.Text(length);
      EXPECT_EQ(Tokens(*model, text), SlowScored(random.vocabulary, scores, text)) << seed << " " << text;
    }
  }
}

TEST(ScoredBpe, BytesUnknownsAndLongTokens) {
  Vocabulary vocabulary;
  int32_t id = 0;
  vocabulary.Add("<unk>", id++);
  vocabulary.Add("a", id++);
  vocabulary.Add("\u20ACa", id++);  // its first character is no token
  vocabulary.Add(std::string(300, 'a'), id++);
  std::string half(150, 'a');
  vocabulary.Add(half, id++);
  for (size_t n = 2; n < 150; ++n) vocabulary.Add(std::string(n, 'a'), id++);
  std::vector<bool> never(vocabulary.size());
  never[0] = true;
  std::vector<float> scores(vocabulary.size());
  std::vector<int32_t> bytes(256, -1);
  const auto joining = MakeScoredBpe(vocabulary, scores, never, bytes, {.unk_id = 0});
  EXPECT_EQ(Tokens(*joining, "\u20ACa"), std::vector<int32_t>{2});
  EXPECT_EQ(Tokens(*joining, "<unk>"), (std::vector<int32_t>{0, 0, 0, 0, 0}));
  const auto plain = MakeScoredBpe(vocabulary, scores, never, bytes, {.unk_id = 0, .join_unknown = false});
  EXPECT_EQ(Tokens(*plain, "\u20ACa"), (std::vector<int32_t>{0, 1}));
  bytes[0xFF] = 1;
  const auto with_bytes = MakeScoredBpe(vocabulary, scores, never, bytes, {.unk_id = 0});
  EXPECT_EQ(Tokens(*with_bytes, "\xFF\xFE"), (std::vector<int32_t>{1, 0}));
}

TEST(Unigram, FindsTheBestOfAllSegmentations) {
  std::mt19937 rng(3);
  for (int round = 0; round < 30; ++round) {
    Random random(static_cast<uint32_t>(round));
    std::vector<double> scores;
    for (size_t i = 0; i < random.tokens.size(); ++i)
      scores.push_back(-0.001 * static_cast<double>(rng() % 9999));
    const auto model = MakeUnigram(random.vocabulary, scores, {}, {});
    const std::string text = random.Text(12);
    double sum = 0;
    std::string spelled;
    for (const int32_t id : Tokens(*model, text)) {
      sum += scores[id];
      spelled += random.vocabulary.Get(id);
    }
    EXPECT_EQ(spelled, text);
    std::vector<double> best(text.size() + 1, -1e9);  // the same maximum by another way: over all cuts
    best[0] = 0;
    for (size_t end = 1; end <= text.size(); ++end)
      for (size_t begin = 0; begin < end; ++begin)
        if (const auto id = random.vocabulary.Find(text.substr(begin, end - begin)))
          best[end] = std::max(best[end], best[begin] + scores[*id]);
    EXPECT_NEAR(sum, best.back(), 1e-9);
  }
}

TEST(Unigram, UnknownsFuse) {
  Vocabulary vocabulary;
  vocabulary.Add("<unk>", 0);
  vocabulary.Add("a", 1);
  const auto model = MakeUnigram(vocabulary, {0, -1}, {true}, {.unk_id = 0});
  EXPECT_EQ(Tokens(*model, "axya"), (std::vector<int32_t>{1, 0, 1}));
  EXPECT_EQ(Tokens(*model, "<unk>"), std::vector<int32_t>{0});
  const auto none = MakeUnigram(vocabulary, {0, -1}, {true}, {});
  EXPECT_EQ(Tokens(*none, "axya"), (std::vector<int32_t>{1, 1}));
}

TEST(Vocabulary, DuplicatesAndGaps) {
  Vocabulary vocabulary;
  EXPECT_TRUE(vocabulary.Add("a", 5));
  EXPECT_FALSE(vocabulary.Add("b", 5));
  EXPECT_EQ(vocabulary.size(), 6);
  EXPECT_FALSE(vocabulary.Has(2));
  EXPECT_EQ(vocabulary.Get(2), "");
  EXPECT_TRUE(vocabulary.Add("a", 1));
  EXPECT_EQ(vocabulary.Find("a"), 1);
  EXPECT_EQ(vocabulary.Get(5), "a");
  EXPECT_FALSE(vocabulary.Has(-1));
}

TEST(FlatMap, ManyKeys) {
  FlatMap<int> map;
  EXPECT_EQ(map.Find(1), nullptr);
  for (uint64_t i = 0; i < 10000; ++i) map[i * 0x100000001u] = static_cast<int>(i);
  EXPECT_EQ(map.size(), 10000u);
  for (uint64_t i = 0; i < 10000; ++i) ASSERT_EQ(*map.Find(i * 0x100000001u), static_cast<int>(i));
  EXPECT_EQ(map.Find(7), nullptr);
}

TEST(Trie, GivesPrefixesFromShortToLong) {
  Trie trie;
  EXPECT_TRUE(trie.empty());
  trie.Insert("ab", 1);
  trie.Insert("abcd", 2);
  trie.Insert("b", 3);
  trie.Insert("", 4);
  std::vector<std::pair<size_t, int32_t>> seen;
  trie.ForEachPrefix("abcde", [&](size_t length, int32_t value) { seen.emplace_back(length, value); });
  EXPECT_EQ(seen, (std::vector<std::pair<size_t, int32_t>>{{2, 1}, {4, 2}}));
  trie.ForEachPrefix("", [&](size_t, int32_t) { FAIL(); });
}

TEST(ByteLevel, AlphabetIsReversible) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(ByteLevelDecode(ByteLevelEncode(all)), all);
  EXPECT_EQ(ByteLevelEncode(" a\n"), "\u0120a\u010A");
  EXPECT_FALSE(ByteLevelDecode("a b"));
  EXPECT_FALSE(ByteLevelDecode("\u2581"));
  EXPECT_EQ(ParseByteToken("<0xfF>"), 0xFF);
  EXPECT_FALSE(ParseByteToken("<0xG0>"));
}

}  // namespace
}  // namespace celer
