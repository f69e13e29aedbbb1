#include "server/answer_parts.h"

#include <gtest/gtest.h>

namespace celer::server {
namespace {

struct Whole {
  std::string reasoning, content, calls;
  bool operator==(const Whole&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Whole& w) {
  return out << "[" << w.reasoning << "|" << w.content << "|" << w.calls << "]";
}

Whole Split(std::string_view text, PartsOptions options, size_t step) {
  AnswerParts parts(options);
  Whole whole;
  const auto add = [&](const std::vector<Part>& more) {
    for (const Part& part : more) {
      if (part.kind == Part::Kind::kCall)
        whole.calls += part.name + part.text + ";";
      else
        (part.kind == Part::Kind::kContent ? whole.content : whole.reasoning) += part.text;
    }
  };
  for (size_t at = 0; at < text.size(); at += step) add(parts.Push(text.substr(at, step)));
  add(parts.Finish());
  return whole;
}

void Expect(std::string_view text, PartsOptions options, const Whole& expected) {
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size() + 1})
    EXPECT_EQ(Split(text, options, step), expected) << text << " in steps of " << step;
}

TEST(AnswerParts, TextStaysText) {
  Expect("plain <think>x</think> <tool_call>{}</tool_call>\n", {},
         {"", "plain <think>x</think> <tool_call>{}</tool_call>\n", ""});
  Expect("a < b", {.tools = ToolStyle::kTags, .reasoning = true}, {"", "a < b", ""});
}

TEST(AnswerParts, Thoughts) {
  const PartsOptions think{.reasoning = true};
  Expect("<think>\nhm, 1 < 2\n</think>\n\nYes.", think, {"hm, 1 < 2", "Yes.", ""});
  Expect("No thought.", think, {"", "No thought.", ""});
  Expect("hm\n</think>Yes.", {.reasoning = true, .starts_in_reasoning = true}, {"hm", "Yes.", ""});
  Expect("<think>cut short", think, {"cut short", "", ""});
}

TEST(AnswerParts, CallsInTags) {
  const PartsOptions tags{.tools = ToolStyle::kTags};
  Expect("Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}\n</tool_call>", tags,
         {"", "Let me see.", "f{\"x\":[1,2]};"});
  Expect(
      "<tool_call>{\"name\":\"f\",\"arguments\":{}}</"
      "tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}"
      "</tool_call>",
      tags, {"", "", "f{};g{};"});
  Expect("<tool_call>{\"name\": </tool_call>", tags, {"", "<tool_call>{\"name\": </tool_call>", ""});
  Expect("<tool_call>{\"name\":\"f\",\"arguments\":{}}", tags, {"", "", "f{};"});
}

TEST(AnswerParts, CallsAsJsonAndInBrackets) {
  const PartsOptions json{.tools = ToolStyle::kJson};
  Expect("{\"name\": \"f\", \"parameters\": {\"x\": 1}}", json, {"", "", "f{\"x\":1};"});
  Expect("{\"no\": \"call\"}", json, {"", "{\"no\": \"call\"}", ""});
  Expect("Just text.", json, {"", "Just text.", ""});
  const PartsOptions bracket{.tools = ToolStyle::kBracket};
  Expect("[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},{\"name\":\"g\",\"arguments\":{}}]", bracket,
         {"", "", "f{};g{};"});
}

TEST(AnswerParts, StylesOfTemplates) {
  EXPECT_EQ(ToolStyleOf("{% if tools %}<tool_call>{% endif %}"), ToolStyle::kTags);
  EXPECT_EQ(ToolStyleOf("{% if tools %}[TOOL_CALLS]{% endif %}"), ToolStyle::kBracket);
  EXPECT_EQ(ToolStyleOf("{% for message in messages %}"), ToolStyle::kNone);
  EXPECT_TRUE(HasReasoning("content.split('</think>')"));
}

}  // namespace
}  // namespace celer::server
