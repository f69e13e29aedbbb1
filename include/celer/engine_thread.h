// An engine for many threads: it runs on a thread of its own, and any thread may submit, cancel and read.
//
//   EngineThread thread(std::move(*Engine::Load(options)));
//   auto ticket = thread.Submit(request);
//   while (auto event = ticket->Next()) ...
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "celer/engine.h"
#include "celer/error.h"

namespace celer {

class EngineThread {
 public:
  // One request. Its events come in order, and the last of them (TokenEvent::last) always comes: also after a
  // cancellation, a fault or the end of the EngineThread, which a ticket may outlive. A ticket that goes away
  // cancels its request. Different tickets may be used by different threads; Cancel() may be called from any.
  class Ticket {
   public:
    Ticket(Ticket&&) noexcept;
    Ticket& operator=(Ticket&&) noexcept;
    ~Ticket();

    int64_t id() const;  // TokenEvent::request
    // The next event, waiting for it. None after the last one, or if none came in time. The queue is
    // unbounded: a slow reader delays no other request.
    std::optional<TokenEvent> Next();
    std::optional<TokenEvent> Next(std::chrono::nanoseconds timeout);
    // Asynchronous: the last event will be kCancelled, unless the request ends by itself before.
    void Cancel();
    bool finished() const;  // the last event is there; it may not have been read

   private:
    friend class EngineThread;
    struct Mailbox;
    explicit Ticket(std::shared_ptr<Mailbox> mailbox);
    std::shared_ptr<Mailbox> mailbox_;
  };

  explicit EngineThread(std::unique_ptr<Engine> engine);
  ~EngineThread();  // Stop(Ending::kCancel)
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Checks the request and queues it; does not wait for the engine. An error if the request cannot be, after
  // Stop(), and after a fault of the device, which is that error.
  Result<Ticket> Submit(Request request);
  // Events go to on_event, on the engine's thread and in order, instead of to Next(). It must be quick, and
  // may call anything here but Stop().
  using OnEvent = std::function<void(TokenEvent)>;
  Result<Ticket> Submit(Request request, OnEvent on_event);

  // Runs `work` on the engine's thread between two steps and waits for it: for scores and profiles. An error
  // if it could not be run because the thread has stopped.
  Status Run(const std::function<void(Engine&)>& work);

  // kDrain: graceful shutdown, requests in flight are finished first. kCancel: they are cancelled. Waits for
  // the thread to end; then nothing is accepted any more. Idempotent.
  enum class Ending { kDrain, kCancel };
  void Stop(Ending ending);

  // The fault of the device, if there was one. Every request in flight has then ended with kError and this
  // message, and no other is accepted; load the engine again to continue.
  std::optional<Error> fault() const;
  const Engine::Info& info() const;
  EngineStats stats() const;  // after the last step
  // How many of the prompt's leading tokens the request would find in the prefix cache now.
  int64_t CachedTokens(const Request& request) const;
  // As Engine::adapters(), for any thread.
  const std::shared_ptr<Adapters>& adapters() const;

  // Opaque: the implementation.
  struct Impl;
  explicit EngineThread(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace celer
