#include "report/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kPlainLine{10};

std::string Bar(double share) {
  constexpr int kWidth = 24;
  const int full = static_cast<int>(share * kWidth);
  return "[" + std::string(static_cast<size_t>(full), '#') +
         std::string(static_cast<size_t>(kWidth - full), '.') + "]";
}

// "model-00001...safetensors": the ends tell more than the middle.
std::string Shorten(const std::string& text, size_t columns) {
  if (text.size() <= columns) return text;
  if (columns < 5) return text.substr(0, columns);
  const size_t tail = (columns - 3) / 2;
  return text.substr(0, columns - 3 - tail) + "..." + text.substr(text.size() - tail);
}

}  // namespace

ProgressLine::ProgressLine(std::string label, int64_t total)
    : label_(std::move(label)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      last_(start_) {}

ProgressLine::~ProgressLine() {
  if (!drawn_) return;
  Print(Clock::now());
  if (terminal_) std::fputc('\n', stderr);
}

void ProgressLine::Update(int64_t done) {
  if (first_ < 0) first_ = done;
  done_ = done;
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine))) return;
  Print(now);
}

void ProgressLine::Print(Clock::time_point now) {
  last_ = now;
  drawn_ = true;
  const double seconds = std::max(std::chrono::duration<double>(now - start_).count(), 1e-3);
  const double speed = static_cast<double>(done_ - std::max<int64_t>(first_, 0)) / seconds;
  // A line that fills the last column would be two on some terminals, and only one of them drawn over.
  const std::string text = ProgressText(label_, done_, total_, speed, terminal_, MessageWidth() - 1);
  // The escape clears what a longer line left behind.
  Say("{}{}{}", terminal_ ? "\r" : "", text, terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

std::string ProgressText(const std::string& label, int64_t done, int64_t total, double bytes_per_s, bool bar,
                         int width) {
  const auto limit = static_cast<size_t>(width);
  const std::string speed = FormatBytes(std::max(bytes_per_s, 0.0)) + "/s",
                    bytes = FormatBytes(static_cast<double>(done));
  std::string rest = fmt::format(" {}, {}", bytes, speed);
  if (total > 0) {
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
    const std::string all = FormatBytes(static_cast<double>(total));
    rest = fmt::format(" {:3.0f} %  {} of {}, {}", 100 * share, bytes, all, speed);
    if (bar && label.size() + rest.size() + 27 <= limit) rest = " " + Bar(share) + rest;
  }
  return Shorten(label, limit - std::min(limit, rest.size())) + rest;
}

StatusLine::StatusLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void StatusLine::Show(const std::string& text) const {
  if (!terminal_) {
    if (text.empty() || Clock::now() - last_ < kPlainLine) return;
    last_ = Clock::now();
    return Say("{}\n", text);
  }
  Say("\r{}\x1b[K", Shorten(text, static_cast<size_t>(MessageWidth() - 1)));
  std::fflush(stderr);
}

}  // namespace celer::cli
