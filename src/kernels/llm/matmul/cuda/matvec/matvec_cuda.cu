// The host side of matvec_cuda.cuh: how shared memory and tiles are divided, and the launch.
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"

#include <algorithm>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"

namespace celer::cuda {
namespace matvec {

namespace {

// One block fills a multiprocessor, so that each gets exactly one: with room for two, blocks that start early
// gather on some multiprocessors and leave others idle. A few KB are left for the attention kernel's blocks.
constexpr int kSharedLimit = 216 * 1024;
constexpr int kFewestStages = 2;

int RingLimit() {
  return std::min(kSharedLimit, SharedLimit());
}

constexpr int RoundUp(int n, int to) {
  return (n + to - 1) / to * to;
}

}  // namespace

int Layout(const DeviceMatrix& m, int tokens, int least, Params* p) {
  const bool integer = IsInteger(m.format);  // activations
  const int tiles_of_four = tokens <= 4 ? 1 : 2;
  // All warps' columns of a stage, 16 rows of each.
  const int spans = SpansOf(HopperCode()), warp_cols = spans * 64 * 8 / BitsOf(m.format);
  const int scale_bytes = m.group > 0
                              ? std::max(kWarps * warp_cols / m.group, 1) * 16 * ScaleBytesOf(m.format)
                              : 2 * kBatch * 8 * ScaleBytesOf(m.format);
  p->stage_bytes = StageBytesOf(HopperCode()) + RoundUp(scale_bytes, 128);
  p->group_shift = m.group == 16 ? 4 : m.group == 32 ? 5 : m.group == 64 ? 6 : 7;
  p->plane_bytes = tokens * m.padded * (integer ? 1 : 2) + kPlanePad;
  p->in_flight = !HopperCode() ? kMaxStages : integer ? kInFlight : kInFlight + 1;
  int at = 0;
  const auto take = [&](int bytes) {
    const int offset = at;
    at += RoundUp(bytes, 128);
    return offset;
  };
  p->x_offset = take(std::max(2 * p->plane_bytes, least));
  p->xs_offset = take(integer ? tokens * m.padded / 128 * 8 : 0);
  p->xsum_offset = take(HasSums(m.format) ? tokens * m.padded / m.group * 4 : 0);
  p->red_offset = take(2 * kWarps * tiles_of_four * 32 * static_cast<int>(sizeof(float2)));
  p->sum_offset = take(kMaxMatvecTokens * kWarps * 4);
  p->norm_offset = take(kMaxMatvecTokens * 4);
  p->place_offset = take(kMaxMatvecTokens * static_cast<int>(sizeof(TokenPlace)));
  p->barrier_offset = take((kMaxStages + 1) * 16);
  return at;
}

int AddRing(int beside, Params* p) {
  p->stages = std::min(kMaxStages, (RingLimit() - beside) / p->stage_bytes);
  if (p->stages < kFewestStages) return 0;
  p->in_flight = std::min(p->in_flight, p->stages);
  const int ring = p->stages * p->stage_bytes;
  for (int* offset : {&p->x_offset, &p->xs_offset, &p->xsum_offset, &p->red_offset, &p->sum_offset,
                      &p->norm_offset, &p->place_offset, &p->barrier_offset})
    *offset += ring;
  return ring + beside;
}

void Divide(int tiles, int blocks, Params* p) {
  p->rounds = tiles / (blocks * kBatch);
  const int rest = tiles - p->rounds * blocks * kBatch;
  p->each = rest / blocks, p->more = rest % blocks;
}

}  // namespace matvec

bool CanFuseRope(int head_dim, int rope_dim) {
  return head_dim % 16 == 0 && rope_dim % 16 == 0;
}

bool MatvecFits(Format format, int padded_cols, int tokens) {
  DeviceMatrix m;
  m.format = format;
  m.padded = padded_cols;
  m.row_bytes = static_cast<int64_t>(padded_cols) * BitsOf(format) / 8;
  // The smallest there is.
  const bool wide = format == Format::kInt4 || format == Format::kFp8 || format == Format::kMxfp4;
  m.group = wide ? 32 : HasScales(format) ? 16 : 0;
  matvec::Params p = {};
  return matvec::Layout(m, tokens, 0, &p) + matvec::kFewestStages * p.stage_bytes <= matvec::RingLimit();
}

cudaError_t LaunchMatvec(const MatvecArgs& args, cudaStream_t stream) {
  using namespace matvec;
  if (args.tokens < 1 || args.tokens > kMaxMatvecTokens) return cudaErrorInvalidValue;
  Params p = {};
  p.a = args;
  if (p.a.residual_stride == 0) p.a.residual_stride = p.a.out_stride;
  int tiles = 0;
  switch (args.epilogue) {
    case Epilogue::kStore:
      tiles = (args.a.rows + 15) / 16;
      break;
    case Epilogue::kGateUp:
      tiles = (args.a.rows + 7) / 8;
      break;
    case Epilogue::kQkv:
      tiles = (args.a.rows + args.b.rows + args.c.rows) / 16;
      break;
  }
  const int bytes = AddRing(Layout(args.a, args.tokens, 0, &p), &p);
  if (bytes == 0) return cudaErrorInvalidConfiguration;
  const int blocks = std::min(tiles, Multiprocessors());
  Divide(tiles, blocks, &p);
  return WithFormat(args.a.format, [&]<Format F>() { return LaunchFormat<F>(p, blocks, bytes, stream); });
}

}  // namespace celer::cuda
