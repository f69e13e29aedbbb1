#include "text/template/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "base/source_dir.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

Json Conversation() {
  return Json::parse(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Héllo"}])");
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ChatTemplate, RendersAConversation) {
  const auto program = ChatTemplate::Compile(kChatMl);
  ASSERT_TRUE(program) << program.error().message();
  ChatTemplate::Options options;
  EXPECT_EQ(
      *program->Render(Conversation(), nullptr, options),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHéllo<|im_end|>\n<|im_start|>assistant\n");
  options.add_generation_prompt = false;
  EXPECT_EQ(*program->Render(Json::array(), nullptr, options), "");
}

TEST(ChatTemplate, VariablesAreAsInTransformers) {
  const auto program = ChatTemplate::Compile(
      "{{ bos_token is defined }}{{ eos_token }} {{ tools }} {{ documents }} {{ enable_thinking }} {{ "
      "strftime_now('%Y') }}");
  ASSERT_TRUE(program);
  ChatTemplate::Options options;
  options.now = 1735731000;  // 2025-01-01 11:30 UTC
  EXPECT_EQ(*program->Render(Json::array(), nullptr, options), "False None None  2025");
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  options.extra = {{"enable_thinking", false}, {"documents", Json::array({1})}, {"messages", "ignored"}};
  EXPECT_EQ(*program->Render(Json::array(), Json::array({Json::object()}), options),
            "True</s> [{}] [1] False 2025");
}

TEST(ChatTemplate, MessagesAreRenderedAsGiven) {
  const auto program = ChatTemplate::Compile("{{ messages[0]|tojson }}");
  ASSERT_TRUE(program);
  for (const char* name : {"reasoning", "reasoning_content", "thinking"}) {
    const Json messages = Json::array({{{"role", "assistant"}, {name, "hm"}, {"content", ""}}});
    EXPECT_EQ(*program->Render(messages, nullptr, {}),
              std::string(R"({"role": "assistant", ")") + name + R"(": "hm", "content": ""})");
  }
}

// Clients send reasoning_content; some templates call it thinking.
TEST(ChatTemplate, ReasoningUnderTheNameThatTheTemplateReads) {
  ChatTemplate::Options fit;
  fit.fit_reasoning = true;
  const Json messages = Json::parse(R"([{"role": "assistant", "content": "c", "reasoning_content": "hm"}])");
  const auto text = [&](const char* source, const ChatTemplate::Options& options) {
    return *ChatTemplate::Compile(source)->Render(messages, nullptr, options);
  };
  EXPECT_EQ(text("{{ messages[0].thinking }}", fit), "hm");
  EXPECT_EQ(text("{{ messages[0]['reasoning'] }}", fit), "hm");
  EXPECT_EQ(text("{{ messages[0].thinking }}", {}), "");
  // It reads the name that was given, so nothing is added.
  EXPECT_EQ(text("{{ messages[0].thinking is defined }}{{ messages[0].reasoning_content }}", fit), "Falsehm");
  // A variable of that name is not a field.
  EXPECT_EQ(text("{% if thinking %}{% endif %}{{ messages[0]|length }}", fit), "3");
  // Where the template refuses a thought, it gets the message as it is.
  EXPECT_EQ(text("{% if messages[0].thinking and messages[0].content %}{{ raise_exception('no') }}{% endif %}"
                 "{{ messages[0].content }}",
                 fit),
            "c");
}

TEST(ChatTemplate, BadRequestsAreRefused) {
  const auto program = ChatTemplate::Compile("{{ messages }}{{ tools }}");
  ASSERT_TRUE(program);
  EXPECT_EQ(program->Render(Json::object(), nullptr, {}).error().message(),
            "messages must be an array, not object");
  EXPECT_EQ(program->Render(Json::array({1}), nullptr, {}).error().message(),
            "each message must be an object, not number");
  EXPECT_EQ(program->Render(Json::array(), "x", {}).error().message(), "tools must be an array, not string");
  ChatTemplate::Options options;
  options.extra = Json::array();
  EXPECT_EQ(program->Render(Json::array(), nullptr, options).error().message(),
            "the extra template variables must be an object, not array");
  const Json broken = Json::array({{{"role", "user"}, {"content", "a\xff"}}});
  EXPECT_EQ(program->Render(broken, nullptr, {}).error().message(),
            "chat template: a string in the conversation is not UTF-8 at byte 1");
  Json deep = 1;
  for (int i = 0; i < 10000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_FALSE(program->Render(Json::array(), deep, {}));
}

TEST(ChatTemplate, TextOfTheUserIsNeverATemplate) {
  const auto program = ChatTemplate::Compile("{{ messages[0].content }}{{ messages[0].content|upper }}");
  ASSERT_TRUE(program);
  const Json messages = Json::array({{{"role", "user"}, {"content", "{{ 7*7 }}{% raw %}"}}});
  EXPECT_EQ(*program->Render(messages, nullptr, {}), "{{ 7*7 }}{% raw %}{{ 7*7 }}{% RAW %}");
}

TEST(ChatTemplate, ThreadsShareOne) {
  const auto program = ChatTemplate::Compile(kChatMl);
  ASSERT_TRUE(program);
  const std::string want = *program->Render(Conversation(), nullptr, {});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += *program->Render(Conversation(), nullptr, {}) != want;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// What transformers rendered, written by tests/chat_templates/compare_transformers.py --write-golden.
TEST(ChatTemplate, AgreesWithTransformers) {
  const std::filesystem::path folder = std::filesystem::path(kSourceDir) / "tests/chat_templates";
  const Json golden = Json::parse(ReadFile(folder / "golden.json"), nullptr, false);
  ASSERT_TRUE(golden.is_object()) << folder / "golden.json";
  ASSERT_GE(golden["templates"].size(), 20u);
  for (const auto& [name, renderings] : golden["templates"].items()) {
    const auto program = ChatTemplate::Compile(ReadFile(folder / name));
    ASSERT_TRUE(program) << name << ": " << program.error().message();
    for (const Json& rendering : renderings) {
      const std::string conversation = rendering["conversation"].get<std::string>();
      const Json& request = golden["conversations"][conversation];
      ChatTemplate::Options options;
      options.add_generation_prompt = rendering["add_generation_prompt"].get<bool>();
      options.bos_token = "<s>";
      options.eos_token = "</s>";
      options.extra = request.value("extra", Json());
      options.now = golden["now"].get<std::time_t>();
      const auto text = program->Render(request["messages"], request.value("tools", Json()), options);
      if (rendering["text"].is_null()) {
        EXPECT_FALSE(text) << name << ", " << conversation;
      } else {
        ASSERT_TRUE(text) << name << ", " << conversation << ": " << text.error().message();
        EXPECT_EQ(*text, rendering["text"].get<std::string>()) << name << ", " << conversation;
      }
    }
  }
}

}  // namespace
}  // namespace celer
