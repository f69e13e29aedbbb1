// The host side of the batch kernel (decode_batch_cuda.cuh): whether it runs, its memory, its launch.
#include "kernels/llm/decode_step/decode_batch_cuda.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/llm/decode_step/decode_batch_params.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"

namespace celer::cuda {
namespace batch {

// LaunchBatch(), compiled in one file per format with HasDecodeStep(): decode_batch_format_cuda.cu.in.
template <Format F, int N>
cudaError_t LaunchFormat(const BatchParams& b, const float* norm, int shared_bytes, cudaStream_t stream);

namespace {

constexpr int64_t kAlign = 256;

// Up to how many tokens this kernel is faster than one per product.
constexpr int kFasterBf16 = 16, kFasterInt8 = 16, kFasterInt4 = 16;
constexpr int kFasterGeneric = 8;  // copied by warps, activations of 16 tokens take longer than they save

template <int N>
int SharedBytes(Format format, int layers) {
  const size_t first = WithFormat(format, [&]<Format F>() -> size_t {
    if constexpr (HasDecodeStep(F))
      return HopperCode() ? sizeof(Memory<F, N, true>) : sizeof(Memory<F, N, false>);
    return 0;
  });
  return static_cast<int>(first + static_cast<size_t>(layers - 1) * sizeof(Layer));
}

// How the memory of an instance's steps is divided, and the parameters that point into it.
struct BatchMemory {
  BatchParams params;
  int64_t layers_at, steps_at, counters_at, total;
  int64_t counters;  // of one number of tokens
};

// How many numbers of tokens an instance is for: that of 16 leaves those up to 8 to the other one.
constexpr int kCounts = 8;

// 16 tokens: as few batches as there can be, all of them of about the same size.
void DivideWide(int tiles, int grid, int most, Op* op) {
  const int each = tiles / grid, more = tiles % grid, largest = each + (more > 0 ? 1 : 0);
  const int batches = std::max((largest + most - 1) / most, 1);
  op->size = (largest + batches - 1) / batches;
  op->rounds = batches - 1;
  op->each = each - op->rounds * op->size, op->more = more;
}

template <int N>
BatchMemory LayOutMemory(const DecodeStepArgs& args, std::byte* memory) {
  const DecodeStepLayer& first = args.layers[0];
  const DeviceKv& kv = first.qkv.kv;
  const int grid = Multiprocessors(), count = args.batch.count;
  BatchMemory plan = {};
  BatchParams& b = plan.params;
  b.layer_count = static_cast<int>(args.layers.size());
  b.batch = args.batch;
  b.hidden = first.o.a.rows, b.inter = first.gate_up.a.rows;
  b.heads = args.heads, b.kv_heads = kv.kv_heads, b.head_dim = kv.head_dim;
  b.rope_dim = first.qkv.rope_dim;
  b.rope_cos = first.qkv.rope_cos, b.rope_sin = first.qkv.rope_sin;
  b.activation = first.gate_up.activation;
  b.eps = first.qkv.eps, b.scale = args.scale;
  b.x = args.x;

  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = at;
    at += (bytes + kAlign - 1) / kAlign * kAlign;
    return begin;
  };
  const auto chunks = [](int64_t cols) { return (cols + kChunk<N> - 1) / kChunk<N>; };
  plan.layers_at = take(b.layer_count * static_cast<int64_t>(sizeof(Layer)));
  plan.steps_at = take(kCounts * 4);
  const int64_t of_hidden = chunks(b.hidden), of_heads = chunks(int64_t{b.heads} * b.head_dim),
                of_inter = chunks(b.inter), of_qkv = b.heads + 2 * b.kv_heads;
  plan.counters = 2 * of_hidden + of_heads + of_inter + of_qkv;
  plan.counters_at = take(plan.counters * kCounts * 4);
  b.layers = reinterpret_cast<const Layer*>(memory + plan.layers_at);
  const int which = std::clamp(count - (N - kCounts), 1, kCounts) - 1;
  b.step = reinterpret_cast<const uint32_t*>(memory + plan.steps_at) + which;
  auto* counter = reinterpret_cast<uint32_t*>(memory + plan.counters_at) + which * plan.counters;
  b.in_done = counter;
  b.x_done = b.in_done + of_hidden;
  b.attended_done = b.x_done + of_hidden;
  b.mid_done = b.attended_done + of_heads;
  b.qkv_done = b.mid_done + of_inter;

  const auto rows = [&](const DeviceMatrix& by) { return memory + take(int64_t{by.padded} * N * 2); };
  const auto floats = [&](int64_t n) { return reinterpret_cast<float*>(memory + take(n * 4)); };
  b.in_rows = rows(first.qkv.a);
  b.attended = rows(first.o.a);
  b.x_rows = rows(first.gate_up.a);
  b.mid_rows = rows(first.down.a);
  b.squares = floats(int64_t{b.hidden} / 16 * N);
  b.in_squares = floats(int64_t{b.hidden} / 16 * N);
  b.q = floats(int64_t{b.heads} * b.head_dim * N);
  b.residual = floats(int64_t{b.hidden} * N);
  plan.total = at;

  int turn = 0;
  const auto set = [&](int i, const MatvecArgs& of, int tiles, const std::byte* x, uint32_t* ready,
                       int unit) {
    Op& op = b.op[i];
    if constexpr (N == 8) {
      Params divided = {};
      Divide(tiles, grid, &divided);
      op.rounds = divided.rounds, op.each = divided.each, op.more = divided.more;
      op.size = kBatch;
    } else {
      DivideWide(tiles, grid, i == 2 ? kMostTiles<N> : kBatch, &op);
    }
    op.turn = turn;
    turn = (turn + tiles % grid) % grid;
    op.row_bytes = static_cast<int>(of.a.row_bytes);
    op.padded = of.a.padded;
    op.cols = of.a.cols, op.unit = unit;
    op.chunks = static_cast<int>(chunks(of.a.padded));
    op.x = x, op.ready = ready;
    op.base = kBase;
  };
  set(0, first.qkv, (b.heads + 2 * b.kv_heads) * b.head_dim / 16, b.in_rows, b.in_done, 16);
  set(1, first.o, b.hidden / 16, b.attended, b.attended_done, b.head_dim);
  set(2, first.gate_up, b.inter / 8, b.x_rows, b.x_done, 16);
  set(3, first.down, b.hidden / 16, b.mid_rows, b.mid_done, 8);
  b.turn_step = turn;
  return plan;
}

// The plans of both instances lie behind each other.
int64_t BytesFor8(const DecodeStepArgs& args) {
  return LayOutMemory<8>(args, nullptr).total;
}
BatchMemory PlanFor(const DecodeStepArgs& args, void* memory) {
  auto* base = static_cast<std::byte*>(memory);
  return args.batch.count <= 8 ? LayOutMemory<8>(args, base) : LayOutMemory<16>(args, base + BytesFor8(args));
}

}  // namespace
}  // namespace batch

int DecodeBatchTokens(const DecodeStepArgs& args) {
  if (args.layers.empty()) return 0;
  const DecodeStepLayer& first = args.layers[0];
  const DeviceMatrix& q = first.qkv.a;
  const DeviceKv& kv = first.qkv.kv;
  const bool format = q.format == Format::kBf16 || (q.format == Format::kInt8 && q.group == 0) ||
                      (q.format == Format::kInt4 && q.group == 128);
  for (const DecodeStepLayer& layer : args.layers)
    for (const DeviceMatrix* m : {&layer.qkv.a, &layer.qkv.b, &layer.qkv.c, &layer.o.a, &layer.gate_up.a,
                                  &layer.gate_up.b, &layer.down.a})
      if (m->format != q.format || m->group != q.group || m->rows % 8 != 0) return 0;
  const bool runs = format && first.o.a.rows % 16 == 0 && q.cols == first.o.a.rows &&
                    kv.dtype == DType::kF16 && kv.head_dim <= 128 && kv.padded_dim == kv.head_dim &&
                    CanFuseRope(kv.head_dim, first.qkv.rope_dim) && !first.o.a_bias && !first.down.a_bias;
  const int layers = static_cast<int>(args.layers.size());
  if (!runs || batch::SharedBytes<8>(q.format, layers) > SharedLimit()) return 0;
  if (batch::SharedBytes<16>(q.format, layers) > SharedLimit()) return 8;
  if (!HopperCode()) return batch::kFasterGeneric;
  return q.format == Format::kInt4   ? batch::kFasterInt4
         : q.format == Format::kInt8 ? batch::kFasterInt8
                                     : batch::kFasterBf16;
}

int DecodeBatchKeys() {
  return batch::kMaxKeys;
}

size_t DecodeBatchBytes(const DecodeStepArgs& args) {
  return static_cast<size_t>(batch::BytesFor8(args) + batch::LayOutMemory<16>(args, nullptr).total);
}

cudaError_t PrepareDecodeBatch(const DecodeStepArgs& args, void* memory) {
  using namespace batch;
  std::byte* base = static_cast<std::byte*>(memory);
  // Counters begin at 0, and columns that no tile writes are 0.
  const cudaError_t cleared = cudaMemset(memory, 0, DecodeBatchBytes(args));
  if (cleared != cudaSuccess) return cleared;
  std::vector<Layer> table;
  for (size_t i = 0; i < args.layers.size(); ++i) {
    const DecodeStepLayer& from = args.layers[i];
    Layer& to = table.emplace_back();
    const DeviceMatrix* const all[kMatrices] = {&from.qkv.a,     &from.qkv.b,     &from.qkv.c, &from.o.a,
                                                &from.gate_up.a, &from.gate_up.b, &from.down.a};
    for (int m = 0; m < kMatrices; ++m) to.data[m] = all[m]->data, to.scales[m] = all[m]->scales;
    to.bias[0] = from.qkv.a_bias, to.bias[1] = from.qkv.b_bias, to.bias[2] = from.qkv.c_bias;
    to.ffn_norm = from.gate_up.norm;
    to.next_norm = i + 1 < args.layers.size() ? args.layers[i + 1].qkv.norm : nullptr;
    to.k_cache = from.qkv.kv.k, to.v_cache = from.qkv.kv.v;
    to.window = from.window;
  }
  for (const int64_t at : {LayOutMemory<8>(args, nullptr).layers_at,
                           BytesFor8(args) + LayOutMemory<16>(args, nullptr).layers_at}) {
    const cudaError_t copied =
        cudaMemcpy(base + at, table.data(), table.size() * sizeof(Layer), cudaMemcpyHostToDevice);
    if (copied != cudaSuccess) return copied;
  }
  return cudaSuccess;
}

uint32_t* DecodeBatchCounter(const DecodeStepArgs& args, void* memory) {
  return const_cast<uint32_t*>(batch::PlanFor(args, memory).params.step);
}

cudaError_t LaunchDecodeBatch(const DecodeStepArgs& args, void* memory, cudaStream_t stream) {
  using namespace batch;
  if (args.batch.count < 1 || args.batch.count > kMaxBatchTokens) return cudaErrorInvalidValue;
  const BatchParams b = PlanFor(args, memory).params;
  const Format format = args.layers[0].qkv.a.format;
  const float* norm = args.layers[0].qkv.norm;
  return WithFormat(format, [&]<Format F>() {
    if constexpr (HasDecodeStep(F))
      return args.batch.count <= 8
                 ? LaunchFormat<F, 8>(b, norm, SharedBytes<8>(format, b.layer_count), stream)
                 : LaunchFormat<F, 16>(b, norm, SharedBytes<16>(format, b.layer_count), stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace celer::cuda
