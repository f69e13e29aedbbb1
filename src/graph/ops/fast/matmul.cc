#include "base/safe_math.h"
#include "graph/ops/common.h"
#include "graph/ops/fast/fast.h"
#include "kernels/network/dense_attention/dense_attention.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer::graph {
namespace {

template <class T>
struct GemmState {
  BasicGemmArgs<T> args;  // without the run's pointers
  PackCache::Packed b;
};

// Batches that lie at equal distances: those of b are all there, or one.
template <class T>
std::optional<BasicGemmArgs<T>> MatMulArgs(const InferContext& c) {
  const Shape &a = c.shape(0), &b = c.shape(1);
  if (a.rank() < 2 || b.rank() < 2 || c.elements(0) == 0 || c.elements(1) == 0) return std::nullopt;
  BasicGemmArgs<T> args{.m = a[a.rank() - 2], .n = b[b.rank() - 1], .k = a[a.rank() - 1]};
  const int64_t a_count = Product(a, 0, a.rank() - 2), b_count = Product(b, 0, b.rank() - 2);
  if (b_count == 1) {
    if (b.rank() > a.rank()) return std::nullopt;
    args.m *= a_count;  // one matrix meets all rows
  } else {
    const bool same =
        a.rank() == b.rank() && std::equal(a.dims().begin(), a.dims().end() - 2, b.dims().begin());
    if (!same) return std::nullopt;
    args.batch = a_count;
  }
  args.a = BasicGemmOperand<T>::Rows(nullptr, args.k, args.m * args.k);
  args.b = BasicGemmOperand<T>::Rows(nullptr, args.n, args.k * args.n);
  args.out_stride = args.n;
  args.out_batch_stride = args.m * args.n;
  return args;
}

template <class T>
std::optional<BasicGemmArgs<T>> GemmArgsOf(const InferContext& c) {
  if (c.shape(0).rank() != 2 || c.elements(0) == 0 || c.elements(1) == 0) return std::nullopt;
  const bool ta = c.node.Int("transA", 0) != 0, tb = c.node.Int("transB", 0) != 0;
  if (c.node.Float("alpha", 1) != 1) return std::nullopt;
  BasicGemmArgs<T> args{
      .m = c.shape(0)[ta ? 1 : 0], .n = c.shape(1)[tb ? 0 : 1], .k = c.shape(0)[ta ? 0 : 1]};
  args.a = ta ? BasicGemmOperand<T>::Transposed(nullptr, args.m) : BasicGemmOperand<T>::Rows(nullptr, args.k);
  args.b = tb ? BasicGemmOperand<T>::Transposed(nullptr, args.k) : BasicGemmOperand<T>::Rows(nullptr, args.n);
  args.out_stride = args.n;
  if (c.has(2)) {
    if (c.node.Float("beta", 1) != 1 || c.elements(2) != args.n ||
        (c.shape(2).rank() > 0 && c.shape(2)[c.shape(2).rank() - 1] != args.n))
      return std::nullopt;
  }
  return args;
}

// With a bias per column, and an addend that is like the result.
template <class T>
std::optional<BasicGemmArgs<T>> FusedArgs(const InferContext& c) {
  auto args = c.node.Int("transB", 0) != 0 ? GemmArgsOf<T>(c) : MatMulArgs<T>(c);
  if (!args || (c.has(2) && (c.dtype(2) != DType::kF32 || c.elements(2) != args->n))) return std::nullopt;
  if (c.has(3)) {
    const auto shape = MatMulOutputShape(c);
    if (!shape || !(*shape == c.shape(3))) return std::nullopt;
    args->epilogue.add_stride = args->n;
    args->add_batch_stride = args->out_batch_stride;
  }
  args->epilogue.f = ActivationOf(c.node);
  return args;
}

// A constant matrix, which is f32, packed as T. The cache counts in floats.
template <class T>
PackCache::Packed PackB(const InferContext& c, const BasicGemmArgs<T>& args, PackCache& packs) {
  const std::string how =
      std::string("gemm ") + ChosenGemmOf<T>().name + " " + std::to_string(args.b.row_stride);
  return packs.Get(c.in(1).data, how, [&] {
    const int64_t bytes = GemmPackedBFloats<T>(args.k, args.n) * static_cast<int64_t>(sizeof(T));
    AlignedVector<float> packed(static_cast<size_t>(CeilDiv(bytes, sizeof(float))));
    BasicGemmOperand<T> from = args.b;
    std::vector<T> rounded;
    if constexpr (std::is_same_v<T, float>) {
      from.data = c.in(1).as<float>();
    } else {
      rounded.resize(args.k * args.n);
      ToF16(c.in(1).as<float>(), rounded.data(), args.k * args.n);
      from.data = rounded.data();
    }
    GemmPackB(from, args.k, args.n, reinterpret_cast<T*>(packed.data()));
    return packed;
  });
}

template <class T>
Prepared PrepareProduct(const InferContext& c, BasicGemmArgs<T> args, int threads, PackCache& packs) {
  auto state = std::make_shared<GemmState<T>>();
  if (c.known(1) && args.batch == 1) {
    state->b = PackB(c, args, packs);
    args.b = BasicGemmOperand<T>::Packed(reinterpret_cast<const T*>(state->b->data()));
  }
  state->args = args;
  const int64_t workspace = GemmWorkspaceFloats(args, threads) * static_cast<int64_t>(sizeof(T));
  return {std::move(state), workspace};
}

// `bias` and `add` are inputs; 0: there is none.
template <class T, size_t bias, size_t add>
Status RunProduct(KernelContext& c) {
  const auto& state = *static_cast<const GemmState<T>*>(c.state);
  BasicGemmArgs<T> args = state.args;
  args.a.data = c.in(0).as<T>();
  if (!args.b.packed) args.b.data = c.in(1).as<T>();
  if (bias > 0 && c.has(bias)) args.epilogue.col_bias = c.in(bias).as<float>();
  if (add > 0 && c.has(add)) args.epilogue.add = c.in(add).as<T>();
  args.out = c.out(0).as<T>();
  args.workspace = reinterpret_cast<T*>(c.workspace);
  args.pool = &c.pool;
  celer::Gemm(args);
  return {};
}

// A matrix for each [outer, inner] of a tensor, whose leading dimensions are `lead` or ones.
AttentionOperand OperandOf(const Shape& shape, const Shape& like) {
  const int rank = shape.rank();
  const auto dim = [&](int back) { return back <= rank ? shape[rank - back] : 1; };
  AttentionOperand x{.row_stride = dim(2) == 1 ? 0 : dim(1), .col_stride = dim(1) == 1 ? 0 : 1};
  if (like.rank() > 2) x.inner_stride = dim(3) == 1 ? 0 : dim(2) * dim(1);
  if (like.rank() > 3) x.outer_stride = dim(4) == 1 ? 0 : dim(3) * dim(2) * dim(1);
  return x;
}

DenseAttentionArgs AttentionArgs(const InferContext& c) {
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  const int rank = q.rank();
  DenseAttentionArgs args;
  args.shape = {.outer = rank > 3 ? q[rank - 4] : 1,
                .inner = rank > 2 ? q[rank - 3] : 1,
                .q_tokens = q[rank - 2],
                .tokens = k[rank - 1],
                .width = q[rank - 1],
                .v_width = v[rank - 1]};
  args.q = OperandOf(q, q);
  args.k = OperandOf(k, q);
  args.v = OperandOf(v, q);
  if (c.has(3)) args.mask = OperandOf(c.shape(3), q);
  args.scale = c.node.Float("scale", 1);
  args.out_row_stride = args.shape.v_width;
  args.out_inner_stride = args.shape.q_tokens * args.shape.v_width;
  args.out_outer_stride = args.shape.inner * args.out_inner_stride;
  return args;
}

bool MatMulFits(const InferContext& c) {
  return c.dtype(0) == DType::kF32 && MatMulArgs<float>(c).has_value();
}
Prepared PrepareMatMul(const InferContext& c, int threads, PackCache& packs) {
  return PrepareProduct(c, *MatMulArgs<float>(c), threads, packs);
}

bool GemmFits(const InferContext& c) {
  return c.dtype(0) == DType::kF32 && GemmArgsOf<float>(c).has_value();
}
Prepared PrepareGemm(const InferContext& c, int threads, PackCache& packs) {
  return PrepareProduct(c, *GemmArgsOf<float>(c), threads, packs);
}

// f16: as for convolutions, the weights are f32, and constant.
template <class T>
bool FusedMatMulFits(const InferContext& c) {
  constexpr bool kF16 = std::is_same_v<T, F16>;
  if (c.dtype(0) != kDTypeOf<T> || (kF16 && (c.dtype(1) != DType::kF32 || !c.known(1)))) return false;
  const auto args = FusedArgs<T>(c);
  return args && (!kF16 || args->batch == 1);
}
template <class T>
Prepared PrepareFusedMatMul(const InferContext& c, int threads, PackCache& packs) {
  return PrepareProduct(c, *FusedArgs<T>(c), threads, packs);
}

bool AttentionFits(const InferContext& c) {
  return c.shape(0).rank() <= 4 && c.elements(0) > 0 && c.elements(1) > 0 && c.elements(2) > 0;
}
Prepared PrepareAttention(const InferContext& c, int threads, PackCache&) {
  auto args = std::make_shared<DenseAttentionArgs>(AttentionArgs(c));
  const int64_t floats = DenseAttentionWorkspaceFloats(args->shape, threads);
  return {std::move(args), floats * static_cast<int64_t>(sizeof(float))};
}
Status RunAttention(KernelContext& c) {
  DenseAttentionArgs args = *static_cast<const DenseAttentionArgs*>(c.state);
  args.q.data = c.in(0).as<float>();
  args.k.data = c.in(1).as<float>();
  args.v.data = c.in(2).as<float>();
  if (c.has(3)) args.mask.data = c.in(3).as<float>();
  args.out = c.out(0).as<float>();
  args.workspace = reinterpret_cast<float*>(c.workspace);
  args.pool = &c.pool;
  DenseAttention(args);
  return {};
}

}  // namespace

constexpr FastKernel kFastMatMul[] = {{"gemm", MatMulFits, RunProduct<float, 0, 0>, PrepareMatMul}};
constexpr FastKernel kFastGemm[] = {{"gemm", GemmFits, RunProduct<float, 2, 0>, PrepareGemm}};
constexpr FastKernel kFastFusedMatMul[] = {
    {"gemm", FusedMatMulFits<float>, RunProduct<float, 2, 3>, PrepareFusedMatMul<float>, 3},
    {"gemm f16", FusedMatMulFits<F16>, RunProduct<F16, 2, 3>, PrepareFusedMatMul<F16>, 3}};
constexpr FastKernel kFastAttention[] = {{"blocks", AttentionFits, RunAttention, PrepareAttention}};

}  // namespace celer::graph
