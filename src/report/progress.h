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

// One line on stderr that is drawn over on a terminal; elsewhere, rare plain lines.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { Show(""); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  void Show(const std::string& text) const;

 private:
  using Clock = std::chrono::steady_clock;

  bool terminal_;
  mutable Clock::time_point last_ = Clock::now();
};

// How far it is, in a line of at most `width` columns: what is dispensable goes first, then the label's
// middle.
std::string ProgressText(const std::string& label, int64_t done, int64_t total, double bytes_per_s, bool bar,
                         int width);

}  // namespace celer::cli
