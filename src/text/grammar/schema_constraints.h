// A JSON schema, normalized: the schemas that hold for one value together, and the constraints they put on
// it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar/json_text.h"

namespace celer::grammar {

using Json = nlohmann::ordered_json;

// One schema of the document. Several hold together where allOf, $ref or anyOf say so.
struct Member {
  const Json* node;
  std::string pointer;                          // "#/properties/a", for errors
  bool any_chosen = false, one_chosen = false;  // a branch of its anyOf, oneOf is among the others
};
using Members = std::vector<Member>;

enum TypeBits : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,  // numbers that are not integers
  kNumber = kInteger | kFraction,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};
uint8_t TypeOf(const Json& value);

struct KeyedSchema {
  std::string name;  // or pattern
  Members value;
};

// The constraints of members without anyOf and oneOf, combined.
struct Constraints {
  uint8_t types = kAnyType;
  bool listed = false;  // the value is one of `values`
  std::vector<Json> values = {};
  // Numbers.
  NumberRange range = {};
  std::vector<uint32_t> factors = {};
  // Strings.
  uint32_t min_length = 0, max_length = kUnbounded;
  std::vector<std::string> patterns = {}, formats = {};
  // Arrays: the schemas of the first items, and of all others.
  uint32_t min_items = 0, max_items = kUnbounded;
  std::vector<Members> first_items = {};
  Members other_items = {};
  // Objects. What is true of a name that is neither listed nor matched by a pattern is `other_names`.
  std::vector<KeyedSchema> properties = {};
  std::vector<KeyedSchema> patterns_of_names = {};
  Members other_names = {};
  Members names = {};  // propertyNames
  std::vector<std::string> required = {};
  uint32_t min_properties = 0, max_properties = kUnbounded;
  bool object_keywords = false, array_keywords = false;
  std::string pointer = "#";  // of the first member
};

class SchemaReader {
 public:
  SchemaReader(const Json& document, bool type_from_keywords, Budget& budget)
      : document_(document), type_from_keywords_(type_from_keywords), budget_(budget) {}

  // With what $ref and allOf add, each schema once. nullopt: nothing can be valid.
  Result<std::optional<Members>> Flatten(const Members& members);
  // Of flat members. nullopt: nothing can be valid.
  Result<Constraints> Gather(const Members& flat);
  // The alternatives of the first anyOf or oneOf that is open, if there is one.
  struct Branches {
    bool exclusive;  // oneOf
    std::string pointer;
    std::vector<Members> branches;
  };
  Result<std::optional<Branches>> OpenBranches(const Members& flat);

  // The plain spellings, without quotes, of the strings that are valid.
  Result<Dfa> StringDfa(const Constraints& constraints);
  Result<bool> StringIsValid(const Constraints& constraints, const std::string& text);
  // Whether it can be shown that no value is valid for both.
  Result<bool> Disjoint(const Members& a, const Members& b, int depth);

 private:
  Status CheckKeywords(const Member& member);
  Result<Member> Resolve(const Member& member, const std::string& reference);
  Status GatherOne(const Member& member, Constraints& out, bool& typed, uint8_t& implied);
  Status GatherNumbers(const Member& member, Constraints& out);
  Status GatherStrings(const Member& member, Constraints& out);
  Status GatherItems(const Members& flat, Constraints& out);
  Status GatherNames(const Members& flat, Constraints& out);
  Status KeepValidValues(Constraints& out);
  Result<bool> NameMatches(const std::string& pattern, const std::string& name);
  Result<bool> ConstraintsDisjoint(const Constraints& a, const Constraints& b, int depth);
  Result<uint32_t> Count(const Member& member, const char* key, uint32_t if_missing);

  const Json& document_;
  bool type_from_keywords_;
  Budget& budget_;
  std::set<const Json*> checked_;
};

std::string PointerTo(const std::string& pointer, std::string_view key);

}  // namespace celer::grammar
