// Filters that read or write HTML.
#include "text/template/jinja/markup_filters.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/utf8.h"
#include "text/regex/regex.h"
#include "text/template/jinja/builtins.h"
#include "text/template/jinja/format.h"
#include "text/template/jinja/interpreter.h"
#include "text/template/jinja/str_tools.h"
#include "text/template/jinja/unicode.h"
#include "text/unicode/hex_digit.h"
#include "text/unicode/unicode_tables.h"

namespace celer::jinja {
namespace {

std::string ToUtf8(std::span<const char32_t> code_points) {
  std::string out;
  for (const char32_t c : code_points) utf8::Append(c, out);
  return out;
}

// Empty if there is no such reference.
std::string FindEntity(std::string_view name) {
  const unicode::Tables& tables = unicode::BuiltInTables();
  const auto name_of = [&](const unicode::HtmlEntity& e) {
    return std::string_view(tables.html_names.data() + e.name_offset, e.name_length);
  };
  const auto at = std::ranges::lower_bound(tables.html_entities, name, {}, name_of);
  if (at == tables.html_entities.end() || name_of(*at) != name) return "";
  return ToUtf8(tables.Text(at->text_offset, at->text_length));
}

// The character of &#number;
std::string NumberedCharacter(uint32_t number) {
  const unicode::Tables& tables = unicode::BuiltInTables();
  if (const auto special = tables.Find(tables.html_numbers, number); !special.empty()) return ToUtf8(special);
  if ((number >= 0xd800 && number < 0xe000) || number > 0x10ffff) return "\xef\xbf\xbd";
  if (unicode::FindRange(tables.html_no_character, number) != nullptr) return "";
  std::string text;
  utf8::Append(number, text);
  return text;
}

// One reference after its '&': what it stands for, and how many bytes of `rest` it takes; 0 if it is none.
size_t ReadNumberReference(std::string_view rest, std::string* out) {
  const bool hex = rest.size() > 1 && (rest[1] == 'x' || rest[1] == 'X');
  const size_t first = hex ? 2 : 1;
  uint32_t number = 0;
  size_t end = first;
  for (; end < rest.size(); ++end) {
    const int digit = HexDigit(rest[end]);
    if (digit < 0 || (!hex && digit > 9)) break;
    number = std::min<uint32_t>(number * (hex ? 16 : 10) + static_cast<uint32_t>(digit), 0x110000);
  }
  if (end == first) return 0;
  *out = NumberedCharacter(number);
  return end < rest.size() && rest[end] == ';' ? end + 1 : end;
}

size_t ReadNamedReference(std::string_view rest, std::string* out) {
  size_t end = 0, n = 0;
  for (int characters = 0; end < rest.size() && characters < 32; ++characters, end += n) {
    if (std::string_view("\t\n\f <&#;").find(rest[end]) != std::string_view::npos) break;
    DecodeAt(rest, end, &n);
  }
  if (end == 0) return 0;
  if (end < rest.size() && rest[end] == ';') ++end;
  for (size_t length = end; length > 1; --length) {  // the longest known beginning
    *out = FindEntity(rest.substr(0, length));
    if (!out->empty()) return length;
  }
  return 0;
}

// html.unescape()
std::string Unescape(std::string_view text, Budget& budget) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = std::min(text.find('&', at), text.size());
    out.append(text.substr(at, start - at));
    if (start == text.size()) break;
    budget.Charge(8);
    const std::string_view rest = text.substr(start + 1);
    std::string replacement;
    const size_t taken = rest.starts_with('#') ? ReadNumberReference(rest, &replacement)
                                               : ReadNamedReference(rest, &replacement);
    out += taken == 0 ? "&" : replacement;
    at = start + 1 + taken;
  }
  budget.ChargeString(static_cast<int64_t>(out.size()));
  return out;
}

Value StripTagsFilter(Interpreter& in, const Value& v, const Args& args) {
  Bind("striptags", args, {}, 0);
  const std::string source = in.Str(v);
  const std::string_view text = source;
  std::string kept;
  size_t at = 0;
  for (size_t start; (start = text.find('<', at)) != std::string_view::npos;) {
    in.budget().Charge(1);
    const bool comment = text.substr(start).starts_with("<!--");
    const size_t end = comment ? text.find("-->", start + 4) : text.find('>', start);
    if (end == std::string_view::npos) break;
    kept.append(text.substr(at, start - at));
    at = end + (comment ? 3 : 1);
  }
  kept.append(text.substr(at));
  std::string out;
  for (const std::string_view word : SplitSpace(kept, -1, in.budget())) {
    if (!out.empty()) out += ' ';
    out += word;
  }
  return in.Text(Unescape(out, in.budget()));
}

Value XmlAttr(Interpreter& in, const Value& v, const Args& args) {
  const auto bound = Bind("xmlattr", args, {"autospace"}, 0);
  if (v.Is(Kind::kUndefined)) throw TemplateError(v.undefined_reason());
  if (!v.Is(Kind::kDict)) throw TemplateError("xmlattr needs a dict, not " + TypeName(v));
  std::string out;
  for (const auto& [key, value] : v.dict().entries) {
    if (value.Is(Kind::kNone) || value.Is(Kind::kUndefined)) continue;
    if (StringArg("xmlattr", &key).find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      throw TemplateError("xmlattr: " + in.Repr(key) + " is not the name of an attribute");
    if (!out.empty()) out += ' ';
    out += in.Escaped(key) + "=\"" + in.Escaped(value) + "\"";
    in.budget().CheckString(static_cast<int64_t>(out.size()));
  }
  if (!out.empty() && BoolArg(bound[0], true)) out.insert(0, " ");
  return in.Text(std::move(out), in.autoescape());
}

// --- urlize ---

const Regex& Pattern(const char* source) {
  // Both are ours and known to compile.
  static const auto http = Regex::Compile(
      R"((?i)\A(?:(?:https?://|www\.)(?:(?:[\w%-]+\.)+)?(?:[a-z]{2,63}|xn--[\w%]{2,59})|(?:[\w%-]{2,63}\.)+(?:com|net|int|edu|gov|org|info|mil)|https?://(?:\d{1,3}(?:\.\d{1,3}){3}|\[(?:[\da-f]{0,4}:){2}(?:[\da-f]{0,4}:?){1,6}\]))(?::\d{1,5})?(?:[/?#]\S*)?\n?\z)");
  static const auto email = Regex::Compile(R"(\A\S+@\w[\w.-]*\.\w+\n?\z)");
  return *source == 'h' ? *http : *email;
}

struct Links {
  Interpreter& in;
  std::string attributes;
  std::optional<int64_t> limit;
  std::vector<std::string> schemes;

  std::string Shown(const std::string& url) const {
    if (!limit || CountCodePoints(url) <= *limit) return url;
    // As a slice: a negative limit counts from the end.
    const int64_t keep = *limit < 0 ? std::max<int64_t>(0, CountCodePoints(url) + *limit) : *limit;
    return url.substr(0, ByteOffset(url, keep)) + "...";
  }

  std::string Link(const std::string& middle) const {
    const auto link = [](const std::string& href, const std::string& more, const std::string& text) {
      return "<a href=\"" + href + "\"" + more + ">" + text + "</a>";
    };
    if (Pattern("http").MatchesStart(middle)) {
      const bool whole = middle.starts_with("https://") || middle.starts_with("http://");
      return link(whole ? middle : "https://" + middle, attributes, Shown(middle));
    }
    if (middle.starts_with("mailto:") && Pattern("email").MatchesStart(middle.substr(7)))
      return link(middle, "", middle.substr(7));
    if (middle.find('@') != std::string::npos && !middle.starts_with("www.") && !middle.starts_with('@') &&
        middle.find(':') == std::string::npos && Pattern("email").MatchesStart(middle))
      return link("mailto:" + middle, "", middle);
    std::string out = middle;
    for (const std::string& scheme : schemes)
      if (out != scheme && out.starts_with(scheme)) out = link(out, attributes, out);
    return out;
  }

  // Length of the punctuation at the start or the end of a word: one of `characters`, or the reference.
  static size_t Leading(std::string_view word) {
    size_t n = 0;
    while (n < word.size()) {
      if (word[n] == '(' || word[n] == '<') {
        ++n;
      } else if (word.substr(n).starts_with("&lt;")) {
        n += 4;
      } else {
        break;
      }
    }
    return n;
  }
  static size_t Trailing(std::string_view word) {
    size_t n = 0;
    while (n < word.size()) {
      const std::string_view rest = word.substr(0, word.size() - n);
      if (std::string_view(")>.,\n").find(rest.back()) != std::string_view::npos) {
        ++n;
      } else if (rest.ends_with("&gt;")) {
        n += 4;
      } else {
        break;
      }
    }
    return n;
  }

  std::string Word(std::string_view word) const {
    const std::string head(word.substr(0, Leading(word)));
    std::string middle(word.substr(head.size()));
    std::string tail = middle.substr(middle.size() - Trailing(middle));
    middle.resize(middle.size() - tail.size());
    // Parentheses in a URL are kept in balance.
    const auto count = [&](const std::string& text, std::string_view what) {
      return static_cast<int64_t>(Split(text, what, -1, in.budget()).size()) - 1;
    };
    constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
        {"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
    for (const auto& [open, close] : kPairs) {
      const int64_t opened = count(middle, open);
      if (opened <= count(middle, close)) continue;
      for (int64_t i = std::min(opened, count(tail, close)); i > 0; --i) {
        in.budget().Charge(static_cast<int64_t>(tail.size()) / 16 + 1);
        const size_t end = tail.find(close) + close.size();
        middle += tail.substr(0, end);
        tail.erase(0, end);
      }
    }
    return head + Link(middle) + tail;
  }
};

Value Urlize(Interpreter& in, const Value& v, const Args& args) {
  const auto bound =
      Bind("urlize", args, {"trim_url_limit", "nofollow", "target", "rel", "extra_schemes"}, 0);
  const auto given = [&](size_t i) { return bound[i] != nullptr && !bound[i]->Is(Kind::kNone); };
  Links links{.in = in, .attributes = {}, .limit = {}, .schemes = {}};
  if (given(0)) links.limit = IntArg("urlize", bound[0], 0);
  std::set<std::string> rel = {"noopener"};  // Jinja's own policy
  if (given(3))
    for (const std::string_view word : SplitSpace(StringArg("urlize", bound[3]), -1, in.budget()))
      rel.emplace(word);
  if (BoolArg(bound[1], false)) rel.insert("nofollow");
  std::string joined;
  for (const std::string& word : rel) joined += (joined.empty() ? "" : " ") + word;
  links.attributes = " rel=\"" + EscapeHtml(joined, in.budget()) + "\"";
  if (given(2) && Truthy(*bound[2])) links.attributes += " target=\"" + in.Escaped(*bound[2]) + "\"";
  if (given(4))
    for (const Value& scheme : in.Items(*bound[4])) {
      links.schemes.push_back(StringArg("urlize", &scheme));
      static const auto form = Regex::Compile(R"(\A[\w.+-]{2,}:(?:/){0,2}\z)");
      if (!form->MatchesStart(links.schemes.back()))
        throw TemplateError("urlize: '" + links.schemes.back() + "' is not the start of a URI");
    }
  const std::string text = in.Escaped(v);
  std::string out;
  size_t n = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && !IsSpace(DecodeAt(text, end, &n))) end += n;
    in.budget().Charge(16 + static_cast<int64_t>(end - at));
    if (end > at) out += links.Word(std::string_view(text).substr(at, end - at));
    for (at = end; at < text.size() && IsSpace(DecodeAt(text, at, &n)); at += n) out.append(text, at, n);
    in.budget().CheckString(static_cast<int64_t>(out.size()));
  }
  return in.Text(std::move(out), in.autoescape());
}

}  // namespace

FilterFn FindMarkupFilter(std::string_view name) {
  if (name == "striptags") return StripTagsFilter;
  if (name == "urlize") return Urlize;
  if (name == "xmlattr") return XmlAttr;
  return nullptr;
}

}  // namespace celer::jinja
