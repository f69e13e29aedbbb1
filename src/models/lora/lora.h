// LoRA adapters: what a sequence may add to a model's weights, a product of two small matrices for each of some
// matrices. The weights stay as they are, so that sequences with different adapters, and with none, run in one batch.
//
//   LoadLora(name, adapter's path, model's path)  once for each adapter: a file, checked against the model
//   LoraMix::Make({{adapter, scale}, ...})        once for each combination that requests ask for
//   runner.CheckLora(mix)                         before a request is taken: a sentence if the device cannot apply it
//   slice.lora = mix                              in every step of the sequence
//
// Keys and values depend on the adapters: LoraMix::key() belongs to the salt of the prefix cache. An adapter's memory
// is given back when the last mix that has it is gone; a runner keeps the mixes of the steps that are queued.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/thread_pool.h"

namespace celer {

class LoraAdapter;  // models/lora/lora_adapter.h
struct LoraMatrix;

struct LoraInfo {
  std::string name;  // what requests call it
  std::string path;  // a PEFT folder, or a GGUF file
  std::string
      content;  // SHA-256 of its files, in hexadecimal: equal adapters have equal ones, whatever their names
  int64_t bytes = 0;     // in memory
  int64_t rank = 0;      // the greatest of its modules
  int64_t matrices = 0;  // of the model that it changes
};

// The adapter at `path` for the model at `model`, anything that Model::Load takes. An error names the module that cannot
// be applied to this model; nothing of an adapter is left out. Thread-safe.
Result<std::shared_ptr<const LoraAdapter>> LoadLora(const std::string& name,
                                                    const std::filesystem::path& path,
                                                    const std::filesystem::path& model, ThreadPool& pool);
const LoraInfo& InfoOf(const LoraAdapter& adapter);
// What it takes in the memory of a GPU, at most.
int64_t DeviceBytesOf(const LoraAdapter& adapter);

struct LoraUse {
  std::shared_ptr<const LoraAdapter> adapter;
  float scale =
      1;  // 0 is the model without it, 1 the adapted model; any finite number, on the line through both
};

// Adapters that work together on a sequence: what each adds to the model is summed up. Immutable.
class LoraMix {
 public:
  // An error if a scale is not finite. Without any, or with scales of 0 alone: null, which is the model itself.
  static Result<std::shared_ptr<const LoraMix>> Make(std::vector<LoraUse> uses);

  std::span<const LoraUse> uses() const { return uses_; }
  // The adapters' contents and scales: sequences with equal keys have equal weights.
  const std::string& key() const { return key_; }

 private:
  LoraMix() = default;

  std::vector<LoraUse> uses_;
  std::string key_;
};

}  // namespace celer
