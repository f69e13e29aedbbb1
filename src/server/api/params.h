// One table of every parameter of every endpoint: its type, its range, what it means, and its setter.
// Requests are validated against it, error messages quote it, and /openapi.json is generated from it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/query.h"

namespace celer::server {

enum class Kind {
  kBool,
  kInt,
  kNumber,
  kString,
  kStrings,  // a string, or an array of strings
  kIds,      // an array of token ids
  kArray,
  kObject,
  kAny,
};

struct Param {
  const char* name;
  Kind kind;
  double low, high;    // a number's range; else of the length: bytes of a string, items of an array
  unsigned endpoints;  // bits of Endpoint, and kNotInBatch
  const char* help;
  Refusal (*set)(const Json& value, Query& query);  // null: known and not supported
};

constexpr double kMany = 1e9;  // as `high`: practically unbounded

std::span<const Param> Params();
const char* PathOf(Endpoint endpoint);

// Reads a body that is an object into `query`, whose values are the defaults. Null counts as missing. What is
// unknown or not supported is refused by name, or, if `ignored` is given, put there.
Refusal ReadParams(const Json& body, Query* query, std::vector<std::string>* ignored);

// Parses and validates the bytes of a body: depth, UTF-8, finite numbers, an object.
Refusal ParseBody(std::string_view text, Json* body);

}  // namespace celer::server
