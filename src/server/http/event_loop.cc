#include "server/http/event_loop.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <csignal>

namespace celer::server {

namespace asio = boost::asio;

struct EventLoop::Impl {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard = asio::make_work_guard(io);
  asio::signal_set signals{io};
  std::function<void(int)> on_signal;

  void AwaitSignal() {
    signals.async_wait([this](boost::system::error_code error, int number) {
      if (error) return;
      AwaitSignal();
      on_signal(number);
    });
  }
};

namespace {

class AsioTimer : public EventLoop::Timer {
 public:
  AsioTimer(asio::io_context& io, std::chrono::nanoseconds delay, std::function<void()> work) : timer_(io) {
    timer_.expires_after(delay);
    // The handler of a timer that has fired may still be queued when the timer is destroyed.
    timer_.async_wait(
        [work = std::move(work), alive = std::weak_ptr<int>(alive_)](boost::system::error_code error) {
          if (!error && !alive.expired()) work();
        });
  }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::Run() {
  impl_->io.run();
}
void EventLoop::Stop() {
  impl_->io.stop();
}
void EventLoop::Post(std::function<void()> work) {
  asio::post(impl_->io, std::move(work));
}
std::unique_ptr<EventLoop::Timer> EventLoop::After(std::chrono::nanoseconds delay,
                                                   std::function<void()> work) {
  return std::make_unique<AsioTimer>(impl_->io, delay, std::move(work));
}
void EventLoop::OnSignal(std::function<void(int)> handle) {
  impl_->on_signal = std::move(handle);
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  impl_->AwaitSignal();
}
boost::asio::io_context& EventLoop::io() {
  return impl_->io;
}

struct WorkerPool::Impl {
  explicit Impl(int threads) : pool(static_cast<size_t>(threads)) {}
  asio::thread_pool pool;
};

WorkerPool::WorkerPool(int threads) : impl_(std::make_unique<Impl>(threads)) {}
WorkerPool::~WorkerPool() {
  impl_->pool.stop();
  impl_->pool.join();
}
void WorkerPool::Post(std::function<void()> work) {
  asio::post(impl_->pool, std::move(work));
}

}  // namespace celer::server
