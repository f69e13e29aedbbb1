#include "server/kv_events/kv_publisher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/log.h"
#include "server/kv_events/zmq_library.h"

namespace celer::server {
namespace {

constexpr auto kWait = std::chrono::milliseconds(1000);
constexpr int kReplayWaitMs = 100;

std::array<char, 8> BigEndian(uint64_t number) {
  std::array<char, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(number >> (8 * (7 - i)) & 0xff);
  return bytes;
}

std::string_view View(const std::array<char, 8>& bytes) {
  return {bytes.data(), bytes.size()};
}

// The address without "bind:" or "connect:", and whether to bind.
std::string TakeDirection(std::string address, bool* bind) {
  *bind = address.find('*') != std::string::npos || address.find("::") != std::string::npos ||
          address.starts_with("ipc://") || address.starts_with("inproc://");
  for (const auto& [prefix, binds] : {std::pair{"bind:", true}, std::pair{"connect:", false}}) {
    if (!address.starts_with(prefix)) continue;
    *bind = binds;
    address.erase(0, std::string_view(prefix).size());
  }
  return address;
}

constexpr std::string_view kIpc = "ipc://", kTcp = "tcp://";

// The file of a socket that other processes of this machine find; empty: the address has none.
std::filesystem::path SocketFile(std::string_view address) {
  if (!address.starts_with(kIpc) || address.substr(kIpc.size()).starts_with('@')) return {};
  return address.substr(kIpc.size());
}

// What ZeroMQ would take all the same: a port modulo 65536, and the name of a file that it replaces.
Status CheckAddress(const std::string& address, bool bind) {
  if (address.starts_with(kTcp)) {
    const std::string port = address.substr(address.rfind(':') + 1);
    int number = 0;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (port == "*" ||
        (error == std::errc() && end == port.data() + port.size() && number >= 0 && number <= 65535))
      return {};
    return Error::Invalid("KV events: '", address, "' has the port '", port, "', expected 0 to 65535 or *");
  }
  if (!address.starts_with(kIpc))
    return Error::Invalid("KV events: '", address, "' is no address; expected tcp://HOST:PORT or ipc://FILE");
  std::error_code error;
  const auto status = std::filesystem::symlink_status(SocketFile(address), error);
  if (bind && std::filesystem::exists(status) && !std::filesystem::is_socket(status))
    return Error::Invalid("KV events: '", address,
                          "' names a file that is there and is no socket; give another name");
  return {};
}

// The port at the end of a TCP address; none: any that is free, or no number.
std::optional<int> PortOf(std::string_view address) {
  if (address.find(kTcp) == std::string_view::npos) return std::nullopt;
  const std::string_view text = address.substr(address.rfind(':') + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(port) : std::nullopt;
}

Result<std::string> AddressFor(const std::string& address, int64_t rank) {
  if (rank == 0 || address.empty()) return address;
  if (address.find(kTcp) == std::string::npos) return address + "_dp" + std::to_string(rank);
  const std::optional<int> port = PortOf(address);
  // 0 and '*' stand for any port that is free.
  if (!port || *port == 0) return address;
  if (*port + rank > 65535)
    return Error::Invalid("KV events: engine ", rank, " would have port ", *port + rank, " of '", address,
                          "'; give a lower one");
  return address.substr(0, address.rfind(':') + 1) + std::to_string(*port + rank);
}

}  // namespace

Result<KvEventOptions> ForRank(const KvEventOptions& options, int64_t rank, int64_t size) {
  KvEventOptions own = options;
  own.rank = rank;
  const std::optional<int> publish = PortOf(options.publish), replay = PortOf(options.replay);
  if (size > 1 && publish && replay && *publish > 0 && std::abs(*publish - *replay) < size)
    return Error::Invalid("KV events: ", size, " engines take the ports from ", *publish,
                          " on, and those from ", *replay, " on for replays; leave ", size, " between them");
  CELER_ASSIGN(own.publish, AddressFor(options.publish, rank));
  CELER_ASSIGN(own.replay, AddressFor(options.replay, rank));
  return own;
}

KvPublisher::KvPublisher(const ZmqLibrary& zmq, const KvEventOptions& options)
    : zmq_(zmq), options_(options) {}

Result<std::unique_ptr<KvPublisher>> KvPublisher::Start(const KvEventOptions& options) {
  CELER_ASSIGN(const ZmqLibrary* const zmq, ZmqLibrary::Load());
  std::unique_ptr<KvPublisher> publisher(new KvPublisher(*zmq, options));
  CELER_RETURN_IF_ERROR(publisher->Open());
  publisher->publishing_ = std::thread([&self = *publisher] { self.PublishLoop(); });
  if (publisher->replayer_) publisher->replaying_ = std::thread([&self = *publisher] { self.ReplayLoop(); });
  return publisher;
}

KvPublisher::~KvPublisher() {
  stopping_ = true;
  log_->Stop();
  for (std::thread* const thread : {&publishing_, &replaying_})
    if (thread->joinable()) thread->join();
  for (void* const socket : {publisher_, replayer_})
    if (socket) zmq_.close(socket);
  if (context_) zmq_.ctx_term(context_);
  for (const std::filesystem::path& file : socket_files_) {
    std::error_code error;
    if (std::filesystem::is_socket(std::filesystem::symlink_status(file, error)))
      std::filesystem::remove(file, error);
  }
}

Status KvPublisher::Open() {
  context_ = zmq_.ctx_new();
  if (!context_) return Error::OutOfMemory("ZeroMQ: ", zmq_.strerror(zmq_.last_error()));
  bool bind = true;
  const std::string address = TakeDirection(options_.publish, &bind);
  CELER_ASSIGN(publisher_, OpenSocket(ZMQ_PUB, address, bind, kHighWater, &publish_address_));
  if (options_.replay.empty()) return {};
  // Room for two replays of everything; a client that does not read them misses the rest (also kMostUnread).
  CELER_ASSIGN(replayer_, OpenSocket(ZMQ_ROUTER, TakeDirection(options_.replay, &bind), true,
                                     static_cast<int>(2 * kMostKept), &replay_address_));
  return {};
}

Result<void*> KvPublisher::OpenSocket(int type, const std::string& address, bool bind, int high_water,
                                      std::string* bound) {
  CELER_RETURN_IF_ERROR(CheckAddress(address, bind));
  void* const socket = zmq_.socket(context_, type);
  const auto failed = [&]() -> Error {
    Error error = Error::Io("KV events cannot ", bind ? "listen on" : "connect to", " '", address,
                            "': ", zmq_.strerror(zmq_.last_error()),
                            "; expected an address of ZeroMQ such as tcp://*:5557, with a port that is free");
    if (socket) zmq_.close(socket);
    return error;
  };
  const int off = 0, on = 1;
  if (!socket || zmq_.setsockopt(socket, ZMQ_LINGER, &off, sizeof off) != 0 ||
      zmq_.setsockopt(socket, ZMQ_IPV6, &on, sizeof on) != 0 ||
      zmq_.setsockopt(socket, ZMQ_SNDHWM, &high_water, sizeof high_water) != 0 ||
      zmq_.setsockopt(socket, ZMQ_RCVTIMEO, &kReplayWaitMs, sizeof kReplayWaitMs) != 0 ||
      (bind ? zmq_.bind(socket, address.c_str()) : zmq_.connect(socket, address.c_str())) != 0)
    return failed();
  if (const auto file = SocketFile(address); bind && !file.empty()) socket_files_.push_back(file);
  std::array<char, 256> where;
  size_t length = where.size();
  *bound =
      bind && zmq_.getsockopt(socket, ZMQ_LAST_ENDPOINT, where.data(), &length) == 0 ? where.data() : address;
  return socket;
}

bool KvPublisher::SendFrames(void* socket, std::initializer_list<std::string_view> frames, bool more) {
  size_t left = frames.size();
  for (const std::string_view frame : frames)
    if (zmq_.send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT | (--left > 0 || more ? ZMQ_SNDMORE : 0)) <
        0)
      return false;
  return true;
}

bool KvPublisher::SendShared(void* socket, std::shared_ptr<const std::string> batch, int64_t bytes) {
  struct Held {
    std::shared_ptr<const std::string> batch;
    std::atomic<int64_t>* unread;
    int64_t bytes;
  };
  std::unique_ptr<Held> held(new Held{std::move(batch), &unread_, bytes});
  // ZeroMQ only reads it. It calls this on a thread of its own, before ctx_term() returns.
  const auto release = [](void*, void* of) {
    const std::unique_ptr<Held> ended(static_cast<Held*>(of));
    *ended->unread -= ended->bytes;
  };
  zmq_msg_t message;
  if (zmq_.msg_init_data(&message, const_cast<char*>(held->batch->data()), held->batch->size(), release,
                         held.get()) != 0)
    return false;
  unread_ += bytes;
  static_cast<void>(held.release());  // the message's
  if (zmq_.msg_send(&message, socket, ZMQ_DONTWAIT) >= 0) return true;
  zmq_.msg_close(&message);
  return false;
}

void KvPublisher::PublishLoop() {
  KvChains chains(options_.hash_seed);
  uint64_t number = 0;
  while (!stopping_) {
    const std::vector<KvChange> changes = log_->Take(kWait);
    const std::vector<KvEvent> events = chains.Read(changes);
    if (events.empty()) continue;
    for (const KvEvent& event : events) {
      if (event.kind == KvEvent::Kind::kStored) stored_ += std::ssize(event.hashes);
      if (event.kind == KvEvent::Kind::kRemoved) removed_ += std::ssize(event.hashes);
    }
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto batch =
        std::make_shared<const std::string>(EncodeKvEvents(now, events, options_.layout, options_.rank));
    {
      const std::lock_guard lock(mutex_);
      kept_.push_back({number, batch});
      bytes_kept_ += batch->size();
      while (kept_.size() > 1 && (kept_.size() > kMostKept || bytes_kept_ > kMostBytesKept)) {
        bytes_kept_ -= kept_.front().batch->size();
        kept_.pop_front();
      }
    }
    const auto bytes = BigEndian(number++);
    // PUB drops what a subscriber has no room for, so that this fails only if ZeroMQ itself does.
    if (!SendFrames(publisher_, {options_.topic, View(bytes), *batch}))
      log::Warning("KV events: message {} was not sent: {}", number - 1, zmq_.strerror(zmq_.last_error()));
    ++messages_;
  }
}

void KvPublisher::ReplayLoop() {
  bool warned = false;
  while (!stopping_) {
    // The client's id, an empty frame, the number; all frames of a message are read, also of a wrong one.
    std::vector<std::string> frames;
    bool more = true;
    while (more) {
      std::array<char, 256> bytes;
      const int length = zmq_.recv(replayer_, bytes.data(), bytes.size(), 0);
      if (length < 0) break;
      if (frames.size() < 4)
        frames.emplace_back(bytes.data(), std::min(static_cast<size_t>(length), bytes.size()));
      int rest = 0;
      size_t size = sizeof rest;
      more = zmq_.getsockopt(replayer_, ZMQ_RCVMORE, &rest, &size) == 0 && rest != 0;
    }
    if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) continue;
    uint64_t from = 0;
    for (const char byte : frames[2]) from = from << 8 | static_cast<unsigned char>(byte);
    const size_t left = Replay(frames[0], from);
    if (left > 0 && !std::exchange(warned, true))
      log::Warning(
          "KV events: a replay ended {} messages early, because clients have not read {} bytes of "
          "others",
          left, unread_.load());
    if (left == 0) warned = false;
  }
}

size_t KvPublisher::Replay(const std::string& client, uint64_t from) {
  std::vector<Message> messages;
  {
    const std::lock_guard lock(mutex_);
    for (const Message& message : kept_)
      if (message.number >= from) messages.push_back(message);
  }
  // With arrays vLLM sent no topic here.
  const bool named = options_.layout == KvEventLayout::kMap;
  const auto send = [&](const std::string& topic, uint64_t number,
                        const std::shared_ptr<const std::string>& batch) {
    const auto bytes = BigEndian(number);
    const bool begun = named ? SendFrames(replayer_, {client, "", topic, View(bytes)}, true)
                             : SendFrames(replayer_, {client, "", View(bytes)}, true);
    return begun && SendShared(replayer_, batch, std::ssize(*batch) + std::ssize(topic) + kFrameBytes);
  };
  size_t sent = 0;
  while (sent < messages.size() && unread_ < kMostUnread &&
         send(options_.topic, messages[sent].number, messages[sent].batch))
    ++sent;
  // There is room for as many ends as for messages: who asks again and again without reading gets none.
  if (unread_ < 2 * kMostUnread) send("", ~uint64_t{0}, std::make_shared<const std::string>());
  return messages.size() - sent;
}

}  // namespace celer::server
