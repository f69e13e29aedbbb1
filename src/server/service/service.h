// The API: routing, authentication, admission control, and the lifecycle of requests while the engine is
// loaded, drained or reloaded. Everything but the workers' jobs runs on the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "celer/engine_thread.h"
#include "celer/limits.h"
#include "server/api/api_keys.h"
#include "server/http/http_server.h"
#include "server/http/origin_guard.h"
#include "server/service/admission.h"
#include "server/service/generation.h"
#include "server/service/key_limits.h"
#include "server/service/metrics.h"
#include "server/service/replicas.h"
#include "server/service/response_store.h"

namespace celer::server {

class KvPublisher;

struct LoadedModel {
  std::shared_ptr<const ServedModel> model;
  std::vector<std::unique_ptr<EngineThread>> engines;  // by rank; as many at each load
  std::optional<Machine> machine;                      // its peaks, if they were measured
};
using ModelLoader = std::function<Result<LoadedModel>()>;

struct ServiceOptions {
  std::string model_path = {};  // for /server_info
  std::string metrics_prefix = "celer:";
  bool lenient = false;
  ApiKeys keys = {};
  KeyLimits key_limits = {};                                       // of those keys
  std::vector<std::string> cors_origins = {}, allowed_hosts = {};  // as in OriginGuardOptions
  // Requests that may be parsed, rendered and tokenized at once, before admission.
  int64_t max_jobs = 1024;
  // Admission limits: requests that may wait for their first token; others get 429.
  int64_t max_queue = 1024;
  int64_t max_queue_tokens = 0;                   // 0: eight times what the KV holds
  double max_ttft = 0;                            // seconds, predicted; 0: any
  double max_seconds = 0;                         // of a request; 0: any
  std::chrono::milliseconds drain_grace{0};       // after a signal, accept requests for so long
  std::chrono::milliseconds drain_limit{45'000};  // then let requests in flight run for so long
  std::chrono::milliseconds ping_interval{15'000};
  bool reload_on_fault = false;
  bool sleep_mode = false;          // clients may put the engine to sleep
  bool allow_runtime_lora = false;  // clients may load and unload adapters and set their scales
  int workers = 2;
  size_t max_responses = 1000, max_response_bytes = size_t{64} << 20;
  bool log_requests = true, log_json = false, log_probes = false;
};

class Service {
 public:
  Service(EventLoop& loop, ServiceOptions options, ModelLoader loader);
  ~Service();

  HttpHandlers Handlers();
  void UseServer(HttpServer* server);
  // One for each engine, or none; for their figures.
  void UsePublishers(std::vector<const KvPublisher*> publishers) { publishers_ = std::move(publishers); }
  void UseTransfer(KvTransfer* transfer) { transfer_ = transfer; }
  // Loads on a thread of its own; `ready` gets the result.
  void Load(std::function<void(const Status&)> ready);
  void Drain();                                              // graceful shutdown, then stops the loop
  const ServedModel* model() const { return model_.get(); }  // null until it is loaded
  // Exit status of the process: 0, or 1 after a fault.
  int exit_code() const { return exit_code_; }

  struct Route {
    const char* method;
    const char* path;  // ends with '/': a prefix
    void (Service::*handle)(const std::shared_ptr<Exchange>& exchange);
    unsigned endpoint;  // of Params(), or 0
    bool open;          // needs no key
    const char* help;
  };
  static std::span<const Route> Routes();

 private:
  enum class State { kLoading, kReady, kDraining, kFaulted };
  struct Sleep {
    int level = -1;         // -1: awake
    bool changing = false;  // between the request for it and its answer
    std::set<std::string> awake_tags = {};
    std::unique_ptr<EventLoop::Timer> timer = {};
  };
  // Events from the engine's thread to the loop.
  struct Inbox {
    struct Item {
      int64_t generation;
      size_t prompt;
      TokenEvent event;
    };
    std::mutex mutex;
    std::vector<Item> items;
    bool posted = false;
  };

  // Handlers of routes (routes.cc).
  void Health(const std::shared_ptr<Exchange>& exchange);
  void Live(const std::shared_ptr<Exchange>& exchange);
  void VersionRoute(const std::shared_ptr<Exchange>& exchange);
  void MetricsRoute(const std::shared_ptr<Exchange>& exchange);
  void LoadRoute(const std::shared_ptr<Exchange>& exchange);
  void ServerInfo(const std::shared_ptr<Exchange>& exchange);
  void ModelInfo(const std::shared_ptr<Exchange>& exchange);
  void TokenizerInfo(const std::shared_ptr<Exchange>& exchange);
  void Models(const std::shared_ptr<Exchange>& exchange);
  void OneModel(const std::shared_ptr<Exchange>& exchange);
  void OpenApi(const std::shared_ptr<Exchange>& exchange);
  void StoredResponse(const std::shared_ptr<Exchange>& exchange);
  void DeleteResponse(const std::shared_ptr<Exchange>& exchange);
  void TokenizeRoute(const std::shared_ptr<Exchange>& exchange);
  void CountTokensRoute(const std::shared_ptr<Exchange>& exchange);
  void DetokenizeRoute(const std::shared_ptr<Exchange>& exchange);
  void Generate(const std::shared_ptr<Exchange>& exchange);
  void Page(const std::shared_ptr<Exchange>& exchange);
  // --- lora_routes.cc ---
  void LoadLoraRoute(const std::shared_ptr<Exchange>& exchange);
  void UnloadLoraRoute(const std::shared_ptr<Exchange>& exchange);
  void LoraScalesRoute(const std::shared_ptr<Exchange>& exchange);
  void SetLoraScalesRoute(const std::shared_ptr<Exchange>& exchange);
  Refusal CheckRuntimeLora(const HttpRequest& request) const;
  // Reads the body and does what it says on a worker thread: an adapter takes seconds to read.
  using AdapterWork =
      std::function<Refusal(const ServedModel& model, std::string_view body, HttpResponse* answer)>;
  void ChangeAdapters(const std::shared_ptr<Exchange>& exchange, AdapterWork work);

  // --- sleep_routes.cc ---
  void SleepRoute(const std::shared_ptr<Exchange>& exchange);
  void WakeRoute(const std::shared_ptr<Exchange>& exchange);
  void IsSleeping(const std::shared_ptr<Exchange>& exchange);
  Refusal CheckSleepMode(const HttpRequest& request) const;
  void FallAsleep(std::shared_ptr<Exchange> exchange);  // once no request is in flight
  void EndSleepChange(const std::shared_ptr<Exchange>& exchange, const Refusal& refusal);
  static void SendOutcome(const std::shared_ptr<Exchange>& exchange, const Refusal& refusal);
  // --- render_routes.cc ---
  void RenderRoute(const std::shared_ptr<Exchange>& exchange);
  void SendRendered(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job);

  void SendTokens(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job);
  void SendCount(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job);
  void SendText(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job);

  std::optional<HttpResponse> Check(const HttpRequest& request) const;
  void Handle(const std::shared_ptr<Exchange>& exchange);
  void FinishHeaders(const HttpRequest& request, HttpResponse* response) const;
  void Log(const HttpRequest& request, const HttpHandlers::Done& done);
  static const Route* FindRoute(const HttpRequest& request, bool* other_method);
  static ApiForm FormOf(const HttpRequest& request);
  std::optional<HttpResponse> CheckKey(const HttpRequest& request) const;
  const char* NotReady() const;  // why requests are not accepted; null if they are
  Refusal CheckReady() const;
  Refusal CheckKeyLimits(const HttpRequest& request);
  Refusal CheckRank(const HttpRequest& request) const;

  // Parses and prepares the body on a worker thread, then calls `next` on the loop's.
  using Next = void (Service::*)(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job);
  void PrepareJob(const std::shared_ptr<Exchange>& exchange, Next next);
  void StartGeneration(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<Job>& job);
  // False: an engine refused it, and the client knows.
  bool SubmitPrompts(Generation& generation);
  // --- transfer.cc ---
  KvTransfer::RunOnEngine RunOn(int64_t rank) const;
  // Fetches the prompt's keys and values, and submits it then. False: there is nothing to fetch.
  bool StartFetch(const std::shared_ptr<Generation>& generation);
  void EndFetch(int64_t generation, const KvTransfer::RunOnEngine& run, KvFetched fetched);
  // Releases what was fetched once the request has begun, and holds what it leaves for another server.
  EngineThread::OnEvent WithTransfer(const Generation& generation, EngineThread& engine,
                                     const Request& request, EngineThread::OnEvent next) const;
  void TakeEvents();
  void End(Generation& generation);  // updates the metrics and removes it
  void OnDeviceFault();
  void Tick();
  void StopIfDrained();
  Metrics::Now Now() const;
  Json ModelJson(const std::string& name, ApiForm form, const Adapters::Info* adapter = nullptr) const;

  EventLoop& loop_;
  const ServiceOptions options_;
  const ModelLoader loader_;
  OriginGuard guard_;
  HttpServer* server_ = nullptr;
  std::vector<const KvPublisher*> publishers_;
  KvTransfer* transfer_ = nullptr;  // null: off
  Sleep sleep_;
  State state_ = State::kLoading;
  int exit_code_ = 0;
  std::thread loading_;
  std::shared_ptr<const ServedModel> model_;
  std::optional<Machine> machine_;
  std::shared_ptr<Replicas> replicas_;  // null also in deep sleep
  int64_t loads_ = 0;                   // so far; replicas_ are the last, if they did not fail
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::map<int64_t, std::shared_ptr<Generation>> generations_;
  int64_t next_generation_ = 1;
  bool warned_of_pooling_ = false;
  ResponseStore responses_;
  Metrics metrics_;
  Admission admission_;
  KeyLimits key_limits_;
  std::vector<EngineStats> last_stats_;  // of each engine
  Clock::time_point started_ = Clock::now(), drain_end_;
  std::unique_ptr<EventLoop::Timer> tick_, drain_timer_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  std::unique_ptr<WorkerPool> workers_;  // last member: its jobs use what is above
};

}  // namespace celer::server
