// Publishes the changes of the prefix cache over ZeroMQ as vLLM does, for routers that know which replica has a prefix.
//
// A message has three frames: the topic, the sequence number (8 bytes, big-endian) and a batch of events (event_batch.h).
// A subscriber that sees a gap asks the replay socket: a REQ or DEALER sends the first number that it wants, and gets that
// message and all later ones, as far back as they are kept, then one with the number -1 and an empty batch.
//
// ZeroMQ drops messages for a subscriber that does not keep up; nothing waits for one. Replays that their clients do not read
// share their batches with what is kept, and hold about kMostUnread bytes in all; beyond them a replay ends early.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/kv/kv_event_log.h"
#include "server/kv_events/event_batch.h"

namespace celer::server {

struct ZmqLibrary;

struct KvEventOptions {
  // Addresses of ZeroMQ. As in vLLM the first is bound if it has a '*' or '::' or is ipc://, and else connected to; "bind:"
  // or "connect:" in front decides it.
  std::string publish = {};
  std::string replay = {};  // is bound; "": none
  std::string topic = {};
  KvEventLayout layout = KvEventLayout::kMap;
  std::string hash_seed = "vllm-none-hash";  // vLLM's
  int64_t rank = 0;                          // of the engine whose cache it is
};

// What engine `rank` of `size` publishes, as in vLLM: its ports are so much higher, the names of its sockets end in "_dp1". An
// error if an address of one engine would be that of another.
Result<KvEventOptions> ForRank(const KvEventOptions& options, int64_t rank, int64_t size);

class KvPublisher {
 public:
  static Result<std::unique_ptr<KvPublisher>> Start(const KvEventOptions& options);
  ~KvPublisher();
  KvPublisher(const KvPublisher&) = delete;
  KvPublisher& operator=(const KvPublisher&) = delete;

  // For EngineInternals::LogKv().
  const std::shared_ptr<KvEventLog>& log() const { return log_; }
  // Where it listens, as ZeroMQ says: with the port, if any was free to choose.
  const std::string& publish_address() const { return publish_address_; }
  const std::string& replay_address() const { return replay_address_; }

  int64_t messages() const { return messages_; }
  int64_t blocks_stored() const { return stored_; }
  int64_t blocks_removed() const { return removed_; }
  int64_t dropped() const { return log_->dropped(); }  // changes that the publisher was too slow for

 private:
  // As many messages are kept as vLLM keeps by default, and no more bytes than these.
  static constexpr size_t kMostKept = 10'000, kMostBytesKept = size_t{64} << 20;
  static constexpr int kHighWater = 100'000;  // messages that wait for a subscriber, as in vLLM
  static constexpr int64_t kMostUnread = int64_t{64} << 20;
  static constexpr int64_t kFrameBytes = 512;  // of a message in ZeroMQ, beside its batch and its topic

  struct Message {
    uint64_t number;
    std::shared_ptr<const std::string> batch;
  };

  KvPublisher(const ZmqLibrary& zmq, const KvEventOptions& options);
  Status Open();
  Result<void*> OpenSocket(int type, const std::string& address, bool bind, int high_water,
                           std::string* bound);
  void PublishLoop();
  void ReplayLoop();
  // Returns how many messages did not go out because too much is unread.
  size_t Replay(const std::string& client, uint64_t from);
  bool SendFrames(void* socket, std::initializer_list<std::string_view> frames, bool more = false);
  // As the last frame of a message; not copied. The memory counts as unread until ZeroMQ has sent or dropped it.
  bool SendShared(void* socket, std::shared_ptr<const std::string> batch, int64_t bytes);

  const ZmqLibrary& zmq_;
  const KvEventOptions options_;
  const std::shared_ptr<KvEventLog> log_ = std::make_shared<KvEventLog>();
  std::string publish_address_, replay_address_;
  std::vector<std::filesystem::path> socket_files_;  // that it made, removed at its end
  void* context_ = nullptr;
  void* publisher_ = nullptr;  // used by the publishing thread alone
  void* replayer_ = nullptr;   // likewise by the other
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> messages_ = 0, stored_ = 0, removed_ = 0;
  std::atomic<int64_t> unread_ = 0;  // bytes of replays that ZeroMQ holds
  std::mutex mutex_;                 // of what is kept
  std::deque<Message> kept_;
  size_t bytes_kept_ = 0;
  std::thread publishing_, replaying_;
};

}  // namespace celer::server
