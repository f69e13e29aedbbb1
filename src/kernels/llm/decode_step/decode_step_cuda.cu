// The host side of the step kernel (decode_step_cuda.cuh): whether it runs, its memory, its launch.
#include "kernels/llm/decode_step/decode_step_cuda.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/llm/decode_step/decode_step_cuda.cuh"

namespace celer::cuda {
namespace step {

namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t Aligned(int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

bool SameFormat(const DeviceMatrix& a, const DeviceMatrix& b) {
  return a.format == b.format && a.group == b.group;
}

// How the step's own memory is divided.
struct StepMemory {
  int layers, splits, blocks;
  int qkv, attention, hidden, inter;  // widths
  int token_floats;
  int64_t partial_vectors;                                               // of 16 bytes
  int64_t kv_at, steps_at, best_at, x_at, partial_at, values_at, total;  // bytes; tables of Params come first
  int64_t TableAt(int tokens) const {
    return Aligned(int64_t{2} * (layers * kParts + 1) * static_cast<int64_t>(sizeof(Params))) * (tokens - 1);
  }
  int64_t StepsAt(int tokens) const { return steps_at + (tokens - 1) * int64_t{blocks} * 4; }
  int64_t BestAt(int tokens) const { return best_at + tokens * (tokens - 1) / 2 * int64_t{blocks} * 8; }
  int64_t XAt(int tokens) const { return x_at + tokens * (tokens - 1) / 2 * int64_t{hidden} * 4; }
  // Every number of tokens has regions of its own: tags need each value to be written in each round.
  int64_t RegionFloats(int tokens) const { return int64_t{tokens} * token_floats; }
  int64_t ValuesAt(int tokens) const { return values_at + tokens * (tokens - 1) * int64_t{token_floats} * 4; }
};

StepMemory LayOutMemory(const DecodeStepArgs& args) {
  const DecodeStepLayer& first = args.layers[0];
  const DeviceKv& kv = first.qkv.kv;
  StepMemory p = {};
  p.layers = static_cast<int>(args.layers.size());
  p.blocks = Multiprocessors();
  p.splits = std::max(1, p.blocks / args.heads);
  p.qkv = (args.heads + 2 * kv.kv_heads) * kv.head_dim;
  p.attention = args.heads * kv.head_dim;
  p.hidden = first.o.a.rows;
  p.inter = first.gate_up.a.rows;
  p.token_floats = p.qkv + p.attention + 2 * p.hidden + p.inter;
  p.token_floats = (p.token_floats + 3) / 4 * 4;
  p.partial_vectors = int64_t{kPartialSets} * kMaxStepTokens * args.heads * p.splits * kv.head_dim;
  p.kv_at = p.TableAt(kMaxStepTokens + 1);
  p.steps_at = p.kv_at + Aligned(p.layers * static_cast<int64_t>(sizeof(LayerKv)));
  p.best_at = p.steps_at + Aligned(p.StepsAt(kMaxStepTokens + 1) - p.StepsAt(1));
  p.x_at = p.best_at + Aligned(p.BestAt(kMaxStepTokens + 1) - p.BestAt(1));
  p.partial_at = p.x_at + Aligned(p.XAt(kMaxStepTokens + 1) - p.XAt(1));
  p.values_at = p.partial_at + Aligned(p.partial_vectors * 16);
  p.total = p.ValuesAt(kMaxStepTokens + 1);
  return p;
}

// Shared memory: the ring, what the widest operator needs, and the slots of Params.
struct Shared {
  Params base;
  int bytes;  // 0 if it does not fit
  int slot_offset;
};

Shared MakeShared(const DecodeStepArgs& args, int tokens) {
  const DecodeStepLayer& layer = args.layers[0];
  const DeviceMatrix* widest = &layer.qkv.a;
  for (const MatvecArgs* part : {&layer.o, &layer.gate_up, &layer.down})
    if (part->a.padded > widest->padded) widest = &part->a;
  const int room = layer.qkv.kv.padded_dim <= 64 ? sizeof(Room<8>) : sizeof(Room<16>);
  const int slot_bytes = static_cast<int>(args.layers.size() * sizeof(LayerKv)) +
                         (2 + kSlots) * static_cast<int>(sizeof(Params)) + 2 * kMaxStepTokens * 4;
  Shared out = {};
  const int beside = matvec::Layout(*widest, tokens, room, &out.base);
  if (DecodeStepHasHead(args)) {
    Params head = {};
    matvec::Layout(args.head.a, tokens, 0, &head);
    out.base.stage_bytes = std::max(out.base.stage_bytes, head.stage_bytes);
  }
  out.bytes = matvec::AddRing(beside + slot_bytes, &out.base);
  out.slot_offset = out.bytes - slot_bytes;
  return out;
}

// The operators of all layers, and the head; the first layer's values in region `first`.
void AppendParts(const DecodeStepArgs& args, const StepMemory& plan, const Shared& shared, int tokens,
                 const float* x, float* values, int first, std::vector<Params>* out) {
  const int grid = plan.blocks;
  const bool head = DecodeStepHasHead(args);
  int turn = 0, region = first;
  int64_t x_stride = plan.hidden;
  const auto add = [&](const MatvecArgs& from, int tiles, const float* in, int64_t in_stride, float* to,
                       int64_t to_stride, const float* residual, int64_t residual_stride) {
    Params p = shared.base;
    p.a = from;
    p.a.tokens = tokens;
    p.a.batch = args.batch;
    p.a.rows = nullptr;
    p.a.x = in, p.a.x_stride = in_stride;
    p.a.out = to, p.a.out_stride = to_stride;
    p.a.residual = residual, p.a.residual_stride = residual_stride;
    matvec::Divide(tiles, grid, &p);
    p.turn = turn;
    turn = (turn + tiles % grid) % grid;
    out->push_back(p);
  };
  for (const DecodeStepLayer& layer : args.layers) {
    float* at = values + region * plan.RegionFloats(tokens);
    region ^= 1;
    const auto take = [&](int floats) { return std::exchange(at, at + floats); };
    float* const q = take(plan.qkv);
    float* const attention = take(plan.attention);
    float* const middle = take(plan.hidden);
    float* const inter = take(plan.inter);
    float* const last = take(plan.hidden);
    const MatvecArgs &qkv = layer.qkv, &gate_up = layer.gate_up;
    const int stride = plan.token_floats;
    add(qkv, (qkv.a.rows + qkv.b.rows + qkv.c.rows) / 16, x, x_stride, q, stride, nullptr, 0);
    out->back().a.k_out = q + qkv.a.rows;
    out->back().a.v_out = q + qkv.a.rows + qkv.b.rows;
    add(layer.o, (layer.o.a.rows + 15) / 16, attention, stride, middle, stride, x, x_stride);
    add(gate_up, (gate_up.a.rows + 7) / 8, middle, stride, inter, stride, nullptr, 0);
    add(layer.down, (layer.down.a.rows + 15) / 16, inter, stride, last, stride, middle, stride);
    x = last, x_stride = stride;
  }
  if (head)
    return add(args.head, (args.head.a.rows + 15) / 16, x, x_stride, args.head.out, args.head.out_stride,
               nullptr, 0);
  out->back().plain = args.x, out->back().plain_stride = plan.hidden;
  out->push_back({});  // tables are of one size
}

}  // namespace
}  // namespace step

int DecodeStepTokens(const DecodeStepArgs& args) {
  if (args.layers.empty()) return 0;
  const DecodeStepLayer& first = args.layers[0];
  const DeviceMatrix& q = first.qkv.a;
  const DeviceKv& kv = first.qkv.kv;
  for (const DecodeStepLayer& layer : args.layers)
    for (const DeviceMatrix* m : {&layer.qkv.a, &layer.qkv.b, &layer.qkv.c, &layer.o.a, &layer.gate_up.a,
                                  &layer.gate_up.b, &layer.down.a})
      if (!step::SameFormat(q, *m) || m->cols % 4 != 0 || m->rows % 4 != 0) return 0;
  const bool format = q.format == Format::kBf16 ||
                      (q.format == Format::kInt8 && (q.group == 0 || q.group == 128)) ||
                      (q.format == Format::kInt4 && q.group == 128);
  if (!format || kv.dtype != DType::kF16 || kv.head_dim > 128 || kv.padded_dim != kv.head_dim ||
      !CanFuseRope(kv.head_dim, first.qkv.rope_dim))
    return 0;
  int tokens = kMaxStepTokens;
  while (tokens > 0 && step::MakeShared(args, tokens).bytes == 0) --tokens;
  return tokens;
}

bool DecodeStepHasHead(const DecodeStepArgs& args) {
  const DeviceMatrix &head = args.head.a, &q = args.layers[0].qkv.a;
  if (!head || head.cols != q.cols) return false;
  if (q.format == Format::kBf16) return head.format == Format::kBf16;
  return head.format == Format::kInt8 && (head.group == 0 || head.group == 128);
}

int DecodeStepKeys(const DecodeStepArgs& args) {
  constexpr int kLoads = 4096;  // of a key, by all heads of a group
  return kLoads / (args.heads / args.layers[0].qkv.kv.kv_heads);
}

size_t DecodeStepBytes(const DecodeStepArgs& args) {
  return static_cast<size_t>(step::LayOutMemory(args).total);
}

cudaError_t PrepareDecodeStep(const DecodeStepArgs& args, void* memory) {
  using namespace step;
  const StepMemory plan = LayOutMemory(args);
  std::byte* base = static_cast<std::byte*>(memory);
  // The first step is number 1: the tags of its values must not be there before they are. Here they are 0.
  std::vector<std::byte> host(static_cast<size_t>(plan.partial_at));
  const std::vector<uint32_t> steps(static_cast<size_t>(kMaxStepTokens) * static_cast<size_t>(plan.blocks),
                                    1);
  std::memcpy(host.data() + plan.steps_at, steps.data(), steps.size() * 4);
  for (int tokens = 1; tokens <= DecodeStepTokens(args); ++tokens) {
    const Shared shared = MakeShared(args, tokens);
    const float* x = reinterpret_cast<const float*>(base + plan.XAt(tokens));
    float* values = reinterpret_cast<float*>(base + plan.ValuesAt(tokens));
    std::vector<Params> parts;
    AppendParts(args, plan, shared, tokens, x, values, 0, &parts);
    AppendParts(args, plan, shared, tokens, x, values, 1, &parts);
    std::memcpy(host.data() + plan.TableAt(tokens), parts.data(), parts.size() * sizeof(Params));
  }
  for (int i = 0; i < plan.layers; ++i) {
    const DecodeStepLayer& layer = args.layers[static_cast<size_t>(i)];
    const LayerKv kv = {layer.qkv.kv.k, layer.qkv.kv.v, layer.window};
    std::memcpy(host.data() + plan.kv_at + i * static_cast<int64_t>(sizeof(LayerKv)), &kv, sizeof(kv));
  }
  cudaError_t status = cudaMemcpy(memory, host.data(), host.size(), cudaMemcpyHostToDevice);
  if (status != cudaSuccess) return status;
  status = cudaMemset(base + plan.partial_at, 0xff, static_cast<size_t>(plan.partial_vectors * 16));
  for (int tokens = 1; tokens <= kMaxStepTokens && status == cudaSuccess; ++tokens)
    for (int turn = plan.layers; turn < plan.layers + 2 && status == cudaSuccess; ++turn) {
      const size_t bytes = static_cast<size_t>(plan.RegionFloats(tokens)) * 4;
      status = cudaMemset(base + plan.ValuesAt(tokens) + (turn & 1) * static_cast<int64_t>(bytes),
                          (turn >> 1 & 1) != 0 ? 0 : 0xff, bytes);
    }
  return status;
}

cudaError_t LaunchDecodeStep(const DecodeStepArgs& args, void* memory, cudaStream_t stream) {
  using namespace step;
  const int tokens = args.batch.count;
  if (tokens < 1 || tokens > kMaxStepTokens) return cudaErrorInvalidValue;
  const StepMemory plan = LayOutMemory(args);
  const Shared shared = MakeShared(args, tokens);
  std::byte* base = static_cast<std::byte*>(memory);
  const DeviceKv& kv = args.layers[0].qkv.kv;
  StepParams s = {};
  s.parts = reinterpret_cast<const Params*>(base + plan.TableAt(tokens));
  s.kv = reinterpret_cast<const LayerKv*>(base + plan.kv_at);
  s.values = reinterpret_cast<float*>(base + plan.ValuesAt(tokens));
  s.partial = reinterpret_cast<float4*>(base + plan.partial_at);
  s.x = reinterpret_cast<float*>(base + plan.XAt(tokens));
  s.steps = reinterpret_cast<uint32_t*>(base + plan.StepsAt(tokens));
  s.best = reinterpret_cast<uint64_t*>(base + plan.BestAt(tokens));
  s.batch = args.batch;
  s.embedding = args.embedding;
  s.choice = args.choice;
  s.head = DecodeStepHasHead(args);
  s.token_floats = plan.token_floats;
  s.attention_offset = plan.qkv;
  s.layers = plan.layers;
  s.heads = args.heads;
  s.kv_heads = kv.kv_heads, s.head_dim = kv.head_dim, s.padded_dim = kv.padded_dim;
  s.scale = args.scale;
  s.splits = plan.splits;
  s.stages = shared.base.stages;
  s.barrier_offset = shared.base.barrier_offset;
  s.room_offset = shared.base.x_offset;
  s.slot_offset = shared.slot_offset;
  s.place_offset = shared.base.place_offset;
  s.seen_offset = shared.slot_offset + (2 + kSlots) * static_cast<int>(sizeof(Params));
  return WithFormat(args.layers[0].qkv.a.format, [&]<Format F>() {
    if constexpr (HasDecodeStep(F)) return LaunchFormat<F>(s, shared.bytes, stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace celer::cuda
