// A request in flight: its prompts, its answers, its stream.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "celer/engine_thread.h"
#include "server/formats/format.h"
#include "server/http/event_loop.h"
#include "server/http/http.h"
#include "server/kv_transfer/kv_transfer.h"
#include "server/service/replicas.h"

namespace celer::server {

// A parsed and tokenized body. Shared with the worker thread that prepares it.
struct Job {
  std::string body = {};  // raw, until it is parsed
  Query query = {};
  Prepared prepared = {};
  std::shared_ptr<const ServedModel> model = {};
  Json before = nullptr;  // the conversation that it continues
  std::vector<std::string> ignored = {};
  std::optional<Answer> replayed = {};  // with `resume`: the answer as its client has it
};

AnswerTextOptions TextOptionsOf(const Query& query);

class Generation {
 public:
  Generation(int64_t id, std::shared_ptr<Job> job, std::shared_ptr<Exchange> exchange);

  // An event of the engine for prompt `prompt`. True once the generation has ended.
  bool OnEvent(size_t prompt, const TokenEvent& event);
  // Ends it with an error: as an HTTP status if nothing was sent yet, else as a frame of the stream.
  void Fail(const ApiError& error);
  void Ping(Clock::time_point now, std::chrono::nanoseconds interval);
  void Cancel() {
    tickets.clear();  // destroying a ticket cancels its request
    for (Replicas::Place& one : places) one.End();
  }
  // Of the engine that runs it, or its first prompt.
  int64_t rank() const { return places.empty() ? 0 : places[0].rank(); }

  const int64_t id;
  const std::shared_ptr<Job> job;
  const std::shared_ptr<Exchange> exchange;
  std::optional<size_t> key;  // of ApiKeys, where keys have limits
  int place = 0;              // KeyLimits::Take()
  int64_t engine = 0;         // which load of the engine runs it
  std::optional<int64_t> wanted_rank;
  std::optional<Clock::time_point> deadline;
  // One for each prompt, but of an answer that has ended before none.
  std::vector<EngineThread::Ticket> tickets;
  std::vector<Replicas::Place> places;
  // Of disaggregated prefill. The timer is there as long as keys and values are fetched.
  const KvTransfer* transfer = nullptr;  // null: it has nothing to do with it
  std::unique_ptr<EventLoop::Timer> fetch_timer;
  std::optional<KvFetched> fetched;
  std::shared_ptr<std::optional<KvOffer>> offer = std::make_shared<std::optional<KvOffer>>();
  std::string ranks;  // for clients, where there are several: "1", "0,2"
  Reply reply;
  std::string body;  // as sent, if it was not streamed

  Clock::time_point submitted = {}, first_token = {}, last_token = {};
  Clock::time_point begun = {};     // when the engine first scheduled it
  Clock::time_point embedded = {};  // when an embedding came last
  // Inter-token latencies in seconds since they were last collected, for the metrics.
  std::vector<double> gaps;
  // The tokens that its client has are all of the answer: its end remains to be reported.
  bool has_ended() const { return reply.answers[0].decoder.finish() != FinishReason::kNone; }
  bool began() const { return first_token != Clock::time_point(); }
  const char* outcome = "abort";  // stop, length, abort, error

 private:
  void Deliver(Answer& answer, const TokenEvent& event);
  void BeginStream();
  void Complete();
  HttpHeaders Headers() const;

  std::unique_ptr<Format> format_;
  std::vector<bool> prompt_seen_;
  std::vector<Clock::time_point> last_;  // token per answer
  size_t unfinished_;
  bool streaming_ = false;
  Clock::time_point last_write_;
};

}  // namespace celer::server
