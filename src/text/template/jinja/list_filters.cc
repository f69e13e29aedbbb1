// Filters on sequences and mappings. Where Jinja returns a generator, so do we: true, without a length, read
// once.
#include "text/template/jinja/list_filters.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "text/template/jinja/builtins.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/unicode.h"

namespace celer::jinja {
namespace {

const Value kNone;

const Value& OrNone(const Value* v) {
  return v != nullptr ? *v : kNone;
}

Value IgnoreCase(Interpreter& in, const Value& v, bool case_sensitive) {
  return case_sensitive || !v.Is(Kind::kString) ? v : in.Text(ToLower(v.text()));
}

Value First(Interpreter& in, const Value& v, const Args& args) {
  Bind("first", args, {}, 0);
  if (v.Is(Kind::kIterator)) {
    auto& sequence = v.object<Sequence>();
    if (sequence.consumed < sequence.items.size()) return sequence.items[sequence.consumed++];
  } else if (v.Is(Kind::kString) || v.IsSequence()) {
    if (in.Length(v) > 0)
      return v.Is(Kind::kString) ? in.Text(in.Item(v, Value::Integer(0)).text()) : v.sequence().items[0];
  } else if (const std::vector<Value> items = in.Items(v); !items.empty()) {
    return items.front();
  }
  return Value::Undefined("the sequence is empty, so it has no first item");
}

Value Last(Interpreter& in, const Value& v, const Args& args) {
  Bind("last", args, {}, 0);
  if (v.Is(Kind::kIterator))
    throw TemplateError("last needs a sequence, not a generator; put '| list' before it");
  if (v.Is(Kind::kString) || v.IsSequence()) {
    if (in.Length(v) > 0) return in.Item(v, Value::Integer(-1));
  } else if (const std::vector<Value> items = in.Items(v); !items.empty()) {
    return items.back();
  }
  return Value::Undefined("the sequence is empty, so it has no last item");
}

Value List(Interpreter& in, const Value& v, const Args& args) {
  Bind("list", args, {}, 0);
  return MakeList(in.budget(), in.Items(v));
}

Value Items(Interpreter& in, const Value& v, const Args& args) {
  Bind("items", args, {}, 0);
  if (!v.Is(Kind::kDict) && !v.Is(Kind::kUndefined))
    throw TemplateError("items needs a dict, not " + TypeName(v));
  std::vector<Value> pairs;
  if (v.Is(Kind::kDict))
    for (const auto& [key, value] : v.dict().entries) pairs.push_back(MakeTuple(in.budget(), {key, value}));
  return MakeIterator(in.budget(), std::move(pairs));
}

Value Join(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("join", args, {"d", "attribute"}, 0);
  const auto is_markup = [&](const Value& value) {
    return in.autoescape() && value.Is(Kind::kString) && value.string().markup;
  };
  bool markup = bound[0] != nullptr && is_markup(*bound[0]);  // then what is not is escaped
  std::vector<Value> pieces;
  for (const Value& item : in.Items(v)) {
    pieces.push_back(in.AttributePath(item, OrNone(bound[1])));
    markup |= is_markup(pieces.back());
  }
  const auto show = [&](const Value& value) { return markup ? in.Escaped(value) : in.Str(value); };
  const std::string separator = bound[0] != nullptr ? show(*bound[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& piece : pieces) {
    const std::string text = show(piece);
    in.budget().CheckString(static_cast<int64_t>(out.size() + text.size() + separator.size()));
    if (!std::exchange(first, false)) out += separator;
    out += text;
  }
  return in.Text(std::move(out), markup);
}

Value Reverse(Interpreter& in, const Value& v, const Args& args) {
  Bind("reverse", args, {}, 0);
  if (v.Is(Kind::kString)) return in.Slice(v, kNone, kNone, Value::Integer(-1));
  std::vector<Value> items = in.Items(v);
  std::reverse(items.begin(), items.end());
  // A generator cannot be reversed, so that it becomes a list.
  return v.Is(Kind::kIterator) ? MakeList(in.budget(), std::move(items))
                               : MakeIterator(in.budget(), std::move(items));
}

// --- Order ---

struct Keyed {
  Value key, item;
};

std::vector<Value> SortByKey(Interpreter& in, std::vector<Keyed> entries, bool reverse) {
  const auto less = [&](const Keyed& a, const Keyed& b) {
    in.budget().Charge(1);
    return Compare(a.key, b.key, "<", in.budget()) == -1;
  };
  if (reverse) std::reverse(entries.begin(), entries.end());  // equal items keep their order, as in Python
  std::stable_sort(entries.begin(), entries.end(), less);
  if (reverse) std::reverse(entries.begin(), entries.end());
  std::vector<Value> items;
  items.reserve(entries.size());
  for (Keyed& entry : entries) items.push_back(std::move(entry.item));
  return items;
}

Value Sort(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("sort", args, {"reverse", "case_sensitive", "attribute"}, 0);
  const bool case_sensitive = BoolArg(bound[1], false);
  std::vector<Value> paths;
  const Value& attribute = OrNone(bound[2]);
  if (attribute.Is(Kind::kString)) {
    const std::string& text = attribute.text();
    for (size_t start = 0; start <= text.size();) {
      const size_t end = std::min(text.find(',', start), text.size());
      paths.push_back(in.Text(text.substr(start, end - start)));
      start = end + 1;
    }
  } else {
    paths.push_back(attribute);
  }
  std::vector<Keyed> entries;
  for (Value& item : in.Items(v)) {
    std::vector<Value> key;
    for (const Value& path : paths)
      key.push_back(IgnoreCase(in, in.AttributePath(item, path), case_sensitive));
    entries.push_back({MakeList(in.budget(), std::move(key)), std::move(item)});
  }
  return MakeList(in.budget(), SortByKey(in, std::move(entries), BoolArg(bound[0], false)));
}

Value DictSort(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("dictsort", args, {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = bound[1] != nullptr ? in.Str(*bound[1]) : "key";
  if (by != "key" && by != "value") throw TemplateError("dictsort can only sort by 'key' or 'value'");
  if (v.Is(Kind::kUndefined)) throw TemplateError(v.undefined_reason());
  if (!v.Is(Kind::kDict)) throw TemplateError("dictsort needs a dict, not " + TypeName(v));
  std::vector<Keyed> entries;
  for (const auto& [key, value] : v.dict().entries)
    entries.push_back({IgnoreCase(in, by == "key" ? key : value, BoolArg(bound[0], false)),
                       MakeTuple(in.budget(), {key, value})});
  return MakeList(in.budget(), SortByKey(in, std::move(entries), BoolArg(bound[2], false)));
}

template <bool smallest>
Value Extreme(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind(smallest ? "min" : "max", args, {"case_sensitive", "attribute"}, 0);
  const bool case_sensitive = BoolArg(bound[0], false);
  std::optional<Keyed> best;
  for (Value& item : in.Items(v)) {
    in.budget().Charge(1);
    Value key = IgnoreCase(in, in.AttributePath(item, OrNone(bound[1])), case_sensitive);
    if (!best || Compare(key, best->key, "<", in.budget()) == (smallest ? -1 : 1))
      best = Keyed{std::move(key), std::move(item)};
  }
  return best ? best->item : Value::Undefined("the sequence is empty");
}

Value Unique(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("unique", args, {"case_sensitive", "attribute"}, 0);
  Dict seen;
  std::vector<Value> items;
  for (Value& item : in.Items(v)) {
    Value key = IgnoreCase(in, in.AttributePath(item, OrNone(bound[1])), BoolArg(bound[0], false));
    if (seen.Find(key, in.budget()) != nullptr) continue;
    seen.Set(std::move(key), kNone, in.budget());
    items.push_back(std::move(item));
  }
  return MakeIterator(in.budget(), std::move(items));
}

Value GroupBy(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const bool case_sensitive = BoolArg(bound[2], false);
  const auto key_of = [&](const Value& item) {
    Value key = in.AttributePath(item, *bound[0]);
    return key.Is(Kind::kUndefined) && bound[1] != nullptr && !bound[1]->Is(Kind::kNone) ? *bound[1] : key;
  };
  std::vector<Keyed> entries;
  for (Value& item : in.Items(v)) {
    Value key = IgnoreCase(in, key_of(item), case_sensitive);
    entries.push_back({std::move(key), std::move(item)});
  }
  const std::vector<Value> sorted = SortByKey(in, std::move(entries), false);
  std::vector<Value> groups;
  for (size_t i = 0; i < sorted.size();) {
    const Value key = IgnoreCase(in, key_of(sorted[i]), case_sensitive);
    const Value shown = key_of(sorted[i]);
    std::vector<Value> members;
    for (; i < sorted.size() && Equal(IgnoreCase(in, key_of(sorted[i]), case_sensitive), key, in.budget());
         ++i)
      members.push_back(sorted[i]);
    Value group = MakeTuple(in.budget(), {shown, MakeList(in.budget(), std::move(members))});
    group.object<Sequence>().group = true;
    groups.push_back(std::move(group));
  }
  return MakeList(in.budget(), std::move(groups));
}

Value Sum(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("sum", args, {"attribute", "start"}, 0);
  Value total = bound[1] != nullptr ? *bound[1] : Value::Integer(0);
  if (total.Is(Kind::kString)) throw TemplateError("sum cannot add strings; use join");
  for (const Value& item : in.Items(v))
    total = in.Math(Op::kAdd, total, in.AttributePath(item, OrNone(bound[0])));
  return total;
}

// --- Rows ---

Value Batch(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t size = IntArg("batch", bound[0], 0);
  std::vector<Value> rows, row;
  for (Value& item : in.Items(v)) {
    if (static_cast<int64_t>(row.size()) == size)
      rows.push_back(MakeList(in.budget(), std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (bound[1] != nullptr && !bound[1]->Is(Kind::kNone)) {
      in.budget().Charge(2 * std::max<int64_t>(0, size));
      while (static_cast<int64_t>(row.size()) < size) row.push_back(*bound[1]);
    }
    rows.push_back(MakeList(in.budget(), std::move(row)));
  }
  return MakeIterator(in.budget(), std::move(rows));
}

Value SliceFilter(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("slice", args, {"slices", "fill_with"}, 1);
  const int64_t slices = IntArg("slice", bound[0], 0);
  if (slices == 0) throw TemplateError("slice needs at least one slice");
  in.budget().Charge(std::max<int64_t>(0, slices));
  const std::vector<Value> all = in.Items(v);
  std::vector<Value> rows;
  size_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    const auto total = static_cast<int64_t>(all.size());
    const bool extra = i < total % slices;
    const size_t end = at + static_cast<size_t>(total / slices) + (extra ? 1 : 0);
    std::vector<Value> row(all.begin() + static_cast<int64_t>(at), all.begin() + static_cast<int64_t>(end));
    if (!extra && bound[1] != nullptr && !bound[1]->Is(Kind::kNone)) row.push_back(*bound[1]);
    rows.push_back(MakeList(in.budget(), std::move(row)));
    at = end;
  }
  return MakeIterator(in.budget(), std::move(rows));
}

// --- Choice and change ---

Value Map(Interpreter& in, const Value& v, const Args& args) {
  std::vector<Value> out;
  if (!Truthy(v)) return MakeIterator(in.budget(), {});
  if (args.positional.empty()) {
    const Value* attribute = nullptr;
    const Value* fallback = nullptr;
    for (const auto& [name, value] : args.keyword) {
      if (name == "attribute") {
        attribute = &value;
      } else if (name == "default") {
        fallback = &value;
      } else {
        throw TemplateError("map has no parameter '" + name + "'");
      }
    }
    if (attribute == nullptr) throw TemplateError("map needs the name of a filter, or attribute=");
    for (const Value& item : in.Items(v)) {
      Value found = in.AttributePath(item, *attribute);
      const bool use_fallback =
          found.Is(Kind::kUndefined) && fallback != nullptr && !fallback->Is(Kind::kNone);
      out.push_back(use_fallback ? *fallback : std::move(found));
    }
    return MakeIterator(in.budget(), std::move(out));
  }
  const std::string& name = StringArg("map", &args.positional[0]);
  const FilterFn filter = FindFilter(name);
  if (filter == nullptr) throw TemplateError("there is no filter '" + name + "'");
  const Args rest{{args.positional.begin() + 1, args.positional.end()}, args.keyword};
  for (const Value& item : in.Items(v)) {
    in.budget().Charge(1);
    out.push_back(filter(in, item, rest));
  }
  return MakeIterator(in.budget(), std::move(out));
}

template <bool keep, bool by_attribute>
Value Choose(Interpreter& in, const Value& v, const Args& args) {
  if (!Truthy(v)) return MakeIterator(in.budget(), {});
  constexpr size_t kOffset = by_attribute ? 1 : 0;
  if (args.positional.size() < kOffset)
    throw TemplateError("selectattr and rejectattr need the name of an attribute");
  TestFn test = nullptr;
  Args rest;
  if (args.positional.size() > kOffset) {
    const std::string& name = StringArg("select", &args.positional[kOffset]);
    test = FindTest(name);
    if (test == nullptr) throw TemplateError("there is no test '" + name + "'");
    rest.positional.assign(args.positional.begin() + kOffset + 1, args.positional.end());
    rest.keyword = args.keyword;
  }
  std::vector<Value> out;
  for (Value& item : in.Items(v)) {
    in.budget().Charge(1);
    const Value subject = by_attribute ? in.AttributePath(item, args.positional[0]) : item;
    const bool holds = test != nullptr ? test(in, subject, rest) : Truthy(subject);
    if (holds == keep) out.push_back(std::move(item));
  }
  return MakeIterator(in.budget(), std::move(out));
}

}  // namespace

FilterFn FindListFilter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFn> kFilters = {
      {"batch", Batch},
      {"dictsort", DictSort},
      {"first", First},
      {"groupby", GroupBy},
      {"items", Items},
      {"join", Join},
      {"last", Last},
      {"list", List},
      {"map", Map},
      {"max", Extreme<false>},
      {"min", Extreme<true>},
      {"reject", Choose<false, false>},
      {"rejectattr", Choose<false, true>},
      {"reverse", Reverse},
      {"select", Choose<true, false>},
      {"selectattr", Choose<true, true>},
      {"slice", SliceFilter},
      {"sort", Sort},
      {"sum", Sum},
      {"unique", Unique},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace celer::jinja
