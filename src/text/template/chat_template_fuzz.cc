// Any bytes as a template. It must compile or be refused, and render or be refused, within its limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  static const Json messages = Json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Héllo 日本 😀"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function",
      "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]},
    {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "22"},
    {"role": "user", "content": [{"type": "text", "text": "x"}]}])");
  static const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "array"}}, "required": []}}}])");
  const auto program =
      celer::ChatTemplate::Compile(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!program) return 0;
  celer::ChatTemplate::Options options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  options.now = 0;
  options.limits.steps = 50'000;
  options.limits.string_bytes = 1 << 16;
  options.limits.range_items = 1000;
  (void)program->Render(messages, tools, options).has_value();
  return 0;
}
