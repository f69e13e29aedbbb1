#include "graph/ops/common.h"
#include "graph/ops/fast.h"
#include "kernels/gemm/gemm.h"

namespace celer::graph {
namespace {

struct State {
  GemmArgs args;  // without the run's pointers
  PackCache::Packed b;
};

// Batches that lie at equal distances: those of b are all there, or one.
std::optional<GemmArgs> MatMulArgs(const InferContext& c) {
  const Shape &a = c.shape(0), &b = c.shape(1);
  if (a.rank() < 2 || b.rank() < 2 || c.elements(0) == 0 || c.elements(1) == 0) return std::nullopt;
  GemmArgs args{.m = a[a.rank() - 2], .n = b[b.rank() - 1], .k = a[a.rank() - 1]};
  const int64_t a_count = Product(a, 0, a.rank() - 2), b_count = Product(b, 0, b.rank() - 2);
  if (b_count == 1) {
    args.m *= a_count;  // one matrix meets all rows
  } else {
    const bool same =
        a.rank() == b.rank() && std::equal(a.dims().begin(), a.dims().end() - 2, b.dims().begin());
    if (!same) return std::nullopt;
    args.batch = a_count;
  }
  args.a = GemmOperand::Rows(nullptr, args.k, args.m * args.k);
  args.b = GemmOperand::Rows(nullptr, args.n, args.k * args.n);
  args.out_stride = args.n;
  args.out_batch_stride = args.m * args.n;
  return args;
}

std::optional<GemmArgs> GemmArgsOf(const InferContext& c) {
  if (c.shape(0).rank() != 2 || c.elements(0) == 0 || c.elements(1) == 0) return std::nullopt;
  const bool ta = c.node.Int("transA", 0) != 0, tb = c.node.Int("transB", 0) != 0;
  if (c.node.Float("alpha", 1) != 1) return std::nullopt;
  GemmArgs args{.m = c.shape(0)[ta ? 1 : 0], .n = c.shape(1)[tb ? 0 : 1], .k = c.shape(0)[ta ? 0 : 1]};
  args.a = ta ? GemmOperand::Transposed(nullptr, args.m) : GemmOperand::Rows(nullptr, args.k);
  args.b = tb ? GemmOperand::Transposed(nullptr, args.k) : GemmOperand::Rows(nullptr, args.n);
  args.out_stride = args.n;
  if (c.has(2)) {
    if (c.node.Float("beta", 1) != 1 || c.elements(2) != args.n ||
        c.shape(2)[c.shape(2).rank() - 1] != args.n)
      return std::nullopt;
  }
  return args;
}

Prepared Prepare(const InferContext& c, GemmArgs args, int threads, PackCache& packs) {
  auto state = std::make_shared<State>();
  if (c.known(1) && args.batch == 1) {
    const GemmOperand from = [&] {
      GemmOperand b = args.b;
      b.data = c.in(1).as<float>();
      return b;
    }();
    state->b = packs.Get(c.in(1).data, "gemm " + std::to_string(args.b.row_stride), [&] {
      AlignedVector<float> packed(static_cast<size_t>(GemmPackedBFloats(args.k, args.n)));
      GemmPackB(from, args.k, args.n, packed.data());
      return packed;
    });
    args.b = GemmOperand::Packed(state->b->data());
  }
  state->args = args;
  const int64_t workspace = GemmWorkspaceFloats(args, threads) * static_cast<int64_t>(sizeof(float));
  return {std::move(state), workspace};
}

Status Run(KernelContext& c, bool bias) {
  const auto& state = *static_cast<const State*>(c.state);
  GemmArgs args = state.args;
  args.a.data = c.in(0).as<float>();
  if (!args.b.packed) args.b.data = c.in(1).as<float>();
  if (bias && c.has(2)) args.epilogue.col_bias = c.in(2).as<float>();
  args.out = c.out(0).as<float>();
  args.workspace = reinterpret_cast<float*>(c.workspace);
  args.pool = &c.pool;
  celer::Gemm(args);
  return {};
}

}  // namespace

bool MatMulFits(const InferContext& c) {
  return c.dtype(0) == DType::kF32 && MatMulArgs(c).has_value();
}
Prepared PrepareMatMul(const InferContext& c, int threads, PackCache& packs) {
  return Prepare(c, *MatMulArgs(c), threads, packs);
}
Status RunMatMul(KernelContext& c) {
  return Run(c, false);
}

bool GemmFits(const InferContext& c) {
  return c.dtype(0) == DType::kF32 && GemmArgsOf(c).has_value();
}
Prepared PrepareGemm(const InferContext& c, int threads, PackCache& packs) {
  return Prepare(c, *GemmArgsOf(c), threads, packs);
}
Status RunGemm(KernelContext& c) {
  return Run(c, true);
}

}  // namespace celer::graph
