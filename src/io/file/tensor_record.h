// One named tensor as it lies in a file, and how tensors are handed to a writer.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "base/shape.h"

namespace celer {

struct TensorRecord {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;                       // outermost first: [rows, cols]
  std::span<const std::byte> bytes;  // exactly BytesFor(dtype, shape); NOT aligned: read it with memcpy
};

// A tensor that is still to be written.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Takes the next bytes of the tensor being written; together they must be exactly the tensor's bytes.
using TensorSink = std::function<Status(std::span<const std::byte>)>;

// Called once per tensor, in order; writes its data to the sink in pieces of any size.
using TensorFill = std::function<Status(const TensorSpec&, const TensorSink&)>;

}  // namespace celer
