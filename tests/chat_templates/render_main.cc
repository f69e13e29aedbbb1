// Renders chat templates from JSON lines, so that a script can compare the text with another renderer's.
//   in:  {"template", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "extra", "now"}
//   out: {"text"} or {"error"}
#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "text/template/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

std::string StringOr(const Json& request, const char* name) {
  const auto at = request.find(name);
  return at != request.end() && at->is_string() ? at->get<std::string>() : "";
}

Json Answer(const Json& request) {
  static std::map<std::string, celer::ChatTemplate> compiled;
  const std::string source = StringOr(request, "template");
  auto at = compiled.find(source);
  if (at == compiled.end()) {
    auto program = celer::ChatTemplate::Compile(source);
    if (!program) return {{"error", program.error().message()}};
    at = compiled.emplace(source, *program).first;
  }
  celer::ChatTemplate::Options options;
  options.add_generation_prompt = request.value("add_generation_prompt", false);
  options.bos_token = StringOr(request, "bos_token");
  options.eos_token = StringOr(request, "eos_token");
  options.extra = request.value("extra", Json());
  if (request.contains("now") && request["now"].is_number()) options.now = request["now"].get<std::time_t>();
  const auto text =
      at->second.Render(request.value("messages", Json::array()), request.value("tools", Json()), options);
  if (!text) return {{"error", text.error().message()}};
  return {{"text", *text}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line, nullptr, false);
    const Json answer =
        request.is_object() ? Answer(request) : Json{{"error", "the line is not a JSON object"}};
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  }
}
