// Matrix products in integers: activations become int8 in blocks of 32, weights stay the blocks they are.
// Formats without an integer dot product here go through portable::Matmul.
#include <algorithm>
#include <vector>

#include "kernels/matmul/dot_q8.h"
#include "kernels/matmul/matmul.h"

namespace celer {
namespace {

struct DotTable {
  DotQ8Fn q8_0, q4_0, q4_1;

  DotQ8Fn For(const WeightView& w) const {
    if (w.kind != WeightView::Kind::kStored) return nullptr;
    switch (w.dtype) {
      case DType::kQ8_0:
        return q8_0;
      case DType::kQ4_0:
        return q4_0;
      case DType::kQ4_1:
        return q4_1;
      default:
        return nullptr;
    }
  }
};

void IntegerMatmul(const MatmulArgs& args, const DotTable& table) {
  const DotQ8Fn dot = table.For(args.w);
  if (!dot) return portable::Matmul(args);

  const int64_t cols = args.w.cols, blocks = cols / kQ8Block;
  const int64_t groups = (args.tokens + kQ8Tokens - 1) / kQ8Tokens;
  const auto tokens_in = [&](int64_t group) {
    return std::min<int64_t>(kQ8Tokens, args.tokens - group * kQ8Tokens);
  };

  static thread_local std::vector<Q8Block4>
      scratch;  // grows to the largest batch; every step of a layer comes here
  scratch.resize(static_cast<size_t>(groups * blocks));
  Q8Block4* const x = scratch.data();
  args.pool->ParallelFor(groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g)
      QuantizeActivations(args.x + g * kQ8Tokens * cols, tokens_in(g), cols, x + g * blocks);
  });

  const auto* w = reinterpret_cast<const uint8_t*>(args.w.data);
  args.pool->ParallelFor(args.w.rows, kQ8MaxRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r += kQ8MaxRows) {
      const auto rows = static_cast<int>(std::min<int64_t>(kQ8MaxRows, end - r));
      for (int64_t g = 0; g < groups; ++g) {
        float tile[kQ8Tokens * kQ8MaxRows];
        const auto tokens = static_cast<int>(tokens_in(g));
        dot(w + r * args.w.row_bytes, args.w.row_bytes, rows, x + g * blocks, tokens, blocks, tile);
        StoreTile(args, r, rows, g * kQ8Tokens, tokens, tile, kQ8MaxRows);
      }
    }
  });
}

}  // namespace

#if defined(__aarch64__)
void arm::MatmulDotprod(const MatmulArgs& args) {
  IntegerMatmul(args, {arm::DotQ8_0, arm::DotQ4_0, arm::DotQ4_1});
}
#elif defined(__x86_64__)
void x86::MatmulAvx2(const MatmulArgs& args) {
  IntegerMatmul(args, {x86::DotQ8_0, x86::DotQ4_0, x86::DotQ4_1});
}
#endif

}  // namespace celer
