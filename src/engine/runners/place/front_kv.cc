#include "engine/runners/place/front_kv.h"

#include <algorithm>
#include <cstring>

namespace celer {
namespace {

constexpr int64_t kUnit = 8;  // elements of 16 bits in 16 bytes, of which rows on the GPU are multiples

int64_t Padded(const KvLayerView& kv) {
  return (kv.head_dim + kUnit - 1) / kUnit * kUnit;
}

}  // namespace

bool FrontKv::Fits(const KvLayerView& kv) {
  return (kv.dtype == DType::kF16 || kv.dtype == DType::kBf16) && kv.block_size == kKvBlockTokens;
}

void FrontKv::ForRows(int64_t layer, std::span<const int32_t> blocks, auto&& row) const {
  const KvLayerView& kv = layers_[static_cast<size_t>(layer)];
  pool_.ParallelFor(std::ssize(blocks), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t head = 0; head < kv.kv_heads; ++head)
        for (int64_t slot = 0; slot < kv.block_size; ++slot)
          row(kv, kv.RowOffset(blocks[static_cast<size_t>(b)], head, slot),
              ((b * kv.kv_heads + head) * kv.block_size + slot) * Padded(kv) * 2);
  });
}

void FrontKv::Read(int64_t layer, std::span<const int32_t> blocks, std::byte* k, std::byte* v) {
  const std::vector<int32_t>& order = key_order_[static_cast<size_t>(layer)];
  ForRows(layer, blocks, [&](const KvLayerView& kv, int64_t here, int64_t there) {
    const auto bytes = static_cast<size_t>(kv.RowBytes()),
               padding = static_cast<size_t>(Padded(kv) * 2) - bytes;
    std::memcpy(v + there, kv.v + here, bytes);
    std::memset(v + there + bytes, 0, padding);
    std::memset(k + there + bytes, 0, padding);
    if (order.empty()) {
      std::memcpy(k + there, kv.k + here, bytes);
      return;
    }
    const auto* const from = reinterpret_cast<const uint16_t*>(kv.k + here);
    auto* const to = reinterpret_cast<uint16_t*>(k + there);
    for (int64_t i = 0; i < kv.head_dim; ++i) to[i] = from[order[static_cast<size_t>(i)]];
  });
}

void FrontKv::Write(int64_t layer, std::span<const int32_t> blocks, const std::byte* k, const std::byte* v) {
  const std::vector<int32_t>& order = key_order_[static_cast<size_t>(layer)];
  ForRows(layer, blocks, [&](const KvLayerView& kv, int64_t here, int64_t there) {
    const auto bytes = static_cast<size_t>(kv.RowBytes());
    std::memcpy(kv.v + here, v + there, bytes);
    if (order.empty()) {
      std::memcpy(kv.k + here, k + there, bytes);
      return;
    }
    const auto* const from = reinterpret_cast<const uint16_t*>(k + there);
    auto* const to = reinterpret_cast<uint16_t*>(kv.k + here);
    for (int64_t i = 0; i < kv.head_dim; ++i) to[order[static_cast<size_t>(i)]] = from[i];
  });
}

}  // namespace celer
