#include "models/load/request_list.h"

#include <algorithm>

namespace celer {
namespace {

constexpr int64_t kMostFloats = int64_t{1} << 28;  // of a vector; above, a configuration is absurd

}  // namespace

Result<WeightView> RequestList::Matrix(const std::string& name, int64_t rows, int64_t cols) {
  Add(name, {rows, cols}, false);
  return WeightView{.rows = rows, .cols = cols};
}

Result<std::vector<WeightView>> RequestList::Stack(const std::string& name, int64_t count, int64_t rows,
                                                   int64_t cols) {
  Add(name, {count, rows, cols}, false);
  return std::vector<WeightView>(count, WeightView{.rows = rows, .cols = cols});
}

Result<WeightView> RequestList::Heads(const std::string& name, int64_t heads, int64_t rows, int64_t cols,
                                      const HeadPart& part) {
  if (part.count == rows)  // nothing but this part, which is a stack
    Add(name, {heads, rows, cols}, false);
  else
    Add(name, {heads * rows, cols}, false);
  return WeightView{.rows = heads * (part.turned ? cols : part.count)};
}

Result<const float*> RequestList::Vector(const std::string& name, int64_t n, bool required) {
  Add(name, {n}, true, !required);
  return Zeros(name, n);
}

Result<const float*> RequestList::ScaledVector(const std::string& name, int64_t n, float) {
  return Vector(name, n, true);
}

Result<const float*> RequestList::Table(const std::string& name, int64_t rows, int64_t cols) {
  const size_t dot = std::min(name.rfind('.'), name.size());
  const auto row = [&](int64_t r) {
    return name.substr(0, dot) + "." + std::to_string(r) + name.substr(dot);
  };
  if (!has_row_(row(0)))
    Add(name, {rows, cols}, true);
  else
    for (int64_t r = 0; r < rows; ++r) Add(row(r), {cols}, true);
  return Zeros(name, rows * cols);
}

void RequestList::Add(const std::string& name, Shape shape, bool vector, bool optional) {
  requests_.push_back({{name, name, shape}, vector, optional});
}

Result<const float*> RequestList::Zeros(const std::string& name, int64_t n) {
  if (n > kMostFloats)
    return Error::Unsupported("'", name, "' would have ", n, " numbers, at most ", kMostFloats,
                              " are supported");
  if (zeros_.empty() || std::ssize(zeros_.back()) < n) zeros_.emplace_back(n);
  return zeros_.back().data();
}

}  // namespace celer
