#include "kernels/llm/embed/embed.h"

#include <vector>

#include "base/check.h"
#include "kernels/shared/vec.h"

namespace celer {

void Embed(const EmbedArgs& args) {
  CELER_CHECK(args.pool);
  constexpr int64_t kGrain = 8;  // rows: a few microseconds
  args.pool->ParallelFor(static_cast<int64_t>(args.tokens.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t token = args.tokens[t];
      CELER_CHECK_GE(token, 0);
      CELER_CHECK_LT(token, args.table.rows);
      float* const row = args.out + t * args.table.cols;
      DecodeWeightRow(args.table, token, row);
      if (args.scale != 1)
        for (int64_t i = 0; i < args.table.cols; ++i) row[i] *= args.scale;
    }
  });
}

void AddPositions(const AddPositionsArgs& args) {
  CELER_CHECK(args.pool);
  constexpr int64_t kGrain = 8;
  const int64_t cols = args.table.cols;
  args.pool->ParallelFor(std::ssize(args.positions), kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> row(cols);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = args.positions[t] + args.offset;
      CELER_CHECK_GE(at, 0);
      CELER_CHECK_LT(at, args.table.rows);
      DecodeWeightRow(args.table, at, row.data());
      vec::Axpy(1.0f, row.data(), args.x + t * cols, cols);
    }
  });
}

}  // namespace celer
