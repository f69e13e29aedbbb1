#include "text/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"

namespace celer {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> Make(const json& spec, const HfTokenizerConfig& config = {}) {
  auto made = TokenizerFromJson(spec, config, "tokenizer.json");
  EXPECT_TRUE(made) << (made ? "" : made.error().message());
  return made ? std::move(*made) : nullptr;
}

std::string Failure(const json& spec) {
  const auto made = TokenizerFromJson(spec, {}, "tokenizer.json");
  EXPECT_FALSE(made) << spec.dump().substr(0, 300);
  return made ? "" : made.error().message();
}

// Byte-level: ids 0..255 are the bytes, then "th", "the", " the"; then the added tokens.
json ByteLevelSpec() {
  json vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab[ByteLevelEncode(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["th"] = 256;
  vocab["the"] = 257;
  vocab["\u0120the"] = 258;
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 259}, {"content", "<|end|>"}, {"special", true}},
            {{"id", 260}, {"content", "<|left|>"}, {"special", true}, {"lstrip", true}},
            {{"id", 261}, {"content", "<|right|>"}, {"special", true}, {"rstrip", true}},
            {{"id", 262}, {"content", "word"}, {"single_word", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<|end|>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", {{"<|end|>", {{"ids", {259}}}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e", {"\u0120", "the"}}}}}};
}

TEST(TokenizerJson, ByteLevelBpe) {
  const auto t = Make(ByteLevelSpec());
  EXPECT_EQ(t->Encode("the the"), (Ids{259, 257, 258}));
  EXPECT_EQ(t->Encode("the the", {.add_special = false}), (Ids{257, 258}));
  EXPECT_EQ(t->Encode(""), Ids{259});
  EXPECT_EQ(t->vocab_size(), 263);
  EXPECT_EQ(t->Find("<|end|>"), 259);
  EXPECT_EQ(t->Find("\u0120the"), 258);
  EXPECT_EQ(t->Find("nothing"), std::nullopt);
  EXPECT_EQ(t->Piece(258), " the");
  EXPECT_EQ(t->Piece(0xE2), "\xE2");
  EXPECT_EQ(t->Piece(-1), "");
  EXPECT_EQ(t->Piece(99999), "");
  EXPECT_TRUE(t->IsSpecial(259));
  EXPECT_FALSE(t->IsSpecial(262));
  EXPECT_FALSE(t->IsSpecial(-5));
  EXPECT_EQ(t->Decode(t->Encode("\u20AC the\nend")), "\u20AC the\nend");
}

TEST(TokenizerJson, SpecialTokensInUserTextStayText) {
  const auto t = Make(ByteLevelSpec());
  const Ids parsed = t->Encode("a<|end|>b", {.add_special = false});
  EXPECT_EQ(parsed, (Ids{'a', 259, 'b'}));
  const Ids plain = t->Encode("a<|end|>b", {.add_special = false, .parse_special = false});
  EXPECT_EQ(plain.size(), 9u);
  for (const int32_t id : plain) EXPECT_FALSE(t->IsSpecial(id));
  EXPECT_EQ(t->Decode(plain), "a<|end|>b");
  EXPECT_EQ(t->Decode(parsed), "ab");
  EXPECT_EQ(t->Decode(parsed, false), "a<|end|>b");
}

TEST(TokenizerJson, SpecialTokenInTheVocabularyCannotBeSpelled) {
  json spec = ByteLevelSpec();
  spec["model"]["vocab"]["<s>"] = 259;
  spec["model"]["vocab"]["<s"] = 260;
  spec["model"]["merges"].push_back("< s");
  spec["model"]["merges"].push_back("<s >");
  spec["model"]["ignore_merges"] = true;
  spec["pre_tokenizer"]["use_regex"] = false;
  spec["post_processor"] = nullptr;
  spec["added_tokens"] = {{{"id", 259}, {"content", "<s>"}, {"special", true}}};
  const auto t = Make(spec);
  EXPECT_EQ(t->Encode("<s>"), Ids{259});
  EXPECT_EQ(t->Encode("<s>", {.parse_special = false}), (Ids{260, '>'}));
}

TEST(TokenizerJson, AddedTokensTakeWhiteSpaceAndKnowWords) {
  const auto t = Make(ByteLevelSpec());
  const EncodeOptions bare{.add_special = false};
  EXPECT_EQ(t->Encode("a  <|left|> b", bare), (Ids{'a', 260, ' ', 'b'}));
  EXPECT_EQ(t->Encode("a <|right|> \n b", bare), (Ids{'a', ' ', 261, 'b'}));
  EXPECT_EQ(t->Encode("word", bare), Ids{262});
  EXPECT_EQ(t->Encode("(word)", bare), (Ids{'(', 262, ')'}));
  EXPECT_EQ(t->Encode("swords", bare), (Ids{'s', 'w', 'o', 'r', 'd', 's'}));
  EXPECT_EQ(t->Encode("\u00E9word", bare).size(), 6u);
}

TEST(TokenizerJson, InvalidUtf8IsReplaced) {
  const auto t = Make(ByteLevelSpec());
  const EncodeOptions bare{.add_special = false};
  EXPECT_EQ(t->Encode("a\xFF", bare), t->Encode("a\uFFFD", bare));
  EXPECT_EQ(t->Encode("\xE2\x82", bare), t->Encode("\uFFFD", bare));
}

TEST(Detokenizer, NeverCutsACodePoint) {
  const auto t = Make(ByteLevelSpec());
  const std::string text = "a\u20AC\U0001F600 the \xE4";
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  ids.push_back(99999);
  ids.push_back(259);
  Detokenizer stream(*t);
  std::string all;
  for (const int32_t id : ids) {
    const std::string part = stream.Push(id);
    EXPECT_TRUE(utf8::IsValid(part));
    all += part;
  }
  EXPECT_EQ(all, "a\u20AC\U0001F600 the ");
  all += stream.Finish();
  EXPECT_EQ(all, "a\u20AC\U0001F600 the \uFFFD");
  EXPECT_EQ(all, t->Decode(ids));
}

json Llama2Spec() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[ByteTokenName(static_cast<unsigned char>(byte))] = 3 + byte;
  int id = 259;
  for (const char* token : {"\u2581", "a", "b", "ab", "\u2581ab"}) vocab[token] = id++;
  return {{"added_tokens",
           {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
            {{"id", 1}, {"content", "<s>"}, {"special", true}},
            {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"a b", "\u2581 ab"}}}}};
}

TEST(TokenizerJson, Llama2) {
  const auto t = Make(Llama2Spec());
  EXPECT_EQ(t->Encode("ab ab"), (Ids{263, 263}));
  EXPECT_EQ(t->Encode("ab\u20AC"), (Ids{263, 3 + 0xE2, 3 + 0x82, 3 + 0xAC}));
  EXPECT_EQ(t->Decode(Ids{1, 263, 263, 2}), "ab ab");
  EXPECT_EQ(t->Decode(Ids{1, 263}, false), "<s> ab");
  // A run of bytes is text only if all of it is.
  EXPECT_EQ(t->Decode(Ids{3 + 0xE2, 3 + 0x82, 3 + 0xAC, 260}), "\u20ACa");
  EXPECT_EQ(t->Decode(Ids{3 + 'x', 3 + 0xE2, 260}), "\uFFFD\uFFFDa");
  EXPECT_EQ(t->Piece(263), " ab");
  EXPECT_EQ(t->Piece(3 + 0xE2), "\xE2");
  EXPECT_EQ(t->unk_id(), 0);
}

TEST(TokenizerJson, MetaspaceAtTheFirstPlaceOnly) {
  json spec = Llama2Spec();
  spec["normalizer"] = nullptr;
  spec["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", true}};
  spec["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  const auto t = Make(spec);
  EXPECT_EQ(t->Encode("ab<s>ab"), (Ids{263, 1, 262}));
  EXPECT_EQ(t->Encode(" ab"), Ids{263});
  EXPECT_EQ(t->Decode(Ids{263, 263}), "ab ab");
}

TEST(TokenizerJson, Unigram) {
  json spec = {{"pre_tokenizer", {{"type", "Metaspace"}}},
               {"decoder", {{"type", "Metaspace"}}},
               {"model",
                {{"type", "Unigram"},
                 {"unk_id", 0},
                 {"vocab", json::array({json::array({"<unk>", 0.0}), json::array({"\u2581", -2.0}),
                                        json::array({"a", -1.5}), json::array({"\u2581a", -1.0})})}}}};
  const auto t = Make(spec);
  EXPECT_EQ(t->Encode("a a"), (Ids{3, 3}));
  EXPECT_EQ(t->Encode("axy"), (Ids{3, 0}));
  spec["model"]["unk_id"] = 4;
  EXPECT_THAT(Failure(spec), HasSubstr("unk_id"));
}

TEST(TokenizerJson, BehavioursOfSplit) {
  const auto pieces = [&](const char* behavior, bool invert) {
    json spec = ByteLevelSpec();
    spec["post_processor"] = nullptr;
    spec["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    // A merge for every pair, so that a piece shows as one token.
    json vocab = spec["model"]["vocab"];
    spec["model"]["ignore_merges"] = true;
    int id = 263;
    for (const char* token :
         {"the-", "the-final--", "-final", "final-", "--", "final", "countdown", "-countdown"})
      vocab[token] = id++;
    spec["model"]["vocab"] = vocab;
    const auto t = Make(spec);
    std::vector<std::string> out;
    for (const int32_t piece : t->Encode("the-final--countdown")) out.emplace_back(t->Piece(piece));
    return out;
  };
  EXPECT_THAT(pieces("Isolated", false), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(pieces("Removed", false), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(pieces("Removed", true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(pieces("MergedWithPrevious", false), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(pieces("MergedWithNext", false), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(pieces("Contiguous", false), ElementsAre("the", "-", "final", "--", "countdown"));
}

TEST(TokenizerJson, HostileFiles) {
  const json good = ByteLevelSpec();
  const auto with = [&](const char* pointer, json value) {
    json spec = good;
    spec[json::json_pointer(pointer)] = std::move(value);
    return spec;
  };
  EXPECT_THAT(Failure(json::array()), HasSubstr("tokenizer.json"));
  EXPECT_THAT(Failure({{"model", 3}}), HasSubstr("model"));
  EXPECT_THAT(Failure(with("/model/vocab/th", 2147483647)), HasSubstr("'th' has id 2147483647"));
  EXPECT_THAT(Failure(with("/model/vocab/th", 18446744073709551615u)), HasSubstr("'th'"));
  EXPECT_THAT(Failure(with("/model/vocab/th", -1)), HasSubstr("id -1"));
  EXPECT_THAT(Failure(with("/model/vocab/th", 257)), HasSubstr("both have id 257"));
  EXPECT_THAT(Failure(with("/model/vocab/th", 1.5)), HasSubstr("not an integer"));
  EXPECT_THAT(Failure(with("/model/merges", {"t h", "x"})), HasSubstr("merge 1"));
  EXPECT_THAT(Failure(with("/model/merges", {"a zz"})), HasSubstr("'zz' is not in the vocabulary"));
  EXPECT_THAT(Failure(with("/model/merges", json::array({json::array({"a", 1})}))), HasSubstr("merge 0"));
  EXPECT_THAT(Failure(with("/model/type", "WordGuess")), HasSubstr("WordGuess"));
  EXPECT_THAT(Failure(with("/added_tokens/0/id", 99999999)), HasSubstr("99999999"));
  EXPECT_THAT(Failure(with("/added_tokens/0/content", 7)), HasSubstr("content"));
  EXPECT_THAT(Failure(with("/post_processor/special_tokens", json::object())), HasSubstr("<|end|>"));
  EXPECT_THAT(Failure(with("/post_processor/special_tokens/<|end|>/ids", {5000})), HasSubstr("5000"));
  EXPECT_THAT(Failure(with("/post_processor/single", json::array())), HasSubstr("no place for the text"));
  EXPECT_THAT(Failure(with("/pre_tokenizer",
                           {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}})),
              HasSubstr("regular expression"));
  EXPECT_THAT(Failure(with("/pre_tokenizer", {{"type", "Moons"}})), HasSubstr("Moons"));
  EXPECT_THAT(Failure(with("/normalizer", {{"type", "Precompiled"}})), HasSubstr("precompiled_charsmap"));
  EXPECT_THAT(Failure(with("/decoder", {{"type", "WordGuess"}})), HasSubstr("WordGuess"));
  json deep = nullptr;
  for (int i = 0; i < 30; ++i) deep = {{"type", "Sequence"}, {"normalizers", json::array({deep})}};
  EXPECT_THAT(Failure(with("/normalizer", deep)), HasSubstr("nested"));
}

TEST(TokenizerJson, HostileRegexEnds) {
  json spec = ByteLevelSpec();
  spec["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a+)+$|(x+x+)+y"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto t = Make(spec);
  const std::string text = std::string(50000, 'a') + std::string(50000, 'x');
  EXPECT_EQ(t->Decode(t->Encode(text)), text);
}

TEST(TokenizerJson, LongWords) {
  json spec = ByteLevelSpec();
  spec["pre_tokenizer"]["use_regex"] = false;
  const auto t = Make(spec);
  std::string text;
  while (text.size() < 1000000) text += "the";
  EXPECT_EQ(t->Encode(text).size(), text.size() / 3 + 1);
}

TEST(TokenizerJson, ServesManyThreads) {
  const auto t = Make(ByteLevelSpec());
  const Ids expected = t->Encode("the word <|left|> \u20AC the");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t i = 0; i < wrong.size(); ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 100; ++round)
        wrong[i] += t->Encode("the word <|left|> \u20AC the") != expected;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

class Directory : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) /
            ("celer_hf_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void Write(const char* name, const std::string& text) {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  std::filesystem::path path_;
};

// In gpt-oss's vocabulary <|end|> is between two messages of an answer.
TEST_F(Directory, AMessageMayEndWithinAnAnswer) {
  const auto Ends = [&](const json& names) {
    json spec = ByteLevelSpec();
    spec["added_tokens"] = json::array();
    for (const json& name : names)
      spec["added_tokens"].push_back(
          {{"id", 259 + spec["added_tokens"].size()}, {"content", name}, {"special", true}});
    Write("tokenizer.json", spec.dump());
    return (*Tokenizer::FromHfDirectory(path_))->end_of_turn_ids();
  };
  EXPECT_THAT(Ends({"<|end|>", "<|channel|>", "<|return|>", "<|call|>"}), ElementsAre(261, 262));
  EXPECT_THAT(Ends({"<|end|>", "<|other|>", "<|return|>", "<|call|>"}), ElementsAre(259, 261, 262));
}

TEST_F(Directory, SmallFilesAreHeard) {
  Write("tokenizer.json", ByteLevelSpec().dump());
  Write("tokenizer_config.json",
        json{{"bos_token", {{"content", "<|end|>"}}},
             {"eos_token", "<|left|>"},
             {"pad_token", nullptr},
             {"chat_template", json::array({{{"name", "tool_use"}, {"template", "T"}},
                                            {{"name", "default"}, {"template", "D"}}})},
             {"added_tokens_decoder", {{"263", {{"content", "<|new|>"}, {"special", true}}}}}}
            .dump());
  Write("special_tokens_map.json", R"({"eos_token": "<|end|>", "pad_token": "<|right|>"})");
  Write("generation_config.json", R"({"eos_token_id": [261, 100000]})");
  auto t = Tokenizer::FromHfDirectory(path_);
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ((*t)->bos_id(), 259);
  EXPECT_EQ((*t)->eos_id(), 260);
  EXPECT_EQ((*t)->pad_id(), 261);
  EXPECT_EQ((*t)->chat_template(), "D");
  EXPECT_EQ((*t)->Find("<|new|>"), 263);
  EXPECT_THAT((*t)->end_of_turn_ids(), ElementsAre(259, 260, 261));  // <|end|> by its name
  EXPECT_TRUE((*t)->IsEndOfTurn(261));
  Write("chat_template.jinja", "{{ x }}");
  EXPECT_EQ((*Tokenizer::FromHfDirectory(path_))->chat_template(), "{{ x }}");
  EXPECT_TRUE(Tokenizer::FromHfDirectory(path_ / "tokenizer.json"));
}

TEST_F(Directory, LlamaClassesAddBosWithoutATemplate) {
  json spec = ByteLevelSpec();
  spec["post_processor"] = {{"type", "ByteLevel"}};
  Write("tokenizer.json", spec.dump());
  Write("tokenizer_config.json",
        R"({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true, "bos_token": "<|end|>"})");
  auto t = Tokenizer::FromHfDirectory(path_);
  ASSERT_TRUE(t);
  EXPECT_EQ((*t)->Encode("a"), (Ids{259, 'a'}));
}

TEST_F(Directory, Errors) {
  const auto message = [&] {
    const auto t = Tokenizer::FromHfDirectory(path_);
    return t ? std::string("none") : t.error().message();
  };
  EXPECT_THAT(message(), HasSubstr("neither tokenizer.json nor tokenizer.model"));
  Write("tokenizer.json", "{");
  EXPECT_THAT(message(), HasSubstr("not valid JSON"));
  Write("tokenizer.json", ByteLevelSpec().dump());
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})");
  EXPECT_THAT(message(), HasSubstr("'x'"));
  Write("tokenizer_config.json", "[]");
  EXPECT_THAT(message(), HasSubstr("tokenizer_config.json"));
  EXPECT_FALSE(Tokenizer::FromHfDirectory(path_ / "missing"));
}

json WordSpec(const std::string& type, json vocab) {
  return {{"added_tokens", {{{"id", 0}, {"content", "[UNK]"}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"model", {{"type", type}, {"unk_token", "[UNK]"}, {"vocab", std::move(vocab)}}}};
}

TEST(TokenizerJson, WordLevel) {
  json spec = WordSpec("WordLevel", {{"[UNK]", 0}, {"the", 1}, {"cat", 2}, {",", 3}});
  const auto t = Make(spec);
  EXPECT_EQ(t->Encode("the cat, thecat [UNK]"), (Ids{1, 2, 3, 0, 0}));
  EXPECT_EQ(t->Decode(Ids{1, 2, 3}), "the cat ,");
  EXPECT_EQ(t->unk_id(), 0);
  spec["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};  // so that the name of a special token is one word
  EXPECT_EQ(Make(spec)->Encode("the [UNK]x", {.parse_special = false}), (Ids{1, 0}));
  spec["model"]["unk_token"] = "missing";  // closed vocabulary: what is not in it vanishes
  EXPECT_EQ(Make(spec)->Encode("the dog cat"), (Ids{1, 2}));
  spec["model"].erase("type");
  EXPECT_EQ(Make(spec)->Encode("cat"), Ids{2});
}

TEST(TokenizerJson, WordPiece) {
  json spec =
      WordSpec("WordPiece", {{"[UNK]", 0}, {"un", 1}, {"##aff", 2}, {"##able", 3}, {"##a", 4}, {"!", 5}});
  spec["model"]["max_input_chars_per_word"] = 10;
  spec["model"]["continuing_subword_prefix"] = "##";
  spec["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  spec["normalizer"] = {{"type", "BertNormalizer"}};
  const auto t = Make(spec);
  EXPECT_EQ(t->Encode("UN\u00E0ffable! una unx unaffaaaaaaa"), (Ids{1, 2, 3, 5, 1, 4, 0, 0}));
  EXPECT_EQ(t->Decode(Ids{1, 2, 3, 5, 1}), "unaffable! un");
}

TEST(TokenizerJson, StepsOfWordModels) {
  const auto encode = [](json pre, const std::string& text, json normalizer = nullptr) {
    json spec = WordSpec("WordLevel",
                         {{"[UNK]", 0}, {"a", 1}, {"bc", 2}, {"\u0430", 3}, {"\u65E5\u3042", 4}, {"abc", 5}});
    spec["pre_tokenizer"] = std::move(pre);
    spec["normalizer"] = std::move(normalizer);
    return Make(spec)->Encode(text);
  };
  // Han and Hiragana are one script; a space before the first script is lost.
  EXPECT_EQ(encode({{"type", "UnicodeScripts"}}, " a\u0430\u65E5\u3042"), (Ids{1, 3, 4}));
  EXPECT_EQ(encode({{"type", "FixedLength"}, {"length", 3}}, "abca"), (Ids{5, 1}));
  EXPECT_EQ(encode({{"type", "CharDelimiterSplit"}, {"delimiter", "-"}}, "a-bc"), (Ids{1, 2}));
  EXPECT_EQ(encode({{"type", "WhitespaceSplit"}}, "a\u200Bbc\x01", {{"type", "Nmt"}}), (Ids{1, 2}));
  EXPECT_EQ(encode({{"type", "WhitespaceSplit"}}, "A\u00ADB\u0327C\t\u65E5", {{"type", "BertNormalizer"}}),
            (Ids{5, 0}));
  EXPECT_THAT(Failure({{"pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}},
                       {"model", {{"type", "WordLevel"}, {"vocab", {{"a", 0}}}}}}),
              HasSubstr("length"));
  for (const char* map : {"!", "AAAA", "AAQAAAAA"}) {
    json spec = WordSpec("WordLevel", {{"a", 1}});
    spec["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", map}};
    EXPECT_THAT(Failure(spec), HasSubstr("precompiled_charsmap")) << map;
  }
}

TEST(TokenizerJson, DecodersOfWordModels) {
  const auto decode = [](json decoder, const Ids& ids) {
    json spec = WordSpec(
        "WordLevel", {{"[UNK]", 0}, {"h", 1}, {"e", 2}, {"<pad>", 3}, {"|", 4}, {"lo</w>", 5}, {"n't", 6}});
    spec["decoder"] = std::move(decoder);
    return Make(spec)->Decode(ids);
  };
  EXPECT_EQ(
      decode({{"type", "CTC"}, {"pad_token", "<pad>"}, {"word_delimiter_token", "|"}, {"cleanup", true}},
             {1, 1, 2, 3, 2, 4, 4, 1}),
      "hee h");
  EXPECT_EQ(decode({{"type", "BPEDecoder"}, {"suffix", "</w>"}}, {1, 5, 1, 5}), "hlo hlo");
  EXPECT_EQ(decode({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}, {1, 6}), "hn't");
  EXPECT_EQ(decode({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}}, {1, 6}), "h n't");
}

}  // namespace
}  // namespace celer
