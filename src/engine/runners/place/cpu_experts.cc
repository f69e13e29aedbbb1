#include "engine/runners/place/cpu_experts.h"

#include <algorithm>
#include <string_view>

#include "models/step_work.h"

namespace celer {

Result<std::unique_ptr<CpuExperts>> CpuExperts::Load(const EngineOptions& options, const LayerRange& layers,
                                                     ThreadPool& pool) {
  CELER_ASSIGN(Model model, Model::Load(options.model,
                                        {.weights = options.weights,
                                         .pack_cache = options.pack_cache,
                                         .layers = layers,
                                         .experts_alone = true},
                                        pool));
  return std::unique_ptr<CpuExperts>(new CpuExperts(std::move(model), pool));
}

int64_t CpuExperts::sparse_layers() const {
  int64_t count = 0;
  for (int64_t i = 0; i < layers(); ++i) count += model_.config().IsSparse(i);
  return count;
}

std::vector<OperatorWork> CpuExperts::Work(const StepShape& shape) const {
  constexpr int64_t kNoKeys = 1;  // they keep none; what is counted for attention is left out below
  std::vector<OperatorWork> work = CountStep(model_.config(), MatricesOf(model_.weights()), kNoKeys, shape);
  std::erase_if(work, [](const OperatorWork& each) { return each.name != std::string_view(Name(Op::kMoe)); });
  return work;
}

}  // namespace celer
