#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "graph/ir/ir.h"

namespace celer::ptq {

template <class T>
graph::Constant MakeConstant(DType dtype, const Shape& shape, std::vector<T> numbers) {
  auto copy = std::make_shared<std::vector<T>>(std::move(numbers));
  const auto bytes = std::as_bytes(std::span<const T>(*copy));
  return {dtype, shape, bytes, std::move(copy)};
}

}  // namespace celer::ptq
