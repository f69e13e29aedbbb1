// Threads for conversations over sockets that block, at most so many at once. When it goes away, their sockets are shut down
// and they are waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "device/group/socket.h"

namespace celer::server {

class KvThreads {
 public:
  explicit KvThreads(int64_t most) : most_(most) {}
  ~KvThreads() { Stop(); }

  // False: so many run already, or Stop() was called.
  bool Start(std::function<void()> work);
  void Stop();

  // While it is there, Stop() shuts the socket down.
  class Watched {
   public:
    Watched(KvThreads& threads, const Socket& socket);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    KvThreads& threads_;
    const int fd_;
  };

 private:
  void Reap();  // joins those that have ended

  const int64_t most_;
  std::mutex mutex_;
  std::map<int64_t, std::thread> running_;
  std::vector<std::thread> ended_;
  std::set<int> sockets_;
  int64_t next_ = 0;
  bool stopped_ = false;
};

}  // namespace celer::server
