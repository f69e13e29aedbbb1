// A service whose engine fails on demand: requests in flight get the error, and the process exits or
// recovers.
#include "server/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/loop/engine_thread.h"

namespace celer::server {
namespace {

using testing::HasSubstr;
namespace asio = boost::asio;
namespace fs = std::filesystem;

// Says 'a' once per step and request, until it is told to break.
class FakeStepper : public Stepper {
 public:
  explicit FakeStepper(std::shared_ptr<std::atomic<bool>> broken) : broken_(std::move(broken)) {
    info_.vocab = 27;
    info_.context = 100'000;
    info_.kv_tokens = 100'000;
    info_.device = "cpu";
  }
  const Engine::Info& info() const override { return info_; }
  Status Check(const Request&) const override {
    if (on_check) on_check();
    return {};
  }
  Result<int64_t> Submit(Request request) override {
    left_[++last_] = request.max_tokens;
    return last_;
  }
  void Cancel(int64_t request) override {
    if (left_.contains(request)) left_[request] = -1;
  }
  bool HasWork() const override { return !left_.empty(); }
  std::vector<TokenEvent> Step() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::vector<TokenEvent> events;
    if (*broken_) fault_ = Error::Device("the fan fell off", std::string(size_t{long_fault} << 10, '.'));
    // The first request gets the fault here, the others by the thread.
    if (fault_ && !left_.empty())
      return {{.request = left_.begin()->first,
               .finish = FinishReason::kError,
               .last = true,
               .error = fault_->message()}};
    for (auto it = left_.begin(); it != left_.end();) {
      TokenEvent event{.request = it->first, .token = 0};
      if (it->second < 0) {
        event = {.request = it->first, .finish = FinishReason::kCancelled, .last = true};
      } else if (--it->second == 0) {
        event.finish = FinishReason::kLength;
        event.last = true;
      }
      it = event.last ? left_.erase(it) : std::next(it);
      events.push_back(std::move(event));
    }
    return events;
  }
  std::optional<Error> fault() const override { return fault_; }
  Engine* engine() override { return nullptr; }

  // MiB of the fault's message. It is copied for each request, so that requests get the fault one by one.
  static inline std::atomic<unsigned> long_fault = 0;
  // If it is set, called before a request is submitted.
  static inline std::function<void()> on_check;

 private:
  std::shared_ptr<std::atomic<bool>> broken_;
  Engine::Info info_;
  std::map<int64_t, int64_t> left_;
  int64_t last_ = 0;
  std::optional<Error> fault_;
};

Prompter LettersPrompter() {
  const fs::path folder = fs::temp_directory_path() / ("celer_service_test_" + std::to_string(getpid()));
  fs::create_directories(folder);
  Json ids = Json::object();
  for (char c = 'a'; c <= 'z'; ++c) ids[std::string(1, c)] = c - 'a';
  ids["!"] = 26;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"added_tokens", Json::array()},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model", {{"type", "BPE"}, {"vocab", ids}, {"merges", Json::array()}}}};
  std::ofstream(folder / "tokenizer.json") << tokenizer;
  auto prompter = Prompter::Load({.model = folder.string()});
  fs::remove_all(folder);
  EXPECT_TRUE(prompter) << prompter.error().message();
  return std::move(*prompter);
}

class ServiceTest : public testing::Test {
 protected:
  void Start(bool reload) {
    options_.reload_on_fault = reload;
    options_.log_requests = false;
    Start();
  }

  void Start() {
    const ServiceOptions& options = options_;
    service_ = std::make_unique<Service>(loop_, options, [this]() -> Result<LoadedModel> {
      broken_ = std::make_shared<std::atomic<bool>>(false);
      ++loads_;
      LoadedModel loaded;
      loaded.engines.push_back(
          std::make_unique<EngineThread>(StartEngineThread(std::make_unique<FakeStepper>(broken_))));
      loaded.model = std::make_shared<ServedModel>(ServedModel{.name = "letters",
                                                               .aliases = {},
                                                               .prompter = LettersPrompter(),
                                                               .info = loaded.engines[0]->info(),
                                                               .chat_template = ""});
      std::const_pointer_cast<ServedModel>(loaded.model)->grammars =
          std::make_shared<Grammars>(loaded.model->prompter);
      return loaded;
    });
    http_.port = 0;
    auto server = HttpServer::Listen(loop_, http_, service_->Handlers());
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    service_->UseServer(server_.get());
    const std::string url = server_->url();
    port_ = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
    service_->Load([](const Status& status) { EXPECT_TRUE(status); });
    thread_ = std::thread([this] { loop_.Run(); });
    while (Ask("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").find("200 OK") ==
           std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  void TearDown() override {
    if (thread_.joinable()) thread_.join();
    service_.reset();
  }

  asio::ip::tcp::socket Connect() {
    asio::ip::tcp::socket socket(client_);
    socket.connect({asio::ip::make_address("127.0.0.1"), port_});
    return socket;
  }
  static std::string Rest(asio::ip::tcp::socket& socket) {
    std::string text;
    boost::system::error_code ended;
    asio::read(socket, asio::dynamic_buffer(text), ended);
    return text;
  }
  std::string Ask(const std::string& request) {
    auto socket = Connect();
    asio::write(socket, asio::buffer(request));
    return Rest(socket);
  }
  // Until the server has this many.
  void WaitForRequests(int count) {
    while (Ask("GET /load HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
               .find("\"server_load\":" + std::to_string(count)) == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static std::string Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\nContent-Type: application/json\r\n" + headers + "\r\n" + body;
  }
  static std::string Completion(const std::string& body) { return Post("/v1/completions", body); }
  void Stop() {
    loop_.Post([this] { service_->Drain(); });
    thread_.join();
  }

  ServiceOptions options_;
  HttpOptions http_;
  EventLoop loop_;
  std::shared_ptr<std::atomic<bool>> broken_;
  std::atomic<int> loads_ = 0;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  uint16_t port_ = 0;
  asio::io_context client_;
};

TEST_F(ServiceTest, AFaultEndsRequestsAndTheProcess) {
  Start(/*reload=*/false);
  EXPECT_THAT(Ask(Completion(R"({"prompt": "hi", "max_tokens": 3})")), HasSubstr("\"text\":\"aaa\""));
  auto streamed = Connect(), whole = Connect();
  asio::write(streamed, asio::buffer(Completion(R"({"prompt": "hi", "max_tokens": 90000, "stream": true})")));
  asio::write(whole, asio::buffer(Completion(R"({"prompt": "hi", "max_tokens": 90000})")));
  char first[512];
  streamed.read_some(asio::buffer(first));  // it runs
  WaitForRequests(2);
  *broken_ = true;
  const std::string end = Rest(streamed);
  EXPECT_THAT(end, HasSubstr("\"code\":\"device_fault\""));
  EXPECT_THAT(end, HasSubstr("data: [DONE]"));
  EXPECT_THAT(Rest(whole), HasSubstr("503 Service Unavailable"));
  thread_.join();  // the loop ends by itself
  EXPECT_EQ(service_->exit_code(), 1);
}

TEST_F(ServiceTest, AFaultIsForgottenOnceTheModelIsLoadedAgain) {
  Start(/*reload=*/true);
  auto whole = Connect();
  asio::write(whole, asio::buffer(Completion(R"({"prompt": "hi", "max_tokens": 90000})")));
  WaitForRequests(1);
  *broken_ = true;
  EXPECT_THAT(Rest(whole), HasSubstr("device_fault"));
  std::string answer;
  const std::string wanted = R"("text":"aaa")";
  for (int i = 0; i < 10000 && answer.find(wanted) == std::string::npos; ++i) {
    answer = Ask(Completion(R"({"prompt": "hi", "max_tokens": 3})"));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_THAT(answer, HasSubstr(wanted));
  EXPECT_EQ(loads_, 2);
  loop_.Post([this] { service_->Drain(); });
  thread_.join();
  EXPECT_EQ(service_->exit_code(), 0);
}

TEST_F(ServiceTest, RequestsThatHearOfAFaultLateHearOfAFault) {
  testing::internal::CaptureStderr();  // the log has that sentence, too
  FakeStepper::long_fault = 512;
  Start(/*reload=*/true);
  std::vector<asio::ip::tcp::socket> all;
  constexpr int kRequests = 120;
  for (int i = 0; i < kRequests; ++i) {
    all.push_back(Connect());
    asio::write(all.back(), asio::buffer(Completion(R"({"prompt": "hi", "max_tokens": 90000})")));
  }
  WaitForRequests(kRequests);
  *broken_ = true;
  for (auto& socket : all) {
    const std::string answer = Rest(socket);
    EXPECT_THAT(answer, HasSubstr("503 Service Unavailable"));
    EXPECT_THAT(answer, HasSubstr("\"code\":\"device_fault\""));
    EXPECT_THAT(answer, HasSubstr("Retry-After: 1"));
  }
  FakeStepper::long_fault = 0;
  while (loads_ < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Stop();
  testing::internal::GetCapturedStderr();
}

TEST_F(ServiceTest, ARequestThatIsSubmittedAfterAFaultHearsOfIt) {
  Start(/*reload=*/false);
  auto first = Connect();
  asio::write(first, asio::buffer(Completion(R"({"prompt": "hi", "max_tokens": 90000, "stream": true})")));
  char some[512];
  first.read_some(asio::buffer(some));
  // The engine breaks while the second one is on its way to it, and before the loop can know.
  loop_.Post([this] {
    FakeStepper::on_check = [this] {
      *broken_ = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    };
  });
  const std::string answer = Ask(Completion(R"({"prompt": "hi", "max_tokens": 3})"));
  EXPECT_THAT(answer, HasSubstr("503 Service Unavailable"));
  EXPECT_THAT(answer, HasSubstr("\"code\":\"device_fault\""));
  thread_.join();
  FakeStepper::on_check = nullptr;
  EXPECT_EQ(service_->exit_code(), 1);
}

TEST_F(ServiceTest, PagesOfOtherOriginsAreKeptOff) {
  Start(/*reload=*/false);
  const std::string body = R"({"prompt": "hi", "max_tokens": 3})";
  EXPECT_THAT(Ask(Completion(body)), HasSubstr("200 OK"));
  EXPECT_THAT(Ask(Post("/v1/completions", body, "Origin: http://localhost\r\n")), HasSubstr("200 OK"));
  const std::string foreign = Ask(Post("/v1/completions", body, "Origin: https://evil.example\r\n"));
  EXPECT_THAT(foreign, HasSubstr("403 Forbidden"));
  EXPECT_THAT(foreign, HasSubstr("--cors-origin https://evil.example"));
  std::string rebound = Completion(body), plain = rebound, nothing = rebound;
  rebound.replace(rebound.find("localhost"), 9, "evil.example");
  EXPECT_THAT(Ask(rebound), HasSubstr("403 Forbidden"));
  plain.replace(plain.find("application/json"), 16, "text/plain");
  EXPECT_THAT(Ask(plain), HasSubstr("415 Unsupported Media Type"));
  nothing.erase(nothing.find("Content-Type: application/json\r\n"), 32);
  EXPECT_THAT(Ask(nothing), HasSubstr("415 Unsupported Media Type"));
  // The page and what it fetches have the same Host check; a load balancer's probe has none.
  const auto get = [&](const std::string& path) {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
  };
  for (const char* path : {"/", "/v1/models", "/metrics", "/server_info", "/nothing"})
    EXPECT_THAT(get(path), HasSubstr("403 Forbidden")) << path;
  for (const char* path : {"/health", "/health/live"}) EXPECT_THAT(get(path), HasSubstr("200 OK")) << path;
  EXPECT_THAT(Ask("OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n"
                  "Connection: close\r\n\r\n"),
              HasSubstr("403 Forbidden"));
  Stop();
}

TEST_F(ServiceTest, ErrorsHaveTheFormOfTheApiThatIsAsked) {
  http_.max_body_bytes = 1000;
  Start(/*reload=*/false);
  const std::string large = Post("/v1/messages", std::string(2000, 'x'));
  for (const std::string& request :
       {Post("/v1/messages", "{"),
        Post("/v1/messages", R"({"messages": [{"role": "user", "content": "x"}]})"),
        Post("/v1/messages/nothing", "{}"), Post("/v1/messages/count_tokens", "{}"), large,
        std::string("GET /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        std::string("GET /v1/models/other HTTP/1.1\r\nHost: localhost\r\nanthropic-version: 2023-06-01\r\n"
                    "Connection: close\r\n\r\n"),
        Post("/v1/messages", "{}", "Origin: null\r\n")})
    EXPECT_THAT(Ask(request), HasSubstr(R"({"type":"error","error":{"type":)")) << request;
  for (const std::string& request :
       {Post("/v1/completions", "{"), Post("/v1/completions", std::string(2000, 'x')),
        Post("/v1/nothing", "{}"), Post("/tokenize", "{}")})
    EXPECT_THAT(Ask(request), HasSubstr(R"({"error":{"message":)")) << request;
  EXPECT_THAT(Ask("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nanthropic-version: 2023-06-01\r\n"
                  "Connection: close\r\n\r\n"),
              HasSubstr(R"({"data":[{"type":"model","id":"letters","display_name":"letters",)"));
  EXPECT_THAT(Ask("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
              HasSubstr(R"({"object":"list","data":[{"id":"letters","object":"model",)"));
  Stop();
}

TEST_F(ServiceTest, BodiesInFlightAreBounded) {
  http_.max_body_bytes = 1000;
  http_.max_body_memory = 2000;
  Start(/*reload=*/false);
  const std::string body = R"({"prompt": "hi", "max_tokens": 3})";
  // Two incomplete bodies hold 900 bytes each. Announced bytes that were not sent do not count.
  std::vector<asio::ip::tcp::socket> slow;
  for (int i = 0; i < 2; ++i) {
    slow.push_back(Connect());
    std::string part = Post("/v1/completions", std::string(1000, ' '));
    part.resize(part.size() - 100);
    asio::write(slow.back(), asio::buffer(part));
  }
  const auto load = [this] {
    return Ask("GET /load HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  };
  while (load().find("\"body_bytes\":1800,") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(Ask(Completion(body)), HasSubstr("200 OK"));
  const std::string full = Ask(Completion(body + std::string(300, ' ')));
  EXPECT_THAT(full, HasSubstr("429 Too Many Requests"));
  EXPECT_THAT(full, HasSubstr("Retry-After: 1"));
  EXPECT_THAT(full, HasSubstr("--max-body-memory"));
  // The same without Content-Length (chunked).
  std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n12c\r\n" +
      std::string(300, ' ') + "\r\n0\r\n\r\n";
  EXPECT_THAT(Ask(chunked), HasSubstr("429 Too Many Requests"));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
              testing::ContainsRegex("requests_rejected_total[{][^}]*reason=\"bytes\"[}] 2"));
  slow.clear();  // they leave, and so do their bytes
  while (load().find("\"body_bytes\":0,") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(Ask(Completion(body + std::string(300, ' '))), HasSubstr("200 OK"));
  Stop();
}

TEST_F(ServiceTest, JobsInFlightAreBounded) {
  options_.max_jobs = 2;
  options_.workers = 1;
  Start(/*reload=*/false);
  // All come at once, and each takes a while.
  std::vector<asio::ip::tcp::socket> all;
  constexpr int kRequests = 12;
  for (int i = 0; i < kRequests; ++i) all.push_back(Connect());
  loop_.Post([] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
  const std::string longer = R"({"max_tokens": 3, "prompt": ")" + std::string(50'000, 'a') + "\"}";
  for (auto& socket : all) asio::write(socket, asio::buffer(Completion(longer)));
  int good = 0, refused = 0;
  for (auto& socket : all) {
    const std::string answer = Rest(socket);
    good += answer.find("200 OK") != std::string::npos ? 1 : 0;
    if (answer.find("429 Too Many Requests") == std::string::npos) continue;
    ++refused;
    EXPECT_THAT(answer, HasSubstr("Retry-After: 1"));
    EXPECT_THAT(answer, HasSubstr("--max-jobs"));
  }
  EXPECT_EQ(good + refused, kRequests);
  EXPECT_GE(good, 2);
  EXPECT_GE(refused, 1);
  EXPECT_THAT(Ask(Completion(R"({"prompt": "hi", "max_tokens": 3})")), HasSubstr("200 OK"));
  Stop();
}

}  // namespace
}  // namespace celer::server
