// The coarse operators of a step by name, and where its time goes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace celer {

enum class Op : uint8_t {
  kEmbed,  // with the rope tables of the step
  kQkv,
  kAttention,
  kRecurrent,
  kOutput,
  kGateUp,
  kDown,
  kMoe,
  kLogits,
  kSampling,
};
inline constexpr size_t kOpCount = 10;

constexpr const char* Name(Op op) {
  constexpr const char* kNames[kOpCount] = {"embed",   "qkv",  "attention", "recurrent", "output",
                                            "gate_up", "down", "moe",       "logits",    "sampling"};
  return kNames[static_cast<size_t>(op)];
}

struct OpSpan {
  Op op;
  std::chrono::steady_clock::time_point begin, end;
};

// Sums since it was made.
struct OpProfile {
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::array<Entry, kOpCount> ops = {};
  std::vector<OpSpan>* spans = nullptr;  // the single spans, if set; CPU only
};

// Times one operator after the other: Begin() ends the one before. Without a profile a call is one branch.
class OpClock {
 public:
  explicit OpClock(OpProfile* profile) : profile_(profile) {}
  ~OpClock() { End(); }
  OpClock(const OpClock&) = delete;
  OpClock& operator=(const OpClock&) = delete;

  void Begin(Op op) {
    if (!profile_) return;
    const Clock::time_point now = Clock::now();
    Close(now);
    current_ = &profile_->ops[static_cast<size_t>(op)];
    start_ = now;
  }
  void End() {
    if (current_) Close(Clock::now());
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Close(Clock::time_point now) {
    if (!current_) return;
    ++current_->calls;
    current_->seconds += std::chrono::duration<double>(now - start_).count();
    if (profile_->spans)
      profile_->spans->push_back({static_cast<Op>(current_ - profile_->ops.data()), start_, now});
    current_ = nullptr;
  }

  OpProfile* profile_;
  OpProfile::Entry* current_ = nullptr;
  Clock::time_point start_;
};

}  // namespace celer
