#include "server/kv_transfer/kv_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <random>

#include "base/log.h"
#include "engine/loop/engine_internals.h"
#include "io/file/content_hash.h"
#include "io/file/printable.h"

namespace celer::server {
namespace {

constexpr int64_t kMostSenders = 64, kMostFetches = 32;
// Between two pieces the engine runs a step, so that other requests wait for one piece at most.
constexpr int64_t kPieceBytes = int64_t{32} << 20;
constexpr auto kTick = std::chrono::milliseconds(250);

const std::vector<double> kSeconds = {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0};

std::vector<double> ByteBounds() {
  std::vector<double> bounds;
  for (int bits = 12; bits <= 36; bits += 2) bounds.push_back(static_cast<double>(int64_t{1} << bits));
  return bounds;
}

std::string RandomHex() {
  std::random_device random;
  std::string text;
  for (int i = 0; i < 4; ++i) text += fmt::format("{:08x}", random());
  return text;
}

}  // namespace

KvTransferFigures::KvTransferFigures() : seconds(kSeconds), bytes(ByteBounds()) {}

Result<std::unique_ptr<KvTransfer>> KvTransfer::Start(const KvTransferOptions& options) {
  CELER_ASSIGN(HostPort address, HostPort::Parse(options.address));
  CELER_ASSIGN(KvPeers peers, KvPeers::Parse(options.peers));
  Result<Socket> listening = Listen(address.host, address.port);
  if (!listening) return listening.error().WithContext("KV transfer");
  Socket listener = std::move(*listening);
  CELER_ASSIGN(const celer::Endpoint bound, LocalEndpoint(listener));
  // Others are told this address. Listening at all of them would also open the port to networks that nobody meant.
  if (bound.host == "0.0.0.0" || bound.host == "::")
    return Error::Invalid(
        "KV transfer: '", address.host,
        "' is not one address of this machine; give the one at which other servers reach it");
  address.port = bound.port;
  return std::unique_ptr<KvTransfer>(
      new KvTransfer(options, std::move(peers), std::move(address), std::move(listener)));
}

KvTransfer::KvTransfer(const KvTransferOptions& options, KvPeers peers, HostPort address, Socket listener)
    : options_(options),
      peers_(std::move(peers)),
      address_(std::move(address)),
      listener_(std::move(listener)),
      engine_id_(RandomHex()),
      senders_(kMostSenders),
      fetchers_(kMostFetches) {
  accepting_ = std::thread([this] { AcceptLoop(); });
  tidying_ = std::thread([this] { TidyLoop(); });
}

KvTransfer::~KvTransfer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    tidy_.notify_all();
  }
  accepting_.join();
  tidying_.join();
  senders_.Stop();
  fetchers_.Stop();
}

void KvTransfer::SetIdentity(KvIdentity identity) {
  const std::lock_guard lock(mutex_);
  identity_ = std::move(identity);
}

std::optional<KvIdentity> KvTransfer::identity() const {
  const std::lock_guard lock(mutex_);
  return identity_;
}

KvTransferFigures KvTransfer::figures() const {
  const std::lock_guard lock(mutex_);
  KvTransferFigures now = figures_;
  now.held = std::ssize(held_);
  for (const auto& [transfer, held] : held_) now.held_blocks += held.blocks;
  return now;
}

std::optional<KvOffer> KvTransfer::Offer(Engine& engine, RunOnEngine run, const Request& request) {
  EngineInternals::HeldPrefix prefix = EngineInternals::HoldPrefix(engine, request);
  if (prefix.hold == 0) return std::nullopt;
  KvOffer offer{.transfer = RandomHex(), .tokens = prefix.tokens(), .blocks = std::move(prefix.blocks)};
  Held held{.run = std::move(run),
            .hold = prefix.hold,
            .prefix = EngineInternals::PrefixOf(engine, request),
            .blocks = std::ssize(offer.blocks),
            .until = SocketClock::now() + options_.hold};
  const std::lock_guard lock(mutex_);
  held_.emplace(offer.transfer, std::move(held));
  ++figures_.offers;
  return offer;
}

void KvTransfer::ReleaseLater(RunOnEngine run, int64_t hold) {
  if (hold == 0) return;
  const std::lock_guard lock(mutex_);
  releases_.emplace_back(std::move(run), hold);
  tidy_.notify_all();
}

// ---- threads ----

void KvTransfer::TidyLoop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    tidy_.wait_for(lock, kTick, [this] { return stopping_ || !releases_.empty(); });
    Expire();
    auto releases = std::exchange(releases_, {});
    lock.unlock();
    // An engine that is gone holds nothing.
    for (const auto& [run, hold] : releases)
      static_cast<void>(run([hold = hold](Engine& engine) { EngineInternals::ReleaseHold(engine, hold); }));
    releases.clear();
    lock.lock();
  }
}

void KvTransfer::Expire() {
  const Deadline now = SocketClock::now();
  for (auto it = held_.begin(); it != held_.end();) {
    if (it->second.until > now) {
      ++it;
      continue;
    }
    log::Info("KV transfer {}: nobody has fetched {} blocks in time; they are released",
              it->first.substr(0, 8), it->second.blocks);
    ++figures_.expired;
    releases_.emplace_back(it->second.run, it->second.hold);
    it = held_.erase(it);
  }
}

void KvTransfer::AcceptLoop() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    Result<Socket> socket = Accept(listener_, SocketClock::now() + kTick);
    if (!socket) {
      log::Warning("KV transfer: {}", socket.error().message());
      std::this_thread::sleep_for(kTick);  // such as too many open files
      continue;
    }
    if (!*socket) continue;
    const auto shared = std::make_shared<Socket>(std::move(*socket));
    // One above the limit is closed, and computes its prompt itself.
    senders_.Start([this, shared] {
      const KvThreads::Watched watched(senders_, *shared);
      const Result<celer::Endpoint> peer = RemoteEndpoint(*shared);
      if (const Status done = Converse(*shared); !done)
        log::Warning("KV transfer to {}: {}", peer ? peer->host : "a peer that is gone",
                     done.error().message());
    });
  }
}

// ---- for a peer ----

Status KvTransfer::Answer(const Socket& socket, const std::string& refusal, Deadline until) const {
  KvAnswer answer{.refusal = refusal};
  if (refusal.empty()) answer.identity = *identity();
  return SendAll(socket, Encode(answer), until);
}

// A sentence for the peer, or "" and what it may have.
std::string KvTransfer::WhyNot(const KvAsk& ask, Held* held) {
  const std::optional<KvIdentity> own = identity();
  if (!own) return "the server that is asked is still loading its model";
  if (const std::string difference = DifferenceOf(ask.identity, *own); !difference.empty())
    return "the server that asks computes other keys and values: " + difference;
  if (ask.engine != engine_id_)
    return fmt::format("engine '{}' is asked, but this one is '{}': it was started again",
                       Printable(ask.engine, 40), engine_id_);
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(ask.transfer);
  if (found == held_.end())
    return fmt::format("nothing is held under '{}': it was fetched, or given up after {} s",
                       Printable(ask.transfer, 40),
                       std::chrono::duration_cast<std::chrono::seconds>(options_.hold).count());
  if (ask.blocks > found->second.blocks)
    return fmt::format("{} blocks are asked for, but {} are held", ask.blocks, found->second.blocks);
  if (ask.hash != found->second.prefix.Hash(ask.blocks))
    return "what is held is of another prompt, or of one with other adapters or another cache_salt";
  found->second.until = std::max(found->second.until, SocketClock::now() + options_.timeout);
  *held = found->second;
  return "";
}

Status KvTransfer::Converse(const Socket& socket) {
  PrepareForMessages(socket, options_.timeout);
  const Deadline until = SocketClock::now() + options_.timeout;
  std::array<std::byte, kKvFrameHead> head;
  CELER_RETURN_IF_ERROR(ReceiveAll(socket, head, until));
  const Result<uint32_t> size = ReadFrameHead(head);
  std::string refusal;
  KvAsk ask;
  if (!size) {
    refusal = size.error().message();
  } else {
    std::vector<std::byte> body(*size);
    CELER_RETURN_IF_ERROR(ReceiveAll(socket, body, until));
    Result<KvAsk> read = ReadAsk(body);
    if (read)
      ask = std::move(*read);
    else
      refusal = read.error().message();
  }
  Held held;
  if (refusal.empty()) refusal = WhyNot(ask, &held);
  if (!refusal.empty()) {
    const std::lock_guard lock(mutex_);
    ++figures_.refused;
  }
  CELER_RETURN_IF_ERROR(Answer(socket, refusal, until));
  if (!refusal.empty()) return Error::Invalid(refusal);
  CELER_RETURN_IF_ERROR(Send(socket, ask, held));
  std::array<std::byte, 1> thanks;
  CELER_RETURN_IF_ERROR(ReceiveAll(socket, thanks, SocketClock::now() + options_.timeout));
  if (thanks[0] != kKvThanks) return Error::Corrupt("the peer ends with something that is no thanks");
  const std::lock_guard lock(mutex_);
  ++figures_.sent;
  if (held_.erase(ask.transfer) > 0) {
    releases_.emplace_back(held.run, held.hold);
    tidy_.notify_all();
  }
  return {};
}

// While a piece is sent, the next one is read.
Status KvTransfer::Send(const Socket& socket, const KvAsk& ask, const Held& held) {
  const int64_t each = ask.identity.block_bytes, at_once = std::max<int64_t>(1, kPieceBytes / each);
  struct Piece {
    int64_t blocks = 0;
    Status read = {};
    std::vector<std::byte> bytes = {};
    uint64_t checksum = 0;
  };
  const auto read = [&](int64_t first) {
    Piece piece{.blocks = std::min<int64_t>(at_once, ask.blocks - first)};
    piece.bytes.resize(static_cast<size_t>(piece.blocks * each));
    const Status ran = held.run([&](Engine& engine) {
      piece.read = EngineInternals::ReadHeld(engine, held.hold, first, piece.blocks, piece.bytes);
    });
    if (!ran) piece.read = ran;
    piece.checksum = ContentHash(piece.bytes);
    return piece;
  };
  Piece now = read(ask.first);
  for (int64_t first = ask.first; first < ask.blocks; first += at_once) {
    CELER_RETURN_IF_ERROR(now.read);
    std::future<Piece> next;
    if (first + at_once < ask.blocks) next = std::async(std::launch::async, read, first + at_once);
    const Deadline until = SocketClock::now() + options_.timeout;
    const auto head = Encode(KvPiece{static_cast<uint32_t>(now.blocks), now.checksum});
    CELER_RETURN_IF_ERROR(SendAll(socket, head, until));
    CELER_RETURN_IF_ERROR(SendAll(socket, now.bytes, until));
    {
      const std::lock_guard lock(mutex_);
      figures_.sent_bytes += std::ssize(now.bytes);
    }
    if (next.valid()) now = next.get();
  }
  return {};
}

}  // namespace celer::server
