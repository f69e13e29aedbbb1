// The small parts: targets and ids, parameters, histograms, kept responses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "server/api/api_keys.h"
#include "server/api/params.h"
#include "server/formats/format.h"
#include "server/http/http_head.h"
#include "server/kv_events/kv_publisher.h"
#include "server/service/metrics.h"
#include "server/service/response_store.h"

namespace celer::server {
namespace {

using testing::HasSubstr;

TEST(Http, Targets) {
  HttpRequest request;
  EXPECT_TRUE(ParseTarget("/v1/models/a%2Fb?x=%zz", &request));
  EXPECT_EQ(request.path, "/v1/models/a/b");
  EXPECT_EQ(request.query, "x=%zz");
  EXPECT_TRUE(ParseTarget("http://host:80/health", &request));
  EXPECT_EQ(request.path, "/health");
  for (const char* bad : {"", "health", "/%", "/%4", "/%zz", "/%00", "/a\tb"})
    EXPECT_FALSE(ParseTarget(bad, &request)) << bad;
}

TEST(Http, HeadsThatAProxyCouldReadDifferentlyAreRefused) {
  using Fields = std::vector<std::pair<const char*, const char*>>;
  const auto read = [](unsigned version, const Fields& fields, HttpRequest* request) {
    boost::beast::http::request_header<> head;
    head.version(version);
    head.target("/v1/models?x");
    for (const auto& [name, value] : fields) head.insert(name, value);
    return CheckHead(head, request);
  };
  HttpRequest request;
  EXPECT_EQ(read(11, {{"HOST", "x"}, {"Content-Length", "2"}}, &request), "");
  EXPECT_EQ(request.path, "/v1/models");
  EXPECT_EQ(request.Header("host"), "x");
  EXPECT_EQ(read(11, {{"Host", "x"}, {"Transfer-Encoding", "Chunked"}}, &request), "");
  EXPECT_EQ(read(10, {}, &request), "");
  const struct {
    unsigned version;
    Fields fields;
    const char* says;
  } bad[] = {
      {20, {{"Host", "x"}}, "expected HTTP/1.0"},
      {11, {}, "one Host"},
      {11, {{"Host", "x"}, {"host", "y"}}, "one Host"},
      {11, {{"Host", "x"}, {"Content-Length", "2"}, {"content-length", "2"}}, "more than once"},
      {11, {{"Host", "x"}, {"Content-Length", "2"}, {"Transfer-Encoding", "chunked"}}, "more than once"},
      {11, {{"Host", "x"}, {"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "x"}}, "more than once"},
      {11, {{"Host", "x"}, {"Transfer-Encoding", "gzip, chunked"}}, "the only Transfer-Encoding"},
      {10, {{"Transfer-Encoding", "chunked"}}, "the only Transfer-Encoding"},
  };
  for (const auto& one : bad) EXPECT_THAT(read(one.version, one.fields, &request), HasSubstr(one.says));
}

TEST(Http, Ids) {
  EXPECT_TRUE(IsValidRequestId("req-1._Z"));
  EXPECT_FALSE(IsValidRequestId(""));
  EXPECT_FALSE(IsValidRequestId("a b"));
  EXPECT_FALSE(IsValidRequestId("a\r\nSet-Cookie: x"));
  EXPECT_FALSE(IsValidRequestId(std::string(129, 'a')));
  EXPECT_NE(NewId("x-"), NewId("x-"));
}

Refusal Read(const char* text, Query* query, std::vector<std::string>* ignored = nullptr) {
  Json body;
  if (auto refusal = ParseBody(text, &body)) return refusal;
  return ReadParams(body, query, ignored);
}

TEST(Params, ValuesArriveAndNullIsMissing) {
  Query query;
  EXPECT_FALSE(Read(
      R"({"temperature": 0.5, "top_k": -1, "seed": 18446744073709551615, "stop": "x", "n": null})", &query));
  EXPECT_FLOAT_EQ(query.request.sampling.temperature, 0.5F);
  EXPECT_EQ(query.request.sampling.top_k, 0);
  EXPECT_EQ(query.seed, UINT64_MAX);
  EXPECT_EQ(query.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(query.request.n, 1);
}

TEST(Params, TheNewerNameOfMaxTokensCounts) {
  for (const char* body :
       {R"({"max_tokens": 5, "max_completion_tokens": 7})",
        R"({"max_completion_tokens": 7, "max_tokens": 5})", R"({"max_completion_tokens": 7})"}) {
    Query query;
    EXPECT_FALSE(Read(body, &query));
    EXPECT_EQ(query.max_tokens, 7) << body;
    EXPECT_STREQ(query.max_tokens_param, "max_completion_tokens") << body;
  }
  Query query;
  EXPECT_EQ(Read(R"({"max_tokens": -5, "max_completion_tokens": 7})", &query)->param, "max_tokens");
}

TEST(Params, ARefusalNamesTheParameter) {
  Query query;
  const Refusal refusal = Read(R"({"store": true})", &query);
  EXPECT_EQ(refusal->param, "store");
  EXPECT_THAT(refusal->message, HasSubstr("'store: true' is not supported"));
  EXPECT_EQ(Read(R"({"stream_reasoning": false})", &query)->param, "stream_reasoning");
}

TEST(Params, ANumberThatIsTooLargeIsNamedWithItsPlace) {
  Query query;
  const Refusal refusal = Read(R"({"temperature": 1e999})", &query);
  EXPECT_EQ(refusal->message,
            "the body: the number 1e999 at byte 21 is too large, expected one that fits 64 bits");
}

TEST(ApiError, CodesAreStringsOrNull) {
  const Json none = ApiError{.message = "x"}.ToJson(ApiForm::kOpenAi)["error"];
  EXPECT_TRUE(none["code"].is_null());
  EXPECT_TRUE(none["param"].is_null());
  EXPECT_EQ(none["type"], "invalid_request_error");
  const ApiError named{.status = 403, .message = "x", .param = "p", .code = "c"};
  EXPECT_EQ(named.ToJson(ApiForm::kOpenAi)["error"]["code"], "c");
  EXPECT_EQ(named.ToJson(ApiForm::kAnthropic)["error"]["type"], "permission_error");
  EXPECT_EQ((ApiError{.status = 502, .message = "x"}.ToJson(ApiForm::kOpenAi)["error"]["type"]),
            "server_error");
}

TEST(ApiKeys, SchemeAndBlanks) {
  const auto file = std::filesystem::temp_directory_path() / ("celer_keys_test_" + std::to_string(getpid()));
  std::ofstream(file) << "# keys\n  first key\t \r\n\tsecond\n   # no key\n \n";
  const auto keys = ApiKeys::Load(file);
  std::filesystem::remove(file);
  ASSERT_TRUE(keys);
  const auto allows = [&](const char* name, const char* value) {
    HttpRequest request;
    request.headers = {{name, value}};
    return keys->Allows(request);
  };
  for (const char* good : {"Bearer second", "bearer second", "BEARER  second ", "Bearer first key"})
    EXPECT_TRUE(allows("authorization", good)) << good;
  EXPECT_TRUE(allows("x-api-key", "first key"));
  for (const char* bad :
       {"Bearer", "Bearer ", "Basic second", "second", "Bearersecond", "Bearer # no key", "Bearer secon"})
    EXPECT_FALSE(allows("authorization", bad)) << bad;
}

TEST(Params, TheSameNameMeansDifferentThingsElsewhere) {
  Query chat, completion;
  completion.endpoint = kCompletions;
  EXPECT_FALSE(Read(R"({"logprobs": true})", &chat));
  EXPECT_TRUE(Read(R"({"logprobs": 3})", &chat));
  EXPECT_FALSE(Read(R"({"logprobs": 3})", &completion));
  EXPECT_EQ(completion.request.sampling.logprobs, 3);
}

TEST(Params, UnknownOnesAreRefusedOrNamed) {
  Query query;
  const Refusal refusal = Read(R"({"temprature": 1})", &query);
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->message, HasSubstr("did you mean 'temperature'?"));
  EXPECT_EQ(refusal->param, "temprature");
  std::vector<std::string> ignored;
  EXPECT_FALSE(Read(R"({"temprature": 1, "verbosity": "low", "store": true})", &query, &ignored));
  EXPECT_EQ(ignored, (std::vector<std::string>{"temprature", "verbosity", "store"}));
}

// Every number has a range that is checked at both ends.
TEST(Params, EveryRangeIsChecked) {
  for (const Param& param : Params()) {
    if (!param.set || (param.kind != Kind::kInt && param.kind != Kind::kNumber) || param.high > 1e18)
      continue;
    for (const double value : {param.low - 1, param.high * 2 + 1}) {
      Query query;
      query.endpoint = static_cast<Endpoint>(param.endpoints & -param.endpoints);
      const Json json = param.kind == Kind::kInt ? Json(static_cast<int64_t>(value)) : Json(value);
      const Refusal refusal = ReadParams(Json{{param.name, json}}, &query, nullptr);
      ASSERT_TRUE(refusal) << param.name << " = " << value;
      EXPECT_EQ(refusal->param, param.name);
      EXPECT_THAT(refusal->message, HasSubstr("expected")) << param.name;
    }
  }
}

TEST(Params, StructuredOutput) {
  Query query;
  EXPECT_FALSE(Read(
      R"({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}})",
      &query));
  EXPECT_EQ(query.constraint.kind, Constraint::Kind::kJsonSchema);
  EXPECT_EQ(query.constraint.text, R"({"type":"object"})");
  EXPECT_FALSE(Read(R"({"structured_outputs": {"choice": ["a", "b"]}})", &query));
  EXPECT_EQ(query.constraint.choices.size(), 2U);
  EXPECT_TRUE(Read(R"({"structured_outputs": {"choice": ["a"], "regex": "b"}})", &query));
  EXPECT_TRUE(Read(R"({"structured_outputs": {"lark": "b"}})", &query));
  EXPECT_TRUE(Read(R"({"response_format": {"type": "json_schema"}})", &query));
}

TEST(Histogram, BucketsAreSums) {
  Histogram histogram({1, 2});
  histogram.Observe(1);
  histogram.Add(1.5, 2, 3);
  histogram.Observe(9);
  std::string text;
  histogram.Print("h", "a=\"b\"", &text);
  EXPECT_EQ(text,
            "h_bucket{a=\"b\",le=\"1\"} 1\nh_bucket{a=\"b\",le=\"2\"} 3\nh_bucket{a=\"b\",le=\"+Inf\"} 4\n"
            "h_sum{a=\"b\"} 13\nh_count{a=\"b\"} 4\n");
}

TEST(ResponseStore, TheOldestAreForgotten) {
  ResponseStore store(2, 1000);
  for (const char* id : {"a", "b", "c"}) store.Add({.id = id, .messages = Json::array(), .body = "x"});
  EXPECT_EQ(store.Find("a"), nullptr);
  EXPECT_NE(store.Find("b"), nullptr);
  store.Add({.id = "large", .messages = Json::array(), .body = std::string(997, 'x')});
  EXPECT_EQ(store.size(), 1U);
  store.Add({.id = "too large", .messages = Json::array(), .body = std::string(2000, 'x')});
  EXPECT_EQ(store.size(), 0U);
}

TEST(Metrics, RatesAreOfTheTimeWithWork) {
  EngineStats before, now;
  before.work_bytes = 1e9, now.work_bytes = 4e9;
  before.work_flops = 2e9, now.work_flops = 8e9;
  before.computed_tokens = 10, now.computed_tokens = 310;
  before.busy_seconds = 1, now.busy_seconds = 2.5;
  before.limit_seconds = 0.25, now.limit_seconds = 1;
  LimitShare share = LimitShare::Between(before, now);
  EXPECT_DOUBLE_EQ(share.bytes_per_s, 2e9);
  EXPECT_DOUBLE_EQ(share.flops_per_s, 4e9);
  EXPECT_DOUBLE_EQ(share.tokens_per_s, 200);
  EXPECT_DOUBLE_EQ(share.ratio, 0.5);
  before.limit_seconds = now.limit_seconds = 0;  // nobody measured the machine
  EXPECT_LT(LimitShare::Between(before, now).ratio, 0);
}

TEST(KvEventOptions, EachEngineHasItsAddresses) {
  const KvEventOptions options{.publish = "tcp://*:5557", .replay = "tcp://*:5600"};
  EXPECT_EQ(ForRank(options, 0, 4)->publish, "tcp://*:5557");
  const auto third = ForRank(options, 3, 4);
  EXPECT_EQ(third->publish, "tcp://*:5560");
  EXPECT_EQ(third->replay, "tcp://*:5603");
  EXPECT_EQ(third->rank, 3);
  EXPECT_EQ(ForRank({.publish = "bind:tcp://[::1]:5557"}, 2, 3)->publish, "bind:tcp://[::1]:5559");
  EXPECT_EQ(ForRank({.publish = "tcp://127.0.0.1:*", .replay = "tcp://127.0.0.1:*"}, 1, 2)->replay,
            "tcp://127.0.0.1:*");
  EXPECT_EQ(ForRank({.publish = "ipc:///run/kv"}, 1, 2)->publish, "ipc:///run/kv_dp1");
  EXPECT_EQ(ForRank({.publish = "ipc:///run/kv"}, 0, 2)->publish, "ipc:///run/kv");
  // Ports that would meet.
  for (const char* replay : {"tcp://*:5558", "tcp://*:5556", "tcp://*:5557"})
    EXPECT_FALSE(ForRank({.publish = "tcp://*:5557", .replay = replay}, 0, 2)) << replay;
  EXPECT_TRUE(ForRank({.publish = "tcp://*:5557", .replay = "tcp://*:5559"}, 1, 2));
  EXPECT_FALSE(ForRank({.publish = "tcp://*:65534"}, 2, 3));
}

TEST(Embedding, IsCutAndOfLengthOne) {
  std::vector<float> values = {3, 4, 12};
  EXPECT_TRUE(NormaliseEmbedding(&values, 2));
  EXPECT_EQ(EmbeddingText(values, Encoding::kFloat), "[0.6,0.8]");
  EXPECT_EQ(EmbeddingText(std::vector<float>{1, -2}, Encoding::kBase64), "\"AACAPwAAAMA=\"");
  values = {0, 0};
  EXPECT_FALSE(NormaliseEmbedding(&values, 0));
}

}  // namespace
}  // namespace celer::server
