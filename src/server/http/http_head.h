// The head of a request as Beast parsed it, checked and in the form that handlers see.
#pragma once

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace celer::server {

inline std::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

std::string LowerCase(std::string_view text);  // of ASCII letters

// Fills in path, query and headers. "", or what is wrong with the head: then the end of its body is ambiguous
// (request smuggling), and the connection must be closed.
std::string CheckHead(const boost::beast::http::request_header<>& head, HttpRequest* request);

}  // namespace celer::server
