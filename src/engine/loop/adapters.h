// The inside of Adapters (celer/adapters.h): names of what models/lora reads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "celer/adapters.h"
#include "models/lora/lora.h"

namespace celer {

struct Adapters::Impl {
  // Whether the device can apply them: Runner::CheckLora().
  using Check = std::function<Status(const LoraMix&)>;
  using Loader = std::function<Result<std::shared_ptr<const LoraAdapter>>(const LoraSpec&)>;

  struct Entry {
    std::shared_ptr<const LoraAdapter> adapter;
    LoraSpec spec;
    int64_t id = 0;
    float standing_scale = 0;
    mutable int64_t used = 0;  // the tick of its last use
  };

  // `model`: EngineOptions::model.
  Impl(const std::string& model, LoraOptions options);

  // Reads the adapters of the options. Before the device's KV takes what memory is left.
  Status LoadFirst();
  // From now on adapters are checked against this device, too, and those that are loaded at once.
  Status Attach(Check check);
  // Waits for an adapter that is being loaded. From now on none is.
  void Detach();

  Status Add(const LoraSpec& spec, const LoadOptions& options);

  const LoraOptions limits;
  Loader load;  // replaced in tests

  std::mutex loading;         // one at a time, which bounds the memory that loading takes
  std::vector<Check> checks;  // of `loading`; one for each replica
  bool detached = false;

  mutable std::mutex mutex;  // of all below
  std::map<int64_t, Entry> entries;
  std::vector<std::weak_ptr<const LoraAdapter>> unloaded;  // that a request may still use
  std::shared_ptr<const LoraMix> standing;
  int64_t next_id = 0;
  mutable int64_t tick = 0;

  // What they take on a GPU, with room for more where more may come.
  int64_t DeviceBytes() const;
  int64_t IdOf(const std::string& name) const;  // -1: there is none

  // With `mutex` held.
  Entry* Find(const std::string& name);
  const Entry* Find(const std::string& name) const;
  bool InUse(const Entry& entry) const;
  std::string Names() const;
  Status MakeRoom(WhenFull when_full);
  void Erase(int64_t id);
  // It has no name any more, and counts until its last request has ended.
  void Forget(std::shared_ptr<const LoraAdapter> adapter);
  Result<std::shared_ptr<const LoraMix>> MixOf(std::span<const AdapterScale> scales) const;
  Status MakeStanding();
};

// For Engine::Load: adapters that are not attached to a device yet.
std::shared_ptr<Adapters> MakeAdapters(const std::string& model, const LoraOptions& options);

}  // namespace celer
