// What shares the KV, and what others are told of it.
#include "base/check.h"
#include "engine/kv/kv_chains.h"
#include "engine/loop/adapters.h"
#include "engine/loop/engine_impl.h"
#include "engine/loop/engine_internals.h"

namespace celer {
namespace {

std::string NamesOf(const LoraMix& mix) {
  std::string names;
  for (const LoraUse& use : mix.uses()) names += (names.empty() ? "" : ",") + InfoOf(*use.adapter).name;
  return names;
}

}  // namespace

KvScope Engine::Impl::ScopeOf(const Request& request) const {
  KvScope scope{.cache_salt = request.cache_salt};
  if (const LoraMix* const lora = request.lora ? request.lora->get() : nullptr) {
    scope.lora_content = lora->key();
    // Without a log adapters of equal content share prefixes. Readers of a log know an adapter by its name.
    if (kv_log) {
      scope.lora_name = NamesOf(*lora);
      if (lora->uses().size() == 1) scope.lora_id = adapters->impl().IdOf(scope.lora_name);
    }
  }
  const RopeConfig& rope = runner->info().config.rope;
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (rope.DependsOnLength() && static_cast<double>(length) > rope.original_positions)
    scope.rope_length = rope.scaling == RopeConfig::Scaling::kDynamic ? length : -1;
  return scope;
}

PrefixCache::Content Engine::Impl::TakeRoot(const Request& request) {
  KvScope scope = ScopeOf(request);
  // A client chooses its salt, so that comes last.
  const std::string salt = scope.lora_name + '\0' + scope.lora_content + '\0' +
                           std::to_string(scope.rope_length) + '\0' + scope.cache_salt;
  if (!kv_log || KvKeysOf(&scope, true).empty()) return blocks.cache().TakeRoot(salt);
  return blocks.cache().TakeRoot(salt, std::make_shared<const KvScope>(std::move(scope)));
}

void EngineInternals::LogKv(Engine& engine, std::shared_ptr<KvEventLog> log) {
  Engine::Impl& impl = engine.impl();
  CELER_CHECK_EQ(impl.counts.requests, 0);
  log->Attach(impl.blocks.blocks());
  impl.blocks.cache().set_log(log.get());
  impl.kv_log = std::move(log);
  impl.kv_log->EndStep(impl.blocks.cache());
}

Status EngineInternals::DiscardKv(Engine& engine) {
  Engine::Impl& impl = engine.impl();
  if (impl.fault) return *impl.fault;
  if (!impl.groups.empty()) return Error::Invalid(impl.groups.size(), " requests are in flight");
  impl.DropAhead();
  impl.blocks.UncacheAll();
  if (impl.kv_log) impl.kv_log->EndStep(impl.blocks.cache());
  return impl.runner->DiscardKv();
}

}  // namespace celer
