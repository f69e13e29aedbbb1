#include "engine/kv/state_cache.h"

#include <algorithm>

#include "base/check.h"
#include "base/safe_math.h"
#include "models/recurrent_state.h"

namespace celer {

Result<StateCache> StateCache::Make(const RecurrentConfig& config, int64_t slots, Allocator& allocator) {
  StateCache cache;
  if (config.layer.empty()) return cache;
  cache.slots_ = slots;
  cache.stride_ = StateFloats(config);
  const auto bytes = CheckedMul(slots, cache.stride_ * static_cast<int64_t>(sizeof(float)));
  if (!bytes) return Error::Invalid(slots, " states of sequences are more than any memory");
  for (const bool recurrent : config.layer) {
    cache.layers_.push_back(nullptr);
    if (!recurrent) continue;
    CELER_ASSIGN(Buffer buffer, Buffer::Allocate(allocator, static_cast<size_t>(*bytes)));
    cache.layers_.back() = reinterpret_cast<float*>(buffer.data());
    cache.buffers_.push_back(std::move(buffer));
  }
  return cache;
}

void StateCache::Copy(std::span<const BlockCopy> copies) {
  for (const auto& [from, to] : copies) {
    CELER_CHECK(from >= 0 && from < slots_ && to >= 0 && to < slots_);
    for (float* const layer : layers_)
      if (layer) std::copy_n(layer + from * stride_, stride_, layer + to * stride_);
  }
}

}  // namespace celer
