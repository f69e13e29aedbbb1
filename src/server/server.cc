#include "server/server.h"

#include <sys/resource.h>

#include "base/device.h"
#include "engine/loop/engine_internals.h"
#include "engine/loop/replicas.h"
#include "limits/measured_machine.h"

namespace celer::server {
namespace {

using Publishers = std::vector<std::unique_ptr<KvPublisher>>;  // one for each engine, or none

// Equal for all engines, whose blocks one port gives away.
Status Identify(const ServerOptions& options, const std::vector<std::unique_ptr<Engine>>& engines,
                KvTransfer* transfer) {
  CELER_ASSIGN(KvIdentity first, IdentifyKv(*engines[0], options.model.engine));
  for (size_t rank = 1; rank < engines.size(); ++rank) {
    CELER_ASSIGN(const KvIdentity other, IdentifyKv(*engines[rank], options.model.engine));
    if (const std::string difference = DifferenceOf(other, first); !difference.empty())
      return Error::Unsupported("KV transfer: engine ", rank,
                                " computes other keys and values: ", difference);
  }
  transfer->SetIdentity(std::move(first));
  return {};
}

Result<LoadedModel> LoadModel(const ServerOptions& options, const Publishers& publishers,
                              KvTransfer* transfer) {
  CELER_ASSIGN(const Prompter prompter, LoadPrompter(options.model));
  CELER_ASSIGN(std::vector<std::unique_ptr<Engine>> engines,
               LoadReplicas(options.model.engine, options.replicas));
  const Engine::Info& info = engines[0]->info();
  CELER_RETURN_IF_ERROR(prompter.CheckFits(info));
  if (transfer) CELER_RETURN_IF_ERROR(Identify(options, engines, transfer));
  LoadedModel loaded;
  CELER_ASSIGN(ServedModel made,
               MakeServedModel(options.names.at(0), prompter, info, options.model.chat_template));
  const auto model = std::make_shared<ServedModel>(std::move(made));
  model->aliases = {options.names.begin() + 1, options.names.end()};
  model->model_defaults = options.model_defaults;
  model->prefix_cache = options.model.engine.prefix_cache;
  model->kv_transfer = transfer != nullptr;
  CELER_ASSIGN(model->pooling, ChoosePooling(options.model.engine.model, options.pooling));
  const auto device = Device::Parse(std::string_view(info.device).substr(0, info.device.find(' ')));
  if (auto machine =
          LoadOrMeasureThisMachine(/*allow_measure=*/false, device ? *device : Device::Cpu(), info.threads))
    loaded.machine = std::move(*machine);
  model->adapters = engines[0]->adapters();
  for (const Adapters::Info& adapter : model->adapters->List())
    if (model->Answers(adapter.name))
      return Error::Invalid("`lora`: the model itself is called '", adapter.name,
                            "'; give the adapter another name");
  loaded.model = model;
  for (size_t rank = 0; rank < engines.size(); ++rank) {
    if (loaded.machine) engines[rank]->SetMachine(*loaded.machine);
    if (!publishers.empty()) EngineInternals::LogKv(*engines[rank], publishers[rank]->log());
    loaded.engines.push_back(std::make_unique<EngineThread>(std::move(engines[rank])));
  }
  return loaded;
}

// Every connection is a file descriptor, and the default soft limit is 1024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Result<int> Serve(ServerOptions options) {
  RaiseDescriptorLimit();
  Publishers publishers;
  std::vector<const KvPublisher*> shown;
  if (!options.kv_events.publish.empty()) {
    if (!options.model.engine.prefix_cache)
      return Error::Invalid("KV events tell what the prefix cache holds, which is off; turn it on");
    for (int rank = 0; rank < options.replicas; ++rank) {
      CELER_ASSIGN(const KvEventOptions own, ForRank(options.kv_events, rank, options.replicas));
      CELER_ASSIGN(auto publisher, KvPublisher::Start(own));
      if (options.on_publishing) options.on_publishing(*publisher);
      shown.push_back(publisher.get());
      publishers.push_back(std::move(publisher));
    }
  }
  EventLoop loop;
  std::unique_ptr<KvTransfer> transfer;  // its threads end after the service, and post to the loop
  if (!options.kv_transfer.address.empty()) {
    CELER_ASSIGN(transfer, KvTransfer::Start(options.kv_transfer));
    if (options.on_transferring) options.on_transferring(*transfer);
  }
  Service service(loop, options.service, [&] { return LoadModel(options, publishers, transfer.get()); });
  service.UsePublishers(std::move(shown));
  service.UseTransfer(transfer.get());
  CELER_ASSIGN(const auto http, HttpServer::Listen(loop, options.http, service.Handlers()));
  service.UseServer(http.get());
  if (options.on_listening) options.on_listening(http->url());
  loop.OnSignal([&](int) { service.Drain(); });
  std::optional<Error> failed;
  service.Load([&](const Status& status) {
    if (!status) {
      failed = status.error();
      loop.Stop();
    } else if (options.on_ready) {
      options.on_ready(service.model()->info);
    }
  });
  loop.Run();
  if (failed) return *failed;
  return service.exit_code();
}

}  // namespace celer::server
