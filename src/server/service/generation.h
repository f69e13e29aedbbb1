// One request of a client while the engine works on it: its prompts, its answers, its stream.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "celer/engine_thread.h"
#include "server/formats/format.h"
#include "server/http/http.h"

namespace celer::server {

// A body that was read and made into tokens. Shared, because a job on a worker's thread makes it.
struct Job {
  std::string body = {};  // as it came, until it is read
  Asked asked = {};
  Prepared prepared = {};
  std::shared_ptr<const ServedModel> model = {};
  Json before = nullptr;  // the conversation that it goes on from
  std::vector<std::string> ignored = {};
};

class Generation {
 public:
  Generation(int64_t id, std::shared_ptr<Job> job, std::shared_ptr<Exchange> exchange);

  // What the engine said about prompt `prompt`. True once the generation has ended, well or not.
  bool OnEvent(size_t prompt, const TokenEvent& event);
  // Ends it with an error: as a status if nothing was sent yet, else as a frame.
  void Fail(const ApiError& error);
  void Ping(Clock::time_point now, std::chrono::nanoseconds interval);
  void Cancel() { tickets.clear(); }  // a ticket that goes away cancels its request

  const int64_t id;
  const std::shared_ptr<Job> job;
  const std::shared_ptr<Exchange> exchange;
  int64_t engine = 0;  // which of those that were loaded runs it
  std::vector<EngineThread::Ticket> tickets;
  Told told;
  std::string body;  // as it was sent, if it was not streamed

  Clock::time_point submitted = {}, first_token = {}, last_token = {};
  Clock::time_point begun = {};     // when the engine took it from its queue
  Clock::time_point embedded = {};  // when an embedding came last
  std::vector<double> gaps;         // seconds between tokens since they were last taken, for the metrics
  bool began() const { return first_token != Clock::time_point(); }
  const char* outcome = "abort";  // stop, length, abort, error

 private:
  void Deliver(Answer& answer, const TokenEvent& event);
  void BeginStream();
  void Complete();

  std::unique_ptr<Format> format_;
  std::vector<bool> prompt_seen_;
  std::vector<Clock::time_point> last_;  // token per answer
  size_t unfinished_;
  bool streaming_ = false;
  Clock::time_point last_write_;
};

}  // namespace celer::server
