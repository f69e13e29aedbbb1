#include "engine/loop/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/result.h"
#include "device/allocator.h"
#include "device/cpu_allocator.h"
#include "device/thread_pool.h"

namespace celer {
namespace {

constexpr size_t kMostNameBytes = 200;

Status CheckSpec(const LoraSpec& spec) {
  if (spec.name.empty() || spec.name.size() > kMostNameBytes)
    return Error::Invalid("an adapter's name has ", spec.name.size(), " bytes, expected 1 to ",
                          kMostNameBytes);
  if (std::any_of(spec.name.begin(), spec.name.end(),
                  [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }))
    return Error::Invalid("an adapter's name has a control character in it");
  if (spec.path.empty()) return Error::Invalid("the adapter '", spec.name, "' has no path");
  if (!std::isfinite(spec.scale))
    return Error::Invalid("the scale of adapter '", spec.name, "' is ", spec.scale,
                          ", expected a finite number");
  return {};
}

// An adapter takes about as much memory as its files, or twice that if they are of 16 bits.
Status CheckRoom(const LoraSpec& spec) {
  std::error_code ignored;
  uint64_t bytes = 0;
  if (std::filesystem::is_directory(spec.path, ignored)) {
    for (const auto& entry : std::filesystem::directory_iterator(spec.path, ignored))
      if (entry.path().filename().string().starts_with("adapter_model.") && entry.is_regular_file(ignored))
        bytes += entry.file_size(ignored);
  } else if (std::filesystem::is_regular_file(spec.path, ignored)) {
    bytes = std::filesystem::file_size(spec.path, ignored);
  }
  if (const uint64_t free = AvailableHostBytes(); bytes > free / 2)
    return Error::OutOfMemory(spec.path.string(), ": the adapter has ", FormatBytes(bytes), ", and ",
                              FormatBytes(free), " of memory are free; unload others, or lower `kv_memory`");
  return {};
}

}  // namespace

Adapters::Impl::Impl(const std::string& model, LoraOptions options)
    : limits(std::move(options)), load([model](const LoraSpec& spec) {
        // Of one thread: the cores belong to the requests that run meanwhile.
        ThreadPool pool({.threads = 1});
        return LoadLora(spec.name, spec.path, model, pool);
      }) {}

Status Adapters::Impl::LoadFirst() {
  for (const LoraSpec& spec : limits.adapters) CELER_RETURN_IF_ERROR(Add(spec, {}));
  const std::lock_guard lock(mutex);
  if (limits.standing)
    for (auto& [id, entry] : entries) entry.standing_scale = entry.spec.scale;
  return MakeStanding();
}

Status Adapters::Impl::Attach(Check to) {
  const std::lock_guard lock(loading);
  const Check& check = checks.emplace_back(std::move(to));
  for (const auto& [id, entry] : entries) {
    CELER_ASSIGN(const auto mix, LoraMix::Make({{.adapter = entry.adapter}}));
    CELER_RETURN_IF_ERROR(check(*mix));
  }
  return {};
}

void Adapters::Impl::Detach() {
  const std::lock_guard lock(loading);
  checks.clear();
  detached = true;
}

Adapters::Impl::Entry* Adapters::Impl::Find(const std::string& name) {
  for (auto& [id, entry] : entries)
    if (entry.spec.name == name) return &entry;
  return nullptr;
}

const Adapters::Impl::Entry* Adapters::Impl::Find(const std::string& name) const {
  return const_cast<Impl*>(this)->Find(name);
}

// Who holds the adapter: the entries of its content, the standing mix, and the mixes of requests.
int64_t Adapters::Impl::IdOf(const std::string& name) const {
  const std::lock_guard lock(mutex);
  const Entry* const entry = Find(name);
  return entry ? entry->id : -1;
}

bool Adapters::Impl::InUse(const Entry& entry) const {
  const auto same = [&](const auto& one) { return one.adapter == entry.adapter; };
  auto own = std::count_if(entries.begin(), entries.end(), [&](const auto& row) { return same(row.second); });
  bool in_request = false;
  if (standing) {
    const auto uses = standing->uses();
    const auto of = std::count_if(uses.begin(), uses.end(), same);
    own += of;
    in_request = of > 0 && standing.use_count() > 1;
  }
  return in_request || entry.adapter.use_count() > own;
}

int64_t Adapters::Impl::DeviceBytes() const {
  constexpr int64_t kMore = int64_t{1} << 30;
  const std::lock_guard lock(mutex);
  std::set<const LoraAdapter*> seen;
  int64_t bytes = limits.grows ? kMore : 0;
  for (const auto& [id, entry] : entries)
    if (seen.insert(entry.adapter.get()).second) bytes += DeviceBytesOf(*entry.adapter);
  return bytes;
}

std::string Adapters::Impl::Names() const {
  std::string names;
  for (const auto& [id, entry] : entries) names += (names.empty() ? "" : ", ") + entry.spec.name;
  return names.empty() ? "none is loaded" : "loaded are: " + names;
}

void Adapters::Impl::Forget(std::shared_ptr<const LoraAdapter> adapter) {
  std::erase_if(unloaded, [](const auto& one) { return one.expired(); });
  unloaded.push_back(adapter);
}

void Adapters::Impl::Erase(int64_t id) {
  const auto it = entries.find(id);
  Forget(std::move(it->second.adapter));
  const bool stood = it->second.standing_scale != 0;
  entries.erase(it);
  if (!stood) return;
  if (const Status made = MakeStanding(); !made) log::Warning("{}", made.error().message());
}

Status Adapters::Impl::MakeRoom(WhenFull when_full) {
  if (limits.max_adapters == 0 || std::ssize(entries) < limits.max_adapters) return {};
  const Entry* oldest = nullptr;
  if (when_full == WhenFull::kUnloadIdle)
    for (const auto& [id, entry] : entries)
      if (!InUse(entry) && entry.standing_scale == 0 && (!oldest || entry.used < oldest->used))
        oldest = &entry;
  if (!oldest)
    return Error::Invalid(entries.size(), " adapters are loaded",
                          when_full == WhenFull::kUnloadIdle ? " and in use" : "",
                          ", and `max_loras` allows no more; unload one, or raise it");
  log::Info("adapter '{}' is unloaded: {} others are to be", oldest->spec.name, limits.max_adapters);
  Erase(oldest->id);
  return {};
}

Status Adapters::Impl::Add(const LoraSpec& spec, const LoadOptions& options) {
  CELER_RETURN_IF_ERROR(CheckSpec(spec));
  const std::lock_guard one(loading);
  if (detached) return Error::Cancelled("the engine that the adapters belong to is gone");
  {
    const std::lock_guard lock(mutex);
    if (const Entry* taken = Find(spec.name); taken && !options.replace)
      return Error::Invalid("an adapter '", spec.name, "' is loaded already, from ",
                            taken->spec.path.string(),
                            "; unload it first, load it in place, or give another name");
    else if (!taken && options.when_full == WhenFull::kRefuse)
      CELER_RETURN_IF_ERROR(MakeRoom(options.when_full));
  }
  CELER_RETURN_IF_ERROR(CheckRoom(spec));
  CELER_ASSIGN(std::shared_ptr<const LoraAdapter> adapter, load(spec));
  const LoraInfo& info = InfoOf(*adapter);
  if (limits.max_rank > 0 && info.rank > limits.max_rank)
    return Error::Invalid(spec.path.string(), ": the adapter has rank ", info.rank,
                          ", and `max_lora_rank` is ", limits.max_rank, "; raise it");
  for (const Check& check : checks) {
    CELER_ASSIGN(const auto mix, LoraMix::Make({{.adapter = adapter}}));
    CELER_RETURN_IF_ERROR(check(*mix));
  }
  const std::lock_guard lock(mutex);
  for (const auto& [id, entry] : entries)
    if (InfoOf(*entry.adapter).content == info.content) {
      adapter = entry.adapter;
      break;
    }
  if (Entry* taken = Find(spec.name)) {
    Forget(std::move(taken->adapter));
    taken->adapter = std::move(adapter);
    taken->spec = spec;
    taken->used = ++tick;
    return MakeStanding();
  }
  CELER_RETURN_IF_ERROR(MakeRoom(options.when_full));
  entries[next_id] = {.adapter = std::move(adapter), .spec = spec, .id = next_id, .used = ++tick};
  ++next_id;
  return {};
}

Result<std::shared_ptr<const LoraMix>> Adapters::Impl::MixOf(std::span<const AdapterScale> scales) const {
  std::vector<LoraUse> uses;
  std::set<std::string_view> seen;
  for (const AdapterScale& one : scales) {
    const Entry* const entry = Find(one.name);
    if (!entry) return Error::NotFound("there is no adapter '", one.name, "'; ", Names());
    if (!seen.insert(one.name).second)
      return Error::Invalid("the adapter '", one.name, "' is named twice; give it one scale");
    entry->used = ++tick;
    uses.push_back({.adapter = entry->adapter, .scale = one.scale});
  }
  return LoraMix::Make(std::move(uses));
}

Status Adapters::Impl::MakeStanding() {
  std::vector<LoraUse> uses;
  for (const auto& [id, entry] : entries)
    if (entry.standing_scale != 0) uses.push_back({.adapter = entry.adapter, .scale = entry.standing_scale});
  CELER_ASSIGN(standing, LoraMix::Make(std::move(uses)));
  return {};
}

Adapters::Adapters(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Adapters::~Adapters() = default;

Status Adapters::Load(const LoraSpec& spec, const LoadOptions& options) {
  return impl_->Add(spec, options);
}

Status Adapters::Unload(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  const Impl::Entry* const entry = impl_->Find(name);
  if (!entry) return Error::NotFound("there is no adapter '", name, "'; ", impl_->Names());
  impl_->Erase(entry->id);
  return {};
}

std::vector<Adapters::Info> Adapters::List() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<Info> list;
  for (const auto& [id, entry] : impl_->entries) {
    const LoraInfo& info = InfoOf(*entry.adapter);
    list.push_back({.id = id,
                    .name = entry.spec.name,
                    .path = entry.spec.path.string(),
                    .content = info.content,
                    .scale = entry.spec.scale,
                    .standing_scale = entry.standing_scale,
                    .bytes = info.bytes,
                    .rank = info.rank,
                    .matrices = info.matrices,
                    .in_use = impl_->InUse(entry)});
  }
  return list;
}

int64_t Adapters::bytes() const {
  const std::lock_guard lock(impl_->mutex);
  std::set<std::shared_ptr<const LoraAdapter>> adapters;
  for (const auto& [id, entry] : impl_->entries) adapters.insert(entry.adapter);
  for (const auto& one : impl_->unloaded)
    if (auto adapter = one.lock()) adapters.insert(std::move(adapter));
  int64_t bytes = 0;
  for (const auto& adapter : adapters) bytes += InfoOf(*adapter).bytes;
  return bytes;
}

const LoraOptions& Adapters::options() const {
  return impl_->limits;
}

Result<std::shared_ptr<const LoraMix>> Adapters::Mix(std::span<const AdapterScale> scales) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->MixOf(scales);
}

std::shared_ptr<const LoraMix> Adapters::Standing() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->standing;
}

Status Adapters::SetStanding(std::span<const AdapterScale> scales) {
  const std::lock_guard lock(impl_->mutex);
  CELER_ASSIGN(std::shared_ptr<const LoraMix> mix, impl_->MixOf(scales));
  for (auto& [id, entry] : impl_->entries) {
    const auto of = std::find_if(scales.begin(), scales.end(),
                                 [&](const AdapterScale& one) { return one.name == entry.spec.name; });
    entry.standing_scale = of == scales.end() ? 0 : of->scale;
  }
  // By id, so that what was computed with the same scales before is found again.
  return impl_->MakeStanding();
}

std::shared_ptr<Adapters> MakeAdapters(const std::string& model, const LoraOptions& options) {
  return std::make_shared<Adapters>(std::make_unique<Adapters::Impl>(model, options));
}

}  // namespace celer
