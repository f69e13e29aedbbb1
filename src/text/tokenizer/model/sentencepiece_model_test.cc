// tokenizer.model files written by hand: protobuf messages with a few pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string Bytes(int field, const std::string& value) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(value.size()) + value;
}
std::string Int(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}
std::string Piece(const std::string& text, float score, int type) {
  std::string bits(4, '\0');
  std::memcpy(bits.data(), &score, 4);
  return Bytes(1, Bytes(1, text) + Varint(2 << 3 | 5) + bits + Int(3, static_cast<uint64_t>(type)));
}

constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;

// BPE with byte fallback, as Llama 2 has it. Ids: 0-2 <unk> <s> </s>, 3-258 bytes, then the pieces.
std::string Model(const std::string& normalizer = Int(3, 1) + Int(4, 0)) {
  std::string out = Piece("<unk>", 0, kUnknown) + Piece("<s>", 0, kControl) + Piece("</s>", 0, kControl);
  for (int byte = 0; byte < 256; ++byte)
    out += Piece(ByteTokenName(static_cast<unsigned char>(byte)), 0, kByte);
  out += Piece("ab", -1, kNormal) + Piece("\u2581ab", -2, kNormal) + Piece("\u2581", -3, kNormal) +
         Piece("a", -4, kNormal) + Piece("b", -5, kNormal);
  out += Bytes(2, Int(3, 2) + Int(35, 1));  // trainer_spec: model_type BPE, byte_fallback
  return out + Bytes(3, normalizer);
}

class SentencePiece : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) /
            ("celer_sp_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  Result<std::unique_ptr<Tokenizer>> Load(const std::string& model, const std::string& config = "{}") {
    std::ofstream(path_ / "tokenizer.model", std::ios::binary) << model;
    std::ofstream(path_ / "tokenizer_config.json") << config;
    return Tokenizer::FromHfDirectory(path_);
  }
  std::filesystem::path path_;
};

TEST_F(SentencePiece, EncodesAndDecodes) {
  auto t = Load(Model());
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ((*t)->Encode("ab ab"), (Ids{1, 260, 260}));
  EXPECT_EQ((*t)->Encode("ab\u20AC", {.add_special = false}), (Ids{260, 3 + 0xE2, 3 + 0x82, 3 + 0xAC}));
  EXPECT_EQ((*t)->Decode((*t)->Encode(" ab\u20AC")), " ab\u20AC");
  EXPECT_EQ((*t)->Decode(Ids{3 + 0xE2, 3 + 0x82, 259}), "\uFFFD\uFFFDab");  // the library's way: one each
  EXPECT_EQ((*t)->bos_id(), 1);
  EXPECT_EQ((*t)->eos_id(), 2);
  EXPECT_EQ((*t)->unk_id(), 0);
  EXPECT_EQ((*t)->vocab_size(), 264);
  EXPECT_TRUE((*t)->IsSpecial(2));
  EXPECT_FALSE((*t)->IsSpecial(3));
}

TEST_F(SentencePiece, SpecialTokensInUserTextStayText) {
  auto t = Load(Model());
  ASSERT_TRUE(t);
  EXPECT_EQ((*t)->Encode("</s>", {.add_special = false}), Ids{2});
  for (const int32_t id : (*t)->Encode("</s><s><unk>", {.add_special = false, .parse_special = false}))
    EXPECT_FALSE((*t)->IsSpecial(id));
}

TEST_F(SentencePiece, LegacyPutsASpaceAfterSpecialTokens) {
  auto legacy = Load(Model());
  ASSERT_TRUE(legacy);
  EXPECT_EQ((*legacy)->Encode("<s>ab", {.add_special = false}), (Ids{1, 260}));
  auto modern = Load(Model(), R"({"legacy": false})");
  ASSERT_TRUE(modern);
  EXPECT_EQ((*modern)->Encode("<s>ab", {.add_special = false}), (Ids{1, 259}));
  EXPECT_EQ((*modern)->Encode("ab", {.add_special = false}), Ids{260});
}

TEST_F(SentencePiece, AddedTokensOfTheConfig) {
  auto t = Load(Model(), R"({"add_bos_token": false, "add_eos_token": true, "eos_token": "<|im_end|>",
                             "added_tokens_decoder": {"264": {"content": "<|im_end|>", "special": true}}})");
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ((*t)->eos_id(), 264);
  EXPECT_EQ((*t)->Encode("ab<|im_end|>"), (Ids{260, 264, 264}));
  EXPECT_EQ((*t)->Decode(Ids{260, 264}), "ab");
  EXPECT_EQ((*t)->vocab_size(), 265);
  EXPECT_THAT(Load(Model(), R"({"added_tokens_decoder": {"99999999": {"content": "x"}}})").error().message(),
              HasSubstr("99999999"));
}

// A run of one character has many segmentations of nearly the same probability: the rounding of their sums
// decides. Sums that are compared in double, as the library's version 0.1 does, give another one here.
TEST_F(SentencePiece, UnigramTiesAreDecidedInFloat) {
  constexpr int kUserDefined = 4;
  const auto model = [&](float one, float two, float three) {
    return Piece("<unk>", 0, kUnknown) + Piece("<s>", 0, kControl) + Piece("</s>", 0, kControl) +
           Piece("a", one, kNormal) + Piece("aa", two, kNormal) + Piece("aaa", three, kNormal) +
           Piece("\u2581", -1, kNormal) + Piece("word", 0, kUserDefined) + Bytes(2, Int(3, 1)) +
           Bytes(3, Int(3, 0) + Int(4, 0) + Int(5, 1));
  };
  const float one = -4.1f, two = -8.2f, three = -12.3f;
  auto t = Load(model(one, two, three));
  ASSERT_TRUE(t) << t.error().message();
  const std::string text(60, 'a');
  const Ids got = (*t)->Encode(text, {.add_special = false});
  // The same search, with sums in float.
  std::vector<float> best(text.size() + 1, 0);
  std::vector<size_t> from(text.size() + 1, SIZE_MAX);
  for (size_t at = 0; at < text.size(); ++at)
    for (size_t n = 1; n <= 3 && at + n <= text.size(); ++n) {
      const float sum = (n == 1 ? one : n == 2 ? two : three) + best[at];
      if (from[at + n] != SIZE_MAX && !(sum > best[at + n])) continue;
      best[at + n] = sum;
      from[at + n] = at;
    }
  Ids want;
  for (size_t end = text.size(); end > 0; end = from[end])
    want.insert(want.begin(), static_cast<int32_t>(2 + end - from[end]));
  EXPECT_EQ(got, want);
  EXPECT_EQ((*t)->Encode("aworda", {.add_special = false}), (Ids{3, 7, 3}));
  EXPECT_EQ((*t)->Encode("a\u20AC\u20ACa", {.add_special = false}), (Ids{3, 0, 3}));
}

TEST_F(SentencePiece, TheUnknownTokenDecodesToItsSurface) {
  auto t = Load(Model());
  ASSERT_TRUE(t);
  EXPECT_EQ((*t)->Decode(Ids{1, 0, 260, 0, 2}), " \u2047  ab \u2047 ");
  EXPECT_EQ((*t)->Decode(Ids{3 + 0xE2, 0}), "\uFFFD \u2047 ");
  auto other = Load(Model() + Bytes(2, Bytes(44, "?")));  // unk_surface
  ASSERT_TRUE(other);
  EXPECT_EQ((*other)->Decode(Ids{260, 0}), "ab?");
}

TEST_F(SentencePiece, HostileFiles) {
  for (const std::string& bytes : {std::string("nonsense"), std::string("\xFF\xFF\xFF"),
                                   Bytes(1, "x").substr(0, 2), std::string("\x0A\xFF\xFF\xFF\xFF\x7F", 6)}) {
    const auto t = Load(bytes);
    ASSERT_FALSE(t);
    EXPECT_THAT(t.error().message(), HasSubstr("tokenizer.model"));
  }
  const std::string whole = Model();
  for (size_t cut = 1; cut < whole.size(); cut += 7) {
    const auto t = Load(whole.substr(0, cut));  // must not crash; a prefix at a field's end may load
    if (t) (*t)->Encode("ab \u20AC");
  }
}

TEST_F(SentencePiece, NormalizationTableIsChecked) {
  const auto table = [](uint32_t trie_bytes, const std::vector<uint32_t>& units, const std::string& texts) {
    std::string out(4, '\0');
    std::memcpy(out.data(), &trie_bytes, 4);
    for (const uint32_t unit : units) {
      out.append(4, '\0');
      std::memcpy(out.data() + out.size() - 4, &unit, 4);
    }
    return Int(3, 1) + Int(4, 0) + Bytes(2, out + texts);
  };
  const std::vector<uint32_t> empty(256);
  EXPECT_TRUE(Load(Model(table(1024, empty, std::string(1, '\0')))));
  std::vector<uint32_t> outside = empty, leaf = empty;
  outside[0] = 0x3FFFFFu << 10;
  leaf[5] = 0x80000000u | 1000;
  for (const std::string& bad :
       {table(1024, outside, std::string(1, '\0')), table(1024, leaf, std::string(1, '\0')),
        table(1024, empty, "x"), table(1024, empty, ""), table(4096, empty, std::string(1, '\0')),
        table(0xFFFFFFFFu, empty, std::string(1, '\0')), table(1023, empty, std::string(1, '\0'))}) {
    const auto t = Load(Model(bad));
    ASSERT_FALSE(t);
    EXPECT_THAT(t.error().message(), HasSubstr("normalization table"));
  }
}

}  // namespace
}  // namespace celer
