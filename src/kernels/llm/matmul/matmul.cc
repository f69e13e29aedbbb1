#include "kernels/llm/matmul/matmul.h"

#include "base/check.h"

namespace celer {
namespace {

constexpr MatmulVariant kMatmul[] = {
// best first; the first that can run here wins
#if defined(__aarch64__)
    {"arm_i8mm", Isa::kArmI8mm, &kMatmulArmI8mm},
    {"arm_dotprod", Isa::kArmDotprod, &kMatmulArmDotprod},
#elif defined(__x86_64__)
    {"x86_amx", Isa::kAmx, &kMatmulX86Amx},
    {"x86_vnni", Isa::kVnni, &kMatmulX86Vnni},
    {"x86_avxvnni", Isa::kAvxVnni, &kMatmulX86AvxVnni},
    {"x86_avx2", Isa::kAvx2, &kMatmulX86Avx2},
#endif
    {"portable", Isa::kBaseline, &kMatmulPortable},
    {"reference", Isa::kBaseline, &kMatmulReference},
};

}  // namespace

std::span<const MatmulVariant> MatmulVariants() {
  return kMatmul;
}

const MatmulKernels& ChosenMatmul() {
  static const MatmulKernels& chosen = *Pick<const MatmulKernels*>("matmul", kMatmul)->run;
  return chosen;
}

void Matmul(const MatmulArgs& args) {
  CELER_CHECK(args.pool && !args.outputs.empty());
  const MatmulKernels* kernels = nullptr;
  for (const MatmulOutput& to : args.outputs) {
    CELER_CHECK(to.w && to.out);
    CELER_CHECK_EQ(to.w.cols, args.outputs[0].w.cols);
    CELER_CHECK_GE(to.out_stride, to.w.rows);
    if (to.w.packed) {
      CELER_CHECK(to.w.packed_for);
      if (kernels) CELER_CHECK_EQ(to.w.packed_for->name, kernels->name);
      kernels = to.w.packed_for;
    }
    if (args.finish) CELER_CHECK(to.w.rows == args.outputs[0].w.rows && !to.bias && !to.residual);
  }
  if (args.finish) CELER_CHECK_LE(args.outputs.size(), size_t{MatmulTile::kOutputs});
  if (args.tokens > 0) (kernels ? *kernels : ChosenMatmul()).run(args);
}

WeightView PackedView(WeightView w, const MatmulKernels& kernels, const std::byte* packed) {
  w.packed = nullptr;  // so that the grid is that of a whole matrix
  w.packed_group_bytes = kernels.grid(w).group_bytes;
  w.packed_for = &kernels;
  w.packed = packed;
  return w;
}

void Matmul(MatmulArgs args, const MatmulOutput& output) {
  args.outputs = {&output, 1};
  Matmul(args);
}

}  // namespace celer
