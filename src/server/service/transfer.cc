// Disaggregated prefill: requests whose keys and values come from another server, or are held for one.
#include "base/log.h"
#include "engine/loop/engine_internals.h"
#include "server/service/service.h"

namespace celer::server {
namespace {

// Beyond the time of a fetch, for what has no time limit of its own, such as the resolution of a name.
constexpr auto kGrace = std::chrono::seconds(1);

}  // namespace

KvTransfer::RunOnEngine Service::RunOn(int64_t rank) const {
  return [replicas = std::weak_ptr<Replicas>(replicas_), rank](const std::function<void(Engine&)>& work) {
    const std::shared_ptr<Replicas> there = replicas.lock();
    return there ? there->engine(rank).Run(work) : Status(Error::Cancelled("the engine is gone"));
  };
}

bool Service::StartFetch(const std::shared_ptr<Generation>& generation) {
  const auto& asked = generation->job->query.kv_transfer;
  if (!transfer_ || !asked) return false;
  generation->transfer = transfer_;
  if (!asked->remote_prefill || generation->has_ended()) return false;
  const auto request = std::make_shared<Request>(generation->job->prepared.requests[0]);
  if (!request->lora) request->lora = model_->adapters ? model_->adapters->Standing() : nullptr;
  generation->places.push_back(replicas_->Choose(*request, generation->wanted_rank));
  KvTransfer::RunOnEngine run = RunOn(generation->places[0].rank());
  generation->fetch_timer =
      loop_.After(transfer_->options().timeout + kGrace, [this, id = generation->id, run] {
        EndFetch(id, run, {.reason = "timeout", .why = "the fetch takes too long"});
      });
  const KvSource source{.host = asked->host,
                        .port = asked->port,
                        .engine = asked->engine,
                        .transfer = asked->transfer,
                        .tokens = asked->tokens};
  transfer_->Fetch(
      source, run, request,
      [this, &loop = loop_, id = generation->id, run, alive = std::weak_ptr<int>(alive_)](KvFetched fetched) {
        loop.Post([this, id, run, alive, fetched = std::move(fetched)] {
          if (!alive.expired()) EndFetch(id, run, fetched);
        });
      });
  return true;
}

void Service::EndFetch(int64_t id, const KvTransfer::RunOnEngine& run, KvFetched fetched) {
  const auto it = generations_.find(id);
  // Its client disconnected, or the fetch took too long.
  if (it == generations_.end() || !it->second->fetch_timer) return transfer_->ReleaseLater(run, fetched.hold);
  const std::shared_ptr<Generation> generation = it->second;
  generation->fetch_timer.reset();
  const std::string& name = generation->exchange->request().id;
  if (!fetched.reason.empty())
    log::Warning("request {}: {} tokens of its prompt were fetched, the others are computed: {}", name,
                 fetched.tokens, fetched.why);
  else
    log::Info("request {}: {} tokens of its prompt were fetched in {:.1f} ms", name, fetched.tokens,
              1e3 * fetched.seconds);
  generation->fetched = std::move(fetched);
  if (!replicas_ || generation->engine != loads_ || replicas_->fault()) {
    generation->Fail({.status = 503, .message = "the device failed", .code = "device_fault"});
    return End(*generation);
  }
  if (SubmitPrompts(*generation)) return;
  transfer_->ReleaseLater(run, generation->fetched->hold);
  generation->outcome = "error";
  End(*generation);
}

EngineThread::OnEvent Service::WithTransfer(const Generation& generation, EngineThread& engine,
                                            const Request& request, EngineThread::OnEvent next) const {
  const bool offers = generation.job->query.kv_transfer->remote_decode;
  const int64_t hold = generation.fetched ? generation.fetched->hold : 0;
  if (!offers && hold == 0) return next;
  const auto kept = std::make_shared<Request>(offers ? request : Request());
  if (!kept->lora) kept->lora = model_->adapters ? model_->adapters->Standing() : nullptr;
  // On the engine's thread, where nothing has been evicted yet since the request ended.
  return [transfer = transfer_, engine = &engine, run = RunOn(generation.rank()), next = std::move(next),
          offer = generation.offer, kept, offers, held = hold](TokenEvent event) mutable {
    if (held != 0)
      static_cast<void>(engine->Run([&](Engine& of) { EngineInternals::ReleaseHold(of, held); }));
    held = 0;
    const bool ended = event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
    if (offers && event.last && ended)
      static_cast<void>(engine->Run([&](Engine& of) { *offer = transfer->Offer(of, run, *kept); }));
    next(std::move(event));
  };
}

}  // namespace celer::server
