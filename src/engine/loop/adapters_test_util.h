// For tests: adapters that change nothing but what the engine knows of them.
#pragma once

#include <memory>
#include <type_traits>

#include "models/lora/lora_adapter.h"

namespace celer {

template <class Adapter = LoraAdapter>
std::shared_ptr<const LoraAdapter> MakeEmptyLora(const LoraInfo& info) {
  if constexpr (std::is_constructible_v<Adapter, LoraInfo>)
    return std::make_shared<const Adapter>(info);
  else
    return std::shared_ptr<const Adapter>(new Adapter(info, {}));
}

}  // namespace celer
