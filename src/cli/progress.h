// One line on stderr that says how far a long piece of work is: redrawn on a terminal, rare plain lines
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace celer::cli {

class ProgressLine {
 public:
  // `total` bytes; 0 when it is not known.
  ProgressLine(std::string label, int64_t total);
  ~ProgressLine();  // ends the line

  void Update(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  void Print(Clock::time_point now);

  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  int64_t first_ = -1;  // done at the first update: a resumed download has not fetched it now
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

}  // namespace celer::cli
