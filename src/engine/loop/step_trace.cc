#include "engine/loop/step_trace.h"

#include <fmt/compile.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "celer/version.h"
#include "io/file/atomic_file.h"

namespace celer {
namespace {

constexpr size_t kFlushBytes = size_t{1} << 20;
constexpr std::chrono::seconds kFlushEvery{1};
constexpr std::string_view kEnd = "\n]\n";
// One line of the picture each.
enum Lane : int { kSteps = 1, kOperators = 2 };

int64_t Nanoseconds(StepTrace::Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// Microseconds, Chrome's unit, to the nanosecond: "1234.056". Done by hand: it is most of what is written.
void AppendMicroseconds(int64_t ns, std::string& out) {
  if (ns < 0) ns = 0;
  const fmt::format_int whole(ns / 1000);
  out.append(whole.data(), whole.size());
  const auto rest = static_cast<int>(ns % 1000);
  const char digits[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                         static_cast<char>('0' + rest % 10)};
  out.append(digits, sizeof(digits));
}

}  // namespace

Result<std::unique_ptr<StepTrace>> StepTrace::Create(const std::filesystem::path& path, int64_t max_bytes) {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  std::unique_ptr<StepTrace> trace(new StepTrace(path, max_bytes));
  trace->seekable_ = file.whole();
  CELER_RETURN_IF_ERROR(file.Write(trace->buffer_));
  if (trace->seekable_) CELER_RETURN_IF_ERROR(file.Write(kEnd));
  CELER_ASSIGN(trace->fd_, file.CommitAndKeepOpen());
  trace->written_ = static_cast<int64_t>(trace->buffer_.size());
  trace->buffer_.clear();
  return trace;
}

StepTrace::StepTrace(std::filesystem::path path, int64_t max_bytes)
    : path_(std::move(path)), max_bytes_(max_bytes), zero_(Clock::now()), flushed_(zero_) {
  buffer_.reserve(2 * kFlushBytes);
  // The first event has no comma in front of it.
  buffer_ = fmt::format(
      "[\n"
      R"({{"name":"process_name","ph":"M","pid":1,"args":{{"name":"celer {}"}}}},)"
      "\n"
      R"({{"name":"thread_name","ph":"M","pid":1,"tid":{},"args":{{"name":"steps"}}}},)"
      "\n"
      R"({{"name":"thread_name","ph":"M","pid":1,"tid":{},"args":{{"name":"operators"}}}})",
      Version(), static_cast<int>(kSteps), static_cast<int>(kOperators));
}

StepTrace::~StepTrace() {
  (void)Close();
}

Status StepTrace::Close() {
  if (fd_ >= 0) {
    if (left_out_ > 0) {
      const std::string note = fmt::format(R"(,"s":"g","args":{{"left_out":{}}})", left_out_);
      max_bytes_ += 1024;  // room for the note
      Event("the trace was full: events were left out", 'i', Clock::now(), note);
    }
    if (const Status flushed = Flush(); flushed && !seekable_)
      if (const Status ended = WriteAt(written_, kEnd); !ended) failed_ = ended.error();
    if (::close(fd_) != 0 && !failed_)
      failed_ = Error::Device(path_.string(), ": cannot be written: ", std::strerror(errno));
    fd_ = -1;
  }
  if (failed_) return *failed_;
  return {};
}

Status StepTrace::WriteAt(int64_t at, std::string_view text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t now = seekable_ ? ::pwrite(fd_, text.data() + done, text.size() - done,
                                             static_cast<off_t>(at + static_cast<int64_t>(done)))
                                  : ::write(fd_, text.data() + done, text.size() - done);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return Error::Device(path_.string(), ": cannot be written: ", std::strerror(errno));
    done += static_cast<size_t>(now);
  }
  return {};
}

// The new events take the place of the bracket, and a new one follows them in the same write.
Status StepTrace::Flush() {
  if (failed_ || fd_ < 0) return failed_ ? Status(*failed_) : Status();
  const size_t bytes = buffer_.size();
  if (seekable_) buffer_ += kEnd;
  if (const Status written = WriteAt(written_, buffer_); !written) {
    failed_ = written.error();
    // On a full disk the events so far stay readable: there was room for their bracket before.
    if (seekable_ && ::ftruncate(fd_, static_cast<off_t>(written_)) == 0) (void)WriteAt(written_, kEnd);
    return *failed_;
  }
  written_ += static_cast<int64_t>(bytes);
  buffer_.clear();
  return {};
}

bool StepTrace::HasRoom(int64_t of) {
  if (!failed_ && fd_ >= 0 && written_ + static_cast<int64_t>(buffer_.size()) < of) return true;
  ++left_out_;
  return false;
}

void StepTrace::Event(std::string_view name, char ph, Clock::time_point at, std::string_view rest) {
  if (!HasRoom(max_bytes_)) return;
  ++events_;
  buffer_ += ",\n{\"name\":\"";
  buffer_ += name;  // our own words: nothing to escape
  buffer_ += "\",\"ph\":\"";
  buffer_ += ph;
  buffer_ += "\",\"pid\":1,\"ts\":";
  AppendMicroseconds(Nanoseconds(at - zero_), buffer_);
  buffer_ += rest;
  buffer_ += '}';
  if (buffer_.size() >= kFlushBytes) (void)Flush();
}

void StepTrace::Span(std::string_view name, int lane, Clock::time_point begin, Clock::time_point end,
                     std::string_view rest) {
  std::string more = lane == kSteps ? ",\"tid\":1,\"dur\":" : ",\"tid\":2,\"dur\":";
  AppendMicroseconds(Nanoseconds(end - begin), more);
  more += rest;
  Event(name, 'X', begin, more);
}

void StepTrace::Curve(std::string_view name, Clock::time_point at, std::string_view values) {
  Event(name, 'C', at, fmt::format(FMT_COMPILE(R"(,"args":{{{}}})"), values));
}

void StepTrace::RequestEvent(std::string_view name, char ph, int64_t request, Clock::time_point at,
                             std::string_view values) {
  Event(name, ph, at,
        fmt::format(FMT_COMPILE(R"(,"cat":"request","id":{},"tid":1,"args":{{{}}})"), request, values));
}

void StepTrace::Submitted(int64_t request, int64_t prompt_tokens, int64_t max_tokens) {
  const Clock::time_point now = Clock::now();
  running_[request] = {};
  RequestEvent(
      "request", 'b', request, now,
      fmt::format(R"("request":{},"prompt_tokens":{},"max_tokens":{})", request, prompt_tokens, max_tokens));
  RequestEvent("to the first token", 'b', request, now);
}

void StepTrace::Add(const Step& step, Clock::time_point end, const EngineStats& stats,
                    const std::vector<TokenEvent>& events) {
  const int64_t computed = stats.computed_tokens - before_.computed_tokens;
  const int64_t generated = stats.generated_tokens - before_.generated_tokens;
  Span("step", kSteps, step.begin_, end,
       fmt::format(FMT_COMPILE(R"(,"args":{{"step":{},"tokens":{},"new_tokens":{},"running":{}}})"),
                   stats.steps, computed, generated, stats.running));
  Span("schedule", kSteps, step.begin_, step.scheduled_);
  Span("run", kSteps, step.scheduled_, step.ran_);
  Span("commit", kSteps, step.ran_, end);
  AddOperators();
  AddRequests(end, events);
  AddChanges(end, stats);
  Curve("tokens per step", step.begin_,
        fmt::format(FMT_COMPILE(R"("computed":{},"new":{})"), computed, generated));
  before_ = stats;
  if (buffer_.size() < kFlushBytes && end - flushed_ < kFlushEvery) return;
  (void)Flush();
  flushed_ = end;
}

void StepTrace::Add(const Moves& moves) {
  Span(moves.name_, kSteps, moves.begin_, Clock::now(),
       fmt::format(R"(,"args":{{"blocks":{}}})", moves.blocks_));
}

void StepTrace::AddOperators() {
  if (operators_.empty()) return;
  if (HasRoom(max_bytes_ / 2)) {
    // What stands in front of the time, once for each operator: this loop is the bulk of a trace's cost.
    static const std::array<std::string, kOpCount> kBegins = [] {
      std::array<std::string, kOpCount> begins;
      for (size_t i = 0; i < kOpCount; ++i)
        begins[i] = fmt::format(",\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":",
                                Name(static_cast<Op>(i)), static_cast<int>(kOperators));
      return begins;
    }();
    for (const OpSpan& span : operators_) {
      buffer_ += kBegins[static_cast<size_t>(span.op)];
      AppendMicroseconds(Nanoseconds(span.begin - zero_), buffer_);
      buffer_ += ",\"dur\":";
      AppendMicroseconds(Nanoseconds(span.end - span.begin), buffer_);
      buffer_ += '}';
    }
    events_ += static_cast<int64_t>(operators_.size());
  } else {
    left_out_ += static_cast<int64_t>(operators_.size()) - 1;  // HasRoom() counted one
  }
  operators_.clear();
}

void StepTrace::AddRequests(Clock::time_point now, const std::vector<TokenEvent>& events) {
  for (const TokenEvent& event : events) {
    const auto it = running_.find(event.request);
    if (it == running_.end()) continue;
    Running& request = it->second;
    request.tokens += event.token != TokenEvent::kNoToken ? 1 : 0;
    if (!request.answered) {
      request.answered = true;
      RequestEvent("to the first token", 'e', event.request, now,
                   fmt::format(R"("cached_tokens":{})", event.cached_tokens));
      if (!event.last) RequestEvent("to the last token", 'b', event.request, now);
    } else if (event.last) {
      RequestEvent("to the last token", 'e', event.request, now);
    }
    if (!event.last) continue;
    RequestEvent("request", 'e', event.request, now,
                 fmt::format(R"("finish":"{}","tokens":{})", Name(event.finish), request.tokens));
    running_.erase(it);
  }
}

// Curves of what there is, and a mark for each step in which a sequence had to give way.
void StepTrace::AddChanges(Clock::time_point now, const EngineStats& stats) {
  Curve("sequences", now,
        fmt::format(FMT_COMPILE(R"("running":{},"waiting":{})"), stats.running, stats.waiting));
  Curve("KV blocks", now,
        fmt::format(FMT_COMPILE(R"("used":{},"cached":{})"), stats.kv_blocks_used, stats.kv_blocks_cached));
  if (stats.kv_host_blocks > 0)
    Curve("KV blocks in host memory", now, fmt::format(R"("used":{})", stats.kv_host_blocks_used));
  const auto mark = [&](std::string_view name, int64_t count) {
    if (count > 0) Event(name, 'i', now, fmt::format(R"(,"tid":1,"s":"t","args":{{"count":{}}})", count));
  };
  mark("sequences swapped out", stats.swaps - before_.swaps);
  mark("sequences to be recomputed", stats.recomputations - before_.recomputations);
  mark("cached blocks evicted", stats.evictions - before_.evictions);
}

}  // namespace celer
