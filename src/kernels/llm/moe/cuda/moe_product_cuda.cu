// The host side of moe_product_cuda.cuh: how large its units are, its shared memory, the launch.
#include <algorithm>

#include "kernels/llm/moe/cuda/moe_product_cuda.cuh"

namespace celer::cuda {
namespace moe {

namespace {

// Bytes of shared memory for this many tokens, or 0 if there is no room.
int Arrange(const DeviceMatrix& m, int tokens, ProductParams* e) {
  const int beside = matvec::Layout(m, tokens, 0, &e->p);
  const int bytes = matvec::AddRing(beside + kSlots * static_cast<int>(sizeof(Params)), &e->p);
  if (bytes > 0) e->slot_offset = bytes - kSlots * static_cast<int>(sizeof(Params));
  return bytes;
}

// Tiles of a unit, which are multiplied at once: those with which one token's experts take least. What comes
// with a unit costs what one more tile costs.
int UnitTiles(int tiles, int top) {
  const auto cost = [&](int unit) {
    const int units = (tiles + unit - 1) / unit * top, blocks = Multiprocessors();
    return (units + blocks - 1) / blocks * (unit + 1);
  };
  int best = matvec::kBatch;
  for (const int unit : {2, 1})
    if (cost(unit) < cost(best)) best = unit;
  return best;
}

}  // namespace

void Describe(const ExpertMatrices& w, bool gate_up, int top, ProductParams* e) {
  const DeviceMatrix& m = w.first;
  e->p.a.a = m;
  e->p.a.b = gate_up ? w.up : m;
  e->p.a.a_bias = w.first_bias;
  e->p.a.b_bias = w.up_bias;
  e->p.a.epilogue = gate_up ? Epilogue::kGateUp : Epilogue::kStore;
  e->p.a.x_stride = m.cols;
  e->p.a.out_stride = m.rows;
  e->tile_rows = gate_up ? 8 : 16;
  e->tiles = (m.rows + e->tile_rows - 1) / e->tile_rows;
  e->data_stride = w.data_stride;
  e->scale_stride = w.scale_stride;
  e->unit = UnitTiles(e->tiles, top);
  e->units = (e->tiles + e->unit - 1) / e->unit;
  e->group_scale_bytes = 8 * ScaleBytesOf(m.format) * (m.group > 0 ? m.padded / m.group : 1);
}

}  // namespace moe

int MoeJobTokens(const ExpertMatrices& gate_up, const ExpertMatrices& down, int tokens) {
  int count = std::min(tokens, kMaxMatvecTokens);
  moe::ProductParams e = {};
  while (count > 0 &&
         (moe::Arrange(gate_up.first, count, &e) == 0 || moe::Arrange(down.first, count, &e) == 0))
    --count;
  return count;
}

cudaError_t LaunchMoeProduct(const MoeProductArgs& args, cudaStream_t stream) {
  using namespace moe;
  const DeviceMatrix& m = args.w.first;
  if (args.job_tokens < 1 || args.job_tokens > kMaxMatvecTokens) return cudaErrorInvalidValue;
  ProductParams e = {};
  Describe(args.w, args.gate_up, args.top, &e);
  e.p.a.activation = args.activation;
  e.p.a.swiglu_limit = args.swiglu_limit;
  e.p.a.x = args.x;
  e.p.a.tokens = args.job_tokens;
  e.p.a.out = args.out;
  const int bytes = Arrange(m, args.job_tokens, &e);
  if (bytes == 0) return cudaErrorInvalidConfiguration;
  e.jobs = args.plan.jobs;
  e.job_count = args.plan.counts;
  e.row = args.gate_up ? args.plan.row : nullptr;
  return WithFormat(m.format, [&]<Format F>() { return LaunchFormat<F>(e, bytes, stream); });
}

}  // namespace celer::cuda
