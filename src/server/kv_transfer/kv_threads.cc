#include "server/kv_transfer/kv_threads.h"

#include <sys/socket.h>

#include <iterator>
#include <utility>

namespace celer::server {

bool KvThreads::Start(std::function<void()> work) {
  Reap();
  const std::lock_guard lock(mutex_);
  if (stopped_ || std::ssize(running_) >= most_) return false;
  const int64_t id = next_++;
  running_[id] = std::thread([this, id, work = std::move(work)] {
    work();
    const std::lock_guard ending(mutex_);
    // Stop() has taken it to join it otherwise.
    if (const auto own = running_.find(id); own != running_.end()) {
      ended_.push_back(std::move(own->second));
      running_.erase(own);
    }
  });
  return true;
}

void KvThreads::Reap() {
  std::vector<std::thread> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (std::thread& one : ended) one.join();
}

void KvThreads::Stop() {
  std::map<int64_t, std::thread> running;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    running.swap(running_);
    for (const int fd : sockets_) ::shutdown(fd, SHUT_RDWR);
  }
  for (auto& [id, thread] : running) thread.join();
  Reap();
}

KvThreads::Watched::Watched(KvThreads& threads, const Socket& socket) : threads_(threads), fd_(socket.fd()) {
  const std::lock_guard lock(threads_.mutex_);
  threads_.sockets_.insert(fd_);
  if (threads_.stopped_) ::shutdown(fd_, SHUT_RDWR);
}

KvThreads::Watched::~Watched() {
  const std::lock_guard lock(threads_.mutex_);
  threads_.sockets_.erase(fd_);
}

}  // namespace celer::server
