#include "base/shape.h"

#include <algorithm>

#include "base/check.h"
#include "base/safe_math.h"

namespace celer {

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  CELER_CHECK_LE(dims.size(), static_cast<size_t>(kMaxRank));
  for (const int64_t dim : dims) CELER_CHECK_GE(dim, 0);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::optional<int64_t> Shape::elements() const {
  int64_t product = 1;
  for (const int64_t dim : dims()) {
    const auto next = CheckedMul(product, dim);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

std::string Shape::ToString() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string((*this)[i]);
  return out + "]";
}

bool Shape::operator==(const Shape& other) const {
  return std::equal(dims().begin(), dims().end(), other.dims().begin(), other.dims().end());
}

}  // namespace celer
