// The experts of some layers on the CPU, with their router and norm, where a GPU has the rest of these layers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/limits.h"
#include "celer/options.h"
#include "device/thread_pool.h"
#include "models/config/layer_range.h"
#include "models/cpu/cpu_decoder.h"
#include "models/load/model.h"

namespace celer {

class CpuExperts {
 public:
  // The pool must outlive it.
  static Result<std::unique_ptr<CpuExperts>> Load(const EngineOptions& options, const LayerRange& layers,
                                                  ThreadPool& pool);

  // Adds to x[tokens, hidden] what the experts of the layer make of it; layers are counted from the first one here. Layers
  // without experts are not asked for.
  void Add(int64_t layer, float* x, int64_t tokens) { decoder_.AddExperts(layer, x, tokens); }

  int64_t layers() const { return model_.config().layers; }
  int64_t sparse_layers() const;
  int64_t active_bytes() const { return model_.active_bytes(); }
  const std::map<std::string, int64_t>& bytes_by_format() const { return model_.bytes_by_format(); }
  std::vector<OperatorWork> Work(const StepShape& shape) const;

 private:
  CpuExperts(Model model, ThreadPool& pool)
      : model_(std::move(model)), decoder_(model_.config(), model_.weights(), pool) {}

  Model model_;
  CpuDecoder decoder_;
};

}  // namespace celer
