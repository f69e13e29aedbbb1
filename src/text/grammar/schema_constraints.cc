#include "text/grammar/schema_constraints.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/utf8.h"
#include "io/file/printable.h"
#include "text/grammar/dfa.h"
#include "text/grammar/regex.h"
#include "text/grammar/string_formats.h"
#include "text/unicode/hex_digit.h"

namespace celer::grammar {
namespace {

constexpr uint32_t kMaxFactor = 2000;
constexpr size_t kMaxMembers = 1000;
constexpr int kMaxDisjointDepth = 6;

enum class Use : uint8_t { kAnything, kObject, kArray, kString, kNumber, kNote };

struct Keyword {
  const char* name;
  Use use;
};
constexpr Keyword kKeywords[] = {
    {"type", Use::kAnything},
    {"enum", Use::kAnything},
    {"const", Use::kAnything},
    {"anyOf", Use::kAnything},
    {"oneOf", Use::kAnything},
    {"allOf", Use::kAnything},
    {"$ref", Use::kAnything},
    {"properties", Use::kObject},
    {"required", Use::kObject},
    {"additionalProperties", Use::kObject},
    {"patternProperties", Use::kObject},
    {"propertyNames", Use::kObject},
    {"minProperties", Use::kObject},
    {"maxProperties", Use::kObject},
    {"items", Use::kArray},
    {"prefixItems", Use::kArray},
    {"additionalItems", Use::kArray},
    {"minItems", Use::kArray},
    {"maxItems", Use::kArray},
    {"uniqueItems", Use::kArray},
    {"minLength", Use::kString},
    {"maxLength", Use::kString},
    {"pattern", Use::kString},
    {"format", Use::kString},
    {"minimum", Use::kNumber},
    {"maximum", Use::kNumber},
    {"exclusiveMinimum", Use::kNumber},
    {"exclusiveMaximum", Use::kNumber},
    {"multipleOf", Use::kNumber},
    // These say something about the schema and nothing about the value.
    {"title", Use::kNote},
    {"description", Use::kNote},
    {"default", Use::kNote},
    {"example", Use::kNote},
    {"examples", Use::kNote},
    {"deprecated", Use::kNote},
    {"readOnly", Use::kNote},
    {"writeOnly", Use::kNote},
    {"discriminator", Use::kNote},
    {"contentMediaType", Use::kNote},
    {"contentEncoding", Use::kNote},
    {"contentSchema", Use::kNote},
    {"$schema", Use::kNote},
    {"$id", Use::kNote},
    {"$comment", Use::kNote},
    {"$defs", Use::kNote},
    {"definitions", Use::kNote},
};

const Keyword* FindKeyword(std::string_view name) {
  const auto at = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                               [name](const Keyword& keyword) { return name == keyword.name; });
  return at == std::end(kKeywords) ? nullptr : at;
}

Error WrongValue(const Member& member, std::string_view key, std::string_view expected) {
  return Error::Invalid("schema: '", Printable(PointerTo(member.pointer, key)), "' must be ", expected);
}

Error NotSupported(const std::string& pointer, std::string_view why = "") {
  return Error::Unsupported("schema: '", Printable(pointer), "' is not supported", why.empty() ? "" : ": ",
                            why);
}

std::optional<uint8_t> TypeNamed(std::string_view name) {
  if (name == "null") return kNull;
  if (name == "boolean") return kBoolean;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber;
  if (name == "string") return kString;
  if (name == "array") return kArray;
  if (name == "object") return kObject;
  return std::nullopt;
}

const Json* Find(const Member& member, const char* key) {
  const auto at = member.node->find(key);
  return at == member.node->end() ? nullptr : &*at;
}

Member Child(const Member& member, const char* key) {
  return {Find(member, key), PointerTo(member.pointer, key)};
}

bool IsWhole(const Json& number) {
  return number.is_number_integer() ||
         (number.is_number_float() && std::trunc(number.get<double>()) == number.get<double>());
}

}  // namespace

std::string PointerTo(const std::string& pointer, std::string_view key) {
  std::string out = pointer + '/';
  for (const char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

uint8_t TypeOf(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number()) return IsWhole(value) ? kInteger : kFraction;
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

Status SchemaReader::CheckKeywords(const Member& member) {
  if (!checked_.insert(member.node).second) return {};
  for (auto at = member.node->begin(); at != member.node->end(); ++at) {
    const std::string& key = at.key();
    const Keyword* keyword = FindKeyword(key);
    if (!keyword && key.starts_with("x-")) continue;
    if (!keyword) return NotSupported(PointerTo(member.pointer, key));
    if (key == "$id" && member.node != &document_)
      return NotSupported(PointerTo(member.pointer, key), "only the whole schema can have an identifier");
    if (key == "uniqueItems" && at.value() != Json(false))
      return NotSupported(PointerTo(member.pointer, key),
                          "items cannot be compared with each other while they are written");
  }
  return {};
}

Result<Member> SchemaReader::Resolve(const Member& member, const std::string& reference) {
  const std::string where = PointerTo(member.pointer, "$ref");
  if (!reference.starts_with('#') || (reference.size() > 1 && reference[1] != '/'))
    return NotSupported(where, "only references into the schema itself, '#' and '#/...', are");
  Member out{&document_, "#"};
  for (size_t at = 1; at < reference.size();) {
    const size_t end = std::min(reference.find('/', at + 1), reference.size());
    std::string key;
    for (size_t i = at + 1; i < end; ++i) {
      if (reference[i] == '~' && i + 1 < end && (reference[i + 1] == '0' || reference[i + 1] == '1')) {
        key += reference[++i] == '0' ? '~' : '/';
      } else if (reference[i] == '%' && i + 2 < end && HexDigit(reference[i + 1]) >= 0 &&
                 HexDigit(reference[i + 2]) >= 0) {
        key += static_cast<char>(HexDigit(reference[i + 1]) * 16 + HexDigit(reference[i + 2]));
        i += 2;
      } else {
        key += reference[i];
      }
    }
    const Json* next = nullptr;
    if (out.node->is_object()) {
      if (const auto found = out.node->find(key); found != out.node->end()) next = &*found;
    } else if (out.node->is_array() && !key.empty() && key.size() < 9 &&
               std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      if (const size_t index = std::stoul(key); index < out.node->size()) next = &(*out.node)[index];
    }
    if (!next)
      return Error::Invalid("schema: '", Printable(where), "' refers to '", Printable(reference),
                            "', which is not there");
    out = {next, PointerTo(out.pointer, key)};
    at = end;
  }
  return out;
}

Result<std::optional<Members>> SchemaReader::Flatten(const Members& members) {
  Members out;
  std::set<const Json*> seen;
  std::deque<Member> work(members.begin(), members.end());
  for (; !work.empty(); work.pop_front()) {
    const Member member = work.front();
    if (!budget_.Spend(16)) return budget_.TooManySteps();
    if (member.node->is_boolean()) {
      if (!member.node->get<bool>()) return std::optional<Members>();
      continue;
    }
    if (!member.node->is_object())
      return Error::Invalid("schema: '", Printable(member.pointer), "' must be an object or a boolean");
    if (!seen.insert(member.node).second) continue;
    if (seen.size() > kMaxMembers) return NotSupported(member.pointer, "too many schemas hold for one value");
    CELER_RETURN_IF_ERROR(CheckKeywords(member));
    out.push_back(member);
    if (const Json* reference = Find(member, "$ref")) {
      if (!reference->is_string()) return WrongValue(member, "$ref", "a string");
      CELER_ASSIGN(Member target, Resolve(member, reference->get<std::string>()));
      work.push_back(std::move(target));
    }
    if (const Json* all = Find(member, "allOf")) {
      if (!all->is_array()) return WrongValue(member, "allOf", "an array of schemas");
      for (size_t i = 0; i < all->size(); ++i)
        work.push_back({&(*all)[i], PointerTo(PointerTo(member.pointer, "allOf"), std::to_string(i))});
    }
  }
  return std::optional<Members>(std::move(out));
}

Result<std::optional<SchemaReader::Branches>> SchemaReader::OpenBranches(const Members& flat) {
  for (size_t m = 0; m < flat.size(); ++m)
    for (const bool exclusive : {false, true}) {
      const char* key = exclusive ? "oneOf" : "anyOf";
      const Json* branches = Find(flat[m], key);
      if (!branches || (exclusive ? flat[m].one_chosen : flat[m].any_chosen)) continue;
      if (!branches->is_array() || branches->empty())
        return WrongValue(flat[m], key, "an array of schemas that is not empty");
      Branches out{exclusive, PointerTo(flat[m].pointer, key), {}};
      Members rest = flat;
      (exclusive ? rest[m].one_chosen : rest[m].any_chosen) = true;
      for (size_t i = 0; i < branches->size(); ++i) {
        if (!budget_.Spend(flat.size() * 8)) return budget_.TooManySteps();
        out.branches.push_back(rest);
        out.branches.back().push_back({&(*branches)[i], PointerTo(out.pointer, std::to_string(i))});
      }
      return std::optional<Branches>(std::move(out));
    }
  return std::optional<Branches>();
}

Result<uint32_t> SchemaReader::Count(const Member& member, const char* key, uint32_t if_missing) {
  const Json* value = Find(member, key);
  if (!value) return if_missing;
  if (!value->is_number() || !IsWhole(*value) || value->get<double>() < 0)
    return WrongValue(member, key, "an integer that is not negative");
  return static_cast<uint32_t>(std::min(value->get<double>(), 4e9));
}

Status SchemaReader::GatherNumbers(const Member& member, Constraints& out) {
  const auto number = [&](const char* key) -> Result<std::optional<Decimal>> {
    const Json* value = Find(member, key);
    if (!value || value->is_boolean()) return std::optional<Decimal>();
    if (!value->is_number()) return WrongValue(member, key, "a number");
    const Decimal decimal = Decimal::Of(*value);
    if (decimal.whole.size() > 30 || decimal.fraction.size() > 30)
      return NotSupported(PointerTo(member.pointer, key),
                          "bounds have at most 30 digits before and after the point");
    return std::optional<Decimal>(decimal);
  };
  // Draft 4: a boolean that says that `minimum` itself is not allowed.
  const auto is_true = [&](const char* key) {
    const Json* value = Find(member, key);
    return value && *value == Json(true);
  };
  struct Bound {
    const char* key;
    bool low, open;
  };
  for (const Bound bound :
       {Bound{"minimum", true, is_true("exclusiveMinimum")}, Bound{"exclusiveMinimum", true, true},
        Bound{"maximum", false, is_true("exclusiveMaximum")}, Bound{"exclusiveMaximum", false, true}}) {
    CELER_ASSIGN(const auto value, number(bound.key));
    if (!value) continue;
    auto& kept = bound.low ? out.range.low : out.range.high;
    bool& open = bound.low ? out.range.low_open : out.range.high_open;
    const int order = kept ? Compare(*value, *kept) : (bound.low ? 1 : -1);
    if (order == 0) open |= bound.open;
    if (bound.low ? order <= 0 : order >= 0) continue;
    kept = value;
    open = bound.open;
  }
  if (const Json* factor = Find(member, "multipleOf")) {
    if (!factor->is_number() || factor->get<double>() <= 0)
      return WrongValue(member, "multipleOf", "a number above 0");
    if (!IsWhole(*factor) || factor->get<double>() > kMaxFactor)
      return NotSupported(PointerTo(member.pointer, "multipleOf"),
                          "only integers up to " + std::to_string(kMaxFactor) + " are");
    out.factors.push_back(static_cast<uint32_t>(factor->get<double>()));
  }
  return {};
}

Status SchemaReader::GatherStrings(const Member& member, Constraints& out) {
  CELER_ASSIGN(const uint32_t least, Count(member, "minLength", 0));
  CELER_ASSIGN(const uint32_t most, Count(member, "maxLength", kUnbounded));
  out.min_length = std::max(out.min_length, least);
  out.max_length = std::min(out.max_length, most);
  if (const Json* pattern = Find(member, "pattern")) {
    if (!pattern->is_string()) return WrongValue(member, "pattern", "a string");
    out.patterns.push_back(pattern->get<std::string>());
    // Refused here, where its place is known.
    if (auto dfa = RegexDfa(out.patterns.back(), {.search = true, .json_text = true}, budget_); !dfa)
      return dfa.error().WithContext("schema: '" + Printable(PointerTo(member.pointer, "pattern")) + "'");
  }
  if (const Json* format = Find(member, "format")) {
    if (!format->is_string()) return WrongValue(member, "format", "a string");
    const std::string& name = format->get_ref<const std::string&>();
    // What OpenAPI says of numbers and secrets does not change how a string is written.
    for (const char* other : {"int32", "int64", "float", "double", "password"})
      if (name == other) return {};
    if (!FormatPattern(name))
      return NotSupported(PointerTo(member.pointer, "format"),
                          "'" + Printable(name) + "' is not one of " + FormatNames());
    out.formats.push_back(name);
  }
  return {};
}

Status SchemaReader::GatherOne(const Member& member, Constraints& out, bool& typed, uint8_t& implied) {
  for (auto at = member.node->begin(); at != member.node->end(); ++at) {
    const Keyword* keyword = FindKeyword(at.key());
    if (!keyword) continue;
    if (keyword->use == Use::kObject) implied |= kObject;
    if (keyword->use == Use::kArray) implied |= kArray;
    if (keyword->use == Use::kString) implied |= kString;
    if (keyword->use == Use::kNumber) implied |= kNumber;
    out.object_keywords |= keyword->use == Use::kObject;
    out.array_keywords |= keyword->use == Use::kArray && at.key() != "uniqueItems";
  }
  if (const Json* type = Find(member, "type")) {
    uint8_t bits = 0;
    const Json names = type->is_array() ? *type : Json::array({*type});
    for (const Json& name : names) {
      const auto bit = name.is_string() ? TypeNamed(name.get_ref<const std::string&>()) : std::nullopt;
      if (!bit)
        return WrongValue(member, "type",
                          "null, boolean, integer, number, string, array or object, or a list of them");
      bits |= *bit;
    }
    out.types &= bits;
    typed = true;
  }
  const Json* list = Find(member, "enum");
  const Json* constant = Find(member, "const");
  if (list && !list->is_array()) return WrongValue(member, "enum", "an array");
  for (const Json& values : {list ? *list : Json(), constant ? Json::array({*constant}) : Json()}) {
    if (values.is_null()) continue;
    if (!budget_.Spend(values.size() + out.values.size())) return budget_.TooManySteps();
    if (!out.listed) {
      out.values.assign(values.begin(), values.end());
      out.listed = true;
      continue;
    }
    if (!budget_.Spend(values.size() * out.values.size())) return budget_.TooManySteps();
    std::erase_if(out.values, [&](const Json& value) {
      return std::find(values.begin(), values.end(), value) == values.end();
    });
  }
  CELER_RETURN_IF_ERROR(GatherNumbers(member, out));
  CELER_RETURN_IF_ERROR(GatherStrings(member, out));
  const auto least = [&](const char* key, uint32_t& value) -> Status {
    CELER_ASSIGN(const uint32_t count, Count(member, key, 0));
    value = std::max(value, count);
    return {};
  };
  const auto most = [&](const char* key, uint32_t& value) -> Status {
    CELER_ASSIGN(const uint32_t count, Count(member, key, kUnbounded));
    value = std::min(value, count);
    return {};
  };
  CELER_RETURN_IF_ERROR(least("minItems", out.min_items));
  CELER_RETURN_IF_ERROR(most("maxItems", out.max_items));
  CELER_RETURN_IF_ERROR(least("minProperties", out.min_properties));
  CELER_RETURN_IF_ERROR(most("maxProperties", out.max_properties));
  if (const Json* required = Find(member, "required")) {
    if (!required->is_array()) return WrongValue(member, "required", "an array of names");
    for (const Json& name : *required) {
      if (!name.is_string()) return WrongValue(member, "required", "an array of names");
      if (!budget_.Spend(out.required.size())) return budget_.TooManySteps();
      if (std::find(out.required.begin(), out.required.end(), name.get_ref<const std::string&>()) ==
          out.required.end())
        out.required.push_back(name.get<std::string>());
    }
  }
  return {};
}

Status SchemaReader::GatherItems(const Members& flat, Constraints& out) {
  struct Items {
    Members first;
    std::optional<Member> other;
  };
  std::vector<Items> all;
  size_t longest = 0;
  for (const Member& member : flat) {
    Items items;
    const Json* list = Find(member, "prefixItems");
    std::string key = "prefixItems";
    if (const Json* old = Find(member, "items"); old && old->is_array()) {
      if (list) return WrongValue(member, "items", "a schema where 'prefixItems' is a list");
      list = old;
      key = "items";
      if (Find(member, "additionalItems")) items.other = Child(member, "additionalItems");
    } else if (old) {
      items.other = Child(member, "items");
    }
    if (list) {
      if (!list->is_array()) return WrongValue(member, key, "an array of schemas");
      for (size_t i = 0; i < list->size(); ++i)
        items.first.push_back({&(*list)[i], PointerTo(PointerTo(member.pointer, key), std::to_string(i))});
    }
    longest = std::max(longest, items.first.size());
    all.push_back(std::move(items));
  }
  if (!budget_.Spend(longest * all.size())) return budget_.TooManySteps();
  out.first_items.resize(longest);
  for (const Items& items : all) {
    for (size_t i = 0; i < longest; ++i) {
      if (i < items.first.size())
        out.first_items[i].push_back(items.first[i]);
      else if (items.other)
        out.first_items[i].push_back(*items.other);
    }
    if (items.other) out.other_items.push_back(*items.other);
  }
  return {};
}

Result<bool> SchemaReader::NameMatches(const std::string& pattern, const std::string& name) {
  CELER_ASSIGN(const Dfa dfa, RegexDfa(pattern, {.search = true}, budget_));
  return dfa.Accepts(name);
}

Status SchemaReader::GatherNames(const Members& flat, Constraints& out) {
  // Names in the order in which the schemas give them; what is only required comes last.
  std::set<std::string> listed;
  std::vector<std::string> names;
  const Member* with_patterns = nullptr;
  for (const Member& member : flat) {
    if (const Json* properties = Find(member, "properties")) {
      if (!properties->is_object()) return WrongValue(member, "properties", "an object of schemas");
      for (auto at = properties->begin(); at != properties->end(); ++at)
        if (listed.insert(at.key()).second) names.push_back(at.key());
    }
    if (const Json* patterns = Find(member, "patternProperties")) {
      if (!patterns->is_object()) return WrongValue(member, "patternProperties", "an object of schemas");
      if (patterns->empty()) continue;
      if (with_patterns)
        return NotSupported(PointerTo(member.pointer, "patternProperties"),
                            "two of them hold for the same object");
      with_patterns = &member;
    }
    if (Find(member, "propertyNames")) out.names.push_back(Child(member, "propertyNames"));
  }
  for (const std::string& name : out.required)
    if (listed.insert(name).second) names.push_back(name);
  if (!budget_.Spend(names.size() * flat.size() * 4)) return budget_.TooManySteps();

  // Regular expressions of names are compiled once for all names.
  std::vector<std::pair<std::string, Dfa>> matchers;
  if (with_patterns)
    for (auto at = (*with_patterns->node)["patternProperties"].begin();
         at != (*with_patterns->node)["patternProperties"].end(); ++at) {
      auto dfa = RegexDfa(at.key(), {.search = true}, budget_);
      if (!dfa)
        return dfa.error().WithContext(
            "schema: '" + Printable(PointerTo(with_patterns->pointer, "patternProperties")) + "'");
      matchers.emplace_back(at.key(), std::move(*dfa));
    }

  for (const std::string& name : names) {
    KeyedSchema property{name, {}};
    for (const Member& member : flat) {
      bool known = false;
      if (const Json* properties = Find(member, "properties"))
        if (const auto at = properties->find(name); at != properties->end()) {
          property.value.push_back({&*at, PointerTo(PointerTo(member.pointer, "properties"), name)});
          known = true;
        }
      if (&member == with_patterns)
        for (const auto& [pattern, dfa] : matchers)
          if (dfa.Accepts(name)) {
            property.value.push_back({&(*member.node)["patternProperties"][pattern],
                                      PointerTo(PointerTo(member.pointer, "patternProperties"), pattern)});
            known = true;
          }
      if (!known && Find(member, "additionalProperties"))
        property.value.push_back(Child(member, "additionalProperties"));
    }
    out.properties.push_back(std::move(property));
  }
  for (const auto& [pattern, dfa] : matchers) {
    KeyedSchema names_like{pattern, {}};
    for (const Member& member : flat) {
      if (&member == with_patterns)
        names_like.value.push_back({&(*member.node)["patternProperties"][pattern],
                                    PointerTo(PointerTo(member.pointer, "patternProperties"), pattern)});
      else if (Find(member, "additionalProperties"))
        names_like.value.push_back(Child(member, "additionalProperties"));
    }
    out.patterns_of_names.push_back(std::move(names_like));
  }
  for (const Member& member : flat)
    if (Find(member, "additionalProperties"))
      out.other_names.push_back(Child(member, "additionalProperties"));
  return {};
}

// Of listed values, those that the other constraints let through.
Status SchemaReader::KeepValidValues(Constraints& out) {
  std::vector<Json> kept;
  for (const Json& value : out.values) {
    if (!budget_.Spend(4)) return budget_.TooManySteps();
    const uint8_t type = TypeOf(value);
    if (!(out.types & type)) continue;
    if (type & kNumber) {
      const Decimal number = Decimal::Of(value);
      const auto& range = out.range;
      if (range.low && Compare(number, *range.low) < (range.low_open ? 1 : 0)) continue;
      if (range.high && Compare(number, *range.high) > (range.high_open ? -1 : 0)) continue;
      if (std::any_of(out.factors.begin(), out.factors.end(), [&](uint32_t factor) {
            return std::fmod(value.get<double>(), static_cast<double>(factor)) != 0;
          }))
        continue;
    }
    if (type == kString) {
      CELER_ASSIGN(const bool valid, StringIsValid(out, value.get<std::string>()));
      if (!valid) continue;
    }
    if ((type == kArray && out.array_keywords) || (type == kObject && out.object_keywords))
      return NotSupported(out.pointer,
                          "listed arrays and objects cannot be held to other keywords at the same time");
    kept.push_back(value);
  }
  out.values = std::move(kept);
  return {};
}

Result<Constraints> SchemaReader::Gather(const Members& flat) {
  Constraints out;
  if (!flat.empty()) out.pointer = flat[0].pointer;
  bool typed = false;
  uint8_t implied = 0;
  for (const Member& member : flat) CELER_RETURN_IF_ERROR(GatherOne(member, out, typed, implied));
  if (!typed && !out.listed && implied && type_from_keywords_) out.types &= implied;
  if (out.listed) {
    CELER_RETURN_IF_ERROR(KeepValidValues(out));
    out.types = 0;
    for (const Json& value : out.values) out.types |= TypeOf(value);
    return out;
  }
  if (out.types & kArray) CELER_RETURN_IF_ERROR(GatherItems(flat, out));
  if (out.types & kObject) CELER_RETURN_IF_ERROR(GatherNames(flat, out));
  return out;
}

Result<bool> SchemaReader::StringIsValid(const Constraints& constraints, const std::string& text) {
  size_t length = 0;
  for (std::string_view rest = text; !rest.empty(); ++length) rest.remove_prefix(utf8::Decode(rest).length);
  if (length < constraints.min_length || length > constraints.max_length) return false;
  for (const std::string& pattern : constraints.patterns) {
    CELER_ASSIGN(const bool matches, NameMatches(pattern, text));
    if (!matches) return false;
  }
  for (const std::string& format : constraints.formats) {
    CELER_ASSIGN(const Dfa dfa, RegexDfa(*FormatPattern(format), {}, budget_));
    if (!dfa.Accepts(text)) return false;
  }
  return true;
}

Result<Dfa> SchemaReader::StringDfa(const Constraints& constraints) {
  std::optional<Dfa> out;
  const auto also = [&](Dfa dfa) -> Status {
    if (!out) {
      out = std::move(dfa);
      return {};
    }
    CELER_ASSIGN(out, CombineDfas(*out, dfa, Combine::kAnd, budget_));
    return {};
  };
  for (const std::string& format : constraints.formats) {
    CELER_ASSIGN(Dfa dfa, RegexDfa(*FormatPattern(format), {.json_text = true}, budget_));
    CELER_RETURN_IF_ERROR(also(std::move(dfa)));
  }
  for (const std::string& pattern : constraints.patterns) {
    CELER_ASSIGN(Dfa dfa, RegexDfa(pattern, {.search = true, .json_text = true}, budget_));
    CELER_RETURN_IF_ERROR(also(std::move(dfa)));
  }
  if (constraints.listed) {
    RuleSet rules;
    std::vector<ExprId> parts;
    for (const Json& value : constraints.values)
      if (value.is_string())
        parts.push_back(rules.Literal(PlainJsonString(value.get_ref<const std::string&>())));
    CELER_ASSIGN(Dfa dfa, MakeDfa(rules, rules.Choice(std::move(parts)), budget_));
    CELER_RETURN_IF_ERROR(also(std::move(dfa)));
  }
  if (!out || constraints.min_length > 0 || constraints.max_length != kUnbounded) {
    if (constraints.min_length > constraints.max_length) return Dfa{};
    RuleSet rules;
    const ExprId any = PlainJsonChar(rules, CodePointSet::All());
    CELER_ASSIGN(Dfa dfa,
                 MakeDfa(rules, rules.Repeat(any, constraints.min_length, constraints.max_length), budget_));
    CELER_RETURN_IF_ERROR(also(std::move(dfa)));
  }
  return std::move(*out);
}

Result<bool> SchemaReader::Disjoint(const Members& a, const Members& b, int depth) {
  if (depth > kMaxDisjointDepth) return false;
  if (!budget_.Spend(200)) return budget_.TooManySteps();
  CELER_ASSIGN(const auto flat_a, Flatten(a));
  CELER_ASSIGN(const auto flat_b, Flatten(b));
  if (!flat_a || !flat_b) return true;
  for (const bool first : {true, false}) {
    CELER_ASSIGN(const auto open, OpenBranches(first ? *flat_a : *flat_b));
    if (!open) continue;
    for (const Members& branch : open->branches) {
      CELER_ASSIGN(const bool disjoint, Disjoint(branch, first ? *flat_b : *flat_a, depth + 1));
      if (!disjoint) return false;
    }
    return true;
  }
  CELER_ASSIGN(const Constraints demands_a, Gather(*flat_a));
  CELER_ASSIGN(const Constraints demands_b, Gather(*flat_b));
  return ConstraintsDisjoint(demands_a, demands_b, depth);
}

Result<bool> SchemaReader::ConstraintsDisjoint(const Constraints& a, const Constraints& b, int depth) {
  const uint8_t both = a.types & b.types;
  if (both == 0) return true;
  if (a.listed && b.listed) {
    if (!budget_.Spend(a.values.size() * b.values.size())) return budget_.TooManySteps();
    return std::none_of(a.values.begin(), a.values.end(), [&](const Json& value) {
      return std::find(b.values.begin(), b.values.end(), value) != b.values.end();
    });
  }
  if (both & (kNull | kBoolean | kArray)) return false;
  if (both & kNumber) {
    if (a.listed || b.listed) return false;
    const auto below = [](const NumberRange& x, const NumberRange& y) {
      if (!x.high || !y.low) return false;
      const int order = Compare(*x.high, *y.low);
      return order < 0 || (order == 0 && (x.high_open || y.low_open));
    };
    if (!below(a.range, b.range) && !below(b.range, a.range)) return false;
  }
  if (both & kString) {
    CELER_ASSIGN(const Dfa strings_a, StringDfa(a));
    CELER_ASSIGN(const Dfa strings_b, StringDfa(b));
    CELER_ASSIGN(const Dfa common, CombineDfas(strings_a, strings_b, Combine::kAnd, budget_));
    if (!common.states.empty()) return false;
  }
  if (both & kObject) {
    if (a.listed || b.listed) return false;
    // A property that one requires, and that has no value that is right for both.
    const auto told_apart = [&](const Constraints& x, const Constraints& y) -> Result<bool> {
      for (const std::string& name : x.required) {
        const auto of = [&](const Constraints& constraints) {
          const auto at = std::find_if(constraints.properties.begin(), constraints.properties.end(),
                                       [&](const KeyedSchema& property) { return property.name == name; });
          return at == constraints.properties.end() ? nullptr : &*at;
        };
        const KeyedSchema* in_x = of(x);
        const KeyedSchema* in_y = of(y);
        const bool must = std::find(y.required.begin(), y.required.end(), name) != y.required.end();
        if (!in_y) {
          // The other knows nothing of it; it may forbid all names that it does not list.
          if (!y.patterns_of_names.empty()) continue;
          CELER_ASSIGN(const auto flat, Flatten(y.other_names));
          if (!flat) return true;
          continue;
        }
        if (!must || !in_x) continue;
        CELER_ASSIGN(const bool disjoint, Disjoint(in_x->value, in_y->value, depth + 1));
        if (disjoint) return true;
      }
      return false;
    };
    CELER_ASSIGN(const bool forward, told_apart(a, b));
    if (forward) return true;
    CELER_ASSIGN(const bool backward, told_apart(b, a));
    return backward;
  }
  return true;
}

}  // namespace celer::grammar
