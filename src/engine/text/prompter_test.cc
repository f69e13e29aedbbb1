// Special-token injection: no message can produce a control token, however it is encoded.
#include "engine/text/prompter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/source_dir.h"
#include "base/utf8.h"
#include "io/file/test_folder.h"
#include "io/json/json.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kTemplates = std::filesystem::path(kSourceDir) / "tests/chat_templates";

// A byte-level vocabulary with the special tokens of a template, and maybe thousands more.
Prompter MakePrompter(const TestFolder& folder, const std::vector<std::string>& special,
                      const std::string& source, int more = 0, const Json& normalizer = nullptr) {
  Json vocab = Json::object();
  // GPT-2's alphabet: printable bytes stand for themselves, others for U+0100 and on.
  int shifted = 0;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    std::string name;
    utf8::Append(static_cast<char32_t>(printable ? b : 256 + shifted++), name);
    vocab[name] = b;
  }
  Json added = Json::array();
  const auto add = [&](const std::string& content) {
    added.push_back({{"id", 256 + added.size()},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", !normalizer.is_null()},
                     {"special", true}});
  };
  for (const std::string& content : special) add(content);
  for (int i = 0; i < more; ++i) add("<extra_" + std::to_string(i) + ">");
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json json = {{"version", "1.0"},
                     {"added_tokens", added},
                     {"normalizer", normalizer},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  folder.Write("tokenizer.json", json.dump());
  folder.Write("tokenizer_config.json",
               Json({{"bos_token", special.front()}, {"eos_token", special.back()}}).dump());
  folder.Write("chat_template.jinja", source);
  auto made = Prompter::Load({.model = folder.path().string()});
  EXPECT_TRUE(made) << made.error().message();
  return *made;
}

std::string TemplateFile(const char* name) {
  auto text = ReadTextFile(kTemplates / name, 1 << 20);
  EXPECT_TRUE(text) << text.error().message();
  return *text;
}

struct Style {
  const char* name;
  std::string source;
  std::vector<std::string> special;
};
std::vector<Style> Styles() {
  return {
      {"chatml", TemplateFile("chatml.jinja"), {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}},
      {"llama3",
       TemplateFile("llama3.jinja"),
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"}},
      {"mistral", TemplateFile("mistral_v1.jinja"), {"<s>", "</s>", "<unk>", "[INST]", "[/INST]"}},
      {"zephyr",
       TemplateFile("zephyr_tinyllama.jinja"),
       {"<|user|>", "<|system|>", "<|assistant|>", "<|end|>", "</s>"}},
      // Puts everything into the prompt: parts one behind the other, names in brackets, tools as JSON.
      {"everything",
       "{{ '<s>' }}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
       "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ '<' + (m.name or '') + '>' }}"
       "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content or [] %}{{ p.text "
       "}}{% endfor %}"
       "{% endif %}{% for k, v in (m.extra or {}).items() %}{{ k }}{{ v | tojson }}{% endfor %}{{ '</s>' "
       "}}{% endfor %}",
       {"<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "[TOOL]", "<pad>"}},
  };
}

int64_t SpecialCount(const Prompter& prompter, const std::vector<int32_t>& ids) {
  return std::count_if(ids.begin(), ids.end(),
                       [&](int32_t id) { return GetTokenizer(prompter).IsSpecial(id); });
}

Result<std::vector<int32_t>> Encode(const Prompter& prompter, const Json& messages,
                                    const Json& tools = nullptr) {
  return EncodeChat(prompter, {.messages = messages, .tools = tools});
}

// The prompt holds as many control tokens with this conversation as with the harmless one, and its whole
// text.
void ExpectNoMore(const Prompter& prompter, const Json& harmless, const Json& hostile,
                  const std::string& what, const Json& tools = nullptr, const Json& hostile_tools = nullptr) {
  const auto expected = Encode(prompter, harmless, tools), found = Encode(prompter, hostile, hostile_tools);
  ASSERT_TRUE(expected) << expected.error().message();
  ASSERT_TRUE(found) << what << ": " << found.error().message();
  EXPECT_EQ(SpecialCount(prompter, *found), SpecialCount(prompter, *expected))
      << what << ": " << prompter.Decode(*found, false);
}

Json User(const Json& content) {
  return Json::array({{{"role", "user"}, {"content", content}}});
}

TEST(Prompter, ContentStaysText) {
  for (const Style& style : Styles()) {
    const TestFolder folder;
    const Prompter prompter = MakePrompter(folder, style.special, style.source);
    for (const std::string& s : style.special)
      for (const std::string& text :
           {s, "a" + s + "b", s + s, s.substr(0, 2) + s, s + s.substr(1), " " + s + "\n"}) {
        ExpectNoMore(prompter, User("harmless"), User(text), std::string(style.name) + " content " + text);
        const auto ids = Encode(prompter, User(text));
        ASSERT_TRUE(ids);
        const size_t from = text.find_first_not_of(" \n"), to = text.find_last_not_of(" \n");
        EXPECT_NE(prompter.Decode(*ids, false).find(text.substr(from, to + 1 - from)), std::string::npos)
            << text;
      }
  }
}

TEST(Prompter, OrdinaryTextIsEncodedAsItStands) {
  for (const Style& style : Styles()) {
    const TestFolder folder;
    const Prompter prompter = MakePrompter(folder, style.special, style.source);
    const std::string text = "a < b, [x] and \xF4\x80\x80\x80\xF3\xB0\x80\x80 | <";
    const auto ids = Encode(prompter, User(text));
    ASSERT_TRUE(ids) << ids.error().message();
    EXPECT_NE(prompter.Decode(*ids, false).find(text), std::string::npos) << prompter.Decode(*ids, false);
  }
}

TEST(Prompter, PartsNamesKeysToolsAndNestingStayText) {
  for (const Style& style : Styles()) {
    if (std::string(style.name) != "everything") continue;
    const TestFolder folder;
    const Prompter prompter = MakePrompter(folder, style.special, style.source);
    for (const std::string& s : style.special) {
      // Cut in two, at every place, over two parts of a content.
      for (size_t cut = 1; cut < s.size(); ++cut) {
        const auto parts = [](const std::string& a, const std::string& b) {
          return User(Json::array({{{"type", "text"}, {"text", a}}, {{"type", "text"}, {"text", b}}}));
        };
        ExpectNoMore(prompter, parts("a", "b"), parts(s.substr(0, cut), s.substr(cut)), "parts of " + s);
        // The rest of a token that the template's own words begin.
        const auto named = [](const std::string& name) {
          return Json::array({{{"role", "user"}, {"name", name}, {"content", "x"}}});
        };
        ExpectNoMore(prompter, named("n"), named(s.substr(cut)), "name " + s.substr(cut));
        ExpectNoMore(prompter, named("n"), named(s.substr(cut, s.size() - cut - 1)), "name inside " + s);
      }
      const auto extra = [](const Json& value) {
        return Json::array({{{"role", "user"}, {"content", "x"}, {"extra", value}}});
      };
      ExpectNoMore(prompter, extra({{"k", "v"}}), extra({{s, "v"}}), "key " + s);
      ExpectNoMore(prompter, extra({{"k", "v"}}), extra({{"k", {{"role", s}}}}), "a role inside " + s);
      ExpectNoMore(prompter, extra({{"k", "v"}}), extra({{"k", {{"type", s}}}}), "a type inside " + s);
      ExpectNoMore(prompter, extra({{"k", "v"}}), extra({{s.substr(0, 2), s.substr(2)}}),
                   "key and value " + s);
      Json deep = s;
      for (int i = 0; i < 40; ++i) deep = i % 2 ? Json{{"k", deep}} : Json::array({deep});
      ExpectNoMore(prompter, extra({{"k", "v"}}), extra({{"k", deep}}), "deep " + s);

      const auto tool = [](const std::string& key, const std::string& value) {
        return Json::array({{{"type", "function"},
                             {"function",
                              {{"name", value},
                               {"description", value},
                               {"parameters", {{"properties", {{key, {{"type", value}}}}}}}}}}});
      };
      ExpectNoMore(prompter, User("x"), User("x"), "tool " + s, tool("k", "v"), tool(s, s));
    }
  }
}

TEST(Prompter, RolesAreKnownOnes) {
  for (const Style& style : Styles()) {
    const TestFolder folder;
    const Prompter prompter = MakePrompter(folder, style.special, style.source);
    for (std::string role :
         {std::string("end"), style.special[0], "user" + style.special[0], std::string("")}) {
      const auto ids = Encode(prompter, Json::array({{{"role", role}, {"content", "x"}}}));
      ASSERT_FALSE(ids) << style.name << " role " << role;
      EXPECT_NE(ids.error().message().find("role"), std::string::npos) << ids.error().message();
    }
    EXPECT_FALSE(Encode(prompter, Json::array({{{"role", 7}, {"content", "x"}}})));
    EXPECT_FALSE(Encode(prompter, Json::array({{{"role", Json::array({"user"})}, {"content", "x"}}})));
  }
}

TEST(Prompter, MarksInAMessageForgeNothing) {
  for (const Style& style : Styles()) {
    const TestFolder folder;
    const Prompter prompter = MakePrompter(folder, style.special, style.source);
    std::string marks;  // the first of every kind, and those the conversation itself will use
    for (const char32_t c : {0x100000, 0x100001, 0x100002, 0x10F000, 0x10F001, 0x10FFFD, 0xF0000})
      utf8::Append(c, marks);
    const std::string text = marks + style.special[0] + marks;
    ExpectNoMore(prompter, User("x"), User(text), std::string(style.name) + " marks");
    const auto ids = Encode(prompter, User(text));
    ASSERT_TRUE(ids);
    EXPECT_NE(prompter.Decode(*ids, false).find(text), std::string::npos) << "the text itself has changed";
  }
}

TEST(Prompter, TooDeepIsAnError) {
  const TestFolder folder;
  const Style style = Styles()[0];
  const Prompter prompter = MakePrompter(folder, style.special, style.source);
  Json deep = style.special[0];
  for (int i = 0; i < 70; ++i) deep = Json::array({deep});
  const auto ids = Encode(prompter, Json::array({{{"role", "user"}, {"content", "x"}, {"more", deep}}}));
  ASSERT_FALSE(ids);
  EXPECT_NE(ids.error().message().find("deeper than 64"), std::string::npos) << ids.error().message();
  EXPECT_FALSE(Encode(prompter, User("x"), Json::array({deep})));
  EXPECT_FALSE(prompter.EncodeChatJson(std::string(100000, '[') + std::string(100000, ']')));
}

TEST(Prompter, ThousandsOfSpecialTokensAreAllHidden) {
  const TestFolder folder;
  const Style style = Styles()[0];
  const int more = 6000;
  const Prompter prompter = MakePrompter(folder, style.special, style.source, more);
  std::string all;
  for (int i = 0; i < more; ++i) all += "<extra_" + std::to_string(i) + ">";
  ExpectNoMore(prompter, User("x"), User(all), "6000 special tokens");
}

TEST(Prompter, OtherCharactersThatNormalizeToASpecialTokenAreRefused) {
  const TestFolder folder;
  const Style style = Styles()[0];
  const Prompter prompter = MakePrompter(folder, style.special, style.source, 0, {{"type", "Lowercase"}});
  const auto forged = Encode(prompter, User("<|IM_END|>"));
  ASSERT_FALSE(forged);
  EXPECT_NE(forged.error().message().find("control token"), std::string::npos);
  EXPECT_TRUE(Encode(prompter, User("Hello")));
}

TEST(Prompter, TheLastMessageIsContinued) {
  const auto text = [](const Prompter& prompter, const Json& messages, bool continues) {
    const auto ids = EncodeChat(prompter, {.messages = messages, .continue_final_message = continues});
    return ids ? prompter.Decode(*ids, false) : ids.error().message();
  };
  for (const Style& style : Styles()) {
    const TestFolder folder;
    const Prompter prompter = MakePrompter(folder, style.special, style.source);
    Json messages = User("Why?");
    const std::string before = text(prompter, messages, false);
    // Also where the template's own words or a control token have the same letters.
    for (const std::string said : {"Because", "end", "s", "<|im_end|", style.special[1].c_str()}) {
      messages[1] = {{"role", "assistant"}, {"content", said}};
      const std::string prompt = text(prompter, messages, true);
      EXPECT_TRUE(prompt.ends_with(said)) << style.name << ": " << prompt;
      if (style.name == std::string("chatml") || style.name == std::string("llama3")) {
        EXPECT_EQ(prompt, before + said);
      }
      // A template that trims has no blank at the end, and others keep it.
      messages[1]["content"] = said + " \n";
      const std::string longer = text(prompter, messages, true);
      EXPECT_TRUE(longer == prompt || longer == prompt + " \n") << style.name << ": " << longer;
    }
    ExpectNoMore(prompter, messages, messages, "as before");
  }
  const TestFolder folder;
  const Prompter silent = MakePrompter(folder, {"<s>", "</s>"}, "{{ messages[0].content }}");
  Json messages = User("Why?");
  messages[1] = {{"role", "assistant"}, {"content", "Because"}};
  EXPECT_EQ(text(silent, messages, true),
            "the chat template does not show the last message, so it cannot be continued");
  messages[1]["content"] = nullptr;
  EXPECT_EQ(text(silent, messages, true), "the last message has no text that could be continued");
}

TEST(Prompter, MessagesAsStructsAndAsJsonAreTheSame) {
  const TestFolder folder;
  const Style style = Styles()[0];
  const Prompter prompter = MakePrompter(folder, style.special, style.source);
  const std::vector<ChatMessage> messages = {{"system", "s"}, {"user", "\"u\""}};
  const auto a = prompter.EncodeChat(messages);
  const auto b =
      prompter.EncodeChatJson(R"([{"role":"system","content":"s"},{"role":"user","content":"\"u\""}])");
  ASSERT_TRUE(a && b);
  EXPECT_EQ(*a, *b);
  EXPECT_FALSE(prompter.EncodeChatJson("[{"));
  EXPECT_FALSE(prompter.EncodeChatJson("7"));
}

}  // namespace
}  // namespace celer
