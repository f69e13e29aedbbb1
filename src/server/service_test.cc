// A service whose engine fails on demand: requests that run hear of it, and the process ends or recovers.
#include "server/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/engine_thread.h"

namespace celer::server {
namespace {

using testing::HasSubstr;
namespace asio = boost::asio;
namespace fs = std::filesystem;

// Says 'a' once per step and request, until it is told to break.
class FakeStepper : public EngineThread::Stepper {
 public:
  explicit FakeStepper(std::shared_ptr<std::atomic<bool>> broken) : broken_(std::move(broken)) {
    info_.vocab = 27;
    info_.context = 100'000;
    info_.kv_tokens = 100'000;
    info_.device = "cpu";
  }
  const Engine::Info& info() const override { return info_; }
  Status Check(const Request&) const override { return {}; }
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
    if (*broken_) fault_ = Error::Device("the fan fell off");
    for (auto it = left_.begin(); it != left_.end();) {
      TokenEvent event{.request = it->first, .token = 0};
      if (fault_) {
        event = {
            .request = it->first, .finish = FinishReason::kError, .last = true, .error = "the fan fell off"};
      } else if (it->second < 0) {
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
    ServiceOptions options;
    options.reload_on_fault = reload;
    options.log_requests = false;
    service_ = std::make_unique<Service>(loop_, options, [this]() -> Result<LoadedModel> {
      broken_ = std::make_shared<std::atomic<bool>>(false);
      ++loads_;
      LoadedModel loaded;
      loaded.engine = std::make_unique<EngineThread>(std::make_unique<FakeStepper>(broken_));
      loaded.model = std::make_shared<ServedModel>(ServedModel{.name = "letters",
                                                               .aliases = {},
                                                               .prompter = LettersPrompter(),
                                                               .info = loaded.engine->info(),
                                                               .chat_template = ""});
      std::const_pointer_cast<ServedModel>(loaded.model)->grammars =
          std::make_shared<Grammars>(loaded.model->prompter);
      return loaded;
    });
    auto server = HttpServer::Listen(loop_, {.port = 0}, service_->Handlers());
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    service_->UseServer(server_.get());
    const std::string url = server_->url();
    port_ = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
    service_->Load([](const Status& status) { EXPECT_TRUE(status); });
    thread_ = std::thread([this] { loop_.Run(); });
    while (Ask("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").find("200 OK") ==
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
    while (Ask("GET /load HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
               .find("\"server_load\":" + std::to_string(count)) == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static std::string Completion(const std::string& body) {
    return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }

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

}  // namespace
}  // namespace celer::server
