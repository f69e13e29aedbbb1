#include "server/http/http.h"

#include <openssl/rand.h>

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace celer::server {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

bool ParseTarget(std::string_view target, HttpRequest* request) {
  // A proxy's form: http://host/path.
  if (const size_t scheme = target.find("://"); scheme != std::string_view::npos && scheme < 6) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (target.empty() || (target[0] != '/' && target != "*")) return false;
  const size_t question = target.find('?');
  if (question != std::string_view::npos) request->query = target.substr(question + 1);
  const std::string_view path = target.substr(0, question);
  request->path.clear();
  for (size_t i = 0; i < path.size(); ++i) {
    char c = path[i];
    if (c == '%') {
      if (i + 2 >= path.size()) return false;
      const int high = HexDigit(path[i + 1]), low = HexDigit(path[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
    request->path += c;
  }
  return true;
}

bool IsValidRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

std::string NewId(std::string_view prefix) {
  unsigned char bytes[12];
  CELER_CHECK_EQ(RAND_bytes(bytes, sizeof bytes), 1);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string id(prefix);
  for (const unsigned char byte : bytes) {
    id += kDigits[byte >> 4];
    id += kDigits[byte & 15];
  }
  return id;
}

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

}  // namespace celer::server
