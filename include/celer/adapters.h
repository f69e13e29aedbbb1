// LoRA adapters of a loaded model, by name: what requests may add to its weights. Sequences with different adapters,
// and with none, run in one batch and one step.
//
//   engine->adapters()->Load({.name = "sql", .path = "sql-lora/"});
//   request.lora = *engine->adapters()->Mix(std::vector<AdapterScale>{{"sql", 1}});
//
// An adapter that is unloaded is not found by new requests any more. Those that have it go on with it, and its memory
// is given back when the last of them has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "celer/error.h"
#include "celer/options.h"

namespace celer {

class LoraMix;  // adapters with their scales, as Request::lora has them

struct AdapterScale {
  std::string name;
  float scale = 1;  // 0: without it; 1: the adapted model
};

// Thread-safe.
class Adapters {
 public:
  struct Info {
    int64_t id = 0;  // counted from 0 in the order of loading; none is given twice
    std::string name;
    std::string path;
    std::string content;       // SHA-256 of its files: equal adapters have equal ones, whatever their names
    float scale = 1;           // LoraSpec::scale, for requests that name the adapter alone
    float standing_scale = 0;  // in requests that say nothing of adapters
    int64_t bytes = 0;         // in memory; adapters of equal content share it
    int64_t rank = 0;          // the greatest of its matrices'
    int64_t matrices = 0;      // of the model that it changes
    bool in_use = false;       // by a request
  };

  // What becomes of the adapter when LoraOptions::max_adapters are loaded: an error, or the least recently used one
  // that no request uses is unloaded.
  enum class WhenFull : uint8_t { kRefuse, kUnloadIdle };
  struct LoadOptions {
    bool replace = false;  // an adapter of the same name, whose id stays
    WhenFull when_full = WhenFull::kRefuse;
  };

  // Reads the adapter on the calling thread; requests go on meanwhile. Error::Code::kInvalid: the name is taken, or too
  // many are loaded.
  Status Load(const LoraSpec& spec, const LoadOptions& options);
  Status Load(const LoraSpec& spec) { return Load(spec, LoadOptions{}); }
  Status Unload(const std::string& name);

  std::vector<Info> List() const;  // by id
  // Bytes of all adapters in memory, with those that were unloaded and that a request still uses.
  int64_t bytes() const;
  const LoraOptions& options() const;

  // What a request with these adapters runs with; null: with none. Error::Code::kNotFound: a name is not loaded.
  Result<std::shared_ptr<const LoraMix>> Mix(std::span<const AdapterScale> scales) const;
  // Likewise of requests that say nothing of adapters.
  std::shared_ptr<const LoraMix> Standing() const;
  // Those not in the list get scale 0.
  Status SetStanding(std::span<const AdapterScale> scales);

  // Opaque: the implementation.
  struct Impl;
  explicit Adapters(std::unique_ptr<Impl> impl);
  ~Adapters();
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer
