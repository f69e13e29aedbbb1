#include "server/http/origin_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer::server {
namespace {

using testing::HasSubstr;

HttpRequest From(HttpHeaders headers) {
  HttpRequest request;
  request.headers = std::move(headers);
  return request;
}

int HostStatus(const OriginGuard& guard, const char* host) {
  const auto refusal = guard.CheckHost(From({{"host", host}}));
  return refusal ? refusal->status : 200;
}

int OriginStatus(const OriginGuard& guard, const char* origin, const char* host = "localhost:8000") {
  const auto refusal = guard.CheckOrigin(From({{"host", host}, {"origin", origin}}));
  return refusal ? refusal->status : 200;
}

int TypeStatus(const OriginGuard& guard, const char* type, const char* origin = "") {
  const auto refusal = guard.CheckContentType(From({{"content-type", type}, {"origin", origin}}));
  return refusal ? refusal->status : 200;
}

TEST(OriginGuard, NamesOfHosts) {
  EXPECT_EQ(HostName("LocalHost:8000"), "localhost");
  EXPECT_EQ(HostName("localhost."), "localhost");
  EXPECT_EQ(HostName("[::1]:8000"), "[::1]");
  EXPECT_EQ(HostName("::1"), "[::1]");
  EXPECT_EQ(HostName("[::1"), "");
  EXPECT_EQ(HostName(""), "");
  for (const char* good : {"*", "a.example", "a-b.example:8000", "[::1]", "10.0.0.1"})
    EXPECT_EQ(WrongHostName(good), "") << good;
  for (const char* bad : {"", "https://a.example", "a b", "a/b"})
    EXPECT_THAT(WrongHostName(bad), HasSubstr("--allowed-hosts")) << bad;
  for (const char* good : {"*", "https://a.example", "http://localhost:3000/", "app://obsidian.md"})
    EXPECT_EQ(WrongOrigin(good), "") << good;
  for (const char* bad : {"", "a.example", "https://", "https://a.example/page", "null"})
    EXPECT_THAT(WrongOrigin(bad), HasSubstr("--cors-origin")) << bad;
}

TEST(OriginGuard, OnLoopbackOnlyNamesOfThisMachineAreServed) {
  OriginGuard guard({});
  guard.ListensOn("127.0.0.5", /*loopback=*/true);
  for (const char* good : {"localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "127.0.0.5:1", ""})
    EXPECT_EQ(HostStatus(guard, good), 200) << good;
  for (const char* bad : {"evil.example", "evil.example:8000", "localhost.evil.example",
                          "127.0.0.1.evil.example", "evil.example:127.0.0.1", "10.0.0.1", "[::1", "x"})
    EXPECT_EQ(HostStatus(guard, bad), 403) << bad;
  EXPECT_THAT(guard.CheckHost(From({{"host", "chat.example:80"}}))->message,
              HasSubstr("--allowed-hosts chat.example"));
}

TEST(OriginGuard, AllowedHostsAddNamesAndAStarTurnsItOff) {
  OriginGuard named({.allowed_hosts = {"Chat.Example", "other.example:8443"}});
  named.ListensOn("127.0.0.1", true);
  for (const char* good : {"chat.example", "other.example", "localhost"})
    EXPECT_EQ(HostStatus(named, good), 200);
  EXPECT_EQ(HostStatus(named, "evil.example"), 403);
  OriginGuard any({.allowed_hosts = {"*"}});
  any.ListensOn("127.0.0.1", true);
  EXPECT_EQ(HostStatus(any, "evil.example"), 200);
  // Other addresses may have any name, and with keys nothing is checked.
  OriginGuard open({});
  open.ListensOn("0.0.0.0", false);
  EXPECT_EQ(HostStatus(open, "gpu7.lan:8000"), 200);
  OriginGuard keyed({.has_keys = true});
  keyed.ListensOn("127.0.0.1", true);
  EXPECT_EQ(HostStatus(keyed, "chat.example"), 200);
  OriginGuard both({.allowed_hosts = {"chat.example"}, .has_keys = true});
  both.ListensOn("0.0.0.0", false);
  EXPECT_EQ(HostStatus(both, "evil.example"), 403);
}

TEST(OriginGuard, ForeignOriginsAreRefusedUnlessListed) {
  const OriginGuard guard({});
  EXPECT_EQ(OriginStatus(guard, ""), 200);
  EXPECT_EQ(OriginStatus(guard, "http://localhost:8000"), 200);
  EXPECT_EQ(OriginStatus(guard, "https://chat.example", "Chat.Example"), 200) << "TLS ends at a proxy";
  for (const char* bad : {"https://evil.example", "null", "http://localhost", "http://localhost:3000",
                          "http://evil.example:8000", "localhost:8000", "://"})
    EXPECT_EQ(OriginStatus(guard, bad), 403) << bad;
  EXPECT_EQ(OriginStatus(guard, "http://", ""), 403);
  EXPECT_THAT(guard.CheckOrigin(From({{"host", "localhost"}, {"origin", "https://evil.example"}}))->message,
              HasSubstr("--cors-origin https://evil.example"));
  const OriginGuard listed({.cors_origins = {"https://Page.Example/"}});
  EXPECT_EQ(OriginStatus(listed, "https://page.example"), 200);
  EXPECT_EQ(OriginStatus(listed, "https://evil.example"), 403);
  EXPECT_EQ(OriginStatus(OriginGuard({.cors_origins = {"*"}}), "https://evil.example"), 200);
  EXPECT_EQ(OriginStatus(OriginGuard({.has_keys = true}), "https://evil.example"), 200);
}

TEST(OriginGuard, BodiesAreJson) {
  const OriginGuard guard({.cors_origins = {"https://page.example"}});
  for (const char* good : {"application/json", "Application/JSON; charset=utf-8", "application/json ;x",
                           "application/vnd.api+json"})
    EXPECT_EQ(TypeStatus(guard, good), 200) << good;
  // The three types that a page may send without a preflight, and none at all.
  for (const char* bad : {"text/plain", "text/plain; x=application/json", "application/x-www-form-urlencoded",
                          "multipart/form-data", "", "json", "application/jsonp"})
    EXPECT_EQ(TypeStatus(guard, bad), 415) << bad;
  EXPECT_EQ(TypeStatus(guard, "text/plain", "https://page.example"), 200);
  EXPECT_EQ(TypeStatus(OriginGuard({.has_keys = true}), "text/plain"), 200);
  EXPECT_THAT(guard.CheckContentType(From({{"content-type", "application/x-www-form-urlencoded"}}))->message,
              HasSubstr("with curl -d, add -H 'Content-Type: application/json'"));
}

}  // namespace
}  // namespace celer::server
