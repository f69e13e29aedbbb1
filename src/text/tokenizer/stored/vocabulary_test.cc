#include "text/tokenizer/stored/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "io/file/test_folder.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/gguf_pre.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_json.h"

namespace celer {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr const char* kTexts[] = {"",
                                  "hello world",
                                  "  two  spaces and\nlines \n\n",
                                  "it's 12345 o'clock, won't it?",
                                  "Gr\u00fc\u00dfe \u4e16\u754c \U0001f600",
                                  "<s>special</s><extra> x",
                                  "lowlowerlowest new newer"};

class StoredVocabularyTest : public testing::Test {
 protected:
  void Write(const char* name, const Json& json) { std::ofstream(folder_ / name) << json.dump(); }

  Json Added(int id, const char* content, bool special) {
    return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
            {"rstrip", false}, {"normalized", false}, {"special", special}};
  }

  // Merges of some words over the 256 bytes.
  Json ByteLevelJson(const std::string& regex, bool ignore_merges) {
    Json vocab = Json::object(), merges = Json::array();
    int id = 0;
    for (int byte = 0; byte < 256; ++byte)
      vocab[ByteLevelEncode(std::string(1, static_cast<char>(byte)))] = id++;
    for (const auto& [left, right] :
         {std::pair("l", "o"), {"lo", "w"}, {"e", "r"}, {"low", "er"}, {"\u0120", "low"}}) {
      merges.push_back({left, right});
      vocab[std::string(left) + right] = id++;
    }
    const Json split = {
        {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
    const Json bytes = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    return {
        {"version", "1.0"},
        {"added_tokens",
         {Added(id, "<s>", true), Added(id + 1, "</s>", true), Added(id + 2, "<extra>", false)}},
        {"normalizer", nullptr},
        {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
        {"post_processor", nullptr},
        {"decoder", bytes},
        {"model", {{"type", "BPE"}, {"ignore_merges", ignore_merges}, {"vocab", vocab}, {"merges", merges}}}};
  }

  // As Llama 2's: bytes, then pieces in the order of their scores.
  Json SentencePieceJson(bool prefix) {
    Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}, merges = Json::array();
    int id = 3;
    for (int byte = 0; byte < 256; ++byte) vocab[ByteTokenName(static_cast<unsigned char>(byte))] = id++;
    for (const auto& [left, right] :
         {std::pair("l", "o"), {"\u2581", "lo"}, {"lo", "w"}, {"\u2581lo", "w"}, {"e", "r"}, {"low", "er"}}) {
      merges.push_back({left, right});
      const std::string piece = std::string(left) + right;
      if (!vocab.contains(piece)) vocab[piece] = id++;
    }
    for (const char* one : {"\u2581", "l", "o", "w", "e", "r", "n", "h", "d"}) vocab[one] = id++;
    Json normalizers = Json::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
    normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
    Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}};
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return {{"version", "1.0"},
            {"added_tokens", {Added(0, "<unk>", true), Added(1, "<s>", true), Added(2, "</s>", true)}},
            {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
            {"pre_tokenizer", nullptr},
            {"post_processor", nullptr},
            {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
            {"model",
             {{"type", "BPE"},
              {"unk_token", "<unk>"},
              {"fuse_unk", true},
              {"byte_fallback", true},
              {"vocab", vocab},
              {"merges", merges}}}};
  }

  StoredVocabulary FromFolder() {
    auto read = StoredVocabulary::FromHf(folder_.path());
    EXPECT_TRUE(read) << read.error().message();
    EXPECT_TRUE(*read);
    return **std::move(read);
  }

  // Into GGUF and back, compared at each step with the tokenizer of the folder.
  void ExpectSameEverywhere() {
    const auto original = Tokenizer::FromHfDirectory(folder_.path());
    ASSERT_TRUE(original) << original.error().message();
    GgufWriter writer;
    writer.SetString("general.architecture", "llama");
    FromFolder().WriteTo(&writer);
    ASSERT_TRUE(
        writer.Write(folder_ / "vocab.gguf", [](const TensorSpec&, const TensorSink&) { return Status(); }));
    const auto file = GgufFile::Open(folder_ / "vocab.gguf");
    ASSERT_TRUE(file) << file.error().message();
    const auto in_gguf = Tokenizer::FromGguf(*file);
    ASSERT_TRUE(in_gguf) << in_gguf.error().message();
    ExpectSame(**original, **in_gguf, "GGUF");
    const auto again = StoredVocabulary::FromGguf(*file);
    ASSERT_TRUE(again && *again);
    const TestFolder back;
    std::ofstream(back / "tokenizer.json") << (*again)->TokenizerJson().dump();
    std::ofstream(back / "tokenizer_config.json") << (*again)->TokenizerConfigJson().dump();
    const auto returned = Tokenizer::FromHfDirectory(back.path());
    ASSERT_TRUE(returned) << returned.error().message();
    ExpectSame(**original, **returned, "folder");
  }

  void ExpectSame(const Tokenizer& a, const Tokenizer& b, const char* what) {
    EXPECT_EQ(a.bos_id(), b.bos_id()) << what;
    EXPECT_EQ(a.eos_id(), b.eos_id()) << what;
    for (const char* text : kTexts) {
      const std::vector<int32_t> ids = a.Encode(text);
      EXPECT_EQ(ids, b.Encode(text)) << what << ": " << text;
      EXPECT_EQ(a.Decode(ids), b.Decode(ids)) << what << ": " << text;
    }
  }

  TestFolder folder_;
};

TEST_F(StoredVocabularyTest, ByteLevelOfEveryKnownSplit) {
  for (const char* pre : {"gpt-2", "llama-bpe", "dbrx", "qwen2", "qwen35", "tekken", "gpt-4o", "bloom"}) {
    SCOPED_TRACE(pre);
    const GgufPre& known = *FindGgufPre(pre);
    ASSERT_EQ(known.regexes.size(), 1u);
    Write("tokenizer.json", ByteLevelJson(known.regexes[0], known.ignore_merges));
    Write("tokenizer_config.json",
          {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"chat_template", "{{ x }}"}});
    const StoredVocabulary read = FromFolder();
    EXPECT_EQ(FindGgufPre(read.pre), &known) << read.pre;
    EXPECT_EQ(read.chat_template, "{{ x }}");
    EXPECT_EQ(read.types.back(), StoredVocabulary::kUserDefined);
    ExpectSameEverywhere();
  }
}

TEST_F(StoredVocabularyTest, SentencePiece) {
  for (const bool prefix : {true, false}) {
    SCOPED_TRACE(prefix);
    Write("tokenizer.json", SentencePieceJson(prefix));
    Write("tokenizer_config.json", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}});
    const StoredVocabulary read = FromFolder();
    EXPECT_EQ(read.kind, StoredVocabulary::Kind::kScored);
    EXPECT_EQ(read.space_prefix, prefix);
    EXPECT_EQ(read.types[3], StoredVocabulary::kByte);
    EXPECT_EQ(read.types[0], StoredVocabulary::kUnknown);
    ExpectSameEverywhere();
  }
}

TEST_F(StoredVocabularyTest, Llama2c) {
  Write("tokenizer.json", SentencePieceJson(true));
  Write("tokenizer_config.json", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}});
  StoredVocabulary read = FromFolder();
  const auto size = std::ssize(read.tokens);
  const auto bytes = read.Llama2cBytes(size);
  ASSERT_TRUE(bytes) << bytes.error().message();
  std::ofstream(folder_ / "tokenizer.bin") << *bytes;
  const auto of_llama2c = Tokenizer::FromLlama2c(folder_ / "tokenizer.bin", static_cast<int>(size));
  ASSERT_TRUE(of_llama2c) << of_llama2c.error().message();
  const auto original = Tokenizer::FromHfDirectory(folder_.path());
  ASSERT_TRUE(original);
  for (const char* text : {"low lower", "hello world"}) {
    std::vector<int32_t> ids = (*original)->Encode(text);
    ids.insert(ids.begin(), 1);  // which the format always has
    EXPECT_EQ(ids, (*of_llama2c)->Encode(text)) << text;
  }
  read.bos = 5;
  EXPECT_NE(read.Llama2cBytes(size).error().message().find("begins with token 5"), std::string::npos);
  Write("tokenizer.json", ByteLevelJson(FindGgufPre("gpt-2")->regexes[0], false));
  EXPECT_NE(FromFolder().Llama2cBytes(10).error().message().find("has merges"), std::string::npos);
}

TEST_F(StoredVocabularyTest, PadsAndRefuses) {
  StoredVocabulary read;
  EXPECT_FALSE(*StoredVocabulary::FromHf(folder_.path()));
  Write("tokenizer.json", ByteLevelJson(FindGgufPre("gpt-2")->regexes[0], false));
  read = FromFolder();
  const auto before = std::ssize(read.tokens);
  read.Pad(before + 2);
  EXPECT_EQ(read.tokens.back(), "[PAD" + std::to_string(before + 1) + "]");
  EXPECT_EQ(read.types.back(), StoredVocabulary::kUnused);
  Write("tokenizer.json", ByteLevelJson("[a-z]+", false));
  EXPECT_THAT(StoredVocabulary::FromHf(folder_.path()).error().message(), HasSubstr("GGUF has no name for"));
  Json unigram = ByteLevelJson("[a-z]+", false);
  unigram["model"] = {{"type", "Unigram"},
                      {"unk_id", 0},
                      {"vocab", Json::array({Json::array({"<unk>", 0.0}), Json::array({"a", -1.5})})}};
  unigram["added_tokens"] = Json::array();
  Write("tokenizer.json", unigram);
  EXPECT_THAT(StoredVocabulary::FromHf(folder_.path()).error().message(),
              HasSubstr("only BPE can be converted"));
}

}  // namespace
}  // namespace celer
