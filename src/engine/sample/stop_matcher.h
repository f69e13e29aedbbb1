// Stop strings over a stream: buffers text that may yet become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace celer {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds text and returns what can be emitted now. After a stop string is found, `stopped` is true and the
  // rest is discarded.
  std::string Push(std::string_view text);
  std::string Finish();  // flushes the buffer at the end of the text
  bool stopped() const { return stopped_; }
  const std::string& found() const { return found_; }  // the stop string, once stopped

 private:
  std::vector<std::string> stops_;
  std::string held_, found_;
  bool stopped_ = false;
};

}  // namespace celer
