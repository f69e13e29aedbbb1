// The host side of moe_step_cuda.cuh: whether it runs, its shared memory, the launch.
#include "kernels/llm/moe/cuda/moe_step_cuda.cuh"

namespace celer::cuda {
namespace moe {

namespace {

// Measured: 6 MB of a layer make Qwen3.5-35B-A3B's steps 0.7 % faster, 24 MB DeepSeek-V2-Lite's experts 2 % slower.
constexpr int64_t kMostPrefetch = 8 << 20;

// Bytes of shared memory for jobs of this many tokens, or 0 if there is no room: both products have one ring,
// and the one with more columns says where everything lies.
int ArrangeStep(const DeviceMatrix& gate_up, const DeviceMatrix& down, int job_tokens, StepParams* f) {
  const bool up_first = gate_up.padded >= down.padded;
  Params &first = up_first ? f->part[0].p : f->part[1].p, &second = up_first ? f->part[1].p : f->part[0].p;
  const int slots = 2 * kSlots * static_cast<int>(sizeof(Params));
  const int more = slots + static_cast<int>(sizeof(StepPlan));
  const int beside = matvec::Layout(up_first ? gate_up : down, job_tokens, 0, &first);
  const int bytes = matvec::AddRing(beside + more, &first);
  if (bytes == 0) return 0;
  matvec::Layout(up_first ? down : gate_up, job_tokens, 0, &second);
  for (const auto same : {&Params::x_offset, &Params::xs_offset, &Params::xsum_offset, &Params::red_offset,
                          &Params::sum_offset, &Params::norm_offset, &Params::place_offset,
                          &Params::barrier_offset, &Params::stages, &Params::in_flight})
    second.*same = first.*same;
  f->part[0].slot_offset = bytes - more;
  f->plan_offset = bytes - more + slots;
  f->job_tokens = job_tokens;
  return bytes;
}

}  // namespace
}  // namespace moe

int64_t MoeStepMemory::Bytes() {
  return 3 * int64_t{sizeof(uint64_t)} + Multiprocessors() * kMaxStepPairs * int64_t{sizeof(int32_t)};
}

void MoeStepMemory::In(std::byte* memory, MoeStepArgs* args) {
  args->arrived = reinterpret_cast<uint64_t*>(memory);
  args->rows = reinterpret_cast<int32_t*>(args->arrived + 3);
}

bool MoeStepRuns(const ExpertMatrices& gate_up, const ExpertMatrices& down, int experts, int top,
                 int hidden) {
  const DeviceMatrix &a = gate_up.first, &b = down.first;
  moe::StepParams f = {};
  // A thread has four values of one token besides the products.
  const int quads = (hidden / 4 + Multiprocessors() - 1) / Multiprocessors();
  return a.format == b.format && a.group == b.group && moe::HasStep(a.format) && hidden % 4 == 0 &&
         quads * kMaxMatvecTokens <= matvec::kConsumers && top <= kMaxStepTop && experts <= kMaxStepExperts &&
         moe::ArrangeStep(a, b, 1, &f) > 0;
}

cudaError_t LaunchMoeStep(const MoeStepArgs& args, const ExpertMatrices& gate_up, const ExpertMatrices& down,
                          cudaStream_t stream) {
  using namespace moe;
  if (args.tokens < 1 || args.tokens > kMaxMatvecTokens || args.shared_experts < 0 ||
      args.top - args.shared_experts < 1 || args.top - args.shared_experts > args.experts ||
      args.experts > args.routed || args.form.groups > kMaxExpertGroups ||
      !MoeStepRuns(gate_up, down, args.experts, args.top, args.hidden))
    return cudaErrorInvalidValue;
  StepParams f = {};
  f.a = args;
  int job_tokens = args.tokens, bytes = 0;
  while ((bytes = ArrangeStep(gate_up.first, down.first, job_tokens, &f)) == 0) --job_tokens;
  Describe(gate_up, true, args.top, &f.part[0]);
  Describe(down, false, args.top, &f.part[1]);
  const int64_t shared[] = {args.shared_experts * gate_up.data_stride,
                            args.shared_experts * down.data_stride};
  if (shared[0] + shared[1] <= kMostPrefetch) f.prefetch[0] = shared[0], f.prefetch[1] = shared[1];
  f.part[0].p.a.activation = args.activation;
  f.part[0].p.a.swiglu_limit = args.swiglu_limit;
  f.part[0].p.a.x = args.normed;
  f.part[0].p.a.out = args.mid;
  f.part[1].p.a.x = args.mid;
  f.part[1].p.a.out = args.out;
  return WithFormat(gate_up.first.format, [&]<Format F>() { return LaunchStepFormat<F>(f, bytes, stream); });
}

}  // namespace celer::cuda
