// "did you mean": the candidate nearest to a mistyped name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace celer {

// The candidate with the smallest edit distance, if it is near enough to be a likely typo.
std::optional<std::string> Nearest(std::string_view name, std::span<const std::string> candidates);

// "; did you mean 'x'?" or "" — to end an error sentence with.
std::string DidYouMean(std::string_view name, std::span<const std::string> candidates);

}  // namespace celer
