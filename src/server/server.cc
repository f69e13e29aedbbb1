#include "server/server.h"

#include <sys/resource.h>

#include "base/device.h"
#include "engine/loop/engine_internals.h"
#include "limits/measured_machine.h"

namespace celer::server {
namespace {

Result<LoadedModel> LoadModel(const ServerOptions& options, const KvPublisher* publisher) {
  CELER_ASSIGN(TextModel text, TextModel::Load(options.model));
  LoadedModel loaded;
  const Engine::Info& info = text.engine->info();
  CELER_ASSIGN(ServedModel made,
               MakeServedModel(options.names.at(0), text.prompter, info, options.model.chat_template));
  const auto model = std::make_shared<ServedModel>(std::move(made));
  model->aliases = {options.names.begin() + 1, options.names.end()};
  model->model_defaults = options.model_defaults;
  model->prefix_cache = options.model.engine.prefix_cache;
  CELER_ASSIGN(model->pooling, ChoosePooling(options.model.engine.model, options.pooling));
  const auto device = Device::Parse(std::string_view(info.device).substr(0, info.device.find(' ')));
  if (auto machine =
          LoadOrMeasureThisMachine(/*allow_measure=*/false, device ? *device : Device::Cpu(), info.threads))
    loaded.machine = std::move(*machine);
  if (loaded.machine) text.engine->SetMachine(*loaded.machine);
  model->adapters = text.engine->adapters();
  for (const Adapters::Info& adapter : model->adapters->List())
    if (model->Answers(adapter.name))
      return Error::Invalid("`lora`: the model itself is called '", adapter.name,
                            "'; give the adapter another name");
  if (publisher) EngineInternals::LogKv(*text.engine, publisher->log());
  loaded.model = model;
  loaded.engine = std::make_unique<EngineThread>(std::move(text.engine));
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
  std::unique_ptr<KvPublisher> publisher;
  if (!options.kv_events.publish.empty()) {
    if (!options.model.engine.prefix_cache)
      return Error::Invalid("KV events tell what the prefix cache holds, which is off; turn it on");
    CELER_ASSIGN(publisher, KvPublisher::Start(options.kv_events));
    if (options.on_publishing) options.on_publishing(*publisher);
  }
  EventLoop loop;
  Service service(loop, options.service, [&options, to = publisher.get()] { return LoadModel(options, to); });
  service.UsePublisher(publisher.get());
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
