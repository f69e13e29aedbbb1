// Keys and values of a CPU's layers as a GPU wants them, which computes prompts of these layers in its place
// (models/cuda/host/front.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/llm/batch.h"
#include "models/cuda/host/front_options.h"

namespace celer {

class FrontKv : public HostKv {
 public:
  // Element i of a head's row of keys is element key_order[layer][i] of the CPU's; an empty order changes nothing. The pool
  // must outlive it.
  FrontKv(std::vector<std::vector<int32_t>> key_order, ThreadPool& pool)
      : key_order_(std::move(key_order)), pool_(pool) {}

  // Elements of 16 bits that the GPU can read, in rows of heads that are the same on both sides but for padding.
  static bool Fits(const KvLayerView& kv);
  void set_layers(std::span<const KvLayerView> layers) { layers_ = layers; }

  void Read(int64_t layer, std::span<const int32_t> blocks, std::byte* k, std::byte* v) override;
  void Write(int64_t layer, std::span<const int32_t> blocks, const std::byte* k, const std::byte* v) override;

 private:
  // Calls row(here, there) for each row of a head: of the CPU's pool, and of the GPU's blocks.
  void ForRows(int64_t layer, std::span<const int32_t> blocks, auto&& row) const;

  std::span<const KvLayerView> layers_;
  std::vector<std::vector<int32_t>> key_order_;
  ThreadPool& pool_;
};

}  // namespace celer
