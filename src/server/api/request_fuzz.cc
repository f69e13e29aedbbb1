// Fuzzes what a client sends: the head of a request, a target, and a body for each endpoint, up to where the
// model is needed.
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/api/answer_parser.h"
#include "server/api/conversation.h"
#include "server/api/params.h"
#include "server/http/http_head.h"

namespace celer::server {
namespace {

void TryHead(std::string_view text) {
  namespace http = boost::beast::http;
  http::request_parser<http::string_body> parser;
  parser.header_limit(4096);
  parser.body_limit(1 << 16);
  parser.eager(true);
  boost::system::error_code error;
  for (size_t used = 0; !error && used < text.size() && !parser.is_done();) {
    const size_t taken = parser.put(boost::asio::buffer(text.data() + used, text.size() - used), error);
    if (taken == 0) break;
    used += taken;
  }
  if (!parser.is_header_done()) return;
  HttpRequest request;
  if (!CheckHead(parser.get(), &request).empty()) return;
  // An accepted head has one Content-Length or Transfer-Encoding.
  int lengths = 0;
  for (const auto& [name, value] : request.headers)
    lengths += name == "content-length" || name == "transfer-encoding" ? 1 : 0;
  if (lengths > 1 || request.path.empty()) __builtin_trap();
}

void TryBody(std::string_view text) {
  Json body;
  if (ParseBody(text, &body)) return;
  for (const Endpoint endpoint :
       {kChat, kCompletions, kResponses, kMessages, kTokenize, kDetokenize, kEmbeddings}) {
    std::vector<std::string> ignored;
    for (std::vector<std::string>* lenient : {static_cast<std::vector<std::string>*>(nullptr), &ignored}) {
      Query query;
      query.endpoint = endpoint;
      if (auto refusal = ReadParams(body, &query, lenient)) {
        if (refusal->message.empty()) __builtin_trap();
        continue;
      }
      Conversation conversation;
      ToolChoice choice;
      if (ReadConversation(query, Json::array(), &conversation)) continue;
      static_cast<void>(ReadToolChoice(query, conversation.tools, &choice));
    }
  }
}

// The parts of an answer do not depend on where its stream was cut.
void TryAnswer(std::string_view text, const PartsOptions& options) {
  std::string said[2];
  for (const bool cut : {false, true}) {
    const size_t step = cut ? 3 : text.size() + 1;
    AnswerParts parts(options);
    std::string& all = said[cut ? 1 : 0];
    const auto add = [&](const std::vector<Part>& more) {
      for (const Part& part : more)
        if (part.kind == Part::Kind::kCall)
          all += "\x01" + part.name + "\x02" + part.text;
        else
          all += part.text;
    };
    for (size_t at = 0; at < text.size(); at += step) add(parts.Push(text.substr(at, step)));
    add(parts.Finish(text.size() % 2 == 1));
  }
  if (said[0] != said[1]) __builtin_trap();
}

void TryAnswer(std::string_view text) {
  TryAnswer(text, {});
  for (const ToolSyntax& tools : ToolSyntaxes()) {
    TryAnswer(text, {.tools = tools.style});
    TryAnswer(text, {.tools = tools.style, .reasoning = true});
  }
  for (const ThoughtSyntax& thoughts : ThoughtSyntaxes())
    TryAnswer(text, {.reasoning = true, .thoughts = &thoughts});
}

}  // namespace
}  // namespace celer::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  celer::server::TryHead(text);
  celer::server::HttpRequest request;
  celer::server::ParseTarget(text, &request);
  celer::server::TryBody(text);
  if (size < 4096) celer::server::TryAnswer(text);
  return 0;
}
