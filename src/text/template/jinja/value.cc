#include "text/template/jinja/value.h"

#include <cmath>
#include <functional>
#include <limits>

#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

constexpr size_t kLinearEntries = 8;

template <class T>
int Order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

int OrderNumbers(const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral()) return Order(a.integer(), b.integer());
  const double x = a.AsDouble(), y = b.AsDouble();
  if (std::isnan(x) || std::isnan(y)) return 2;
  return Order(x, y);
}

}  // namespace

Value Value::Float(double d) {
  Value v(Kind::kFloat, Int{0});
  v.float_ = d;
  return v;
}

Value Value::Undefined(std::string why) {
  auto object = std::make_shared<UndefinedObject>();
  object->reason = std::move(why);
  return {Kind::kUndefined, std::move(object)};
}

bool Value::IsCallable() const {
  switch (kind_) {
    case Kind::kFunction:
    case Kind::kMacro:
    case Kind::kLoop:
    case Kind::kJoiner:
    case Kind::kUndefined:
      return true;  // calling it fails, but Python's callable() says yes
    default:
      return false;
  }
}

double Value::AsDouble() const {
  return kind_ == Kind::kFloat ? float_ : static_cast<double>(integer_);
}
const String& Value::string() const {
  return object<String>();
}
const std::string& Value::text() const {
  return object<String>().text;
}
const Sequence& Value::sequence() const {
  return object<Sequence>();
}
const Dict& Value::dict() const {
  return object<Dict>();
}
Namespace& Value::name_space() const {
  return object<Namespace>();
}
const std::string& Value::undefined_reason() const {
  return object<UndefinedObject>().reason;
}

bool Value::SameObject(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return integer_ == other.integer_;
    case Kind::kFloat:
      return float_ == other.float_;
    case Kind::kString:
      return text() == other.text();  // Python interns most short strings
    default:
      return object_ == other.object_;
  }
}

std::optional<int64_t> ToInt64(Int value) {
  if (value < std::numeric_limits<int64_t>::min() || value > std::numeric_limits<int64_t>::max())
    return std::nullopt;
  return static_cast<int64_t>(value);
}

Value MakeString(Budget& budget, std::string text, bool markup) {
  budget.Charge(6);
  budget.ChargeString(static_cast<int64_t>(text.size()));
  auto object = std::make_shared<String>();
  object->length = CountCodePoints(text);
  object->text = std::move(text);
  object->markup = markup;
  return {Kind::kString, std::move(object)};
}

Value MakeSequence(Budget& budget, Kind kind, std::vector<Value> items) {
  budget.Charge(6 + 3 * static_cast<int64_t>(items.size()));
  auto object = std::make_shared<Sequence>();
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  object->depth = depth + 1;
  budget.CheckNesting(object->depth);
  object->items = std::move(items);
  return {kind, std::move(object)};
}

Value MakeIterator(Budget& budget, std::vector<Value> items) {
  Value v = MakeSequence(budget, Kind::kIterator, std::move(items));
  v.object<Sequence>().label = "generator";
  return v;
}

Value MakeView(Budget& budget, const char* label, std::vector<Value> items) {
  Value v = MakeSequence(budget, Kind::kView, std::move(items));
  v.object<Sequence>().label = label;
  return v;
}

std::shared_ptr<Dict> NewDict() {
  return std::make_shared<Dict>();
}

Value FinishDict(Budget& budget, std::shared_ptr<Dict> dict) {
  int depth = 0;
  for (const auto& [key, value] : dict->entries) depth = std::max({depth, key.depth(), value.depth()});
  dict->depth = depth + 1;
  budget.CheckNesting(dict->depth);
  return {Kind::kDict, std::move(dict)};
}

int64_t Dict::IndexOf(const Value& key, size_t hash, Budget& budget) const {
  if (index_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (Equal(entries[i].first, key, budget)) return static_cast<int64_t>(i);
    return -1;
  }
  auto [at, end] = index_.equal_range(hash);
  for (; at != end; ++at) {
    budget.Charge(1);
    if (Equal(entries[at->second].first, key, budget)) return at->second;
  }
  return -1;
}

const Value* Dict::Find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [k, v] : entries)
      if (k.Is(Kind::kString) && k.text() == key) return &v;
    return nullptr;
  }
  auto [at, end] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (; at != end; ++at) {
    const auto& [k, v] = entries[at->second];
    if (k.Is(Kind::kString) && k.text() == key) return &v;
  }
  return nullptr;
}

const Value* Dict::Find(const Value& key, Budget& budget) const {
  const int64_t i = IndexOf(key, Hash(key, budget), budget);
  return i < 0 ? nullptr : &entries[i].second;
}

void Dict::Set(Value key, Value value, Budget& budget) {
  budget.Charge(8);
  const size_t hash = Hash(key, budget);
  if (const int64_t i = IndexOf(key, hash, budget); i >= 0) {
    entries[i].second = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() == kLinearEntries + 1) {
    for (size_t i = 0; i < entries.size(); ++i)
      index_.emplace(Hash(entries[i].first, budget), static_cast<uint32_t>(i));
  } else if (!index_.empty()) {
    index_.emplace(hash, static_cast<uint32_t>(entries.size() - 1));
  }
}

std::string TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
    case Kind::kIterator:
      return value.sequence().label;
    case Kind::kNamespace:
      return "namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kMacro:
      return "macro";
    case Kind::kLoop:
      return "loop";
    case Kind::kCycler:
      return "cycler";
    case Kind::kJoiner:
      return "joiner";
  }
  return "object";
}

bool Truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.AsDouble() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !value.sequence().items.empty();
    case Kind::kDict:
      return value.dict().size() != 0;
    default:
      return true;
  }
}

bool Equal(const Value& a, const Value& b, Budget& budget) {
  if (a.IsNumber() && b.IsNumber()) return OrderNumbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString: {
      if (a.shared() == b.shared()) return true;
      if (a.text().size() != b.text().size()) return false;
      budget.Charge(static_cast<int64_t>(a.text().size()) / 64);
      return a.text() == b.text();
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: {
      const auto& x = a.sequence().items;
      const auto& y = b.sequence().items;
      if (a.shared() == b.shared()) return true;
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        budget.Charge(1);
        if (!Equal(x[i], y[i], budget)) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.shared() == b.shared()) return true;
      if (a.dict().size() != b.dict().size()) return false;
      for (const auto& [key, value] : a.dict().entries) {
        budget.Charge(1);
        const Value* other = b.dict().Find(key, budget);
        if (other == nullptr || !Equal(value, *other, budget)) return false;
      }
      return true;
    }
    default:
      return a.shared() == b.shared();
  }
}

int Compare(const Value& a, const Value& b, const char* op, Budget& budget) {
  if (a.Is(Kind::kUndefined)) throw TemplateError(a.undefined_reason());
  if (b.Is(Kind::kUndefined)) throw TemplateError(b.undefined_reason());
  if (a.IsNumber() && b.IsNumber()) return OrderNumbers(a, b);
  if (a.kind() == b.kind()) {
    if (a.Is(Kind::kString)) {
      budget.Charge(static_cast<int64_t>(std::min(a.text().size(), b.text().size())) / 64);
      return Order(a.text().compare(b.text()), 0);  // UTF-8 bytes sort as code points do
    }
    if (a.Is(Kind::kList) || a.Is(Kind::kTuple)) {
      const auto& x = a.sequence().items;
      const auto& y = b.sequence().items;
      for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
        budget.Charge(1);
        if (!Equal(x[i], y[i], budget)) return Compare(x[i], y[i], op, budget);
      }
      return Order(x.size(), y.size());
    }
  }
  throw TemplateError(std::string("'") + op + "' is not defined between " + TypeName(a) + " and " +
                      TypeName(b));
}

size_t Hash(const Value& value, Budget& budget) {
  switch (value.kind()) {
    case Kind::kString:
      budget.Charge(static_cast<int64_t>(value.text().size()) / 64);
      return std::hash<std::string_view>{}(value.text());
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<double>{}(static_cast<double>(value.integer()));
    case Kind::kFloat:
      return std::hash<double>{}(value.AsDouble());
    case Kind::kTuple: {
      size_t hash = 1469598103934665603u;
      for (const Value& item : value.sequence().items) {
        budget.Charge(1);
        hash = (hash ^ Hash(item, budget)) * 1099511628211u;
      }
      return hash;
    }
    case Kind::kNone:
      return 3;
    case Kind::kUndefined:
      return 5;
    case Kind::kList:
    case Kind::kDict:
      throw TemplateError("a " + TypeName(value) + " cannot be a dictionary key");
    default:
      return std::hash<const void*>{}(value.shared().get());
  }
}

}  // namespace celer::jinja
