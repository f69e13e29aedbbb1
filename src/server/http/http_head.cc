#include "server/http/http_head.h"

namespace celer::server {
std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string CheckHead(const boost::beast::http::request_header<>& head, HttpRequest* request) {
  if (!ParseTarget(View(head.target()), request)) return "the target is not a path";
  int hosts = 0, lengths = 0, encodings = 0;
  std::string encoding;
  for (const auto& field : head) {
    std::string name = LowerCase(View(field.name_string()));
    hosts += name == "host" ? 1 : 0;
    lengths += name == "content-length" ? 1 : 0;
    if (name == "transfer-encoding") {
      ++encodings;
      encoding = LowerCase(View(field.value()));
    }
    request->headers.emplace_back(std::move(name), std::string(View(field.value())));
  }
  if (head.version() != 10 && head.version() != 11) return "expected HTTP/1.0 or HTTP/1.1";
  // Request smuggling: rejected where a proxy in front could see another end of the message.
  if (head.version() == 11 && hosts != 1) return "expected one Host header";
  if (lengths > 1 || encodings > 1 || (lengths > 0 && encodings > 0))
    return "the length of the body is given more than once";
  if (encodings > 0 && (encoding != "chunked" || head.version() == 10))
    return "the only Transfer-Encoding known here is chunked, in HTTP/1.1";
  return "";
}

}  // namespace celer::server
