// Which tensors a file of a model has, out of its configuration alone: names, shapes, and what is in them. Nothing is
// listed twice: it is what the loader asks for, and the family's TensorRules the other way round.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/shape.h"
#include "models/config/decoder_config.h"
#include "weights/weight_plan.h"

namespace celer {

enum class ModelContainer : uint8_t { kHf, kGguf };

// What the loader takes for one part of a model.
struct ModelPart {
  std::string name;  // as in PartNames of the container
  // Its name in Hugging Face's container, whatever the file's, so that parts of two containers can be matched. Of a stack
  // "#" stands for the number of a matrix.
  std::string key;
  Shape shape;  // [rows, cols], of stacks [count, rows, cols]; [n]
};

struct FileTensor {
  std::string name;
  Shape shape;
  // kVector: floats, among them tables of a few rows. GGUF files have routers as floats, too.
  WeightRole role = WeightRole::kProjection;
  // In each of `groups` equal groups the rows of the parts, one part after the other; their elements if the role is
  // kVector. Of a stack of experts, the parts of its first matrix, then those of the second one, unless the parts are
  // stacks themselves.
  std::vector<ModelPart> parts;
  int64_t groups = 1;
  int64_t stacked = 0;      // matrices whose parts are apart
  bool transposed = false;  // each matrix
  bool minus_one = false;   // the file has the values less one
  bool optional = false;    // a model may be without it
};

// An error for a family that has no files of that container.
Result<std::vector<FileTensor>> FileTensors(const DecoderConfig& config, ModelContainer container);

}  // namespace celer
