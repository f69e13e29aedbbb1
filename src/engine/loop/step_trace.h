// What an engine did and when, as a Chrome trace: a file that Perfetto (ui.perfetto.dev) and chrome://tracing
// show. Steps with their phases, the operators and the moves of blocks inside them, requests from submission
// to their end, and queues, KV and tokens as curves.
//
// Events wait in memory for a second, or until there is a megabyte of them, and the file is valid JSON after
// each time they are written: each time the closing bracket is overwritten. It stops growing at kMaxBytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "celer/engine.h"
#include "models/op_profile.h"

namespace celer {

// One thread at a time.
class StepTrace {
 public:
  using Clock = std::chrono::steady_clock;

  // Perfetto reads about as much. Operators, the bulk of it, end at half of that, so that the steps go on.
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;

  // Writes the file at once, so that a path that cannot be written is known. What was there is replaced when
  // that has succeeded. A pipe or a device gets the closing bracket at the end alone.
  static Result<std::unique_ptr<StepTrace>> Create(const std::filesystem::path& path,
                                                   int64_t max_bytes = kMaxBytes);
  ~StepTrace();  // Close(), without its error
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Writes what is left. An error if that, or an earlier write, failed; nothing may be added then.
  Status Close();

  void Submitted(int64_t request, int64_t prompt_tokens, int64_t max_tokens);

  // The phases of a step, timed: each call ends the phase before it. Without a trace a call is one branch.
  class Step {
   public:
    explicit Step(StepTrace* trace) : trace_(trace) {
      if (trace_) begin_ = Clock::now();
    }
    void Scheduled() {
      if (trace_) scheduled_ = Clock::now();
    }
    void Ran() {
      if (trace_) ran_ = Clock::now();
    }
    // Ends the step; without a call, nothing was to be done. `stats` are those after it.
    void Committed(const EngineStats& stats, const std::vector<TokenEvent>& events) {
      if (trace_) trace_->Add(*this, Clock::now(), stats, events);
    }
    // There was no step, only these events.
    void Idle(const std::vector<TokenEvent>& events) {
      if (trace_ && !events.empty()) trace_->AddRequests(Clock::now(), events);
    }
    bool on() const { return trace_ != nullptr; }

   private:
    friend class StepTrace;
    StepTrace* trace_;
    Clock::time_point begin_, scheduled_, ran_;
  };

  // RAII span of block copies and swaps.
  class Moves {
   public:
    Moves(StepTrace* trace, const char* name, size_t blocks) : trace_(trace), name_(name), blocks_(blocks) {
      if (trace_) begin_ = Clock::now();
    }
    ~Moves() {
      if (trace_) trace_->Add(*this);
    }
    Moves(const Moves&) = delete;
    Moves& operator=(const Moves&) = delete;

   private:
    friend class StepTrace;
    StepTrace* trace_;
    const char* name_;
    size_t blocks_;
    Clock::time_point begin_;
  };

  // Where a profile puts the operators of the step that runs.
  std::vector<OpSpan>* operators() { return &operators_; }

  int64_t events() const { return events_; }
  int64_t left_out() const { return left_out_; }  // because the trace was full

 private:
  struct Running {
    bool answered = false;  // its first token is there
    int64_t tokens = 0;
  };

  StepTrace(std::filesystem::path path, int64_t max_bytes);
  Status WriteAt(int64_t at, std::string_view text);
  void Add(const Step& step, Clock::time_point end, const EngineStats& stats,
           const std::vector<TokenEvent>& events);
  void Add(const Moves& moves);
  void AddOperators();
  void AddRequests(Clock::time_point now, const std::vector<TokenEvent>& events);
  void AddChanges(Clock::time_point now, const EngineStats& stats);

  // An event of phase `ph` as Chrome's format calls it, with `rest` after its time: "" or `,"key":value`...
  void Event(std::string_view name, char ph, Clock::time_point at, std::string_view rest);
  void Span(std::string_view name, int lane, Clock::time_point begin, Clock::time_point end,
            std::string_view rest = "");
  void Curve(std::string_view name, Clock::time_point at, std::string_view values);
  void RequestEvent(std::string_view name, char ph, int64_t request, Clock::time_point at,
                    std::string_view values = "");
  bool HasRoom(int64_t of);
  Status Flush();

  std::filesystem::path path_;
  int fd_ = -1;
  bool seekable_ = true;  // a file, whose closing bracket can be overwritten
  int64_t max_bytes_;
  Clock::time_point zero_, flushed_;
  std::string buffer_;
  int64_t written_ = 0;  // bytes of the file before its closing bracket
  int64_t events_ = 0, left_out_ = 0;
  std::optional<Error> failed_;
  std::vector<OpSpan> operators_;
  std::unordered_map<int64_t, Running> running_;
  EngineStats before_;
};

}  // namespace celer
