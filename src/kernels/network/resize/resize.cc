#include "kernels/network/resize/resize.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/float16.h"

namespace celer {
namespace {

// Every element twice: most upsampling is that.
bool IsDoubling(const ResizeAxis& axis) {
  for (int64_t i = 0; i < axis.size(); ++i)
    if (axis.first[i] != i / 2) return false;
  return axis.nearest() && axis.size() % 2 == 0;
}

template <class T>
void NearestRow(const T* in, const ResizeAxis& x, bool doubling, T* out) {
  const int64_t n = x.size();
  if (doubling) {
    for (int64_t i = 0; i < n / 2; ++i) out[2 * i] = out[2 * i + 1] = in[i];
    return;
  }
  const int32_t* const from = x.first.data();
  for (int64_t i = 0; i < n; ++i) out[i] = in[from[i]];
}

float Get(float x) {
  return x;
}
float Get(F16 x) {
  return F16ToFloat(x.bits);
}
void Put(float& to, float x) {
  to = x;
}
void Put(F16& to, float x) {
  to.bits = FloatToF16(x);
}

template <class T>
void LinearRow(const T* above, const T* below, float down, const ResizeAxis& x, T* out) {
  const int32_t *const first = x.first.data(), *const second = x.second.data();
  const float* const right = x.weight.data();
  for (int64_t i = 0; i < x.size(); ++i) {
    const float a0 = Get(above[first[i]]), b0 = Get(below[first[i]]);
    const float a = a0 + right[i] * (Get(above[second[i]]) - a0);
    const float b = b0 + right[i] * (Get(below[second[i]]) - b0);
    Put(out[i], a + down * (b - a));
  }
}

template <class T>
void Resize(const T* in, int64_t planes, int64_t in_h, int64_t in_w, const ResizeAxis& y, const ResizeAxis& x,
            T* out, ThreadPool& pool) {
  CELER_CHECK_EQ(y.nearest(), x.nearest());
  const int64_t h = y.size(), w = x.size();
  if (planes * h * w == 0) return;
  const bool doubling = IsDoubling(x);
  const int64_t grain = std::max<int64_t>((16 << 10) / w, 1);
  pool.ParallelFor(planes * h, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = r % h;
      const auto i = static_cast<size_t>(row);
      const T* const plane = in + r / h * in_h * in_w;
      T* const to = out + r * w;
      if (!y.nearest())
        LinearRow(plane + y.first[i] * in_w, plane + y.second[i] * in_w, y.weight[i], x, to);
      else if (r > begin && row > 0 && y.first[i] == y.first[i - 1])
        std::memcpy(to, to - w, static_cast<size_t>(w) * sizeof(T));
      else
        NearestRow(plane + y.first[i] * in_w, x, doubling, to);
    }
  });
}

}  // namespace

void ResizePlanes(const float* in, int64_t planes, int64_t in_h, int64_t in_w, const ResizeAxis& y,
                  const ResizeAxis& x, float* out, ThreadPool& pool) {
  Resize(in, planes, in_h, in_w, y, x, out, pool);
}
void ResizePlanes(const F16* in, int64_t planes, int64_t in_h, int64_t in_w, const ResizeAxis& y,
                  const ResizeAxis& x, F16* out, ThreadPool& pool) {
  Resize(in, planes, in_h, in_w, y, x, out, pool);
}

}  // namespace celer
