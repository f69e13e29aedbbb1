#include "server/api/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer::server {
namespace {

using testing::HasSubstr;

Refusal ReadMessages(const char* messages, Conversation* out) {
  Query query;
  query.endpoint = kMessages;
  query.messages = Json::parse(messages);
  return ReadConversation(query, nullptr, out);
}

Refusal Choose(Endpoint endpoint, const char* choice, ToolChoice* out) {
  Query query;
  query.endpoint = endpoint;
  query.tool_choice = Json::parse(choice);
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"f"}},
                                     {"type":"function","function":{"name":"g"}}])");
  return ReadToolChoice(query, tools, out);
}

TEST(Conversation, AnAssistantsTurnAtTheEndIsContinued) {
  Conversation talk;
  EXPECT_FALSE(ReadMessages(
      R"([{"role":"user","content":"Colour?"},{"role":"assistant","content":[{"type":"text","text":"It is"}]}])",
      &talk));
  EXPECT_TRUE(talk.continues);
  EXPECT_EQ(talk.messages.back()["content"], "It is");
  talk = {};
  EXPECT_FALSE(ReadMessages(R"([{"role":"user","content":"Colour?"}])", &talk));
  EXPECT_FALSE(talk.continues);
  talk = {};  // nothing to go on from
  EXPECT_FALSE(ReadMessages(R"([{"role":"user","content":"x"},{"role":"assistant","content":""}])", &talk));
  EXPECT_FALSE(talk.continues);
  EXPECT_EQ(talk.messages.size(), 1U);
}

TEST(Conversation, WhatCannotBeContinuedIsRefused) {
  Conversation talk;
  EXPECT_THAT(ReadMessages(R"([{"role":"user","content":"x"},
      {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}])",
                           &talk)
                  ->message,
              HasSubstr("tool_result"));
  talk = {};
  EXPECT_TRUE(ReadMessages(R"([{"role":"assistant","content":""}])", &talk));
  talk = {};
  EXPECT_TRUE(ReadMessages(R"([{"role":"user","content":[{"type":"thinking"}]}])", &talk));
  Query query;
  query.continue_final_message = true;
  query.messages = Json::parse(R"([{"role":"user","content":"x"}])");
  talk = {};
  EXPECT_EQ(ReadConversation(query, nullptr, &talk)->param, "continue_final_message");
  query.messages.push_back({{"role", "assistant"}, {"content", "It"}});
  talk = {};
  EXPECT_FALSE(ReadConversation(query, nullptr, &talk));
  EXPECT_TRUE(talk.continues);
}

TEST(ToolChoice, ParallelCallsOfAnthropic) {
  for (const char* type : {"auto", "any", "tool"}) {
    const std::string choice =
        std::string(R"({"name":"f","type":")") + type + R"(","disable_parallel_tool_use":)";
    ToolChoice off, on;
    EXPECT_FALSE(Choose(kMessages, (choice + "true}").c_str(), &off));
    EXPECT_FALSE(off.parallel) << type;
    EXPECT_FALSE(Choose(kMessages, (choice + "false}").c_str(), &on));
    EXPECT_TRUE(on.parallel) << type;
    EXPECT_EQ(Choose(kMessages, (choice + "1}").c_str(), &on)->param,
              "tool_choice.disable_parallel_tool_use");
  }
  ToolChoice any;
  EXPECT_FALSE(Choose(kMessages, R"({"type":"any"})", &any));
  EXPECT_EQ(any.kind, ToolChoice::Kind::kRequired);
  EXPECT_TRUE(any.parallel);
}

TEST(ToolChoice, AllowedTools) {
  ToolChoice chat;
  EXPECT_FALSE(Choose(kChat, R"({"type":"allowed_tools","allowed_tools":{"mode":"required",
                      "tools":[{"type":"function","function":{"name":"g"}}]}})",
                      &chat));
  EXPECT_EQ(chat.kind, ToolChoice::Kind::kRequired);
  EXPECT_EQ(chat.only, std::vector<std::string>{"g"});
  ToolChoice responses;
  EXPECT_FALSE(Choose(kResponses,
                      R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]})",
                      &responses));
  EXPECT_EQ(responses.kind, ToolChoice::Kind::kAuto);
  EXPECT_EQ(responses.only, std::vector<std::string>{"f"});
  for (const char* bad :
       {R"({"type":"allowed_tools"})", R"({"type":"allowed_tools","allowed_tools":5})",
        R"({"type":"allowed_tools","allowed_tools":{"mode":"any","tools":[{"name":"f"}]}})",
        R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}})",
        R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[5]}})",
        R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"function":{"name":"h"}}]}})"}) {
    ToolChoice choice;
    EXPECT_TRUE(Choose(kChat, bad, &choice)) << bad;
  }
}

}  // namespace
}  // namespace celer::server
