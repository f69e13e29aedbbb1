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

// A client chooses its salt, so that comes last.
std::string SaltOf(const KvScope& scope) {
  return scope.lora_name + '\0' + scope.lora_content + '\0' + std::to_string(scope.rope_length) + '\0' +
         scope.cache_salt;
}

}  // namespace

KvScope Engine::Impl::ScopeOf(const Request& request, const LoraMix* lora) const {
  KvScope scope{.cache_salt = request.cache_salt};
  if (lora) {
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
  KvScope scope = ScopeOf(request, request.lora ? request.lora->get() : nullptr);
  const std::string salt = SaltOf(scope);
  if (!kv_log || KvKeysOf(&scope, true).empty()) return blocks.cache().TakeRoot(salt);
  return blocks.cache().TakeRoot(salt, std::make_shared<const KvScope>(std::move(scope)));
}

int64_t EngineInternals::CachedTokens(const Engine& engine, const Request& request) {
  const Engine::Impl& impl = engine.impl();
  if (!impl.prefix_cache || Engine::Impl::NeedsAllRows(request)) return 0;
  const std::shared_ptr<const LoraMix> lora = request.lora ? *request.lora : impl.adapters->Standing();
  const KvScope scope = impl.ScopeOf(request, lora.get());
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), request.resumed.begin(), request.resumed.end());
  if (!tokens.empty()) tokens.pop_back();  // the last one runs: its logits are needed
  return impl.blocks.cache().CountFor(SaltOf(scope), tokens) * kKvBlockTokens;
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
