// Disaggregated prefill: keys and values of a prompt that one server has computed are fetched by another one, which goes on
// as if it had computed them, to the bit.
//
//   client -> A: do_remote_decode             A computes the prompt, holds its blocks and answers with their number (Offer)
//   client -> B: do_remote_prefill, with that B fetches the blocks (Fetch), puts them into its prefix cache, and runs the request
//   B -> A: a question, blocks, thanks        kv_wire.h, on a port of its own
//
// Nothing waits for a peer but the request that asked for it. What cannot be fetched or is not what it should be is computed.
// A fetch has a thread of its own; engines are entered between two steps, for one piece of blocks at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "celer/engine.h"
#include "engine/kv/kv_identity.h"
#include "server/kv_transfer/kv_peers.h"
#include "server/kv_transfer/kv_threads.h"
#include "server/kv_transfer/kv_wire.h"
#include "server/service/metrics.h"

namespace celer::server {

struct KvTransferOptions {
  std::string address = {};                   // HOST:PORT, where other servers fetch; "": KV transfer is off
  std::vector<std::string> peers = {};        // from which this one may fetch (KvPeers)
  std::chrono::milliseconds hold{60'000};     // how long blocks are kept for a peer
  std::chrono::milliseconds timeout{10'000};  // of a fetch
};

// Blocks that are held for a peer.
struct KvOffer {
  std::string transfer;  // a number that nobody guesses
  int64_t tokens = 0;
  std::vector<int32_t> blocks = {};
};

// Where a request says that its prompt's keys and values are.
struct KvSource {
  std::string host = {};
  int64_t port = 0;
  std::string engine = {}, transfer = {};
  int64_t tokens = 0;  // of the prompt, from its beginning; 0: not said
};

struct KvFetched {
  int64_t tokens = 0;       // that are in the prefix cache now and were not before
  int64_t hold = 0;         // of all of the prefix; to be released once the request has its first token
  std::string reason = {};  // why not all that the peer has, in a word for the metrics; "": all of it
  std::string why = {};     // and in a sentence
  double seconds = 0;
  int64_t bytes = 0;
};

struct KvTransferFigures {
  KvTransferFigures();
  // Of fetches.
  Histogram seconds, bytes;
  int64_t queried_tokens = 0, fetched_tokens = 0, fetched_bytes = 0;
  std::map<std::string, int64_t> fallbacks;  // by reason
  // Of what is held for others.
  int64_t offers = 0, held = 0, held_blocks = 0, sent = 0, sent_bytes = 0, expired = 0, refused = 0;
};

class KvTransfer {
 public:
  // Runs something on an engine's thread between two steps. An error if the engine is not there any more.
  using RunOnEngine = std::function<Status(const std::function<void(Engine&)>&)>;

  // Listens. An error if the address is not one of this machine's.
  static Result<std::unique_ptr<KvTransfer>> Start(const KvTransferOptions& options);
  ~KvTransfer();
  KvTransfer(const KvTransfer&) = delete;
  KvTransfer& operator=(const KvTransfer&) = delete;

  const KvTransferOptions& options() const { return options_; }
  const std::string& engine_id() const { return engine_id_; }
  const HostPort& address() const { return address_; }  // with the port, if any was free to choose
  // Before it nothing is given away or fetched. Equal engines of one server have one.
  void SetIdentity(KvIdentity identity);

  // Holds the prompt's blocks that `engine` has cached. On the engine's thread; `run` runs on the same engine later.
  std::optional<KvOffer> Offer(Engine& engine, RunOnEngine run, const Request& request);
  // Calls `done` on another thread or on this one, always. `request.lora` is set.
  void Fetch(const KvSource& source, RunOnEngine run, std::shared_ptr<const Request> request,
             std::function<void(KvFetched)> done);
  // On any thread, without waiting for the engine.
  void ReleaseLater(RunOnEngine run, int64_t hold);

  KvTransferFigures figures() const;

 private:
  using Deadline = SocketClock::time_point;
  struct Held {
    RunOnEngine run;
    int64_t hold = 0;
    KvPrefix prefix;
    int64_t blocks = 0;
    Deadline until;
  };

  KvTransfer(const KvTransferOptions& options, KvPeers peers, HostPort address, Socket listener);
  void AcceptLoop();
  void TidyLoop();
  void Expire();
  std::optional<KvIdentity> identity() const;

  // --- kv_transfer.cc: for a peer ---
  Status Converse(const Socket& socket);
  Status Answer(const Socket& socket, const std::string& refusal, Deadline until) const;
  std::string WhyNot(const KvAsk& ask, Held* held);
  Status Send(const Socket& socket, const KvAsk& ask, const Held& held);

  // --- kv_fetch.cc: from a peer ---
  struct Failure {
    const char* reason = "";
    std::string why = {};
  };
  struct Prompt;
  Failure CheckSource(const KvSource& source) const;
  static int64_t BlocksOf(const KvSource& source, const Prompt& prompt);  // that the peer should have
  Failure FetchBlocks(const KvSource& source, Prompt* prompt, KvFetched* out);
  void TellPeer(const KvSource& source, const Prompt& prompt);  // that it need not hold the blocks
  Failure AskFor(const Socket& socket, const KvSource& source, const Prompt& prompt, int64_t first,
                 int64_t blocks, Deadline until) const;
  Failure Receive(const Socket& socket, const Prompt& prompt, int64_t first, int64_t blocks, Deadline until,
                  KvFetched* out);
  void Note(const KvFetched& fetched);

  const KvTransferOptions options_;
  const KvPeers peers_;
  const HostPort address_;
  const Socket listener_;
  const std::string engine_id_;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable tidy_;
  std::optional<KvIdentity> identity_;
  std::map<std::string, Held> held_;
  std::deque<std::pair<RunOnEngine, int64_t>> releases_;
  std::map<std::string, int64_t> fetching_from_;
  KvTransferFigures figures_;
  bool stopping_ = false;

  KvThreads senders_, fetchers_;
  std::thread accepting_, tidying_;
};

}  // namespace celer::server
