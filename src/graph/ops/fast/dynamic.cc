// Products whose left side is quantized as it comes, and whose result is real.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "graph/ops/common.h"
#include "graph/ops/quant/integer.h"
#include "kernels/network/elementwise/elementwise.h"

namespace celer::graph {
namespace {

using Words = AlignedVector<float>;

constexpr int64_t kGrain = 16384;  // elements that are worth a thread

struct Ends {
  float low = 0, high = 0;

  Ends With(const Ends& other) const { return {std::min(low, other.low), std::max(high, other.high)}; }
};
// In lanes that know nothing of each other, so that they become vectors.
Ends EndsOf(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  float low[kLanes] = {}, high[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) {
      low[j] = x[i + j] < low[j] ? x[i + j] : low[j];
      high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
    }
  for (; i < n; ++i) {
    low[0] = std::min(low[0], x[i]);
    high[0] = std::max(high[0], x[i]);
  }
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}
Ends EndsOf(const float* x, int64_t n, ThreadPool& pool) {
  constexpr int kMost = 64;
  if (n <= 4 * kGrain || pool.size() > kMost) return EndsOf(x, n);
  Ends ends[kMost];
  const int64_t piece = (n + pool.size() - 1) / pool.size();
  pool.Run([&](int thread) {
    const int64_t begin = std::min(n, thread * piece);
    ends[thread] = EndsOf(x + begin, std::min(piece, n - begin));
  });
  Ends out;
  for (int i = 0; i < pool.size(); ++i) out = out.With(ends[i]);
  return out;
}

// Bytes with one scale and zero point.
struct ByteMatrix {
  const uint8_t* bytes = nullptr;
  float scale = 1;
  int32_t zero = 0;
};
ByteMatrix Quantized(const float* x, int64_t count, uint8_t* room, ThreadPool& pool) {
  const Ends ends = EndsOf(x, count, pool);
  const float scale = (ends.high - ends.low) / 255.0f;
  const float zero = DynamicZero(ends.low, scale);
  const ByteMatrix out{room, scale, static_cast<int32_t>(zero)};
  if (scale == 0) {  // as the reference has it
    std::memset(room, out.zero, static_cast<size_t>(count));
    return out;
  }
  pool.ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    QuantizeBytes(x + begin, scale, out.zero, room + begin, end - begin);
  });
  return out;
}

struct State {
  IntegerConvPlan plan;
  PackCache::Packed words;
  PackedIntegerConv packed;
  int64_t bytes_bytes = 0;  // of the workspace: x as bytes, and behind it what the product wants
  Pointwise f = {};
};

State PlanOf(const OpInputs& c, const IntegerKernels& kernels) {
  State out;
  out.plan = PlanIntegerConv(ProductShapeOf(c), c.dtype(0) == DType::kI8, kernels);
  const ConvShape& s = out.plan.shape;
  out.bytes_bytes = c.dtype(0) == DType::kF32 ? (s.in_w * s.channels + 63) / 64 * 64 : 0;
  out.f = ActivationOf(c.node);
  return out;
}
PackedIntegerConv ViewOf(const IntegerConvPlan& plan, const Words& words) {
  return UnpackIntegerConv(plan, reinterpret_cast<const int32_t*>(words.data()), 0, false);
}
Words Pack(const OpInputs& c, const IntegerConvPlan& plan) {
  Words words(static_cast<size_t>(PackedIntegerWords(plan)));
  PackIntegerConv(plan, {.weights = c.in(1).as<int8_t>(), .factors = {}},
                  reinterpret_cast<int32_t*>(words.data()));
  return words;
}

ByteMatrix BytesOf(const KernelContext& c, int64_t count, uint8_t* room) {
  if (c.dtype(0) == DType::kF32) return Quantized(c.in(0).as<float>(), count, room, c.pool);
  if (c.has(5))
    return {c.in(0).as<uint8_t>(), *c.in(5).as<float>(), static_cast<int32_t>(*c.in(6).as<uint8_t>())};
  return {c.in(0).as<uint8_t>(), c.node.Float("x_scale", 1), static_cast<int32_t>(c.node.Int("x_zero", 0))};
}

// A sum of 32 bits lies where its real will lie.
struct Reals {
  ByteMatrix x;
  const int32_t* sums = nullptr;                                   // of the weights of each column
  const float *scales = nullptr, *bias = nullptr, *add = nullptr;  // bias and add may be none
  Pointwise f;
  int64_t stride = 0;
  float* out = nullptr;

  void operator()(const IntegerConvArgs::Block& block) const {
    for (int64_t r = block.row; r < block.row + block.rows; ++r) {
      float* const y = out + r * stride + block.column;
      const int32_t* const w = sums + block.column;
      const float* const s = scales + block.column;
      for (int64_t n = 0; n < block.columns; ++n) {
        int32_t sum;
        std::memcpy(&sum, y + n, sizeof(sum));
        y[n] = static_cast<float>(sum - x.zero * w[n]) * (x.scale * s[n]);
      }
      const bool last = !add;
      if (bias)
        BinaryRow(Binary::kAdd, last ? f : Pointwise{}, y, 1, bias + block.column, 1, y, block.columns);
      if (add)
        BinaryRow(Binary::kAdd, f, y, 1, add + r * stride + block.column, 1, y, block.columns);
      else if (!bias && f.kind != Pointwise::Kind::kNone)
        UnaryRow(f, y, y, block.columns);
    }
  }
};

// `add`, which may be none, is like `out`.
void RunProduct(const KernelContext& c, const State& state, std::byte* workspace, const float* add,
                const Pointwise& f, float* out) {
  const ConvShape& s = state.plan.shape;
  const Reals reals{.x = BytesOf(c, s.in_w * s.channels, reinterpret_cast<uint8_t*>(workspace)),
                    .sums = state.packed.sums,
                    .scales = c.in(2).as<float>(),
                    .bias = c.has(3) ? c.in(3).as<float>() : nullptr,
                    .add = add,
                    .f = f,
                    .stride = s.out_channels,
                    .out = out};
  const std::function<void(const IntegerConvArgs::Block&)> finish = std::cref(reals);
  IntegerConv(state.plan, state.packed,
              {.x = reals.x.bytes,
               .sums = reinterpret_cast<int32_t*>(out),
               .finish = &finish,
               .workspace = workspace + state.bytes_bytes,
               .pool = &c.pool});
}

}  // namespace

float DynamicZero(float low, float scale) {
  const float zero = std::nearbyint(-low / scale);
  return zero == zero ? std::clamp(zero, 0.0f, 255.0f) : 0;
}

namespace {

bool DynamicQuantizeFits(const InferContext& c) {
  return c.outputs() > 0;
}
Status RunDynamicQuantize(KernelContext& c) {
  AlignedVector<std::byte> room(c.wants(0) ? 0 : static_cast<size_t>(c.elements(0)));
  const ByteMatrix made =
      Quantized(c.in(0).as<float>(), c.elements(0),
                c.wants(0) ? c.out(0).as<uint8_t>() : reinterpret_cast<uint8_t*>(room.data()), c.pool);
  if (c.wants(1)) *c.out(1).as<float>() = made.scale;
  if (c.wants(2)) *c.out(2).as<uint8_t>() = static_cast<uint8_t>(made.zero);
  return {};
}

bool DynamicMatMulFits(const InferContext& c) {
  if (!c.known(1) || c.elements(0) == 0 || c.elements(1) == 0) return false;
  return !c.has(4) ||
         (c.shape(4) == c.output(0).shape && c.elements(4) == c.elements(0) / c.shape(1)[1] * c.shape(1)[0]);
}
Prepared PrepareDynamicMatMul(const InferContext& c, int threads, PackCache& packs) {
  auto state = std::make_shared<State>(PlanOf(c, ChosenInteger()));
  state->words = packs.Get(c.in(1).data, state->plan.x_signed ? "dynamic signed" : "dynamic",
                           [&] { return Pack(c, state->plan); });
  state->packed = ViewOf(state->plan, *state->words);
  const int64_t bytes = state->bytes_bytes + IntegerConvWorkspaceBytes(state->plan, threads);
  return {std::move(state), bytes};
}
Status RunDynamicMatMul(KernelContext& c) {
  const auto& state = *static_cast<const State*>(c.state);
  RunProduct(c, state, c.workspace, c.has(4) ? c.in(4).as<float>() : nullptr, state.f, c.out(0).as<float>());
  return {};
}
}  // namespace

constexpr FastKernel kFastDynamicQuantize[] = {{"vectors", DynamicQuantizeFits, RunDynamicQuantize}};
constexpr FastKernel kFastDynamicMatMul[] = {
    {"bytes", DynamicMatMulFits, RunDynamicMatMul, PrepareDynamicMatMul}};

Status ReferenceDynamicMatMul(KernelContext& c) {
  if (c.out_elements(0) == 0) return {};
  std::vector<int64_t> dims = Dims(c.shape(0));
  dims.back() = c.shape(1)[0];
  CELER_ASSIGN(const Shape shape, MakeShape(dims));
  CELER_ASSIGN(const Data product, NewTensor(DType::kF32, shape));
  State state = PlanOf(c, kIntegerPortable);
  const Words words = Pack(c, state.plan);
  state.packed = ViewOf(state.plan, words);
  AlignedVector<std::byte> workspace(
      static_cast<size_t>(state.bytes_bytes + IntegerConvWorkspaceBytes(state.plan, c.pool.size())));
  RunProduct(c, state, workspace.data(), nullptr, {}, product.tensor.as<float>());
  Repeat(c.pool, product.tensor, c.out(0));
  FinishFused(c, c.out(0), 4);
  return {};
}

}  // namespace celer::graph
