#include "models/lora/lora.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"
#include "models/lora/lora_adapter.h"

namespace celer {

const LoraInfo& InfoOf(const LoraAdapter& adapter) {
  return adapter.info();
}

Result<std::shared_ptr<const LoraMix>> LoraMix::Make(std::vector<LoraUse> uses) {
  const std::shared_ptr<LoraMix> mix(new LoraMix());
  for (LoraUse& use : uses) {
    CELER_CHECK(use.adapter);
    const LoraInfo& info = InfoOf(*use.adapter);
    if (!std::isfinite(use.scale))
      return Error::Invalid("the scale of adapter '", info.name, "' is ", use.scale,
                            ", expected a finite number");
    if (use.scale == 0) continue;
    mix->key_ += fmt::format("{}{}*{}", mix->key_.empty() ? "" : "+", info.content, use.scale);
    mix->uses_.push_back(std::move(use));
  }
  return mix->uses_.empty() ? nullptr : std::shared_ptr<const LoraMix>(mix);
}

}  // namespace celer
