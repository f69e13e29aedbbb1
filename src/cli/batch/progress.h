// How far a batch is, how fast it runs, and how near the limit that is.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "report/progress.h"

namespace celer::cli {

struct BatchProgress {
  int64_t requests = 0;       // done in this run
  int64_t before = 0;         // and in those before
  int64_t refused = 0;        // in the error file
  int64_t bytes = 0;          // of the input's lines that need no more work
  int64_t skipped_bytes = 0;  // of those, what needed none in this run
  int64_t total_bytes = 0;    // of the input
  int64_t lines = 0;          // read so far
  int64_t read_bytes = 0;     // that they take
  bool all_read = false;
  int64_t new_tokens = 0, prompt_tokens = 0;
};

// "1,200 of 5,000 requests, 3 refused, 1,830 tok/s = 78 % of the limit, 3 min left"
std::string BatchProgressText(const BatchProgress& progress, double seconds, double tokens_per_s,
                              std::optional<double> share);

// "45 s", "3 min", "2 h 05 min"
std::string TimeText(double seconds);

// Redraws the line on a terminal; elsewhere writes one now and then.
class BatchProgressLine {
 public:
  explicit BatchProgressLine(bool quiet);
  ~BatchProgressLine();

  bool Due() const;  // whether Show() would show something
  void Show(const BatchProgress& progress, std::optional<double> share);
  void Hide();  // before a message is said
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  bool quiet_, terminal_;
  StatusLine line_;
  Clock::time_point start_, last_;
  std::deque<std::pair<double, int64_t>> recent_;  // seconds and new tokens, of the last seconds
};

}  // namespace celer::cli
