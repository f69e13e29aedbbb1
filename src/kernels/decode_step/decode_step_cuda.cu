#include "kernels/decode_step/decode_step_cuda.h"

#include <cstring>
#include <vector>

#include "kernels/decode_step/decode_step_cuda.cuh"

namespace celer::cuda {
namespace step {

cudaError_t LaunchBf16(const StepParams& s, int shared_bytes, cudaStream_t stream);
cudaError_t LaunchInt8(const StepParams& s, int shared_bytes, cudaStream_t stream);
cudaError_t LaunchInt4(const StepParams& s, int shared_bytes, cudaStream_t stream);

namespace {

bool Same(const DeviceMatrix& a, const DeviceMatrix& b) {
  return a.format == b.format && a.group == b.group;
}

struct Prepared {
  Params part[kParts];  // of layer 0
  int bytes;            // of shared memory; 0 if it does not fit
  int params_offset;
};

Prepared Prepare(const DecodeStepArgs& args) {
  const MatvecArgs* parts[kParts] = {&args.qkv, &args.o, &args.gate_up, &args.down};
  const DeviceMatrix* widest = &args.qkv.a;
  for (const MatvecArgs* part : parts)
    if (part->a.padded > widest->padded) widest = &part->a;
  // The room for activations serves attention, too; its largest form is that of four query heads of 128.
  constexpr int kAttentionBytes = 4 * static_cast<int>(sizeof(attention::Shared<16, 4>));
  constexpr int kSlots = 4 * static_cast<int>(sizeof(Params));
  Params base = {};
  Prepared out = {};
  const int beside = matvec::Layout(*widest, args.qkv.tokens, kAttentionBytes, &base);
  out.bytes = matvec::AddRing(beside + kSlots, &base);
  out.params_offset = out.bytes - kSlots;
  for (int i = 0; i < kParts; ++i) {
    Params& p = out.part[i];
    p = base;
    p.a = *parts[i];
    p.chunks = static_cast<int>((p.a.a.row_bytes + matvec::kChunkBytes - 1) / matvec::kChunkBytes);
  }
  out.part[0].tiles = (args.qkv.a.rows + args.qkv.b.rows + args.qkv.c.rows) / 16;
  out.part[1].tiles = (args.o.a.rows + 15) / 16;
  out.part[2].tiles = (args.gate_up.a.rows + 7) / 8;
  out.part[3].tiles = (args.down.a.rows + 15) / 16;
  return out;
}

void SetLayer(const StepLayer& l, Params (&p)[kParts]) {
  p[0].a.a.data = l.q, p[0].a.b.data = l.k, p[0].a.c.data = l.v;
  p[0].a.a.scales = l.q_scales, p[0].a.b.scales = l.k_scales, p[0].a.c.scales = l.v_scales;
  p[0].a.norm = l.attention_norm;
  p[0].a.a_bias = l.q_bias, p[0].a.b_bias = l.k_bias, p[0].a.c_bias = l.v_bias;
  p[0].a.kv.k = l.k_cache, p[0].a.kv.v = l.v_cache;
  p[1].a.a.data = l.o, p[1].a.a.scales = l.o_scales;
  p[2].a.a.data = l.gate, p[2].a.b.data = l.up;
  p[2].a.a.scales = l.gate_scales, p[2].a.b.scales = l.up_scales;
  p[2].a.norm = l.ffn_norm;
  p[3].a.a.data = l.down, p[3].a.a.scales = l.down_scales;
}

}  // namespace
}  // namespace step

bool CanDecodeStep(const DecodeStepArgs& args) {
  const DeviceMatrix& q = args.qkv.a;
  for (const DeviceMatrix* m :
       {&args.qkv.b, &args.qkv.c, &args.o.a, &args.gate_up.a, &args.gate_up.b, &args.down.a})
    if (!step::Same(q, *m)) return false;
  const bool format = q.format == Format::kBf16 ||
                      (q.format == Format::kInt8 && (q.group == 0 || q.group == 128)) ||
                      (q.format == Format::kInt4 && q.group == 128);
  const int group = args.attention.heads / args.attention.kv.kv_heads, dim = args.attention.kv.head_dim;
  // Query heads come in the bunches that attention_cuda.cu makes of them, so that the bits are the same.
  const bool heads = args.attention.kv.dtype == DType::kF16 &&
                     ((dim == 128 && group <= 4) || (dim == 64 && group > 1 && group <= 4));
  return format && heads && args.qkv.tokens <= 4 && args.layer_count <= kMaxStepLayers &&
         step::Prepare(args).bytes > 0;
}

size_t DecodeStepTableBytes(int layer_count) {
  return static_cast<size_t>(layer_count) * (step::kParts * sizeof(matvec::Params) + sizeof(StepLayer));
}

cudaError_t FillDecodeStepTable(const DecodeStepArgs& args, void* table) {
  step::Prepared prepared = step::Prepare(args);
  std::vector<std::byte> host(DecodeStepTableBytes(args.layer_count));
  std::byte* at = host.data();
  for (int i = 0; i < args.layer_count; ++i) {
    step::SetLayer(args.layers[i], prepared.part);
    std::memcpy(at, prepared.part, sizeof(prepared.part));
    at += sizeof(prepared.part);
  }
  std::memcpy(at, args.layers, static_cast<size_t>(args.layer_count) * sizeof(StepLayer));
  return cudaMemcpy(table, host.data(), host.size(), cudaMemcpyHostToDevice);
}

cudaError_t LaunchDecodeStep(const DecodeStepArgs& args, const void* table, cudaStream_t stream) {
  const step::Prepared prepared = step::Prepare(args);
  step::StepParams s = {};
  s.parts = static_cast<const matvec::Params*>(table);
  s.layers = reinterpret_cast<const StepLayer*>(s.parts + args.layer_count * step::kParts);
  s.attention = args.attention;
  const int group = args.attention.heads / args.attention.kv.kv_heads;
  s.batches = group == 1 ? 1 : (group + 3) / 4;
  s.columns = args.attention.kv.kv_heads * s.batches;
  s.layer_count = args.layer_count;
  s.stages = prepared.part[0].stages;
  s.barrier_offset = prepared.part[0].barrier_offset;
  s.params_offset = prepared.params_offset;
  s.counter = args.counter;
  switch (args.qkv.a.format) {
    case Format::kBf16:
      return step::LaunchBf16(s, prepared.bytes, stream);
    case Format::kInt8:
      return step::LaunchInt8(s, prepared.bytes, stream);
    case Format::kInt4:
      return step::LaunchInt4(s, prepared.bytes, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace celer::cuda
