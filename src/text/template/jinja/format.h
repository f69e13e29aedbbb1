// Values as text, exactly as Python writes them.
#pragma once

#include <string>
#include <string_view>

#include "text/template/jinja/value.h"

namespace celer::jinja {

std::string IntText(Int value);
std::string FloatRepr(double value);  // shortest digits that read back the same
std::string ToStr(const Value& value, Budget& budget);
std::string ToRepr(const Value& value, Budget& budget);
std::string ToAscii(const Value& value, Budget& budget);  // ascii(): repr() with escapes beyond ASCII

// json.dumps(); the fields are its arguments. An empty `indent` with `pretty` still breaks lines.
struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string ToJson(const Value& value, const JsonStyle& style, Budget& budget);

std::string EscapeHtml(std::string_view text, Budget& budget);  // as markupsafe: & < > ' "

// format % arguments (a tuple, a dict for %(name)s, or one value). `markup`: what is put in is escaped.
std::string PercentFormat(const std::string& format, const Value& arguments, bool markup, Budget& budget);
// format(value, spec): the part after the colon in '{:>8.3f}'.
std::string FormatSpec(const Value& value, const std::string& spec, Budget& budget);

// %d, %f, %g ... with an already parsed head. type: one of "bcdeEfFgGnosxX%" or 0.
struct NumberStyle {
  std::string fill = " ";
  char align = 0;  // < > = ^; 0: the default of the type
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = 0;  // , or _
  int64_t precision = -1;
  char type = 0;
};

}  // namespace celer::jinja
