// String operations that methods and filters share; all as in Python.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/template/jinja/limits.h"

namespace celer::jinja {

// As std::string_view::find and rfind, but in linear time: theirs can take n * m, which a template could
// abuse.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);
size_t RightFindText(std::string_view text, std::string_view needle);

// At most `limit` cuts; no limit when it is negative. The pieces point into `text`.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator, int64_t limit,
                                    Budget& budget);
std::vector<std::string_view> RightSplit(std::string_view text, std::string_view separator, int64_t limit,
                                         Budget& budget);
std::vector<std::string_view> SplitSpace(std::string_view text, int64_t limit, Budget& budget);
std::vector<std::string_view> RightSplitSpace(std::string_view text, int64_t limit, Budget& budget);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends, Budget& budget);

std::string Replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit,
                    Budget& budget);
// align: < > ^; `fill` is one code point.
std::string JustifyText(const std::string& text, int64_t width, const std::string& fill, char align,
                        Budget& budget);
bool HasCase(std::string_view text, bool upper, Budget& budget);  // str.isupper(), str.islower()

}  // namespace celer::jinja
