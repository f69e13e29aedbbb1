// The values a template computes with. They behave as Python's: text in code points, True == 1, ordered
// dicts. Lists and dicts never change once made (Jinja's immutable sandbox forbids it), so copies share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/template/jinja/limits.h"

namespace celer::jinja {

// Python's integers have no bound. 128 bits hold every number a request can carry; beyond is an error, never
// a wrap.
using Int = __int128;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kRange,
  kDict,
  kView,      // dict.keys(), values(), items()
  kIterator,  // what map, select, reverse ... return: always true, no length, read once
  kNamespace,
  kFunction,
  kMacro,
  kLoop,
  kCycler,
  kJoiner,
};

// Values on the heap. `depth` counts nested containers and is bounded, so that freeing, comparing and
// printing can recurse. What a template can change later (namespaces) has depth 0 and is owned by the
// interpreter.
struct Object {
  virtual ~Object() = default;
  int depth = 0;
};

struct String;
struct Sequence;
struct Dict;
struct Namespace;

class Value {
 public:
  Value() = default;  // None
  static Value None() { return {}; }
  static Value Bool(bool b) { return Value(Kind::kBool, b ? 1 : 0); }
  static Value Integer(Int i) { return Value(Kind::kInt, i); }
  static Value Float(double d);
  static Value Undefined(std::string why);
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool Is(Kind k) const { return kind_ == k; }
  bool IsNumber() const { return kind_ == Kind::kInt || kind_ == Kind::kFloat || kind_ == Kind::kBool; }
  bool IsIntegral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool IsSequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple || kind_ == Kind::kRange; }
  bool IsCallable() const;

  bool boolean() const { return integer_ != 0; }
  Int integer() const { return integer_; }      // kInt and kBool
  double AsDouble() const;                      // any number
  const String& string() const;                 // kString
  const std::string& text() const;              // kString: its bytes
  const Sequence& sequence() const;             // kList ... kIterator
  const Dict& dict() const;                     // kDict
  Namespace& name_space() const;                // kNamespace
  const std::string& undefined_reason() const;  // kUndefined
  template <class T>
  T& object() const {
    return static_cast<T&>(*object_);
  }
  const std::shared_ptr<Object>& shared() const { return object_; }
  bool SameObject(const Value& other) const;  // Python's `is`, as far as a template can tell
  int depth() const { return object_ ? object_->depth : 0; }

 private:
  Value(Kind kind, Int i) : kind_(kind), integer_(i) {}

  Kind kind_ = Kind::kNone;
  double float_ = 0;
  Int integer_ = 0;
  std::shared_ptr<Object> object_;
};

struct String : Object {
  std::string text;     // valid UTF-8
  int64_t length = 0;   // code points
  bool markup = false;  // made by `safe` or `escape`: adding plain text to it escapes that text
  bool ascii() const { return length == static_cast<int64_t>(text.size()); }
};

struct Sequence : Object {
  std::vector<Value> items;
  int64_t start = 0, stop = 0, step = 1;  // kRange: as written
  const char* label = "";                 // kView: dict_keys ...; kIterator: generator
  bool group = false;                     // kTuple made by groupby: has .grouper and .list
  size_t consumed = 0;                    // kIterator
};

struct Dict : Object {
  const Value* Find(std::string_view key) const;
  const Value* Find(const Value& key, Budget& budget) const;
  void Set(Value key, Value value, Budget& budget);  // only while it is being built
  size_t size() const { return entries.size(); }

  std::vector<std::pair<Value, Value>> entries;

 private:
  int64_t IndexOf(const Value& key, size_t hash, Budget& budget) const;
  std::unordered_multimap<size_t, uint32_t> index_;  // used from the ninth entry on
};

struct Namespace : Object {
  Dict attributes;
};

struct UndefinedObject : Object {
  std::string reason;
};

Value MakeString(Budget& budget, std::string text, bool markup = false);
Value MakeSequence(Budget& budget, Kind kind, std::vector<Value> items);
Value MakeIterator(Budget& budget, std::vector<Value> items);
Value MakeView(Budget& budget, const char* label, std::vector<Value> items);
inline Value MakeList(Budget& budget, std::vector<Value> items) {
  return MakeSequence(budget, Kind::kList, std::move(items));
}
inline Value MakeTuple(Budget& budget, std::vector<Value> items) {
  return MakeSequence(budget, Kind::kTuple, std::move(items));
}
std::shared_ptr<Dict> NewDict();
// The depth of a dict is settled here, when nothing more is added.
Value FinishDict(Budget& budget, std::shared_ptr<Dict> dict);

std::string TypeName(const Value& value);  // Python's name of the type, for messages
bool Truthy(const Value& value);
bool Equal(const Value& a, const Value& b, Budget& budget);
// Python's ordering: -1, 0, 1; throws when the two types have none. NaN compares as 2.
int Compare(const Value& a, const Value& b, const char* op, Budget& budget);
size_t Hash(const Value& value, Budget& budget);  // throws for lists and dicts
std::optional<int64_t> ToInt64(Int value);

}  // namespace celer::jinja
