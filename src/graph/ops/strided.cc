#include "graph/ops/strided.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "graph/ops/common.h"

namespace celer::graph {

void CopyStrided(ThreadPool& pool, DType dtype, std::span<const int64_t> dims, const std::byte* from,
                 std::span<const int64_t> from_stride, std::byte* to, std::span<const int64_t> to_stride) {
  // Dimensions of one are left out, and neighbours that both sides walk alike are merged.
  std::vector<int64_t> size, in, out;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0) return;
    if (dims[i] == 1) continue;
    if (!size.empty() && in.back() == from_stride[i] * dims[i] && out.back() == to_stride[i] * dims[i]) {
      size.back() *= dims[i];
      in.back() = from_stride[i];
      out.back() = to_stride[i];
    } else {
      size.push_back(dims[i]);
      in.push_back(from_stride[i]);
      out.push_back(to_stride[i]);
    }
  }
  if (size.empty()) {
    size.push_back(1);
    in.push_back(1);
    out.push_back(1);
  }
  const size_t last = size.size() - 1;
  const int64_t length = size[last], rows = Product(size, 0, last);
  DispatchSize(dtype, [&]<class T>() {
    const T* const a = reinterpret_cast<const T*>(from);
    T* const b = reinterpret_cast<T*>(to);
    const int64_t step_in = in[last], step_out = out[last];
    Parallel(pool, rows, length, [&](int64_t begin, int64_t end) {
      std::array<int64_t, Shape::kMaxRank * 2> index{};
      int64_t at_in = 0, at_out = 0, rest = begin;
      for (size_t i = last; i-- > 0;) {
        index[i] = rest % size[i];
        rest /= size[i];
        at_in += index[i] * in[i];
        at_out += index[i] * out[i];
      }
      for (int64_t row = begin; row < end; ++row) {
        const T* const x = a + at_in;
        T* const y = b + at_out;
        if (step_in == 1 && step_out == 1) {
          std::memcpy(y, x, static_cast<size_t>(length) * sizeof(T));
        } else if (step_out == 1) {
          for (int64_t i = 0; i < length; ++i) y[i] = x[i * step_in];
        } else {
          for (int64_t i = 0; i < length; ++i) y[i * step_out] = x[i * step_in];
        }
        for (size_t i = last; i-- > 0;) {
          at_in += in[i];
          at_out += out[i];
          if (++index[i] < size[i]) break;
          at_in -= in[i] * size[i];
          at_out -= out[i] * size[i];
          index[i] = 0;
        }
      }
    });
  });
}

}  // namespace celer::graph
