#include "kernels/embed/embed.h"

#include "core/check.h"

namespace celer {

void Embed(const EmbedArgs& args) {
  for (size_t t = 0; t < args.tokens.size(); ++t) {
    CELER_CHECK_GE(args.tokens[t], 0);
    CELER_CHECK_LT(args.tokens[t], args.table.rows);
    DecodeWeightRow(args.table, args.tokens[t], args.out + static_cast<int64_t>(t) * args.table.cols);
  }
}

}  // namespace celer
