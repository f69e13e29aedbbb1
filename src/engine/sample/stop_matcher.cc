#include "engine/sample/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace celer {

std::string StopMatcher::Push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_)
    if (const size_t at = stop.empty() ? std::string::npos : held_.find(stop); at < first) {
      first = at;
      found_ = stop;
    }
  if (first != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, first);
    held_.clear();
    return out;
  }
  // Keep the longest suffix that is a prefix of a stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size(), held_.size()); n > keep; --n)
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::Finish() {
  return std::exchange(held_, "");
}

}  // namespace celer
