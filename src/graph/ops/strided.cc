#include "graph/ops/strided.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "graph/ops/common.h"
#include "kernels/network/elementwise/elementwise.h"

namespace celer::graph {
namespace {

constexpr size_t kMost = Shape::kMaxRank * 2;

// The dimensions of a copy: those of size one are dropped, and neighbours that both sides walk alike are
// coalesced.
struct Copy {
  size_t rank = 0;
  std::array<int64_t, kMost> size{}, in{}, out{};

  void Add(int64_t n, int64_t from, int64_t to) {
    if (rank > 0 && in[rank - 1] == from * n && out[rank - 1] == to * n) {
      size[rank - 1] *= n;
    } else {
      CELER_CHECK(rank < kMost);
      size[rank++] = n;
    }
    in[rank - 1] = from;
    out[rank - 1] = to;
  }
};

// Calls fn(offset in, offset out) for places [begin, end) of the first `rank` dimensions.
template <class Fn>
void ForPlaces(const Copy& c, size_t rank, int64_t begin, int64_t end, const Fn& fn) {
  std::array<int64_t, kMost> index{};
  int64_t at_in = 0, at_out = 0, rest = begin;
  for (size_t i = rank; i-- > 0;) {
    index[i] = rest % c.size[i];
    rest /= c.size[i];
    at_in += index[i] * c.in[i];
    at_out += index[i] * c.out[i];
  }
  for (int64_t place = begin; place < end; ++place) {
    fn(at_in, at_out);
    for (size_t i = rank; i-- > 0;) {
      at_in += c.in[i];
      at_out += c.out[i];
      if (++index[i] < c.size[i]) break;
      at_in -= c.in[i] * c.size[i];
      at_out -= c.out[i] * c.size[i];
      index[i] = 0;
    }
  }
}

int64_t Places(const Copy& c, size_t rank) {
  int64_t places = 1;
  for (size_t i = 0; i < rank; ++i) places *= c.size[i];
  return places;
}

// A blocked transpose: rows of one side are columns of the other, tiles of them at a time, so that cache
// lines of both stay in cache. Elements of four bytes are moved as floats, whatever they are.
bool CopyTransposed(ThreadPool& pool, Copy c, const std::byte* from, std::byte* to) {
  const size_t last = c.rank - 1;
  size_t columns = last;
  for (size_t i = 0; i < last; ++i)
    if (c.in[i] == 1 && c.size[i] > 1) columns = i;
  if (columns == last || c.out[last] != 1) return false;
  // Dimensions in front, then the input's columns, then its rows.
  for (size_t i = columns; i + 1 < last; ++i) {
    std::swap(c.size[i], c.size[i + 1]);
    std::swap(c.in[i], c.in[i + 1]);
    std::swap(c.out[i], c.out[i + 1]);
  }
  constexpr int64_t kBand = 64;
  const size_t col = last - 1;
  const int64_t cols = c.size[col], rows = c.size[last], bands = (cols + kBand - 1) / kBand;
  const float* const a = reinterpret_cast<const float*>(from);
  float* const b = reinterpret_cast<float*>(to);
  Parallel(pool, Places(c, col) * bands, rows * kBand, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      ForPlaces(c, col, i / bands, i / bands + 1, [&](int64_t at_in, int64_t at_out) {
        const int64_t first = i % bands * kBand;
        TransposeBlock(a + at_in + first, rows, std::min(kBand, cols - first), c.in[last],
                       b + at_out + first * c.out[col], c.out[col]);
      });
  });
  return true;
}

}  // namespace

void CopyStrided(ThreadPool& pool, DType dtype, std::span<const int64_t> dims, const std::byte* from,
                 std::span<const int64_t> from_stride, std::byte* to, std::span<const int64_t> to_stride) {
  Copy c;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0) return;
    if (dims[i] > 1) c.Add(dims[i], from_stride[i], to_stride[i]);
  }
  if (c.rank == 0) c.Add(1, 1, 1);
  const size_t last = c.rank - 1;
  if (Info(dtype).block_bytes == 4 && c.rank > 1 && c.in[last] != 1 && CopyTransposed(pool, c, from, to))
    return;
  DispatchSize(dtype, [&]<class T>() {
    const T* const a = reinterpret_cast<const T*>(from);
    T* const b = reinterpret_cast<T*>(to);
    const int64_t length = c.size[last], step_in = c.in[last], step_out = c.out[last];
    if (last == 0 && step_in == 1 && step_out == 1) {  // one block: its pieces are the work
      pool.ParallelFor(length, 32768, [&](int64_t begin, int64_t end) {
        std::memcpy(b + begin, a + begin, static_cast<size_t>(end - begin) * sizeof(T));
      });
      return;
    }
    Parallel(pool, Places(c, last), length, [&](int64_t begin, int64_t end) {
      ForPlaces(c, last, begin, end, [&](int64_t at_in, int64_t at_out) {
        const T* const x = a + at_in;
        T* const y = b + at_out;
        if (step_in == 1 && step_out == 1) {
          std::memcpy(y, x, static_cast<size_t>(length) * sizeof(T));
        } else if (step_out == 1) {
          for (int64_t i = 0; i < length; ++i) y[i] = x[i * step_in];
        } else {
          for (int64_t i = 0; i < length; ++i) y[i * step_out] = x[i * step_in];
        }
      });
    });
  });
}

}  // namespace celer::graph
