#include "cli/batch/run.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "cli/batch/answer.h"
#include "cli/shared/command.h"
#include "cli/shared/interrupt.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

// Bytes of the lines in flight at most.
constexpr size_t kMaxWindowBytes = size_t{256} << 20;
constexpr std::chrono::milliseconds kTick{100};

// A line as the reader hands it on: with a body that can be submitted, with an error, or as one to be
// skipped.
struct ReadLine {
  BatchLine line;
  BatchBody body;
  enum class Known : uint8_t { kNo, kAnswered, kRefused } known = Known::kNo;
};

struct Job {
  Job(BatchLine from, BatchBody what, const Prompter& prompter)
      : line(std::move(from)), model(what.model), answer(line.kind, what, prompter) {}

  BatchLine line;
  std::string model;
  BatchAnswer answer;
  std::vector<EngineThread::Ticket> tickets;
};

// splitmix64: neighbouring lines draw independently.
uint64_t SeedOf(uint64_t seed, int64_t line) {
  uint64_t x = seed + static_cast<uint64_t>(line) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

class BatchWorker {
 public:
  BatchWorker(EngineThread& thread, const server::ServedModel& model, BatchFiles& files,
              const BatchSettings& settings)
      : thread_(thread), model_(model), files_(files), settings_(settings), progress_line_(settings.quiet) {
    progress_.total_bytes = files.in.size();
  }

  BatchOutcome Run();

 private:
  // ---- the reader's thread ----
  void ReadAll();
  ReadLine Prepare(LinesFile::Line text);
  void MakeBody(ReadLine* read);

  // ---- the caller's ----
  Status Work();
  Status Take(ReadLine read);
  Status Submit(ReadLine read);
  Status TakeEvent(int64_t job, size_t request, TokenEvent event);
  Status Finish(Job& job);
  Status Refuse(const BatchLine& line, const LineError& error);
  void MarkDone(const BatchLine& line);  // needs no more work
  void HandleInterrupt();
  void Tick();
  // Of the time so far, how much its work takes at the machine's limit; none if that was not measured.
  std::optional<double> ShareOfLimit() const;

  EngineThread& thread_;
  const server::ServedModel& model_;
  BatchFiles& files_;
  const BatchSettings& settings_;
  BatchProgressLine progress_line_;
  BatchProgress progress_;
  BatchOutcome outcome_;

  LineSet seen_;  // of the reader's thread alone

  std::unordered_map<int64_t, std::unique_ptr<Job>> jobs_;
  int64_t next_job_ = 1;
  int interrupts_ = 0;

  struct Arrived {
    int64_t job;
    size_t request;
    TokenEvent event;
  };
  std::mutex mutex_;  // of all below
  std::condition_variable arrived_, room_;
  std::deque<ReadLine> lines_;
  std::vector<Arrived> events_;
  size_t open_lines_ = 0, open_bytes_ = 0;  // read and not settled
  bool stop_reading_ = false, all_read_ = false;
  std::optional<Error> read_error_;
};

void BatchWorker::ReadAll() {
  std::optional<Error> error;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] {
        return stop_reading_ || open_lines_ == 0 ||
               (open_lines_ < static_cast<size_t>(settings_.window) && open_bytes_ < kMaxWindowBytes);
      });
      if (stop_reading_) break;
    }
    auto line = files_.in.Next();
    if (!line) error = line.error();
    if (!line || !*line) break;
    const size_t bytes = (*line)->bytes;
    ReadLine read = Prepare(std::move(**line));
    read.line.bytes = bytes;
    const std::lock_guard lock(mutex_);
    ++open_lines_;
    open_bytes_ += bytes;
    lines_.push_back(std::move(read));
    arrived_.notify_one();
  }
  const std::lock_guard lock(mutex_);
  all_read_ = true;
  read_error_ = std::move(error);
  arrived_.notify_one();
}

ReadLine BatchWorker::Prepare(LinesFile::Line text) {
  ReadLine read;
  std::string_view json = text.text;
  if (text.number == 1 && json.starts_with("\xEF\xBB\xBF")) json.remove_prefix(3);  // a byte order mark
  if (text.too_long) {
    read.line.number = text.number;
    read.line.error = LineError{"invalid_line", fmt::format("the line has {} bytes, at most {} are accepted",
                                                            text.bytes, LinesFile::kMaxLine)};
  } else if (IsBlank(json)) {
    read.line.number = 0;  // nothing at all
    return read;
  } else {
    read.line = ParseLine(json, text.number);
  }
  const std::string key = read.line.Key();
  const bool duplicate = !key.empty() && seen_.Has(key, 0);
  if (!key.empty()) seen_.Add(key, 0);
  if (files_.refused.Has("", text.number)) {
    read.known = ReadLine::Known::kRefused;
  } else if (duplicate && !read.line.error) {
    const bool simple = read.line.custom_id.empty();
    const nlohmann::ordered_json id = simple ? read.line.id : nlohmann::ordered_json(read.line.custom_id);
    read.line.error = LineError{"duplicate_id", fmt::format("{} {} stands on an earlier line, too",
                                                            simple ? "id" : "custom_id", JsonText(id))};
  } else if (!read.line.error && files_.answered.Has(key, text.number)) {
    read.known = ReadLine::Known::kAnswered;
  }
  if (!read.line.error && read.known == ReadLine::Known::kNo) MakeBody(&read);
  read.line.body = nullptr;
  return read;
}

void BatchWorker::MakeBody(ReadLine* read) {
  BatchLine& line = read->line;
  const auto refusal = ReadBody(line.kind, std::move(line.body), settings_.defaults,
                                SeedOf(settings_.seed, line.number), model_, &read->body);
  if (!refusal) return;
  const bool too_long = refusal->code == "context_length_exceeded";
  line.error = LineError{too_long ? refusal->code : "invalid_request", WithFlags(refusal->message), 400};
}

BatchOutcome BatchWorker::Run() {
  std::thread reader([this] { ReadAll(); });
  const Status worked = Work();
  {
    const std::lock_guard lock(mutex_);
    stop_reading_ = true;
    room_.notify_all();
  }
  reader.join();
  thread_.Stop(EngineThread::Ending::kCancel);
  jobs_.clear();
  if (!worked) outcome_.failure = worked.error();
  for (AppendedLines* file : {&files_.out, &files_.errors})
    if (const Status synced = file->Sync(); !synced && !outcome_.failure) outcome_.failure = synced.error();
  outcome_.seconds = progress_line_.seconds();
  outcome_.share_of_limit = ShareOfLimit();
  outcome_.interrupted = interrupts_ > 0;
  return outcome_;
}

Status BatchWorker::Work() {
  while (true) {
    std::deque<ReadLine> lines;
    std::vector<Arrived> events;
    bool all_read = false;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait_for(lock, kTick,
                        [&] { return !lines_.empty() || !events_.empty() || (all_read_ && jobs_.empty()); });
      lines.swap(lines_);
      events.swap(events_);
      all_read = all_read_;
      if (read_error_) return *read_error_;
    }
    for (ReadLine& line : lines) CELER_RETURN_IF_ERROR(Take(std::move(line)));
    for (Arrived& one : events) CELER_RETURN_IF_ERROR(TakeEvent(one.job, one.request, std::move(one.event)));
    HandleInterrupt();
    if (interrupts_ > 1) return {};
    progress_.all_read = all_read && interrupts_ == 0;
    Tick();
    if (all_read && jobs_.empty()) {
      const std::lock_guard lock(mutex_);
      if (lines_.empty() && events_.empty()) return {};
    }
  }
}

Status BatchWorker::Take(ReadLine read) {
  progress_.read_bytes += static_cast<int64_t>(read.line.bytes);
  if (read.line.number == 0) {  // blank
    progress_.skipped_bytes += static_cast<int64_t>(read.line.bytes);
    MarkDone(read.line);
    return {};
  }
  ++progress_.lines;
  if (read.known != ReadLine::Known::kNo) {
    ++(read.known == ReadLine::Known::kAnswered ? outcome_.requests_before : outcome_.refused_before);
    progress_.skipped_bytes += static_cast<int64_t>(read.line.bytes);
    MarkDone(read.line);
    return {};
  }
  if (read.line.error) return Refuse(read.line, *read.line.error);
  if (interrupts_ > 0) return {};  // left for the next run
  return Submit(std::move(read));
}

Status BatchWorker::Submit(ReadLine read) {
  const int64_t id = next_job_++;
  std::vector<Request> requests = std::move(read.body.requests);
  read.body.requests.clear();
  BatchBody body = std::move(read.body);
  body.requests = requests;
  auto job = std::make_unique<Job>(std::move(read.line), std::move(body), model_.prompter);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto ticket = thread_.Submit(std::move(requests[i]), [this, id, i](TokenEvent event) {
      const std::lock_guard lock(mutex_);
      events_.push_back({id, i, std::move(event)});
      arrived_.notify_one();
    });
    if (!ticket && thread_.fault()) return *thread_.fault();
    // Tickets of the same line cancel their requests when they are destroyed; their events are ignored.
    if (!ticket) return Refuse(job->line, {"invalid_request", WithFlags(ticket.error().message()), 400});
    job->tickets.push_back(std::move(*ticket));
  }
  jobs_.emplace(id, std::move(job));
  return {};
}

Status BatchWorker::TakeEvent(int64_t id, size_t request, TokenEvent event) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return {};
  Job& job = *it->second;
  const int64_t before = job.answer.new_tokens();
  job.answer.Push(request, std::move(event));
  progress_.new_tokens += job.answer.new_tokens() - before;
  if (job.answer.WantsCancel(request)) job.tickets[request].Cancel();
  if (!job.answer.done()) return {};
  const Status finished = Finish(job);
  jobs_.erase(it);
  return finished;
}

Status BatchWorker::Finish(Job& job) {
  const BatchAnswer& answer = job.answer;
  switch (answer.failure()) {
    case FinishReason::kNone:
      break;
    case FinishReason::kCancelled:
      return {};  // by Ctrl-C: left for the next run
    case FinishReason::kRefused:
      return Refuse(job.line, {"context_length_exceeded", WithFlags(answer.error()), 400});
    default:
      // A device that failed has nothing to do with the line.
      if (thread_.fault()) return *thread_.fault();
      return Refuse(job.line, {"model_error", WithFlags(answer.error()), 500});
  }
  const char* const prefix = job.line.kind == BodyKind::kChat ? "chatcmpl-" : "cmpl-";
  CELER_RETURN_IF_ERROR(files_.out.Append(AnswerText(
      job.line, answer.Body(MakeId(prefix, job.line), job.model.empty() ? model_.name : job.model))));
  ++outcome_.requests;
  outcome_.prompt_tokens += answer.prompt_tokens();
  outcome_.cached_tokens += answer.cached_tokens();
  outcome_.new_tokens += answer.new_tokens();
  MarkDone(job.line);
  return {};
}

Status BatchWorker::Refuse(const BatchLine& line, const LineError& error) {
  CELER_RETURN_IF_ERROR(files_.errors.Append(ErrorText(line, error)));
  ++outcome_.refused;
  MarkDone(line);
  return {};
}

void BatchWorker::MarkDone(const BatchLine& line) {
  progress_.bytes += static_cast<int64_t>(line.bytes);
  const std::lock_guard lock(mutex_);
  --open_lines_;
  open_bytes_ -= line.bytes;
  room_.notify_one();
}

void BatchWorker::HandleInterrupt() {
  if (!InterruptGuard::Pending()) return;
  InterruptGuard::Clear();
  interrupts_ += InterruptGuard::Terminated() ? 2 : 1;  // SIGTERM: a SIGKILL is likely to follow soon
  if (interrupts_ > 1) return;
  {
    const std::lock_guard lock(mutex_);
    stop_reading_ = true;
    room_.notify_all();
  }
  int64_t begun = 0;
  for (const auto& [id, job] : jobs_) {
    if (job->answer.new_tokens() > 0)
      ++begun;
    else
      for (EngineThread::Ticket& ticket : job->tickets) ticket.Cancel();
  }
  progress_line_.Hide();
  if (begun > 0)
    Say("finishing {} requests that have begun; Ctrl-C once more stops at once\n", FormatCount(begun));
}

void BatchWorker::Tick() {
  if (!progress_line_.Due()) return;
  progress_.requests = outcome_.requests;
  progress_.before = outcome_.requests_before;
  progress_.refused = outcome_.refused + outcome_.refused_before;
  progress_line_.Show(progress_, ShareOfLimit());
}

std::optional<double> BatchWorker::ShareOfLimit() const {
  const double limit = thread_.stats().limit_seconds, seconds = progress_line_.seconds();
  return limit > 0 && seconds > 0 ? std::optional(limit / seconds) : std::nullopt;
}

}  // namespace

BatchOutcome RunBatch(EngineThread& thread, const server::ServedModel& model, BatchFiles& files,
                      const BatchSettings& settings) {
  return BatchWorker(thread, model, files, settings).Run();
}

}  // namespace celer::cli
