// What every other variant is tested against: decode a row, multiply, add in double.
#include <vector>

#include "kernels/matmul/matmul.h"

namespace celer::reference {

void Matmul(const MatmulArgs& args) {
  const int64_t cols = args.w.cols;
  args.pool->ParallelFor(args.w.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      DecodeWeightRow(args.w, r, row.data());
      for (int64_t t = 0; t < args.tokens; ++t) {
        double sum = args.bias ? args.bias[r] : 0.0;
        for (int64_t c = 0; c < cols; ++c)
          sum += double{args.x[t * cols + c]} * double{row[static_cast<size_t>(c)]};
        if (args.residual) sum += args.residual[t * args.out_stride + r];
        args.out[t * args.out_stride + r] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace celer::reference
