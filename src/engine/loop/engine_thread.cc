#include "engine/loop/engine_thread.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/result.h"
#include "engine/loop/check_request.h"
#include "engine/loop/engine_internals.h"

namespace celer {
namespace {

class EngineStepper : public Stepper {
 public:
  explicit EngineStepper(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  const Engine::Info& info() const override { return engine_->info(); }
  Status Check(const Request& request) const override { return CheckRequest(request, engine_->info()); }
  Result<int64_t> Submit(Request request) override { return engine_->Submit(std::move(request)); }
  void Cancel(int64_t request) override { engine_->Cancel(request); }
  bool HasWork() const override { return engine_->HasWork(); }
  std::vector<TokenEvent> Step() override { return engine_->Step(); }
  std::optional<Error> fault() const override { return engine_->fault(); }
  EngineStats stats() const override { return engine_->stats(); }
  int64_t CachedTokens(const Request& request) const override {
    return EngineInternals::CachedTokens(*engine_, request);
  }
  Engine* engine() override { return engine_.get(); }

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace

// Written by the engine's thread, read by the ticket's.
struct EngineThread::Ticket::Mailbox {
  Mailbox(int64_t ticket, OnEvent callback, std::weak_ptr<Impl> thread)
      : id(ticket), on_event(std::move(callback)), state(std::move(thread)) {}

  void Deliver(TokenEvent event) {
    const bool last = event.last;
    event.request = id;
    if (on_event) {
      on_event(std::move(event));
      if (!last) return;
    }
    const std::lock_guard lock(mutex);
    if (!on_event) events.push_back(std::move(event));
    finished |= last;
    // Notified under the lock: once the reader has the lock, it may destroy this mailbox.
    arrived.notify_all();
  }

  const int64_t id;
  const OnEvent on_event;
  const std::weak_ptr<Impl> state;  // expired once the EngineThread is gone, which a ticket may outlive

  mutable std::mutex mutex;
  std::condition_variable arrived;
  std::deque<TokenEvent> events;
  bool finished = false;
};

struct EngineThread::Impl {
  using Mailbox = Ticket::Mailbox;

  struct SubmitMail {
    Request request;
    std::shared_ptr<Mailbox> mailbox;
  };
  struct CancelMail {
    int64_t ticket;
  };
  struct RunMail {
    const std::function<void(Engine&)>* work;
    bool* ran;
    bool* done;
  };
  using Mail = std::variant<SubmitMail, CancelMail, RunMail>;

  explicit Impl(std::unique_ptr<Stepper> from)
      : stepper(std::move(from)),
        info(stepper->info()),
        adapters(stepper->engine() ? stepper->engine()->adapters() : nullptr),
        stats(stepper->stats()) {}

  void Loop();
  void Handle(SubmitMail mail);
  void Handle(CancelMail mail);
  void Handle(RunMail mail);
  void Deliver(TokenEvent event);
  void FinishAll(FinishReason reason, const std::string& error);
  // For Run(), on the engine's thread. What it does to the engine is seen by stats().
  void Work(const std::function<void(Engine&)>& work);

  // Used by the engine's thread alone.
  std::unique_ptr<Stepper> stepper;
  std::map<int64_t, std::shared_ptr<Mailbox>> running;  // by the engine's id
  std::map<int64_t, int64_t> engine_ids;                // by the ticket's id

  const Engine::Info& info;
  const std::shared_ptr<Adapters> adapters;
  std::thread thread;
  std::thread::id thread_id;  // stays when the thread is gone
  std::mutex stopping;        // one Stop() at a time

  mutable std::mutex mutex;  // of all below
  std::condition_variable wake;
  std::condition_variable ran;  // a RunMail is done
  std::deque<Mail> inbox;
  std::optional<Ending> ending;
  std::optional<Error> fault;
  EngineStats stats;
  bool ended = false;  // the thread takes no more mail
  int64_t next_ticket = 1;
};

// ---- the engine's thread ----

void EngineThread::Impl::Loop() {
  while (true) {
    std::deque<Mail> mail;
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return !inbox.empty() || ending || stepper->HasWork(); });
      // Nothing is accepted once `ending` is set.
      if (ending && (*ending == Ending::kCancel || (inbox.empty() && !stepper->HasWork()))) break;
      mail.swap(inbox);
    }
    for (Mail& one : mail) std::visit([&](auto& m) { Handle(std::move(m)); }, one);
    if (!stepper->HasWork()) continue;
    std::vector<TokenEvent> events = stepper->Step();
    const std::optional<Error> broken = stepper->fault();
    {  // the fault is set before its events are delivered
      EngineStats now = stepper->stats();
      const std::lock_guard lock(mutex);
      stats = std::move(now);
      fault = broken;
    }
    for (TokenEvent& event : events) {
      if (broken && event.finish == FinishReason::kCancelled) {
        event.finish = FinishReason::kError;
        event.error = broken->message();
      }
      Deliver(std::move(event));
    }
    if (broken) break;
  }
  std::deque<Mail> left;
  std::string error;
  {
    const std::lock_guard lock(mutex);
    ended = true;
    left.swap(inbox);
    if (fault) error = fault->message();
  }
  const FinishReason reason = error.empty() ? FinishReason::kCancelled : FinishReason::kError;
  FinishAll(reason, error);
  for (Mail& one : left) {
    if (auto* submit = std::get_if<SubmitMail>(&one))
      submit->mailbox->Deliver({.finish = reason, .last = true, .error = error});
    else if (auto* run = std::get_if<RunMail>(&one)) {
      const std::lock_guard lock(mutex);
      *run->done = true;
      ran.notify_all();
    }
  }
}

void EngineThread::Impl::Handle(SubmitMail mail) {
  const Result<int64_t> id = stepper->Submit(std::move(mail.request));
  if (!id)
    return mail.mailbox->Deliver(
        {.finish = FinishReason::kError, .last = true, .error = id.error().message()});
  engine_ids[mail.mailbox->id] = *id;
  running[*id] = std::move(mail.mailbox);
}

void EngineThread::Impl::Handle(CancelMail mail) {
  // A finished request has no id any more.
  if (const auto it = engine_ids.find(mail.ticket); it != engine_ids.end()) stepper->Cancel(it->second);
}

void EngineThread::Impl::Handle(RunMail mail) {
  Work(*mail.work);
  const std::lock_guard lock(mutex);
  *mail.ran = *mail.done = true;
  ran.notify_all();
}

void EngineThread::Impl::Work(const std::function<void(Engine&)>& work) {
  if (Engine* engine = stepper->engine()) work(*engine);
  EngineStats now = stepper->stats();
  const std::lock_guard lock(mutex);
  stats = std::move(now);
}

void EngineThread::Impl::Deliver(TokenEvent event) {
  const auto it = running.find(event.request);
  CELER_CHECK(it != running.end());
  const std::shared_ptr<Mailbox> mailbox = it->second;
  if (event.last) {
    engine_ids.erase(mailbox->id);
    running.erase(it);
  }
  mailbox->Deliver(std::move(event));
}

void EngineThread::Impl::FinishAll(FinishReason reason, const std::string& error) {
  engine_ids.clear();
  for (const auto& [id, mailbox] : std::exchange(running, {}))
    mailbox->Deliver({.finish = reason, .last = true, .error = error});
}

// ---- any other thread ----

std::shared_ptr<EngineThread::Impl> StartEngineThread(std::unique_ptr<Stepper> stepper) {
  auto impl = std::make_shared<EngineThread::Impl>(std::move(stepper));
  impl->thread = std::thread([loop = impl.get()] { loop->Loop(); });
  impl->thread_id = impl->thread.get_id();
  return impl;
}

EngineThread::EngineThread(std::unique_ptr<Engine> engine)
    : EngineThread(StartEngineThread(std::make_unique<EngineStepper>(std::move(engine)))) {}

EngineThread::EngineThread(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

EngineThread::~EngineThread() {
  Stop(Ending::kCancel);
}

void EngineThread::Stop(Ending ending) {
  {
    const std::lock_guard lock(impl_->mutex);
    // A cancel cuts a drain short.
    if (!impl_->ending || ending == Ending::kCancel) impl_->ending = ending;
    impl_->wake.notify_all();
  }
  const std::lock_guard lock(impl_->stopping);
  if (impl_->thread.joinable()) impl_->thread.join();
}

Result<EngineThread::Ticket> EngineThread::Submit(Request request) {
  return Submit(std::move(request), nullptr);
}

Result<EngineThread::Ticket> EngineThread::Submit(Request request, OnEvent on_event) {
  CELER_RETURN_IF_ERROR(impl_->stepper->Check(request));
  const std::lock_guard lock(impl_->mutex);
  if (impl_->fault) return *impl_->fault;
  if (impl_->ending || impl_->ended) return Error::Cancelled("the engine's thread was stopped");
  auto mailbox = std::make_shared<Ticket::Mailbox>(impl_->next_ticket++, std::move(on_event), impl_);
  impl_->inbox.push_back(Impl::SubmitMail{std::move(request), mailbox});
  impl_->wake.notify_all();
  return Ticket(std::move(mailbox));
}

Status EngineThread::Run(const std::function<void(Engine&)>& work) {
  if (std::this_thread::get_id() == impl_->thread_id) {  // within on_event: two steps are not at once
    impl_->Work(work);
    return {};
  }
  bool ran = false, done = false;
  std::unique_lock lock(impl_->mutex);
  if (impl_->fault) return *impl_->fault;
  if (impl_->ending || impl_->ended) return Error::Cancelled("the engine's thread was stopped");
  impl_->inbox.push_back(Impl::RunMail{&work, &ran, &done});
  impl_->wake.notify_all();
  impl_->ran.wait(lock, [&] { return done; });
  if (ran) return {};
  if (impl_->fault) return *impl_->fault;
  return Error::Cancelled("the engine's thread was stopped");
}

std::optional<Error> EngineThread::fault() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->fault;
}

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

const Engine::Info& EngineThread::info() const {
  return impl_->info;
}

int64_t EngineThread::CachedTokens(const Request& request) const {
  return impl_->stepper->CachedTokens(request);
}

const std::shared_ptr<Adapters>& EngineThread::adapters() const {
  return impl_->adapters;
}

EngineThread::Ticket::Ticket(std::shared_ptr<Mailbox> mailbox) : mailbox_(std::move(mailbox)) {}
EngineThread::Ticket::Ticket(Ticket&&) noexcept = default;
EngineThread::Ticket& EngineThread::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    if (mailbox_) Cancel();
    mailbox_ = std::move(other.mailbox_);
  }
  return *this;
}
EngineThread::Ticket::~Ticket() {
  if (mailbox_) Cancel();
}

int64_t EngineThread::Ticket::id() const {
  return mailbox_->id;
}

std::optional<TokenEvent> EngineThread::Ticket::Next() {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->arrived.wait(lock, [&] { return !mailbox_->events.empty() || mailbox_->finished; });
  if (mailbox_->events.empty()) return std::nullopt;
  TokenEvent event = std::move(mailbox_->events.front());
  mailbox_->events.pop_front();
  return event;
}

std::optional<TokenEvent> EngineThread::Ticket::Next(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->arrived.wait_for(lock, timeout, [&] { return !mailbox_->events.empty() || mailbox_->finished; });
  if (mailbox_->events.empty()) return std::nullopt;
  TokenEvent event = std::move(mailbox_->events.front());
  mailbox_->events.pop_front();
  return event;
}

void EngineThread::Ticket::Cancel() {
  if (finished()) return;
  const std::shared_ptr<Impl> state = mailbox_->state.lock();
  if (!state) return;
  const std::lock_guard lock(state->mutex);
  if (state->ended) return;
  state->inbox.push_back(Impl::CancelMail{mailbox_->id});
  state->wake.notify_all();
}

bool EngineThread::Ticket::finished() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->finished;
}

}  // namespace celer
