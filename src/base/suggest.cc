#include "base/suggest.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace celer {
namespace {

// Optimal string alignment: insert, delete, substitute or swap neighbours, case-insensitive.
size_t Distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + !same(a[i - 1], b[j - 1])});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> Nearest(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > 128) return std::nullopt;  // not a typo
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    // A missing ending ("llama-3.1" for "llama-3.1-8b") costs one edit, however long it is.
    const bool prefix = !name.empty() && candidate.starts_with(name);
    const size_t distance = prefix ? 1 : Distance(name, candidate);
    if (!best || distance < best_distance) best = &candidate, best_distance = distance;
  }
  if (!best || best_distance > std::max<size_t>(2, name.size() / 3)) return std::nullopt;
  return *best;
}

std::string DidYouMean(std::string_view name, std::span<const std::string> candidates) {
  const auto nearest = Nearest(name, candidates);
  return nearest ? "; did you mean '" + *nearest + "'?" : "";
}

}  // namespace celer
