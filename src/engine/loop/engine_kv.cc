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

// What may be found in the cache of a request's text: the last token runs, because its logits are needed.
std::vector<int32_t> CacheableTokens(const Request& request) {
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), request.resumed.begin(), request.resumed.end());
  if (!tokens.empty()) tokens.pop_back();
  return tokens;
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
  return impl.blocks.cache().CountFor(SaltOf(scope), CacheableTokens(request)) * kKvBlockTokens;
}

Result<int64_t> EngineInternals::TransferBlockBytes(const Engine& engine) {
  const Engine::Impl& impl = engine.impl();
  if (impl.states.any())
    return Error::Unsupported("KV transfer: the model '", impl.info.architecture,
                              "' has recurrent layers, and their states are not transferred");
  if (!impl.prefix_cache)
    return Error::Unsupported("KV transfer fills the prefix cache, which is off; turn it on");
  return impl.runner->BlockBytes();
}

KvPrefix EngineInternals::PrefixOf(const Engine& engine, const Request& request) {
  const Engine::Impl& impl = engine.impl();
  const std::shared_ptr<const LoraMix> lora = request.lora ? *request.lora : impl.adapters->Standing();
  KvScope scope = impl.ScopeOf(request, lora.get());
  scope.lora_name.clear();  // each engine has its own
  return {SaltOf(scope), CacheableTokens(request)};
}

EngineInternals::HeldPrefix EngineInternals::HoldPrefix(Engine& engine, const Request& request) {
  Engine::Impl& impl = engine.impl();
  if (impl.fault || !impl.prefix_cache || Engine::Impl::NeedsAllRows(request)) return {};
  const PrefixCache::Content root = impl.TakeRoot(request);
  PrefixCache::Content content = root;
  BlockTable table;
  impl.blocks.Attach(&table, CacheableTokens(request), &content);
  impl.blocks.cache().DropRoot(root);
  if (table.empty()) return {};
  HeldPrefix held{.blocks = table};
  const int64_t most = impl.blocks.blocks() / 2;
  while (impl.blocks.held_blocks() + std::ssize(table) > most && impl.blocks.GiveUpHold()) continue;
  if (std::ssize(table) > most) {
    impl.blocks.Shrink(&table, most * kKvBlockTokens);
    held.blocks = table;
  }
  if (table.empty()) return {};
  held.hold = impl.blocks.Hold(std::move(table));
  return held;
}

void EngineInternals::ReleaseHold(Engine& engine, int64_t hold) {
  engine.impl().blocks.ReleaseHold(hold);
}

Status EngineInternals::ReadHeld(Engine& engine, int64_t hold, int64_t first, int64_t count,
                                 std::span<std::byte> out) {
  Engine::Impl& impl = engine.impl();
  if (impl.fault) return *impl.fault;
  const BlockTable* const table = impl.blocks.Held(hold);
  if (!table) return Error::NotFound("the blocks were given up, for requests that needed the room");
  CELER_CHECK_LE(first + count, std::ssize(*table));
  return impl.runner->ReadBlocks(
      std::span(*table).subspan(static_cast<size_t>(first), static_cast<size_t>(count)), out);
}

Result<int64_t> EngineInternals::StoreBlocks(Engine& engine, const Request& request, int64_t first,
                                             std::span<const std::byte> bytes, int64_t* hold) {
  Engine::Impl& impl = engine.impl();
  if (impl.fault) return *impl.fault;
  CELER_ASSIGN(const int64_t each, TransferBlockBytes(engine));
  const std::vector<int32_t> tokens = CacheableTokens(request);
  const BlockTable* const held = impl.blocks.Held(*hold);
  if ((held ? std::ssize(*held) : 0) != first) return 0;  // it was given up
  // A sequence is worth more than its prefix.
  const int64_t room = std::min(impl.blocks.free_blocks(), impl.blocks.blocks() / 2 - first),
                count =
                    std::min({room, std::ssize(bytes) / each, std::ssize(tokens) / kKvBlockTokens - first});
  if (count <= 0) return 0;
  const KvEventLog::Step logged(impl.kv_log.get(), impl.blocks.cache());
  BlockTable table = impl.blocks.TakeHeld(*hold);
  std::vector<BlockMove> moves;
  const int64_t begin = first * kKvBlockTokens, end = (first + count) * kKvBlockTokens;
  CELER_CHECK(impl.blocks.Prepare(&table, begin, end, &moves) && moves.empty());
  const Status written = impl.runner->WriteBlocks(std::span(table).last(static_cast<size_t>(count)),
                                                  bytes.first(static_cast<size_t>(count * each)));
  if (written) {
    PrefixCache::Content root = impl.TakeRoot(request), content = root;
    int64_t published = 0;
    impl.blocks.Publish(table, std::span(tokens).first(static_cast<size_t>(end)), root, &published, &content);
    impl.blocks.cache().DropRoot(root);
  }
  *hold = impl.blocks.Hold(std::move(table));
  if (!written) return written.error();
  return count;
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
  while (impl.blocks.GiveUpHold()) continue;
  impl.blocks.UncacheAll();
  if (impl.kv_log) impl.kv_log->EndStep(impl.blocks.cache());
  return impl.runner->DiscardKv();
}

}  // namespace celer
