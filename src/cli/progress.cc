#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "limits/quantity.h"

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
  const std::string speed =
      FormatBandwidth(static_cast<double>(done_ - std::max<int64_t>(first_, 0)) / seconds);
  std::string text;
  if (total_ > 0) {
    const double share = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    text =
        fmt::format("{} {}{:3.0f} %  {} of {}, {}", label_, terminal_ ? Bar(share) + " " : "", 100 * share,
                    FormatBytes(static_cast<double>(done_)), FormatBytes(static_cast<double>(total_)), speed);
  } else {
    text = fmt::format("{} {}, {}", label_, FormatBytes(static_cast<double>(done_)), speed);
  }
  // The escape clears what a longer line left behind.
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", text, terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

}  // namespace celer::cli
