// Addresses, framing and requests; tests/cli/bench_server_test.py runs the command against a server.
#include "cli/bench_server/bench_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ServerUrl, Parts) {
  struct Case {
    const char *text, *origin, *base;
  };
  for (const Case& c : {Case{"http://127.0.0.1:8000", "http://127.0.0.1:8000", "/v1"},
                        {"http://localhost", "http://localhost:80", "/v1"},
                        {"https://example.org/", "https://example.org:443", "/v1"},
                        {"https://example.org:8443/openai/v1/", "https://example.org:8443", "/openai/v1"},
                        {"http://[::1]:80/v1", "http://[::1]:80", "/v1"},
                        {"http://[::1]", "http://[::1]:80", "/v1"}}) {
    const auto url = ServerUrl::Parse(c.text);
    ASSERT_TRUE(url) << c.text << ": " << url.error().message();
    EXPECT_EQ(url->Origin(), c.origin);
    EXPECT_EQ(url->base, c.base);
  }
  EXPECT_EQ(ServerUrl::Parse("http://[::1]:80")->host, "::1");
}

TEST(ServerUrl, Sentences) {
  for (const auto& [text, says] : {std::pair("127.0.0.1:8000", "neither http:// nor https://"),
                                   {"http://", "host is missing"},
                                   {"http://:80", "host is missing"},
                                   {"http://a:0", "no number from 1 to 65535"},
                                   {"http://a:65536", "no number from 1 to 65535"},
                                   {"http://a:8x", "no number from 1 to 65535"},
                                   {"http://a:999999999999", "no number from 1 to 65535"},
                                   {"http://[::1", "not closed"},
                                   {"http://[::1]80", "no port"},
                                   {"http://me@a", "more than a host"},
                                   {"http://a/v1?x=1", "more than a host"},
                                   {"http://a/v1\r\nX: y", "control characters"}}) {
    const auto url = ServerUrl::Parse(text);
    ASSERT_FALSE(url) << text;
    EXPECT_THAT(url.error().message(), HasSubstr(says));
  }
}

TEST(EventStream, AnyCutOfTheSameText) {
  const std::string text =
      ": a comment\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata:\n\ndata: "
      "[DONE]\n\ndata: rest";
  for (size_t step = 1; step <= text.size(); ++step) {
    EventStream stream;
    std::vector<std::string> seen;
    for (size_t at = 0; at < text.size(); at += step)
      stream.Push(std::string_view(text).substr(at, step),
                  [&](std::string_view data) { seen.emplace_back(data); });
    EXPECT_THAT(seen, ElementsAre("{\"a\":1}", "two\nlines", "", "[DONE]")) << step;
  }
}

TEST(RequestMaker, PromptsOfWordsAndIds) {
  RequestMaker maker{.model = "m", .words_per_token = 0.5, .tokens_before = 10};
  // Two requests begin alike for a block of 100 tokens: 50 words.
  const Trace trace{.name = "t",
                    .block_tokens = 100,
                    .requests = {{.prompt = 150, .output = 5, .hashes = {7, 8}},
                                 {.prompt = 150, .output = 6, .hashes = {7, 9}},
                                 {.prompt = 1, .output = 1}}};
  const Trace words = maker.InWords(trace);
  EXPECT_EQ(words.requests[0].prompt, 70);
  EXPECT_EQ(words.requests[2].prompt, 1);  // not none
  EXPECT_DOUBLE_EQ(words.block_tokens, 50);
  const auto count = [](const std::string& text) { return 1 + std::count(text.begin(), text.end(), ' '); };
  const std::string first = maker.Body(words, 0, true)["prompt"],
                    second = maker.Body(words, 1, true)["prompt"];
  EXPECT_EQ(count(first), 70);
  size_t alike = 0;
  while (first[alike] == second[alike]) ++alike;
  EXPECT_GE(count(first.substr(0, alike)), 50);
  EXPECT_LT(count(first.substr(0, alike)), 60);

  maker.api = ServerApi::kChat;
  const nlohmann::json chat = maker.Body(words, 0, true);
  EXPECT_EQ(chat["messages"][0]["content"], first);
  EXPECT_EQ(chat["max_tokens"], 5);
  EXPECT_EQ(chat["stream_options"]["include_usage"], true);
  EXPECT_FALSE(maker.Body(words, 0, false).contains("stream"));

  maker = {.model = "m", .token_ids = 30};
  maker.more = {{"ignore_eos", nullptr}, {"seed", 4}};
  const nlohmann::json ids = maker.Body(maker.InWords(trace), 0, true);
  EXPECT_EQ(ids["prompt"].size(), 150u);
  for (const auto& id : ids["prompt"]) EXPECT_LT(id.get<int>(), 30);
  EXPECT_FALSE(ids.contains("ignore_eos"));
  EXPECT_EQ(ids["seed"], 4);
}

}  // namespace
}  // namespace celer::cli
