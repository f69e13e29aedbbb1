#include "kernels/matmul/matmul.h"

#include "core/check.h"

namespace celer {
namespace {

constexpr Variant<MatmulFn> kMatmul[] = {
// best first; the first that can run here wins
#if defined(__aarch64__)
    {"arm_dotprod", Isa::kArmDotprod, arm::MatmulDotprod},
#elif defined(__x86_64__)
    {"x86_avx2", Isa::kAvx2, x86::MatmulAvx2},
#endif
    {"portable", Isa::kBaseline, portable::Matmul},
    {"reference", Isa::kBaseline, reference::Matmul},
};

}  // namespace

std::span<const Variant<MatmulFn>> MatmulVariants() {
  return kMatmul;
}

void Matmul(const MatmulArgs& args) {
  static const MatmulFn run = Pick<MatmulFn>("matmul", kMatmul)->run;
  CELER_CHECK(args.w && args.pool);
  CELER_CHECK_GE(args.out_stride, args.w.rows);
  if (args.tokens > 0) run(args);
}

}  // namespace celer
