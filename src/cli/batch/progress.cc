#include "cli/batch/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr std::chrono::milliseconds kBatchRedraw{250};
constexpr std::chrono::seconds kBatchPlainLine{10};
constexpr double kRecentSeconds = 10;

}  // namespace

std::string TimeText(double seconds) {
  if (seconds < 99.5) return fmt::format("{:.0f} s", seconds);
  const auto minutes = static_cast<int64_t>(std::llround(seconds / 60));
  return minutes < 100 ? fmt::format("{} min", minutes)
                       : fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

std::string BatchProgressText(const BatchProgress& p, double seconds, double tokens_per_s,
                              std::optional<double> share) {
  std::string text = FormatCount(p.before + p.requests + p.refused);
  if (p.all_read)
    text += fmt::format(" of {}", FormatCount(p.lines));
  else if (p.total_bytes > 0 && p.read_bytes > 0)
    text += fmt::format(" of about {}", FormatCount(std::llround(static_cast<double>(p.lines) *
                                                                 static_cast<double>(p.total_bytes) /
                                                                 static_cast<double>(p.read_bytes))));
  text += " requests";
  if (p.refused > 0) text += fmt::format(", {} refused", FormatCount(p.refused));
  text += fmt::format(", {} tok/s", FormatNumber(tokens_per_s));
  if (share) text += fmt::format(" = {:.0f} % of the limit", 100 * *share);
  const int64_t worked = p.bytes - p.skipped_bytes;
  if (p.total_bytes > p.bytes && worked > 0)
    text += fmt::format(", {} left", TimeText(seconds * static_cast<double>(p.total_bytes - p.bytes) /
                                              static_cast<double>(worked)));
  return text;
}

BatchProgressLine::BatchProgressLine(bool quiet)
    : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) != 0), start_(Clock::now()), last_(start_) {}

BatchProgressLine::~BatchProgressLine() {
  Hide();
}

bool BatchProgressLine::Due() const {
  return !quiet_ && Clock::now() - last_ >=
                        (terminal_ ? Clock::duration(kBatchRedraw) : Clock::duration(kBatchPlainLine));
}

double BatchProgressLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void BatchProgressLine::Show(const BatchProgress& progress, std::optional<double> share) {
  last_ = Clock::now();
  const double now = seconds();
  recent_.emplace_back(now, progress.new_tokens);
  while (recent_.size() > 2 && recent_.front().first < now - kRecentSeconds) recent_.pop_front();
  const auto [then, tokens] = recent_.size() > 1 ? recent_.front() : std::pair(0.0, int64_t{0});
  const double speed = static_cast<double>(progress.new_tokens - tokens) / std::max(now - then, 1e-3);
  const std::string text = BatchProgressText(progress, now, speed, share);
  if (terminal_)
    line_.Show(text);
  else
    Say("{}\n", text);
}

void BatchProgressLine::Hide() {
  line_.Show("");
}

}  // namespace celer::cli
