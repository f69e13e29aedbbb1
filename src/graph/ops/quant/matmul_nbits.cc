// MatMulNBits of com.microsoft: a product with block-quantized weights of 2, 4 or 8 bits, with a scale and
// perhaps a zero point for each block along a row.
//
//   B       u8 [N, blocks, block · bits / 8]    the first value of a byte in its low bits
//   scales  [N, blocks]
//   zeros   u8 [N, (blocks · bits + 7) / 8]     packed likewise, rows begin at bytes; or reals [N, blocks]
//   g_idx   i32 [K]                             the block of column k, where they are not in order
//
//   w = (value - zero) · scale, zero 2^(bits - 1) if none is given
#include <cmath>

#include "device/aligned_vector.h"
#include "formats/float16.h"
#include "formats/int4.h"
#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/other_domains.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer::graph {
namespace {

struct NBits {
  int64_t rows = 0, n = 0, k = 0, bits = 4, block = 32, blocks = 0;
  int64_t row_bytes() const { return blocks * block * bits / 8; }
  int64_t zero_row_bytes() const { return (blocks * bits + 7) / 8; }
};

constexpr DTypeSet kScaleTypes = {DType::kF32, DType::kF16, DType::kBf16};

Status CheckElements(const OpInputs& c, size_t i, int64_t wanted, const char* what) {
  if (c.elements(i) == wanted) return {};
  return Error::Invalid(what, " of ", c.shape(i).ToString(), "; ", wanted, " are expected");
}

Result<NBits> NBitsOf(const OpInputs& c) {
  NBits out{.n = c.node.Int("N", 0),
            .k = c.node.Int("K", 0),
            .bits = c.node.Int("bits", 4),
            .block = c.node.Int("block_size", 32)};
  constexpr int64_t kMost = int64_t{1} << 31;
  if (out.n < 1 || out.k < 1 || out.n > kMost || out.k > kMost)
    return Error::Invalid("weights of N = ", out.n, " and K = ", out.k);
  if (out.bits != 2 && out.bits != 4 && out.bits != 8)
    return Error::Unsupported("weights of ", out.bits, " bits; 2, 4 and 8 are supported");
  if (out.block < 16 || out.block > kMost || (out.block & (out.block - 1)) != 0)
    return Error::Invalid("block_size is ", out.block, "; a power of two from 16 on is expected");
  const Shape& a = c.shape(0);
  if (a.rank() < 1 || a[a.rank() - 1] != out.k)
    return Error::Invalid("an input of ", a.ToString(), " for K = ", out.k);
  out.rows = c.elements(0) / out.k;
  out.blocks = (out.k + out.block - 1) / out.block;
  if (c.dtype(1) != DType::kU8) return Error::Invalid("weights are ", Name(c.dtype(1)), "; u8 are expected");
  CELER_RETURN_IF_ERROR(CheckElements(c, 1, out.n * out.row_bytes(), "weights"));
  if (!kScaleTypes.Has(c.dtype(2))) return Error::Invalid("scales are ", Name(c.dtype(2)));
  CELER_RETURN_IF_ERROR(CheckElements(c, 2, out.n * out.blocks, "scales"));
  if (c.has(3) && c.dtype(3) == DType::kU8) {
    CELER_RETURN_IF_ERROR(CheckElements(c, 3, out.n * out.zero_row_bytes(), "zero points"));
  } else if (c.has(3)) {
    if (!kScaleTypes.Has(c.dtype(3))) return Error::Invalid("zero points are ", Name(c.dtype(3)));
    CELER_RETURN_IF_ERROR(CheckElements(c, 3, out.n * out.blocks, "zero points"));
  }
  if (c.has(4)) {
    if (c.dtype(4) != DType::kI32) return Error::Invalid("g_idx is ", Name(c.dtype(4)));
    if (c.elements(4) < out.k) return Error::Invalid("g_idx of ", c.shape(4).ToString(), " for K = ", out.k);
  }
  if (c.has(5)) {
    CELER_RETURN_IF_ERROR(CheckSameType(c, 5));
    CELER_RETURN_IF_ERROR(CheckElements(c, 5, out.n, "a bias"));
  }
  return out;
}

Status InferNBits(InferContext& c) {
  CELER_ASSIGN(const NBits w, NBitsOf(c));
  std::vector<int64_t> dims = Dims(c.shape(0));
  dims.back() = w.n;
  return c.Set(0, c.dtype(0), dims);
}
double NBitsFlops(const InferContext& c) {
  const auto w = NBitsOf(c);
  return w ? 2.0 * static_cast<double>(w->rows) * static_cast<double>(w->n) * static_cast<double>(w->k) : 0;
}

std::vector<float> FloatsAt(const OpInputs& c, size_t i) {
  std::vector<float> out(static_cast<size_t>(c.elements(i)));
  DispatchOr(c.dtype(i), FloatTypes{}, [&]<class T>() {
    for (size_t j = 0; j < out.size(); ++j) out[j] = static_cast<float>(Wide(c.in(i).as<T>()[j]));
  });
  return out;
}

// Dequantizes: values as they are stored, scales and zero points, row by row.
class Decoder {
 public:
  Decoder(const OpInputs& c, const NBits& w) : c_(c), w_(w), scales_(FloatsAt(c, 2)) {
    if (c.has(3) && c.dtype(3) != DType::kU8) zeros_ = FloatsAt(c, 3);
  }
  // g_idx names blocks that are there.
  Status Check() const {
    for (int64_t k = 0; c_.has(4) && k < w_.k; ++k)
      if (const int32_t block = c_.in(4).as<int32_t>()[k]; block < 0 || block >= w_.blocks)
        return Error::Invalid("g_idx names the block ", block, " of ", w_.blocks);
    return {};
  }
  uint8_t Value(int64_t row, int64_t k) const {
    return Bits(c_.in(1).as<uint8_t>() + row * w_.row_bytes(), k);
  }
  float Scale(int64_t row, int64_t block) const { return scales_[row * w_.blocks + block]; }
  float Zero(int64_t row, int64_t block) const {
    if (!c_.has(3)) return static_cast<float>(int64_t{1} << (w_.bits - 1));
    if (!zeros_.empty()) return zeros_[row * w_.blocks + block];
    return Bits(c_.in(3).as<uint8_t>() + row * w_.zero_row_bytes(), block);
  }
  void Row(int64_t row, float* out) const {
    for (int64_t k = 0; k < w_.k; ++k) {
      const int64_t block = c_.has(4) ? c_.in(4).as<int32_t>()[k] : k / w_.block;
      out[k] = (static_cast<float>(Value(row, k)) - Zero(row, block)) * Scale(row, block);
    }
  }

 private:
  uint8_t Bits(const uint8_t* from, int64_t i) const {
    const int64_t per_byte = 8 / w_.bits;
    return static_cast<uint8_t>(from[i / per_byte] >> (i % per_byte * w_.bits) & ((1 << w_.bits) - 1));
  }

  const OpInputs& c_;
  const NBits& w_;
  std::vector<float> scales_, zeros_;
};

Status MatMulNBits(KernelContext& c) {
  CELER_ASSIGN(const NBits w, NBitsOf(c));
  const Decoder decoder(c, w);
  CELER_RETURN_IF_ERROR(decoder.Check());
  const std::vector<float> x = FloatsAt(c, 0), bias = c.has(5) ? FloatsAt(c, 5) : std::vector<float>();
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, w.n, w.rows * w.k, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(w.k));
      for (int64_t j = begin; j < end; ++j) {
        decoder.Row(j, row.data());
        for (int64_t i = 0; i < w.rows; ++i) {
          double sum = bias.empty() ? 0 : static_cast<double>(bias[j]);
          for (int64_t k = 0; k < w.k; ++k)
            sum += static_cast<double>(x[i * w.k + k]) * static_cast<double>(row[k]);
          c.out(0).as<T>()[i * w.n + j] = static_cast<T>(static_cast<float>(sum));
        }
      }
    });
  });
  return {};
}

// Whose contents packed weights depend on, beside the weights: memory may hold something else one day.
std::string Fingerprint(const OpInputs& c) {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 2; i < 5; ++i) {
    if (!c.has(i)) continue;
    const int64_t bytes = *BytesFor(c.dtype(i), c.elements(i));
    for (int64_t b = 0; b < bytes; ++b)
      hash = (hash ^ static_cast<uint8_t>(c.in(i).data[b])) * 1099511628211u;
  }
  return std::to_string(hash);
}
bool Constant0(const InferContext& c) {
  for (size_t i = 1; i < 5; ++i)
    if (c.has(i) && !c.known(i)) return false;
  return c.dtype(0) == DType::kF32 && c.elements(0) > 0;
}

// ---- weights dequantized to f32 once: the arithmetic that ONNX Runtime has unless it is told otherwise

struct RealState {
  GemmArgs args;
  PackCache::Packed b;
};
bool RealFits(const InferContext& c) {
  if (!Constant0(c)) return false;
  const auto w = NBitsOf(c);
  return w && Decoder(c, *w).Check();
}
Prepared PrepareReal(const InferContext& c, int threads, PackCache& packs) {
  const NBits w = *NBitsOf(c);
  auto state = std::make_shared<RealState>();
  GemmArgs& args = state->args;
  args = {.m = w.rows, .n = w.n, .k = w.k};
  args.a = GemmOperand::Rows(nullptr, w.k);
  args.out_stride = w.n;
  const std::string how = std::string("nbits gemm ") + ChosenGemm().name + " " + Fingerprint(c);
  state->b = packs.Get(c.in(1).data, how, [&] {
    const Decoder decoder(c, w);
    std::vector<float> rows(static_cast<size_t>(w.n * w.k));
    DefaultThreadPool().ParallelFor(w.n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) decoder.Row(j, rows.data() + j * w.k);
    });
    AlignedVector<float> packed(static_cast<size_t>(GemmPackedBFloats<float>(w.k, w.n)));
    GemmPackB(GemmOperand::Transposed(rows.data(), w.k), w.k, w.n, packed.data());
    return packed;
  });
  args.b = GemmOperand::Packed(state->b->data());
  const int64_t workspace = GemmWorkspaceFloats(args, threads) * static_cast<int64_t>(sizeof(float));
  return {std::move(state), workspace};
}
Status RunReal(KernelContext& c) {
  GemmArgs args = static_cast<const RealState*>(c.state)->args;
  args.a.data = c.in(0).as<float>();
  if (c.has(5)) args.epilogue.col_bias = c.in(5).as<float>();
  args.out = c.out(0).as<float>();
  args.workspace = reinterpret_cast<float*>(c.workspace);
  args.pool = &c.pool;
  celer::Gemm(args);
  return {};
}

// ---- accuracy_level 4: the input may be quantized to 8 bits, so that the product is one of integers

struct PackedState {
  WeightView view;
  PackCache::Packed words;
};
constexpr int64_t kInt8Accuracy = 4;
bool PackedFits(const InferContext& c) {
  if (!Constant0(c) || c.node.Int("accuracy_level", 0) != kInt8Accuracy || c.has(4)) return false;
  const auto w = NBitsOf(c);
  if (!w || w->bits != 4 || !Int4Layout::Make(w->n, w->k, w->block) || !ChosenMatmul().packed_bytes)
    return false;
  const Decoder decoder(c, *w);
  // Scales and minima are f16 there.
  for (int64_t j = 0; j < w->n; ++j)
    for (int64_t b = 0; b < w->blocks; ++b) {
      const float scale = std::abs(decoder.Scale(j, b)), least = scale * std::abs(decoder.Zero(j, b));
      if (!(scale >= 6.2e-5f || scale == 0) || !(scale < 4096) || !(least < 65504)) return false;
    }
  return true;
}
Prepared PreparePacked(const InferContext& c, int, PackCache& packs) {
  const NBits w = *NBitsOf(c);
  const MatmulKernels& kernels = ChosenMatmul();
  const auto layout = Int4Layout::Make(w.n, w.k, w.block);
  auto state = std::make_shared<PackedState>();
  WeightView view{.kind = WeightKind::kInt4,
                  .rows = w.n,
                  .cols = w.k,
                  .row_bytes = layout->row_bytes(),
                  .group = w.block};
  const int64_t bytes = kernels.packed_bytes(view);
  if (bytes == 0) return {};
  const std::string how = "nbits int4 " + std::string(kernels.name) + " " + Fingerprint(c);
  state->words = packs.Get(c.in(1).data, how, [&] {
    const Decoder decoder(c, w);
    std::vector<Int4Group> params(static_cast<size_t>(w.n * w.blocks));
    for (int64_t j = 0; j < w.n; ++j)
      for (int64_t b = 0; b < w.blocks; ++b) {
        const uint16_t scale = FloatToF16(decoder.Scale(j, b));
        params[j * w.blocks + b] = {scale, FloatToF16(-decoder.Zero(j, b) * F16ToFloat(scale))};
      }
    view.data = c.in(1).data;  // the same nibbles in the same order
    view.scales = params.data();
    AlignedVector<float> packed(static_cast<size_t>((bytes + 3) / 4));
    kernels.pack(view, DefaultThreadPool(), reinterpret_cast<std::byte*>(packed.data()));
    return packed;
  });
  view.data = nullptr;
  view.scales = nullptr;
  state->view = PackedView(view, kernels, reinterpret_cast<const std::byte*>(state->words->data()));
  return {std::move(state), 0};
}
Status RunPacked(KernelContext& c) {
  if (!c.state) return MatMulNBits(c);
  const auto& state = *static_cast<const PackedState*>(c.state);
  MatmulArgs args{.x = c.in(0).as<float>(), .tokens = c.elements(0) / state.view.cols, .pool = &c.pool};
  Matmul(args, {.w = state.view,
                .bias = c.has(5) ? c.in(5).as<float>() : nullptr,
                .out = c.out(0).as<float>(),
                .out_stride = state.view.rows});
  return {};
}

constexpr FastKernel kFastNBits[] = {{"int4", PackedFits, RunPacked, PreparePacked},
                                     {"gemm", RealFits, RunReal, PrepareReal}};
constexpr Operator kRows[] = {
    {"MatMulNBits", 1, Arity(3, 6), Arity(1, 1), kScaleTypes, InferNBits, MatMulNBits, Operator::kPlain,
     NBitsFlops, kFastNBits, "com.microsoft"},
};

}  // namespace

std::span<const Operator> NBitsOperators() {
  return kRows;
}

}  // namespace celer::graph
