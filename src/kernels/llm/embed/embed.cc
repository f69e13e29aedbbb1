#include "kernels/llm/embed/embed.h"

#include "base/check.h"

namespace celer {

void Embed(const EmbedArgs& args) {
  CELER_CHECK(args.pool);
  constexpr int64_t kGrain = 8;  // rows: a few microseconds
  args.pool->ParallelFor(static_cast<int64_t>(args.tokens.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t token = args.tokens[t];
      CELER_CHECK_GE(token, 0);
      CELER_CHECK_LT(token, args.table.rows);
      DecodeWeightRow(args.table, token, args.out + t * args.table.cols);
    }
  });
}

}  // namespace celer
