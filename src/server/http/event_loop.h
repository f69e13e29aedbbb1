// The server's event loop on one thread, and a pool of worker threads for CPU-bound work.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace celer::server {

using Clock = std::chrono::steady_clock;

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Run();                             // until Stop(); what is left then is dropped by the destructor
  void Stop();                            // from any thread
  void Post(std::function<void()> work);  // from any thread; it runs on the loop's

  // On the loop's thread only. The work is dropped if the timer goes away first.
  class Timer {
   public:
    virtual ~Timer() = default;
  };
  std::unique_ptr<Timer> After(std::chrono::nanoseconds delay, std::function<void()> work);
  // SIGTERM and SIGINT, each time one comes.
  void OnSignal(std::function<void(int)> handle);

  boost::asio::io_context& io();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Threads for what would block the loop: parsing JSON, rendering templates, tokenizing, compiling grammars.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();  // waits for what runs, drops what does not run yet
  void Post(std::function<void()> work);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer::server
