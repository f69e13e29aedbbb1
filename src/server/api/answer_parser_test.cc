#include "server/api/answer_parser.h"

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

Whole Split(std::string_view text, const PartsOptions& options, size_t step, bool truncated) {
  AnswerParts parts(options);
  Whole whole;
  const auto add = [&](const std::vector<Part>& more) {
    for (const Part& part : more) {
      if (part.kind == Part::Kind::kCall)
        whole.calls += part.name + part.text + (part.partial ? "..." : ";");
      else
        (part.kind == Part::Kind::kContent ? whole.content : whole.reasoning) += part.text;
    }
  };
  for (size_t at = 0; at < text.size(); at += step) add(parts.Push(text.substr(at, step)));
  add(parts.Finish(truncated));
  return whole;
}

void Expect(std::string_view text, const PartsOptions& options, const Whole& expected,
            bool truncated = false) {
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size() + 1})
    EXPECT_EQ(Split(text, options, step, truncated), expected) << text << " in steps of " << step;
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

TEST(AnswerParts, ACallThatIsCutIsACallAsFarAsItGoes) {
  const PartsOptions tags{.tools = ToolStyle::kTags};
  const std::string call = "Well.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a}";
  Expect(call, tags, {"", "Well.", "f{\"x\": \"a}..."}, true);
  Expect(call, tags, {"", call, ""}, false);  // the model itself ended here: no call after all
  Expect("<tool_call>{\"name\": \"f\", \"arguments\": {}", tags, {"", "", "f{};"}, true);
  Expect("<tool_call>{\"name\": \"f", tags, {"", "<tool_call>{\"name\": \"f", ""}, true);
  const PartsOptions json{.tools = ToolStyle::kJson};
  Expect("{\"name\": \"f\", \"parameters\": {\"x\": 1", json, {"", "", "f{\"x\": 1..."}, true);
  Expect("{\"name\": \"Bob\", \"age\": 4", json, {"", "{\"name\": \"Bob\", \"age\": 4", ""}, true);
  const PartsOptions bracket{.tools = ToolStyle::kBracket};
  Expect("[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, {\"name\":\"g\",\"arguments\":{\"y", bracket,
         {"", "", "f{};g{\"y..."}, true);
}

TEST(AnswerParts, WhereACallIsRequiredACutNeverBecomesText) {
  for (const ToolStyle style : {ToolStyle::kTags, ToolStyle::kJson, ToolStyle::kBracket}) {
    const std::string whole =
        style == ToolStyle::kTags   ? "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}"
        : style == ToolStyle::kJson ? "{\"name\": \"f\", \"parameters\": {\"x\": 1}}"
                                    : "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}]";
    for (const bool reasoning : {false, true}) {
      const PartsOptions any{.tools = style, .reasoning = reasoning, .must_call = true};
      PartsOptions one = any;
      one.only_tool = "f";
      for (size_t size = 0; size < whole.size(); ++size) {
        const std::string text = whole.substr(0, size);
        EXPECT_EQ(Split(text, any, 1, true).content, "") << text;
        const Whole named = Split(text, one, 1, true);
        EXPECT_EQ(named.content, "") << text;
        EXPECT_TRUE(named.calls.starts_with("f")) << text;
        EXPECT_EQ(named.calls, Split(text, one, size + 1, true).calls) << text;
      }
    }
  }
}

TEST(AnswerParts, OnlyTheFirstOfParallelCallsIfOneIsWanted) {
  const PartsOptions one{.tools = ToolStyle::kTags, .parallel = false};
  Expect(
      "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}"
      "</tool_call>",
      one, {"", "", "f{};"});
}

TEST(AnswerParts, AnObjectThatIsCutHasWhatIsComplete) {
  const auto so_far = [](const char* text) { return ParsePartialObject(text).dump(); };
  EXPECT_EQ(so_far(R"({"a": 1, "b": [2, {"c": "x}"}]})"), R"({"a":1,"b":[2,{"c":"x}"}]})");
  EXPECT_EQ(so_far(R"({"a": 1, "b": [2, 3)"), R"({"a":1,"b":[2]})");
  EXPECT_EQ(so_far(R"({"a": 1, "b": )"), R"({"a":1})");
  EXPECT_EQ(so_far(R"({"a": {"b": "x\", y)"), R"({"a":{}})");
  for (const char* nothing : {"", "{", "{\"a", "[1, 2", "5", "}", "{]"})
    EXPECT_EQ(so_far(nothing), "{}") << nothing;
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":[";
  EXPECT_TRUE(ParsePartialObject(deep).is_object());
  const PartsOptions tags{.tools = ToolStyle::kTags};
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": " + deep;
  EXPECT_EQ(Split(call, tags, call.size(), true).calls, "f" + deep + "...");
}

TEST(AnswerParts, StylesOfTemplates) {
  EXPECT_EQ(ToolStyleOf("{% if tools %}<tool_call>{% endif %}"), ToolStyle::kTags);
  EXPECT_EQ(ToolStyleOf("{% if tools %}[TOOL_CALLS]{% endif %}"), ToolStyle::kBracket);
  EXPECT_EQ(ToolStyleOf("{% for message in messages %}"), ToolStyle::kNone);
  EXPECT_TRUE(HasReasoning("content.split('</think>')"));
}

}  // namespace
}  // namespace celer::server
