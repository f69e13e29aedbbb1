// A quantized matrix of a published checkpoint, in an encoding that is spread over several tensors. Its rows
// are decoded lazily, losslessly, into a format that kernels read. src/weights/published has the codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/weight_format.h"
#include "io/file/tensor_record.h"

namespace celer {

class CodedTensor {
 public:
  CodedTensor() = default;
  CodedTensor(const CodedTensor&) = delete;
  CodedTensor& operator=(const CodedTensor&) = delete;
  virtual ~CodedTensor() = default;

  std::string name = {};         // "model.layers.0.mlp.up_proj.weight"
  int64_t count = 1;             // matrices of one shape in it: the experts of a layer
  int64_t rows = 0, cols = 0;    // of each
  std::string scheme = {};       // how the file holds it: "gptq int4-g128"
  bool plain = false;            // it holds the numbers themselves, in other places
  WeightFormatSpec format = {};  // what its rows become
  std::string note = {};         // why that takes more bits than the file; empty if it does not
  std::string warning = {};      // what is odd about the file; empty if nothing is
  std::vector<const TensorRecord*> parts = {};  // in the file; the first has the values
  int64_t stored_bytes = 0;                     // of the parts, where they hold other matrices too; else 0

  // Row `row` of count * rows; `scales` has format.ScaleBytes(cols). Thread-safe.
  virtual void Row(int64_t row, std::byte* values, void* scales) const = 0;
};

}  // namespace celer
