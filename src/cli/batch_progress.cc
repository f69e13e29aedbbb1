#include "cli/batch_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cli/output.h"
#include "engine/step_cost.h"
#include "limits/quantity.h"
#include "limits/roofline.h"

namespace celer::cli {
namespace {

constexpr std::chrono::milliseconds kRedraw{250};
constexpr std::chrono::seconds kPlainLine{10};
constexpr double kRecentSeconds = 10;

int64_t Rounded(int64_t count, int64_t steps) {
  return static_cast<int64_t>(std::llround(static_cast<double>(count) / static_cast<double>(steps)));
}

// An average step that decodes `sequences` and computes `prompt` tokens of a prompt beside them.
OperatorWork WorkOf(const Engine& engine, const DecoderConfig& config, int64_t sequences, int64_t prompt,
                    int64_t position) {
  std::vector<SliceShape> slices(static_cast<size_t>(sequences), SliceShape{.position = position});
  if (prompt > 0) slices.push_back({.tokens = prompt});
  const StepCost cost(config, [&](const StepShape& shape) { return engine.Work(shape); });
  return slices.empty() ? OperatorWork() : Sum(cost.Work(slices));
}

}  // namespace

LimitMeter::LimitMeter(EngineThread& thread, const DecoderConfig& config, std::optional<Machine> machine)
    : thread_(thread), config_(config), machine_(std::move(machine)) {
  if (machine_ && machine_->read_bytes_per_s <= 0) machine_.reset();
}

void LimitMeter::Look(int64_t position) {
  if (!machine_) return;
  const EngineStats now = thread_.stats();
  last_ = std::chrono::steady_clock::now();
  if (!begin_) {
    begin_ = last_;
    before_ = now;
    return;
  }
  const int64_t steps = now.steps - before_.steps;
  if (steps <= 0) return;
  const int64_t decoded = now.generated_tokens - before_.generated_tokens;
  const int64_t prompt = std::max<int64_t>(now.computed_tokens - before_.computed_tokens - decoded, 0);
  before_ = now;
  OperatorWork work;
  const int64_t most = std::max<int64_t>(thread_.info().context - 1, 0);
  const Status ran = thread_.Run([&](Engine& engine) {
    work = WorkOf(engine, config_, Rounded(decoded, steps), Rounded(prompt, steps), std::min(position, most));
  });
  if (ran) limit_s_ += static_cast<double>(steps) * LimitOf(work, *machine_).seconds();
}

std::optional<double> LimitMeter::Share() const {
  if (!begin_ || limit_s_ <= 0) return std::nullopt;
  const double seconds = std::chrono::duration<double>(last_ - *begin_).count();
  return seconds > 0 ? std::optional(limit_s_ / seconds) : std::nullopt;
}

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
  return !quiet_ &&
         Clock::now() - last_ >= (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine));
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
