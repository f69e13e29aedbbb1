// Two servers' engines that exchange blocks over loopback, and peers that do not behave.
#include "server/kv_transfer/kv_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "celer/engine_thread.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/simulated_runner.h"
#include "io/file/content_hash.h"

namespace celer::server {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr int64_t kBlocks = 6;

Request Ask(int64_t prompt = 100) {
  Request request{.max_tokens = 5, .lora = nullptr};
  for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<int32_t>(i * i % 61));
  return request;
}

KvIdentity Identity(const char* kv = "f16") {
  return {.fields = {{"model", "simulated"}, {"kv", kv}}, .block_bytes = 256};
}

// An engine with a thread, and its transfers.
struct Server {
  explicit Server(std::vector<std::string> peers = {"127.0.0.1"}, std::chrono::milliseconds hold = 60s,
                  int64_t blocks = 64) {
    SimulatedRunner::Options runner{.model = {.vocab = 64, .seed = 7}};
    runner.info.context = 512;
    runner.info.kv_blocks = blocks;
    auto engine = EngineInternals::Make(std::make_unique<SimulatedRunner>(std::move(runner)), {.chunk = 64});
    EXPECT_EQ(*EngineInternals::TransferBlockBytes(*engine), Identity().block_bytes);
    thread = std::make_shared<EngineThread>(std::move(engine));
    auto started = KvTransfer::Start(
        {.address = "127.0.0.1:0", .peers = std::move(peers), .hold = hold, .timeout = 2000ms});
    EXPECT_TRUE(started) << started.error().message();
    transfer = std::move(*started);
    transfer->SetIdentity(Identity());
    run = [weak = std::weak_ptr(thread)](const std::function<void(Engine&)>& work) {
      const auto there = weak.lock();
      return there ? there->Run(work) : Status(Error::Cancelled("the engine is gone"));
    };
  }

  std::vector<int32_t> Answer(const Request& request, int64_t* cached = nullptr) {
    auto ticket = thread->Submit(request);
    std::vector<int32_t> tokens;
    while (const auto event = ticket->Next()) {
      EXPECT_EQ(event->error, "");
      if (cached && tokens.empty()) *cached = event->cached_tokens;
      tokens.push_back(event->token);
    }
    return tokens;
  }
  KvSource Offer(const Request& request) {
    Answer(request);
    std::optional<KvOffer> offer;
    EXPECT_TRUE(thread->Run([&](Engine& engine) { offer = transfer->Offer(engine, run, request); }));
    EXPECT_TRUE(offer);
    return {.host = "127.0.0.1",
            .port = transfer->address().port,
            .engine = transfer->engine_id(),
            .transfer = offer->transfer,
            .tokens = offer->tokens};
  }
  KvFetched Fetch(const KvSource& source, const Request& request) {
    std::promise<KvFetched> done;
    transfer->Fetch(source, run, std::make_shared<const Request>(request),
                    [&](KvFetched fetched) { done.set_value(std::move(fetched)); });
    return done.get_future().get();
  }
  int64_t used() {
    EngineStats stats;
    EXPECT_TRUE(thread->Run([&](Engine& engine) {
      stats = engine.stats();
      EXPECT_EQ(EngineInternals::CheckInvariants(engine), "");
    }));
    return stats.kv_blocks_used;
  }

  std::shared_ptr<EngineThread> thread;
  KvTransfer::RunOnEngine run;
  std::unique_ptr<KvTransfer> transfer;  // goes first
};

template <class Condition>
bool Soon(const Condition& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
  return condition();
}

TEST(KvTransfer, AnotherServerGoesOn) {
  Server a, b, alone;
  const KvSource source = a.Offer(Ask());
  EXPECT_EQ(source.tokens, kBlocks * kKvBlockTokens);
  EXPECT_EQ(a.used(), kBlocks);
  const KvFetched fetched = b.Fetch(source, Ask());
  EXPECT_EQ(fetched.reason, "") << fetched.why;
  EXPECT_EQ(fetched.tokens, 96);
  EXPECT_EQ(fetched.bytes, kBlocks * Identity().block_bytes);
  EXPECT_EQ(b.used(), kBlocks);
  int64_t cached = 0;
  EXPECT_EQ(b.Answer(Ask(), &cached), alone.Answer(Ask()));
  EXPECT_EQ(cached, 96);
  b.transfer->ReleaseLater(b.run, fetched.hold);
  EXPECT_TRUE(Soon([&] { return b.used() == 0; }));
  EXPECT_TRUE(Soon([&] { return a.used() == 0; })) << "fetched, so released";
  const KvTransferFigures sent = a.transfer->figures(), got = b.transfer->figures();
  EXPECT_EQ(sent.sent, 1);
  EXPECT_EQ(sent.sent_bytes, got.fetched_bytes);
  EXPECT_EQ(got.fetched_tokens, 96);
  EXPECT_EQ(got.seconds.count(), 1);
  const KvFetched again = b.Fetch(source, Ask());
  EXPECT_EQ(again.reason, "") << "all of it is cached here";
  EXPECT_EQ(again.tokens, 0);
  b.transfer->ReleaseLater(b.run, again.hold);
  const KvFetched known = b.Fetch(a.Offer(Ask()), Ask());
  EXPECT_EQ(known.reason, "");
  EXPECT_EQ(known.bytes, 0);
  EXPECT_TRUE(Soon([&] { return a.used() == 0; })) << "the peer was told";
}

TEST(KvTransfer, ReasonsNotToFetch) {
  Server a, b, nowhere(std::vector<std::string>{});
  const KvSource source = a.Offer(Ask());
  const auto reason = [&](Server& server, KvSource from, const Request& request, const char* sentence) {
    const KvFetched fetched = server.Fetch(from, request);
    EXPECT_THAT(fetched.why, HasSubstr(sentence));
    EXPECT_EQ(fetched.tokens, 0);
    server.transfer->ReleaseLater(server.run, fetched.hold);
    return fetched.reason;
  };
  EXPECT_EQ(reason(nowhere, source, Ask(), "is not among the servers to fetch from"), "peer");
  KvSource other = source;
  other.host = "169.254.169.254";
  EXPECT_EQ(reason(b, other, Ask(), "169.254.169.254"), "peer");
  other = source;
  other.transfer.clear();
  EXPECT_EQ(reason(b, other, Ask(), "names no"), "incomplete");
  other = source;
  other.transfer = "guessed";
  EXPECT_EQ(reason(b, other, Ask(), "nothing is held under 'guessed'"), "refused");
  other = source;
  other.engine = "another";
  EXPECT_EQ(reason(b, other, Ask(), "it was started again"), "refused");
  Request salted = Ask();
  salted.cache_salt = "x";
  EXPECT_EQ(reason(b, source, salted, "of another prompt"), "refused");
  Request wrong = Ask();
  wrong.prompt[0] ^= 1;
  EXPECT_EQ(reason(b, source, wrong, "of another prompt"), "refused");
  other = source;
  other.tokens = 0;
  EXPECT_EQ(reason(b, other, Ask(200), "12 blocks are asked for, but 6 are held"), "refused");
  Request scored = Ask();
  scored.prompt_logprobs = 1;
  EXPECT_EQ(reason(b, source, scored, "prompt_logprobs"), "uncached");
  b.transfer->SetIdentity(Identity("int8"));
  EXPECT_EQ(reason(b, source, Ask(), "its kv is 'int8', and here it is 'f16'"), "refused");
  b.transfer->SetIdentity(Identity());
  EXPECT_EQ(a.transfer->figures().refused, 6);
  EXPECT_EQ(a.transfer->figures().held, 1) << "those that were refused took nothing";
  a.transfer.reset();
  EXPECT_EQ(reason(b, source, Ask(), "nobody is reached"), "unreachable");
  EXPECT_EQ(b.used(), 0);
}

TEST(KvTransfer, WhatNobodyFetchesExpires) {
  Server a(std::vector<std::string>{}, 300ms), b;
  const KvSource source = a.Offer(Ask());
  EXPECT_EQ(a.used(), kBlocks);
  EXPECT_TRUE(Soon([&] { return a.used() == 0; }));
  EXPECT_EQ(a.transfer->figures().expired, 1);
  EXPECT_THAT(b.Fetch(source, Ask()).why, HasSubstr("nothing is held"));
}

TEST(KvTransfer, AnEngineThatIsGone) {
  Server a, b;
  const KvSource source = a.Offer(Ask());
  a.thread.reset();
  EXPECT_EQ(b.Fetch(source, Ask()).reason, "lost");
  const KvTransfer::RunOnEngine run = b.run;
  b.thread.reset();
  EXPECT_EQ(b.Fetch(source, Ask()).reason, "engine");
}

TEST(KvTransfer, RoomForAPart) {
  Server a, b({"127.0.0.1"}, 60s, 8);
  const KvFetched fetched = b.Fetch(a.Offer(Ask()), Ask());
  EXPECT_EQ(fetched.reason, "room");
  EXPECT_EQ(fetched.tokens, 64);
  int64_t cached = 0;
  Server alone;
  EXPECT_EQ(b.Answer(Ask(), &cached), alone.Answer(Ask()));
  EXPECT_EQ(cached, 64);
}

// A peer that says what a test wants it to.
class Peer {
 public:
  explicit Peer(std::function<void(const Socket&)> talk)
      : listener_(std::move(*Listen("127.0.0.1", 0))), thread_([this, talk = std::move(talk)] {
          const auto socket = Accept(listener_, SocketClock::now() + 10s);
          if (socket && *socket) talk(*socket);
        }) {}
  ~Peer() { thread_.join(); }
  KvSource source() const {
    return {.host = "127.0.0.1",
            .port = LocalEndpoint(listener_)->port,
            .engine = "e",
            .transfer = "t",
            .tokens = 96};
  }

 private:
  Socket listener_;
  std::thread thread_;
};

void Say(const Socket& socket, std::span<const std::byte> bytes) {
  static_cast<void>(SendAll(socket, bytes, SocketClock::now() + 5s));
}

KvAsk Hear(const Socket& socket) {
  std::array<std::byte, kKvFrameHead> head;
  EXPECT_TRUE(ReceiveAll(socket, head, SocketClock::now() + 5s));
  std::vector<std::byte> body(*ReadFrameHead(head));
  EXPECT_TRUE(ReceiveAll(socket, body, SocketClock::now() + 5s));
  return *ReadAsk(body);
}

void WaitForEnd(const Socket& socket) {
  std::array<std::byte, 1> byte;
  static_cast<void>(ReceiveAll(socket, byte, SocketClock::now() + 5s));
}

TEST(KvTransfer, PeersThatDoNotBehave) {
  Server b;
  const std::vector<std::byte> blocks(kBlocks * 256, std::byte{1});
  const auto fetch = [&](std::function<void(const Socket&)> talk) {
    const Peer peer(std::move(talk));
    const KvFetched fetched = b.Fetch(peer.source(), Ask());
    b.transfer->ReleaseLater(b.run, fetched.hold);
    EXPECT_EQ(fetched.tokens, 0);
    return fetched;
  };
  EXPECT_EQ(fetch([](const Socket&) {}).reason, "lost");
  EXPECT_EQ(fetch([](const Socket& s) {
              Hear(s);
              Say(s, std::as_bytes(std::span("HTTP/1.1 400 Bad Request\r\n\r\n")));
            }).reason,
            "malformed");
  EXPECT_EQ(fetch([](const Socket& s) {
              Hear(s);
              Say(s, Encode(KvAnswer{.refusal = "no"}));
            }).why,
            "no");
  EXPECT_EQ(fetch([](const Socket& s) {
              Hear(s);
              Say(s, Encode(KvAnswer{.identity = Identity("int8")}));
            }).reason,
            "refused");
  const auto pieces = [&](uint32_t count, uint64_t checksum, size_t bytes) {
    return fetch([&, count, checksum, bytes](const Socket& s) {
      EXPECT_EQ(Hear(s).identity, Identity());
      Say(s, Encode(KvAnswer{.identity = Identity()}));
      Say(s, Encode(KvPiece{count, checksum}));
      Say(s, std::span(blocks).first(bytes));
    });
  };
  EXPECT_THAT(pieces(7, 0, 0).why, HasSubstr("a piece has 7 blocks, expected 1 to 6"));
  EXPECT_EQ(pieces(0, 0, 0).reason, "malformed");
  EXPECT_THAT(pieces(6, 5, blocks.size()).why, HasSubstr("checksum"));
  EXPECT_EQ(pieces(6, 5, 100).reason, "lost");
  // One that says nothing: the request waits for it as long as it may, and for no longer.
  const auto begin = SocketClock::now();
  EXPECT_EQ(fetch([](const Socket& s) {
              Hear(s);
              WaitForEnd(s);
            }).reason,
            "timeout");
  EXPECT_LT(SocketClock::now() - begin, 10s);
  EXPECT_EQ(b.used(), 0);
}

TEST(KvTransfer, APeerThatDiesLeavesAPrefix) {
  Server a, b, alone;
  a.Answer(Ask());
  std::vector<std::byte> bytes(2 * 256);
  ASSERT_TRUE(a.thread->Run([&](Engine& engine) {
    const auto held = EngineInternals::HoldPrefix(engine, Ask());
    ASSERT_TRUE(EngineInternals::ReadHeld(engine, held.hold, 0, 2, bytes));
  }));
  const Peer peer([&](const Socket& s) {
    Hear(s);
    Say(s, Encode(KvAnswer{.identity = Identity()}));
    Say(s, Encode(KvPiece{2, ContentHash(bytes)}));
    Say(s, bytes);
    Say(s, Encode(KvPiece{4, 0}));
  });
  const KvFetched fetched = b.Fetch(peer.source(), Ask());
  EXPECT_EQ(fetched.reason, "lost");
  EXPECT_EQ(fetched.tokens, 32);
  int64_t cached = 0;
  EXPECT_EQ(b.Answer(Ask(), &cached), alone.Answer(Ask()));
  EXPECT_EQ(cached, 32);
}

TEST(KvTransfer, AskersThatDoNotBehave) {
  Server a;
  const KvSource source = a.Offer(Ask());
  const auto connect = [&] {
    return std::move(*ConnectOnce("127.0.0.1", static_cast<uint16_t>(source.port), SocketClock::now() + 5s));
  };
  const auto answer_to = [&](std::span<const std::byte> bytes) {
    const Socket socket = connect();
    Say(socket, bytes);
    std::array<std::byte, kKvFrameHead> head;
    EXPECT_TRUE(ReceiveAll(socket, head, SocketClock::now() + 5s));
    std::vector<std::byte> body(*ReadFrameHead(head));
    EXPECT_TRUE(ReceiveAll(socket, body, SocketClock::now() + 5s));
    return ReadAnswer(body)->refusal;
  };
  EXPECT_THAT(answer_to(std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n"))), HasSubstr("is no frame"));
  std::vector<std::byte> newer = Encode(KvAsk{.blocks = 1});
  newer[8] = std::byte{9};
  EXPECT_THAT(answer_to(newer), HasSubstr("version 9"));
  KvAsk ask{.engine = source.engine, .transfer = source.transfer, .blocks = 6, .identity = Identity()};
  EXPECT_THAT(answer_to(Encode(ask)), HasSubstr("of another prompt"));
  ask.blocks = 1 << 30;
  EXPECT_THAT(answer_to(Encode(ask)), HasSubstr("but 6 are held"));
  connect();                        // and away
  const Socket silent = connect();  // one that says nothing holds nobody else up
  Server b;
  EXPECT_EQ(b.Fetch(source, Ask()).tokens, 96);
}

TEST(KvTransfer, AddressesThatAreNone) {
  for (const char* address :
       {"0.0.0.0:0", "[::]:0", "10.255.255.1:0", "nowhere", "127.0.0.1", "127.0.0.1:x"}) {
    const auto started = KvTransfer::Start({.address = address});
    ASSERT_FALSE(started) << address;
    EXPECT_THAT(started.error().message(), HasSubstr("KV transfer")) << address;
  }
  EXPECT_FALSE(KvTransfer::Start({.address = "127.0.0.1:0", .peers = {"10.0.0.0/40"}}));
}

}  // namespace
}  // namespace celer::server
