#include "kernels/resize/resize.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace celer {
namespace {

// Every element twice: most upsampling is that.
bool IsDoubling(const ResizeAxis& axis) {
  for (int64_t i = 0; i < axis.size(); ++i)
    if (axis.first[static_cast<size_t>(i)] != i / 2) return false;
  return axis.nearest() && axis.size() % 2 == 0;
}

void NearestRow(const float* in, const ResizeAxis& x, bool doubling, float* out) {
  const int64_t n = x.size();
  if (doubling) {
    for (int64_t i = 0; i < n / 2; ++i) out[2 * i] = out[2 * i + 1] = in[i];
    return;
  }
  const int32_t* const from = x.first.data();
  for (int64_t i = 0; i < n; ++i) out[i] = in[from[i]];
}

void LinearRow(const float* above, const float* below, float down, const ResizeAxis& x, float* out) {
  const int32_t *const first = x.first.data(), *const second = x.second.data();
  const float* const right = x.weight.data();
  for (int64_t i = 0; i < x.size(); ++i) {
    const float a = above[first[i]] + right[i] * (above[second[i]] - above[first[i]]);
    const float b = below[first[i]] + right[i] * (below[second[i]] - below[first[i]]);
    out[i] = a + down * (b - a);
  }
}

}  // namespace

void ResizePlanes(const float* in, int64_t planes, int64_t in_h, int64_t in_w, const ResizeAxis& y,
                  const ResizeAxis& x, float* out, ThreadPool& pool) {
  CELER_CHECK_EQ(y.nearest(), x.nearest());
  const int64_t h = y.size(), w = x.size();
  if (planes * h * w == 0) return;
  const bool doubling = IsDoubling(x);
  const int64_t grain = std::max<int64_t>((16 << 10) / w, 1);
  pool.ParallelFor(planes * h, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = r % h;
      const auto i = static_cast<size_t>(row);
      const float* const plane = in + r / h * in_h * in_w;
      float* const to = out + r * w;
      if (!y.nearest())
        LinearRow(plane + y.first[i] * in_w, plane + y.second[i] * in_w, y.weight[i], x, to);
      else if (r > begin && row > 0 && y.first[i] == y.first[i - 1])
        std::memcpy(to, to - w, static_cast<size_t>(w) * sizeof(float));
      else
        NearestRow(plane + y.first[i] * in_w, x, doubling, to);
    }
  });
}

}  // namespace celer
