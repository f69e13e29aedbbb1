#include "kernels/decode_step/decode_step_cuda.h"

#include <algorithm>
#include <memory>

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

// Fills all but the layers; the bytes of shared memory, or 0 if it does not fit.
int Prepare(const DecodeStepArgs& args, StepParams* s) {
  const MatvecArgs* parts[kParts] = {&args.qkv, &args.o, &args.gate_up, &args.down};
  const DeviceMatrix* widest = &args.qkv.a;
  for (const MatvecArgs* part : parts)
    if (part->a.padded > widest->padded) widest = &part->a;
  // The room for activations serves attention, too; its largest form is that of four query heads of 128.
  constexpr int kAttentionBytes =
      4 * static_cast<int>(std::max(sizeof(attention::Shared<16, 4>), sizeof(attention::Shared<8, 4>)));
  Params base = {};
  const int bytes = matvec::AddRing(matvec::Layout(*widest, args.qkv.tokens, kAttentionBytes, &base), &base);
  for (int i = 0; i < kParts; ++i) {
    Params& p = s->part[i];
    p = base;
    p.a = *parts[i];
    p.chunks = static_cast<int>((p.a.a.row_bytes + matvec::kChunkBytes - 1) / matvec::kChunkBytes);
  }
  s->part[0].tiles = (args.qkv.a.rows + args.qkv.b.rows + args.qkv.c.rows) / 16;
  s->part[1].tiles = (args.o.a.rows + 15) / 16;
  s->part[2].tiles = (args.gate_up.a.rows + 7) / 8;
  s->part[3].tiles = (args.down.a.rows + 15) / 16;
  s->attention = args.attention;
  const int group = args.attention.heads / args.attention.kv.kv_heads;
  s->batches = group == 1 ? 1 : (group + 3) / 4;
  s->columns = args.attention.kv.kv_heads * s->batches;
  s->layer_count = args.layer_count;
  s->counter = args.counter;
  return bytes;
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
  const auto s = std::make_unique<step::StepParams>();
  return format && heads && args.qkv.tokens <= 4 && args.layer_count <= kMaxStepLayers &&
         step::Prepare(args, s.get()) > 0;
}

cudaError_t LaunchDecodeStep(const DecodeStepArgs& args, cudaStream_t stream) {
  const auto s = std::make_unique<step::StepParams>();
  const int bytes = step::Prepare(args, s.get());
  std::copy(args.layers, args.layers + args.layer_count, s->layers);
  switch (args.qkv.a.format) {
    case Format::kBf16:
      return step::LaunchBf16(*s, bytes, stream);
    case Format::kInt8:
      return step::LaunchInt8(*s, bytes, stream);
    case Format::kInt4:
      return step::LaunchInt4(*s, bytes, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace celer::cuda
