#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/source_dir.h"
#include "celer/log.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_writer.h"
#include "text/regex/regex.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/gguf_pre.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;
namespace fs = std::filesystem;

Result<std::unique_ptr<Tokenizer>> Load(const std::function<void(GgufWriter&)>& fill) {
  const fs::path path = fs::path(testing::TempDir()) / ("celer_vocab_" + std::to_string(getpid()) + ".gguf");
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  fill(writer);
  const auto written = writer.Write(path, [](const TensorSpec&, const TensorSink&) { return Status(); });
  EXPECT_TRUE(written);
  auto file = GgufFile::Open(path);
  EXPECT_TRUE(file) << (file ? "" : file.error().message());
  auto tokenizer = Tokenizer::FromGguf(*file);
  fs::remove(path);
  return tokenizer;
}

struct Spm {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<float> scores;
  std::vector<int32_t> types = {2, 3, 3};
  Spm() {
    for (int byte = 0; byte < 256; ++byte) Add(ByteTokenName(static_cast<unsigned char>(byte)), 6);
    for (const char* token : {"ab", "\u2581ab", "\u2581", "a", "b", "s>", "<"}) Add(token, 1);  // from 259 on
    Add("<|eot_id|>", 3);
    Add("<user>", 4);
    for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i));
  }
  void Add(std::string token, int32_t type) {
    tokens.push_back(std::move(token));
    types.push_back(type);
  }
  void Fill(GgufWriter& w, const char* model = "llama") const {
    w.SetString("tokenizer.ggml.model", model);
    w.SetStringArray("tokenizer.ggml.tokens", tokens);
    w.SetFloatArray("tokenizer.ggml.scores", scores);
    w.SetIntArray("tokenizer.ggml.token_type", types);
  }
};

TEST(GgufTokenizer, SentencePieceByScores) {
  auto t = Load([](GgufWriter& w) {
    Spm().Fill(w);
    w.SetString("tokenizer.chat_template", "{{ messages }}");
  });
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ((*t)->Encode("ab ab"), (Ids{1, 260, 260}));
  EXPECT_EQ((*t)->Encode("\xFF", {.add_special = false}), (Ids{261, 3 + 0xFF}));  // raw bytes survive
  EXPECT_EQ((*t)->Encode("ab<user>ab", {.add_special = false, .parse_special = false}), (Ids{260, 267, 260}));
  // "<" and "s>" are tokens; their join is a control token, which plain text may not become.
  EXPECT_EQ((*t)->Encode("<s>", {.add_special = false, .parse_special = false}), (Ids{261, 265, 264}));
  EXPECT_EQ((*t)->Encode("<s>", {.add_special = false}), Ids{1});
  EXPECT_EQ((*t)->Decode(Ids{1, 260, 260, 266}), "ab ab");
  EXPECT_EQ((*t)->Decode(Ids{1, 260}, false), "<s> ab");
  EXPECT_EQ((*t)->chat_template(), "{{ messages }}");
  EXPECT_EQ((*t)->bos_id(), 1);
  EXPECT_THAT((*t)->end_of_turn_ids(), ElementsAre(2, 266));
  EXPECT_TRUE((*t)->IsSpecial(266));
  EXPECT_FALSE((*t)->IsSpecial(267));
}

TEST(GgufTokenizer, FlagsOfTheFile) {
  auto t = Load([](GgufWriter& w) {
    Spm().Fill(w);
    w.SetBool("tokenizer.ggml.add_bos_token", false);
    w.SetBool("tokenizer.ggml.add_eos_token", true);
    w.SetBool("tokenizer.ggml.add_space_prefix", false);
    w.SetUint32("tokenizer.ggml.eot_token_id", 260);
  });
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ((*t)->Encode("ab"), (Ids{259, 2}));
  EXPECT_EQ((*t)->Decode(Ids{260}), " ab");
  EXPECT_TRUE((*t)->IsEndOfTurn(260));
}

TEST(GgufTokenizer, SentencePieceByMerges) {
  auto t = Load([](GgufWriter& w) {
    Spm().Fill(w, "gemma4");
    w.SetStringArray("tokenizer.ggml.merges", std::vector<std::string>{"a b", "\u2581 ab"});
    w.SetUint32("tokenizer.ggml.bos_token_id", 1);
    w.SetUint32("tokenizer.ggml.unknown_token_id", 0);
  });
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ((*t)->Encode("ab ab"), (Ids{1, 259, 260}));  // no space before the text
  EXPECT_EQ((*t)->Encode("b a\n", {.add_special = false}), (Ids{263, 261, 262, 3 + '\n'}));
  EXPECT_EQ((*t)->Encode("<user> ab", {.add_special = false}), (Ids{267, 260}));
  EXPECT_EQ((*t)->Decode(Ids{1, 260, 259, 3 + '\n'}), " abab\n");
}

void FillGpt2(GgufWriter& w, const std::vector<std::string>& merges, const char* pre = "gpt-2") {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(ByteLevelEncode(std::string(1, static_cast<char>(byte))));
  std::vector<int32_t> types(256, 1);
  for (const auto& [token, type] :
       {std::pair("th", 1), {"the", 1}, {"\u0120the", 1}, {"<|end|>", 3}, {"\u00F8", 4}}) {
    tokens.emplace_back(token);
    types.push_back(type);
  }
  tokens[0xF8] = "moved";  // its character is the user-defined token 260
  w.SetString("tokenizer.ggml.model", "gpt2");
  if (pre) w.SetString("tokenizer.ggml.pre", pre);
  w.SetStringArray("tokenizer.ggml.tokens", tokens);
  w.SetIntArray("tokenizer.ggml.token_type", types);
  w.SetStringArray("tokenizer.ggml.merges", merges);
  w.SetUint32("tokenizer.ggml.eos_token_id", 259);
}

TEST(GgufTokenizer, ByteLevelBpe) {
  auto t = Load([](GgufWriter& w) { FillGpt2(w, {"t h", "th e", "\u0120 the"}); });
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ((*t)->Encode("the the<|end|>"), (Ids{257, 258, 259}));
  EXPECT_EQ((*t)->Encode("\u00F8"), Ids{260});
  EXPECT_EQ((*t)->Decode(Ids{257, 260, 258}), "the\u00F8 the");  // a user-defined token is its own text
  EXPECT_EQ((*t)->Piece(260), "\u00F8");
  EXPECT_EQ((*t)->eos_id(), 259);
  EXPECT_EQ((*t)->bos_id(), std::nullopt);
}

TEST(GgufTokenizer, UnknownPreTokenizerFallsBack) {
  SetLogSink(StderrLog());
  testing::internal::CaptureStderr();
  auto t = Load([](GgufWriter& w) { FillGpt2(w, {"t h"}, "brand-new"); });
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_THAT(said, HasSubstr("brand-new"));
  EXPECT_EQ((*t)->Decode((*t)->Encode("the 12345, x")), "the 12345, x");
}

TEST(GgufTokenizer, EveryPreTokenizerCompiles) {
  for (const char* name :
       {"default", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "deepseek-v3", "smollm",
        "falcon", "tekken", "gpt-4o", "bloom", "viking", "qwen35", "stablelm2"}) {
    const GgufPre* pre = FindGgufPre(name);
    ASSERT_NE(pre, nullptr) << name;
    for (const std::string& regex : pre->regexes) EXPECT_TRUE(Regex::Compile(regex)) << name << ": " << regex;
  }
  EXPECT_EQ(FindGgufPre("nothing"), nullptr);
}

TEST(GgufTokenizer, HostileFiles) {
  const auto message = [](const std::function<void(GgufWriter&)>& fill) {
    const auto t = Load(fill);
    return t ? std::string("none") : t.error().message();
  };
  EXPECT_THAT(message([](GgufWriter&) {}), HasSubstr("tokenizer.ggml.model"));
  EXPECT_THAT(message([](GgufWriter& w) { w.SetString("tokenizer.ggml.model", "rwkv"); }),
              HasSubstr("'rwkv'"));
  EXPECT_THAT(message([](GgufWriter& w) { w.SetString("tokenizer.ggml.model", "llama"); }),
              HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(message([](GgufWriter& w) {
                Spm spm;
                spm.scores.pop_back();
                spm.Fill(w);
              }),
              HasSubstr("tokenizer.ggml.scores"));
  EXPECT_THAT(message([](GgufWriter& w) {
                Spm spm;
                spm.types.pop_back();
                spm.Fill(w);
              }),
              HasSubstr("tokenizer.ggml.token_type"));
  EXPECT_THAT(message([](GgufWriter& w) {
                Spm spm;
                spm.scores[7] = NAN;
                spm.Fill(w);
              }),
              HasSubstr("NaN"));
  EXPECT_THAT(message([](GgufWriter& w) {
                Spm().Fill(w);
                w.SetUint32("tokenizer.ggml.bos_token_id", 5000);
              }),
              HasSubstr("5000"));
  EXPECT_THAT(message([](GgufWriter& w) { FillGpt2(w, {"nospace"}); }), HasSubstr("merge 0"));
  EXPECT_THAT(message([](GgufWriter& w) { FillGpt2(w, {"t q"}); }),
              HasSubstr("'tq' is not in the vocabulary"));
  EXPECT_THAT(message([](GgufWriter& w) { FillGpt2(w, {""}); }), HasSubstr("merge 0"));
}

// ---- The published vectors: cases separated by lines "__ggml_vocab_test__", one line of ids for each.

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class Vectors : public testing::TestWithParam<const char*> {};

TEST_P(Vectors, Agree) {
  const fs::path folder = fs::path(kSourceDir) / ".." / "shared" / "data" / "vocab";
  const fs::path base = folder / (std::string("ggml-vocab-") + GetParam() + ".gguf");
  if (!fs::exists(base.string() + ".xz")) GTEST_SKIP() << base.string() << ".xz is not there";
  if (std::system("xz --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "the program xz is not there";
  const fs::path unpacked =
      fs::path(testing::TempDir()) / ("celer_" + std::to_string(getpid()) + base.filename().string());
  ASSERT_EQ(std::system(("xz -dc '" + base.string() + ".xz' > '" + unpacked.string() + "'").c_str()), 0);
  auto file = GgufFile::Open(unpacked);
  fs::remove(unpacked);  // the mapping stays
  ASSERT_TRUE(file) << file.error().message();
  auto t = Tokenizer::FromGguf(*file);
  ASSERT_TRUE(t) << t.error().message();

  const std::string separator = "\n__ggml_vocab_test__\n";
  std::string cases = Read(base.string() + ".inp");
  std::istringstream expected(Read(base.string() + ".out"));
  int count = 0;
  for (size_t at = 0; at < cases.size(); ++count) {
    const size_t end = cases.find(separator, at);
    const std::string text = cases.substr(at, end == std::string::npos ? end : end - at);
    at = end == std::string::npos ? end : end + separator.size();
    std::string line;
    ASSERT_TRUE(std::getline(expected, line)) << "no ids for case " << count;
    std::istringstream numbers(line);
    const Ids ids{std::istream_iterator<int32_t>(numbers), {}};
    EXPECT_EQ((*t)->Encode(text, {.add_special = false, .parse_special = false}), ids) << text;
    EXPECT_EQ((*t)->Decode(ids), text);
  }
  EXPECT_GT(count, 40);
}

INSTANTIATE_TEST_SUITE_P(Published, Vectors,
                         testing::Values("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"),
                         [](const auto& vocabulary) {
                           std::string name = vocabulary.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace celer
