#include "server/api/answer_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/source_dir.h"

namespace celer::server {
namespace {

struct Whole {
  std::string reasoning, content, calls;
  bool operator==(const Whole&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Whole& w) {
  return out << "[" << w.reasoning << "|" << w.content << "|" << w.calls << "]";
}

// In pieces of `step` bytes, the first of which has `first`.
Whole Split(std::string_view text, const PartsOptions& options, size_t step, bool truncated,
            size_t first = 0) {
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
  add(parts.Push(text.substr(0, first)));
  for (size_t at = first; at < text.size(); at += step) add(parts.Push(text.substr(at, step)));
  add(parts.Finish(truncated));
  return whole;
}

void Expect(std::string_view text, const PartsOptions& options, const Whole& expected,
            bool truncated = false) {
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size() + 1})
    EXPECT_EQ(Split(text, options, step, truncated), expected) << text << " in steps of " << step;
  for (size_t first = 1; first < text.size(); ++first)
    EXPECT_EQ(Split(text, options, text.size(), truncated, first), expected) << text << " cut at " << first;
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

PartsOptions With(ToolStyle style, const char* tools = nullptr) {
  PartsOptions options{.tools = style};
  if (tools)
    options.definitions =
        std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json::parse(tools));
  return options;
}

// Each syntax with its own calls, and cut after any byte: never more than there is.
void ExpectCalls(ToolStyle style, std::string_view text, std::string_view content, std::string_view calls) {
  Expect(text, With(style), {"", std::string(content), std::string(calls)});
  std::string before;
  for (size_t size = 0; size <= text.size(); ++size) {
    const Whole cut = Split(text.substr(0, size), With(style), 3, true);
    const Whole at_once = Split(text.substr(0, size), With(style), size + 1, true);
    EXPECT_EQ(cut, at_once) << text.substr(0, size);
  }
}

TEST(AnswerParts, MistralCallsWithNames) {
  ExpectCalls(ToolStyle::kBracketArgs, "Hm.[TOOL_CALLS]f[ARGS]{\"x\": [1]}[TOOL_CALLS]g[ARGS]{}", "Hm.",
              "f{\"x\":[1]};g{};");
  ExpectCalls(ToolStyle::kBracketArgs, "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{\"x\": \"[ARGS]\"}", "",
              "f{\"x\":\"[ARGS]\"};");
  ExpectCalls(ToolStyle::kBracketArgs, "[TOOL_CALLS]f{\"x\": 1}", "", "f{\"x\":1};");
  Expect("[TOOL_CALLS]f[ARGS]{\"x\": ", With(ToolStyle::kBracketArgs), {"", "", "f{\"x\":..."}, true);
  Expect("[TOOL_CALLS]f[ARGS]{\"x\":", With(ToolStyle::kBracketArgs), {"", "[TOOL_CALLS]f[ARGS]{\"x\":", ""});
}

TEST(AnswerParts, DeepSeekCalls) {
  ExpectCalls(
      ToolStyle::kDeepSeek,
      "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>"
      "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "Let me see.", "f{\"x\":1};g{};");
  ExpectCalls(ToolStyle::kDeepSeek,
              "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": 1}\n```"
              "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
              "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
              "", "f{\"x\":1};g{};");
}

TEST(AnswerParts, KimiCalls) {
  ExpectCalls(ToolStyle::kKimi,
              "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
              "{\"x\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}"
              "<|tool_call_end|><|tool_calls_section_end|>",
              "Ok.", "f{\"x\":1};g{};");
}

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
  "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "d": {"type": "number"},
                 "b": {"type": "boolean"}, "l": {"type": "array"}, "o": {"type": ["string", "null"]},
                 "a": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}}}])";

TEST(AnswerParts, CallsInFunctionTags) {
  const std::string_view text =
      "I look.\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
      "<parameter=l>\n[1, \"</p>\"]\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n"
      "<parameter=o>\nnull\n</parameter>\n<parameter=a>\n7 "
      "days\n</parameter>\n<parameter=d>\n3\n</parameter>\n"
      "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>";
  Expect(text, With(ToolStyle::kFunctionTag, kTools),
         {"", "I look.",
          "f{\"s\":\"12\",\"n\":12,\"l\":[1,\"</p>\"],\"b\":true,\"o\":null,\"a\":\"7 days\",\"d\":3};g{};"});
  ExpectCalls(
      ToolStyle::kFunctionTag,
      "<tool_call>\n<function=f>\n<parameter=code>\nif x:\n    y = \"<b>\"\n\n</parameter>\n</function>\n"
      "</tool_call>",
      "", "f{\"code\":\"if x:\\n    y = \\\"<b>\\\"\\n\"};");
  ExpectCalls(ToolStyle::kFunctionTag,
              "<tool_call>\n<function=f>\n{\"x\": 1}\n</function>\n</tool_call><tool_call>{\"name\": \"g\"}"
              "</tool_call>",
              "", "f{\"x\":1};g{};");
  Expect("<tool_call>\n<function=f>\n<parameter=s>\na</parameter>\n<parameter=n>\n1",
         With(ToolStyle::kFunctionTag, kTools), {"", "", "f{\"s\":\"a\",..."}, true);
  Expect("<tool_call>hello</tool_call>", With(ToolStyle::kFunctionTag),
         {"", "<tool_call>hello</tool_call>", ""});
}

TEST(AnswerParts, CallsWithArgumentKeys) {
  Expect(
      "Sure.\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</arg_key>\n"
      "<arg_value>12</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
      With(ToolStyle::kArgKeys, kTools), {"", "Sure.", "f{\"s\":\"12\",\"n\":12};g{};"});
  ExpectCalls(ToolStyle::kArgKeys,
              "<tool_call>f<arg_key>x</arg_key><arg_value>{\"a\": [1]}</arg_value></tool_call>", "",
              "f{\"x\":{\"a\":[1]}};");
  Expect("<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s",
         With(ToolStyle::kArgKeys), {"", "", "f{\"n\":1,..."}, true);
}

TEST(AnswerParts, CallsAsInvocations) {
  Expect(
      "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">1</parameter>\n"
      "<parameter name=\"n\">1</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
      With(ToolStyle::kInvoke, kTools), {"", "", "f{\"s\":\"1\",\"n\":1};g{};"});
  ExpectCalls(
      ToolStyle::kInvoke,
      "So.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"x\">a b</parameter>\n</invoke>\n"
      "</minimax:tool_call>",
      "So.", "f{\"x\":\"a b\"};");
}

TEST(AnswerParts, PythonCalls) {
  ExpectCalls(
      ToolStyle::kPythonLines,
      "<function_calls>f(x=1, y=\"a\\n(\\u00e9)\", z=[True, None, {'k': -1.5}])\ng()</function_calls>", "",
      "f{\"x\":1,\"y\":\"a\\n(é)\",\"z\":[true,null,{\"k\":-1.5}]};g{};");
  ExpectCalls(ToolStyle::kPythonList, "[f(x=1), g(y='it\\'s')]", "", "f{\"x\":1};g{\"y\":\"it's\"};");
  Expect("[1, 2, 3]", With(ToolStyle::kPythonList), {"", "[1, 2, 3]", ""});
  Expect("[f(x=1), g(y=[1, 2", With(ToolStyle::kPythonList), {"", "", "f{\"x\":1};g{..."}, true);
  Expect("[f(x=1), g(y=[1, 2", With(ToolStyle::kPythonList), {"", "[f(x=1), g(y=[1, 2", ""});
}

TEST(AnswerParts, CohereGranitePhiAndHunyuanCalls) {
  ExpectCalls(
      ToolStyle::kAction,
      "<|START_ACTION|>[\n  {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"x\": 1}},\n"
      "  {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
      "", "f{\"x\":1};g{};");
  ExpectCalls(ToolStyle::kGranite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]", "",
              "f{\"x\":1};");
  ExpectCalls(ToolStyle::kPhi4, "functools[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]", "", "f{\"x\":1};");
  Expect("import functools", With(ToolStyle::kPhi4), {"", "import functools", ""});
  Expect("functools[0]", With(ToolStyle::kPhi4), {"", "functools[0]", ""});
  ExpectCalls(ToolStyle::kHunyuan, "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>", "",
              "f{};");
  ExpectCalls(ToolStyle::kNemotron, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>", "",
              "f{};");
  // Cut in the second of Cohere's calls.
  Expect(
      "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {}}, "
      "{\"tool_call_id\": "
      "\"1\", \"tool_name\": \"g\", \"parameters\": {\"y",
      With(ToolStyle::kAction), {"", "", "f{};g{\"y..."}, true);
}

TEST(AnswerParts, GemmaCalls) {
  ExpectCalls(
      ToolStyle::kGemma4,
      "<|tool_call>call:f{city:<|\"|>St. {John},<|\"|>,n:42,ok:true,deep:{a:[1,<|\"|>b<|\"|>]}}<tool_call|>"
      "<|tool_call>call:g{}<tool_call|>",
      "", "f{\"city\":\"St. {John},\",\"n\":42,\"ok\":true,\"deep\":{\"a\":[1,\"b\"]}};g{};");
}

TEST(AnswerParts, Channels) {
  PartsOptions channels = With(ToolStyle::kHarmony);
  channels.reasoning = true;
  channels.thoughts = ThoughtsOf("<|channel|>");
  const std::string thought = "<|channel|>analysis<|message|>Hm, <b>.<|end|><|start|>assistant";
  Expect(thought + "<|channel|>final<|message|>Yes.\n\nNo.", channels, {"Hm, <b>.", "Yes.\n\nNo.", ""});
  Expect(thought + "<|channel|>final<|message|>Yes.<|return|>", channels, {"Hm, <b>.", "Yes.", ""});
  const std::string call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}";
  Expect(thought + call, channels, {"Hm, <b>.", "", "f{\"x\":1};"});
  Expect(thought + call + "<|call|>", channels, {"Hm, <b>.", "", "f{\"x\":1};"});
  Expect(thought + call.substr(0, call.size() - 3), channels, {"Hm, <b>.", "", "f{\"x\":..."}, true);
  // The recipient may stand in front of the channel, also of the first message.
  Expect(" to=functions.f<|channel|>commentary json<|message|>{}", channels, {"", "", "f{};"});
  Expect("<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>", channels,
         {"", "", "f{};"});
  Expect("<|channel|>commentary<|message|>First I look.<|end|><|start|>assistant" + call, channels,
         {"", "First I look.", "f{\"x\":1};"});
  // A response format does without channels.
  Expect("{\"a\": \"to=x\"}", channels, {"", "{\"a\": \"to=x\"}", ""});
  Expect("<|channel|>analysis<|mess", channels, {"", "", ""}, true);
  channels.reasoning = false;
  Expect(thought + "<|channel|>final<|message|>Yes.", channels, {"", "Hm, <b>.Yes.", ""});
  channels.tools = ToolStyle::kNone;
  Expect(call, channels, {"", "{\"x\": 1}", ""});
}

TEST(AnswerParts, ThoughtsInOtherTags) {
  const auto With = [](std::string_view mark, bool begun = false) {
    return PartsOptions{.reasoning = true, .thoughts = ThoughtsOf(mark), .starts_in_reasoning = begun};
  };
  Expect("[THINK]hm[/THINK]Yes.", With("[/THINK]"), {"hm", "Yes.", ""});
  Expect("<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
         With("<|END_THINKING|>"), {"hm", "Yes.", ""});
  Expect("Here is my thought process:\nhm\nHere is my response:\nYes.", With("Here is my thought process:"),
         {"hm", "Yes.", ""});
  Expect("Here is an answer.", With("Here is my thought process:"), {"", "Here is an answer.", ""});
  Expect("<|channel>thought\nhm\n<channel|>Yes.", With("<channel|>"), {"hm", "Yes.", ""});
  Expect("hm</think>\n<answer>\nYes.\n</answer>", With("</think></answer>", true), {"hm", "Yes.", ""});
  PartsOptions both = With("</think>", true);
  both.tools = ToolStyle::kInvoke;
  Expect("hm\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>", both,
         {"hm", "", "f{};"});
}

// Nothing is scanned again and again, and nothing aborts.
TEST(AnswerParts, HostileText) {
  const std::string pieces[] = {"<tool_call>",
                                "<function=f>",
                                "<parameter=x>",
                                "[TOOL_CALLS]",
                                "<|channel|>",
                                "<|message|>",
                                "[f(",
                                "{\"name\": \"",
                                "<arg_key>",
                                "<｜tool▁call▁begin｜>",
                                "<|tool_call>call:f{a:[",
                                "functools[",
                                "\xff\xfe",
                                "<function_calls>f(x=((((",
                                "\n",
                                "   "};
  for (const ToolSyntax& syntax : ToolSyntaxes())
    for (const std::string& piece : pieces) {
      std::string text = std::string(syntax.begin) + piece;
      while (text.size() < 20'000) text += piece + std::string(syntax.begin.substr(0, 3));
      EXPECT_EQ(Split(text, With(syntax.style), 1, true), Split(text, With(syntax.style), text.size(), true));
      EXPECT_EQ(Split(text, With(syntax.style), 7, false),
                Split(text, With(syntax.style), text.size(), false));
    }
  // Linear: a million bytes one by one, in which each may begin a tag.
  std::string text = "<tool_call>";
  text.append(1'000'000, '<');
  EXPECT_EQ(Split(text, With(ToolStyle::kTags), 1, false).content.size(), text.size());
  text.assign(1'000'000, ' ');
  EXPECT_EQ(Split(text, With(ToolStyle::kTags), 1, false).content.size(), text.size());
}

TEST(AnswerParts, RequiredCallsAreReadAsTheyAreForced) {
  for (const ToolSyntax& syntax : ToolSyntaxes()) {
    const std::string whole =
        WithName(syntax.required_begin, "f") + "{\"x\": 1}" + std::string(syntax.required_end);
    PartsOptions options = With(syntax.style);
    options.must_call = true;
    options.only_tool = "f";
    Expect(whole, options, {"", "", "f{\"x\":1};"});
    for (size_t size = 0; size < whole.size(); ++size) {
      const std::string text = whole.substr(0, size);
      const Whole cut = Split(text, options, 1, true);
      EXPECT_EQ(cut.content, "") << syntax.name << ": " << text;
      EXPECT_TRUE(cut.calls.starts_with("f")) << syntax.name << ": " << text;
      EXPECT_EQ(cut, Split(text, options, size + 1, true)) << text;
    }
  }
}

std::string Published(const std::string& name) {
  std::ifstream file(std::string(kSourceDir) + "/tests/chat_templates/published/" + name + ".jinja");
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(AnswerParts, SyntaxesOfPublishedTemplates) {
  const struct {
    const char* name;
    ToolStyle tools;
    const char* thoughts;
  } templates[] = {
      {"qwen2.5_7b_instruct", ToolStyle::kTags, nullptr},
      {"qwen3", ToolStyle::kTags, "<think>"},
      {"qwen3_coder", ToolStyle::kFunctionTag, nullptr},
      {"qwen3.5_4b", ToolStyle::kFunctionTag, "<think>"},
      {"seed_oss_36b", ToolStyle::kSeed, "<seed:think>"},
      {"glm4_moe", ToolStyle::kArgKeys, "<think>"},
      {"glm4.7_flash", ToolStyle::kArgKeys, "<think>"},
      {"gpt_oss", ToolStyle::kHarmony, ""},
      {"granite_3.0", ToolStyle::kGranite, nullptr},
      {"granite_3.3", ToolStyle::kGranite, "<think>"},
      {"granite_4.0", ToolStyle::kTags, nullptr},
      {"granite_4.1", ToolStyle::kTags, nullptr},
      {"mistral_nemo_instruct_2407", ToolStyle::kBracket, nullptr},
      {"mistral_small_3.2", ToolStyle::kBracketArgs, nullptr},
      {"ministral_3_reasoning", ToolStyle::kBracketArgs, "[THINK]"},
      {"deepseek_v3.1", ToolStyle::kNone, "<think>"},
      {"phi4", ToolStyle::kNone, nullptr},
  };
  for (const auto& row : templates) {
    const std::string text = Published(row.name);
    EXPECT_EQ(ToolStyleOf(text), row.tools) << row.name;
    const ThoughtSyntax* const thoughts = ThoughtsOf(text);
    ASSERT_EQ(thoughts != nullptr, row.thoughts != nullptr) << row.name;
    if (thoughts) {
      EXPECT_EQ(thoughts->begin, row.thoughts) << row.name;
    }
  }
}

TEST(AnswerParts, StylesOfTemplates) {
  EXPECT_EQ(ToolStyleOf("{% if tools %}<tool_call>{% endif %}"), ToolStyle::kTags);
  EXPECT_EQ(ToolStyleOf("{% if tools %}[TOOL_CALLS]{% endif %}"), ToolStyle::kBracket);
  EXPECT_EQ(ToolStyleOf("{% for message in messages %}"), ToolStyle::kNone);
  EXPECT_EQ(ThoughtsOf("content.split('</think>')")->begin, "<think>");
  EXPECT_EQ(ThoughtsOf("{{ messages }}"), nullptr);
}

}  // namespace
}  // namespace celer::server
