// What peers send, and whom a server asks.
#include "server/kv_transfer/kv_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "server/kv_transfer/kv_peers.h"

namespace celer::server {
namespace {

using testing::HasSubstr;

KvAsk Question() {
  KvAsk ask{.engine = "abc",
            .transfer = "0123",
            .hash = {},
            .first = 3,
            .blocks = 70,
            .identity = {.fields = {{"model", "tiny"}, {"kv", "f16"}}, .block_bytes = 4096}};
  ask.hash.fill(std::byte{7});
  return ask;
}

std::span<const std::byte> Body(const std::vector<std::byte>& frame) {
  return std::span(frame).subspan(kKvFrameHead);
}

TEST(KvWire, WhatIsWrittenIsRead) {
  const std::vector<std::byte> ask = Encode(Question());
  EXPECT_EQ(*ReadFrameHead(std::span(ask).first(kKvFrameHead)), ask.size() - kKvFrameHead);
  EXPECT_EQ(*ReadAsk(Body(ask)), Question());
  const KvAnswer yes{.identity = Question().identity}, no{.refusal = "nothing is held"};
  EXPECT_EQ(*ReadAnswer(Body(Encode(yes))), yes);
  EXPECT_EQ(*ReadAnswer(Body(Encode(no))), no);
  const KvPiece piece{.blocks = 5, .checksum = 0x0123456789abcdef};
  EXPECT_EQ(*ReadPiece(Encode(piece), 5), piece);
}

TEST(KvWire, EveryPrefixAndEveryLongerTextIsRefused) {
  const std::vector<std::byte> ask = Encode(Question());
  for (size_t size = 0; size < Body(ask).size(); ++size) EXPECT_FALSE(ReadAsk(Body(ask).first(size))) << size;
  std::vector<std::byte> longer = ask;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(ReadAsk(Body(longer)));
  const std::vector<std::byte> answer = Encode(KvAnswer{.refusal = "no"});
  for (size_t size = 0; size < Body(answer).size(); ++size)
    EXPECT_FALSE(ReadAnswer(Body(answer).first(size)));
}

TEST(KvWire, HostileNumbers) {
  std::vector<std::byte> frame = Encode(Question());
  const auto head = [&](size_t at, uint8_t value) {
    std::vector<std::byte> changed(frame.begin(), frame.begin() + kKvFrameHead);
    changed[at] = std::byte{value};
    return ReadFrameHead(changed);
  };
  EXPECT_THAT(head(0, 'X').error().message(), HasSubstr("is no frame"));
  EXPECT_EQ(head(8, 2).error().message(),
            "the other side speaks version 2 of the KV transfer, and this one 1");
  EXPECT_THAT(head(15, 0xff).error().message(), HasSubstr("may have 65536"));
  KvAsk none = Question();
  none.first = none.blocks;
  EXPECT_TRUE(ReadAsk(Body(Encode(none))));
  ++none.first;
  EXPECT_EQ(ReadAsk(Body(Encode(none))).error().message(), "blocks 71 to 70 of a prompt are asked for");
  none.first = none.blocks = 0;
  EXPECT_FALSE(ReadAsk(Body(Encode(none))));
  KvAsk huge = Question();
  huge.identity.block_bytes = int64_t{1} << 41;
  EXPECT_FALSE(ReadAsk(Body(Encode(huge))));
  EXPECT_FALSE(ReadPiece(Encode(KvPiece{.blocks = 6}), 5));
  EXPECT_FALSE(ReadPiece(Encode(KvPiece{.blocks = 0}), 5));
  EXPECT_FALSE(ReadPiece(Encode(KvPiece{.blocks = 0xffffffff}), 5));
  // A peer's sentence goes to the log.
  EXPECT_EQ(ReadAnswer(Body(Encode(KvAnswer{.refusal = "a\x1b[31mb\n"})))->refusal.find('\x1b'),
            std::string::npos);
}

TEST(KvPeers, OnlyThoseOfTheList) {
  const std::vector<std::string> list = {"10.1.0.0/16",    "192.168.0.7:5600", "prefill-0.celer:5601",
                                         "[fd00::1]:5600", "fd00:1::/32",      "prefill-1"};
  const auto peers = KvPeers::Parse(list);
  ASSERT_TRUE(peers) << peers.error().message();
  for (const auto& [host, port] : {std::pair{"10.1.255.255", 1},
                                   {"::ffff:10.1.0.1", 80},
                                   {"192.168.0.7", 5600},
                                   {"prefill-0.celer", 5601},
                                   {"fd00::1", 5600},
                                   {"fd00:0:0::1", 5600},
                                   {"fd00:1:2::3", 9},
                                   {"prefill-1", 22}})
    EXPECT_TRUE(peers->Allows(host, static_cast<uint16_t>(port))) << host;
  for (const auto& [host, port] : {std::pair{"10.2.0.1", 1},
                                   {"192.168.0.7", 5601},
                                   {"192.168.0.8", 5600},
                                   {"prefill-0.celer", 5600},
                                   {"prefill-0.celer.evil.com", 5601},
                                   {"fd00::2", 5600},
                                   {"169.254.169.254", 80},
                                   {"10.1.1", 1},
                                   {"167837697", 1},
                                   {"0x0a.1.0.1", 1},
                                   {"", 1},
                                   {"10.1.0.1", 0},
                                   {"localhost", 5600},
                                   {"10.1.0.1 ", 1}})
    EXPECT_FALSE(peers->Allows(host, static_cast<uint16_t>(port))) << "'" << host << "'";
  EXPECT_FALSE(KvPeers().Allows("127.0.0.1", 5600)) << "without a list nobody is asked";
}

TEST(KvPeers, WhatIsNoPeerIsSaid) {
  for (const char* text : {"10.0.0.0/33", "10.0.0/8", "a b", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:x",
                           "[::1", "::1/129", "", "/8", "host:", "http://host"}) {
    const std::vector<std::string> list = {text};
    const auto peers = KvPeers::Parse(list);
    ASSERT_FALSE(peers) << text;
    EXPECT_THAT(peers.error().message(), HasSubstr(std::string("'") + text + "'"));
  }
  for (const char* text : {"10.0.0.1", "10.0.0.1:", ":80", "::1:80:", "[::1]", "a:-1", "a:99999"})
    EXPECT_FALSE(HostPort::Parse(text)) << text;
  EXPECT_EQ(HostPort::Parse("[::1]:80")->host, "::1");
  EXPECT_EQ(HostPort::Parse("a-b.c:0")->port, 0);
}

}  // namespace
}  // namespace celer::server
