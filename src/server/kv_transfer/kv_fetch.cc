// Keys and values from a peer.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/loop/engine_internals.h"
#include "io/file/content_hash.h"
#include "io/file/printable.h"
#include "server/kv_transfer/kv_transfer.h"

namespace celer::server {
namespace {

constexpr auto kConnectTime = std::chrono::seconds(3);
constexpr int64_t kMostFromOne = 16;  // fetches from one peer at once
// Of a piece, unless one block has more: what a fetch needs of memory.
constexpr int64_t kMostPieceBytes = int64_t{64} << 20;

}  // namespace

struct KvTransfer::Prompt {
  RunOnEngine run;
  std::shared_ptr<const Request> request;
  KvIdentity identity;
  KvPrefix prefix = {};

  // What the engine says, or why it could not be asked.
  template <class T>
  Result<T> Ask(const std::function<Result<T>(Engine&)>& work) const {
    Result<T> result = Error::Cancelled("the engine is gone");
    const Status ran = run([&](Engine& engine) { result = work(engine); });
    return ran ? std::move(result) : Result<T>(ran.error());
  }
};

KvTransfer::Failure KvTransfer::CheckSource(const KvSource& source) const {
  if (source.host.empty() || source.port <= 0 || source.port > 65535 || source.transfer.empty())
    return {"incomplete", "kv_transfer_params names no remote_host, remote_port and transfer_id"};
  if (!peers_.Allows(source.host, static_cast<uint16_t>(source.port)))
    return {"peer", Printable(source.host, 60) + ":" + std::to_string(source.port) +
                        " is not among the servers to fetch from; see --kv-transfer-peers"};
  return {};
}

void KvTransfer::Fetch(const KvSource& source, RunOnEngine run, std::shared_ptr<const Request> request,
                       std::function<void(KvFetched)> done) {
  const std::optional<KvIdentity> own = identity();
  Failure failure = CheckSource(source);
  if (!*failure.reason && !own) failure = {"engine", "the model is still loading"};
  if (!*failure.reason && request->prompt_logprobs >= 0)
    failure = {"uncached",
               "prompt_logprobs are computed with the prompt, which is not looked up in the cache"};
  const std::string peer = source.host + ":" + std::to_string(source.port);
  if (!*failure.reason) {
    const std::lock_guard lock(mutex_);
    if (int64_t& busy = fetching_from_[peer]; busy >= kMostFromOne)
      failure = {"busy", std::to_string(busy) + " other requests fetch from " + peer};
    else
      ++busy;
  }
  const auto end = [this, done = std::move(done)](KvFetched fetched) {
    Note(fetched);
    done(std::move(fetched));
  };
  if (*failure.reason) return end({.reason = failure.reason, .why = failure.why});
  const auto leave = [this, peer] {
    const std::lock_guard lock(mutex_);
    if (--fetching_from_[peer] == 0) fetching_from_.erase(peer);
  };
  Prompt prompt{std::move(run), std::move(request), *own};
  const bool started = fetchers_.Start([this, source, prompt = std::move(prompt), end, leave] {
    const Deadline begin = SocketClock::now();
    KvFetched fetched;
    Prompt asked = prompt;
    const Failure failed = FetchBlocks(source, &asked, &fetched);
    fetched.reason = failed.reason;
    fetched.why = failed.why;
    fetched.seconds = std::chrono::duration<double>(SocketClock::now() - begin).count();
    const bool all_here = fetched.reason.empty() && fetched.bytes == 0;
    end(std::move(fetched));
    // The peer need not hold it any longer, but the request need not wait until it knows.
    if (all_here) TellPeer(source, asked);
    leave();
  });
  if (started) return;
  leave();
  end({.reason = "busy", .why = "too many requests fetch at once"});
}

void KvTransfer::Note(const KvFetched& fetched) {
  const std::lock_guard lock(mutex_);
  if (fetched.bytes > 0) {
    figures_.seconds.Observe(fetched.seconds);
    figures_.bytes.Observe(static_cast<double>(fetched.bytes));
  }
  figures_.fetched_tokens += fetched.tokens;
  figures_.fetched_bytes += fetched.bytes;
  if (!fetched.reason.empty()) ++figures_.fallbacks[fetched.reason];
}

int64_t KvTransfer::BlocksOf(const KvSource& source, const Prompt& prompt) {
  const int64_t blocks = std::ssize(prompt.prefix.tokens) / kKvBlockTokens;
  return source.tokens > 0 ? std::min(blocks, source.tokens / kKvBlockTokens) : blocks;
}

void KvTransfer::TellPeer(const KvSource& source, const Prompt& prompt) {
  const int64_t blocks = BlocksOf(source, prompt);
  if (blocks == 0) return;
  const Deadline until = SocketClock::now() + std::min<Deadline::duration>(options_.timeout, kConnectTime);
  const Result<Socket> socket = ConnectOnce(source.host, static_cast<uint16_t>(source.port), until);
  if (!socket) return;
  const KvThreads::Watched watched(fetchers_, *socket);
  if (*AskFor(*socket, source, prompt, blocks, blocks, until).reason) return;
  static_cast<void>(SendAll(*socket, {&kKvThanks, 1}, until));
}

KvTransfer::Failure KvTransfer::FetchBlocks(const KvSource& source, Prompt* begun, KvFetched* out) {
  const Deadline until = SocketClock::now() + options_.timeout;
  Prompt& prompt = *begun;
  using Prefix = EngineInternals::HeldPrefix;
  const Result<Prefix> held = prompt.Ask<Prefix>([&](Engine& engine) -> Result<Prefix> {
    prompt.prefix = EngineInternals::PrefixOf(engine, *prompt.request);
    return EngineInternals::HoldPrefix(engine, *prompt.request);
  });
  if (!held) return {"engine", held.error().message()};
  out->hold = held->hold;
  const int64_t first = std::ssize(held->blocks);
  const int64_t blocks = BlocksOf(source, prompt);
  if (blocks <= first) return {};  // all of it is here
  {
    const std::lock_guard lock(mutex_);
    figures_.queried_tokens += (blocks - first) * kKvBlockTokens;
  }
  const Result<Socket> socket = ConnectOnce(source.host, static_cast<uint16_t>(source.port),
                                            std::min(until, SocketClock::now() + kConnectTime));
  if (!socket) return {"unreachable", socket.error().message()};
  const KvThreads::Watched watched(fetchers_, *socket);
  PrepareForMessages(*socket, options_.timeout);
  if (Failure failure = AskFor(*socket, source, prompt, first, blocks, until); *failure.reason)
    return failure;
  return Receive(*socket, prompt, first, blocks, until, out);
}

KvTransfer::Failure KvTransfer::AskFor(const Socket& socket, const KvSource& source, const Prompt& prompt,
                                       int64_t first, int64_t blocks, Deadline until) const {
  const KvAsk ask{.engine = source.engine,
                  .transfer = source.transfer,
                  .hash = prompt.prefix.Hash(blocks),
                  .first = static_cast<uint32_t>(first),
                  .blocks = static_cast<uint32_t>(blocks),
                  .identity = prompt.identity};
  const auto lost = [&](const Error& error) -> Failure {
    return {SocketClock::now() >= until ? "timeout" : "lost", error.message()};
  };
  if (const Status sent = SendAll(socket, Encode(ask), until); !sent) return lost(sent.error());
  std::array<std::byte, kKvFrameHead> head;
  if (const Status got = ReceiveAll(socket, head, until); !got) return lost(got.error());
  const Result<uint32_t> size = ReadFrameHead(head);
  if (!size) return {"malformed", size.error().message()};
  std::vector<std::byte> body(*size);
  if (const Status got = ReceiveAll(socket, body, until); !got) return lost(got.error());
  const Result<KvAnswer> answer = ReadAnswer(body);
  if (!answer) return {"malformed", answer.error().message()};
  if (!answer->refusal.empty()) return {"refused", answer->refusal};
  if (const std::string other = DifferenceOf(answer->identity, prompt.identity); !other.empty())
    return {"refused", "the server that is asked computes other keys and values: " + other};
  return {};
}

KvTransfer::Failure KvTransfer::Receive(const Socket& socket, const Prompt& prompt, int64_t first,
                                        int64_t blocks, Deadline until, KvFetched* out) {
  const int64_t each = prompt.identity.block_bytes;
  const auto lost = [&](const Error& error) -> Failure {
    return {SocketClock::now() >= until ? "timeout" : "lost", error.message()};
  };
  std::vector<std::byte> bytes;
  while (first < blocks) {
    std::array<std::byte, kKvPieceHead> head;
    if (const Status got = ReceiveAll(socket, head, until); !got) return lost(got.error());
    const int64_t most = std::min(blocks - first, std::max<int64_t>(1, kMostPieceBytes / each));
    const Result<KvPiece> piece = ReadPiece(head, most);
    if (!piece) return {"malformed", piece.error().message()};
    bytes.resize(piece->blocks * static_cast<size_t>(each));
    if (const Status got = ReceiveAll(socket, bytes, until); !got) return lost(got.error());
    if (ContentHash(bytes) != piece->checksum)
      return {"malformed", "the checksum of a piece is not that of its bytes"};
    const Result<int64_t> stored = prompt.Ask<int64_t>([&](Engine& engine) {
      return EngineInternals::StoreBlocks(engine, *prompt.request, first, bytes, &out->hold);
    });
    if (!stored) return {"engine", stored.error().message()};
    out->tokens += *stored * kKvBlockTokens;
    out->bytes += *stored * each;
    first += *stored;
    if (*stored < piece->blocks) break;
  }
  // Without it the peer holds the blocks for a while, which is nobody's loss here.
  static_cast<void>(SendAll(socket, {&kKvThanks, 1}, until));
  if (first < blocks) return {"room", "the KV has no room for all of it"};
  return {};
}

}  // namespace celer::server
