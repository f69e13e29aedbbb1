// An adapter as data: small matrices by the place in the model that they belong to, with rows and columns in the model's
// own order. Nothing of a device: each makes its own of it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "models/lora/lora.h"
#include "models/lora/places.h"

namespace celer {

// What an adapter makes of W x at one place: row_scale * (W x + B A x) + shift, or whole x + shift. The adapter's own
// scale (alpha over rank) is in B.
struct LoraMatrix {
  PlacedMatrix at = {};
  std::string module = {};  // as the adapter's file calls it
  int64_t rank = 0;         // 0: nothing is added to W
  // [rank, cols], shared by the parts of a fused module; of the embedding, which is looked up, [cols, rank] with a
  // row for each token.
  std::shared_ptr<const std::vector<float>> a = {};
  std::vector<float> b = {};          // [rank, rows]: the columns of B
  std::vector<float> row_scale = {};  // [rows], of DoRA; or none
  std::vector<float> shift = {};      // [rows]; or none
  DType whole_dtype = DType::kF32;
  std::vector<std::byte> whole = {};  // [rows, cols]; or none. Of the embedding [tokens, width]
};

// Of an array of an adapter in the memory of a GPU, in bytes; its rows are padded to kLoraPad numbers.
inline constexpr int64_t kLoraAlign = 256, kLoraPad = 4;

class LoraAdapter {
 public:
  LoraAdapter(LoraInfo info, std::vector<LoraMatrix> matrices);

  const LoraInfo& info() const { return info_; }
  const std::vector<LoraMatrix>& matrices() const { return matrices_; }  // each place once
  int64_t device_bytes() const { return device_bytes_; }                 // DeviceBytesOf()

 private:
  LoraInfo info_;
  std::vector<LoraMatrix> matrices_;
  int64_t device_bytes_;
};

}  // namespace celer
