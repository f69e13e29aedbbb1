// A mixture-of-experts block on the GPU: routing is decided there, and the kernels that follow read it there,
// so that a step can be captured in a graph and only the chosen experts' weights are read.
//
//   LaunchMoeRouter -> LaunchMoeRoute -> gate and up -> down -> LaunchMoeCombine
//
// or, for the few tokens of a decode step, all of it in one kernel: LaunchMoeStep.
//
// A shared expert can be cut into experts of the others' size that follow them, which all tokens go to: then it takes
// no kernels of its own.
//
// (token, rank) pairs are sorted by expert into slots; a job is a run of slots of one expert. A token's
// result depends on its own values alone, not on the rest of the batch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

struct ExpertJob {
  int32_t expert, begin, count;  // slots begin .. begin + count - 1
  int32_t first, siblings;       // the jobs of this expert
};

constexpr int kMaxExperts = 4096;  // of a layer
constexpr int kMaxTopExperts = 64;

// As RouterForm in moe.h.
struct MoeForm {
  bool sigmoid = false;
  bool group_by_best_two = false;
  bool normalize = true;
  bool normalize_floor = false;
  const float *bias = nullptr, *choice_bias = nullptr;  // [experts]
  int groups = 1, groups_used = 1;                      // kMaxExpertGroups at most
  float normalize_eps = 0;
  float scale = 1;

  // Whether experts are chosen by their logits, and weights are made of those of the chosen ones, or of all.
  __host__ __device__ constexpr bool ByLogits() const {
    return !sigmoid && choice_bias == nullptr && groups == 1 && !(normalize && normalize_eps > 0);
  }
};
constexpr int kMaxExpertGroups = 32;

// What LaunchMoeRoute leaves for the kernels behind it.
struct MoePlan {
  int32_t* expert = nullptr;  // [tokens, top], largest weight first
  float* weight = nullptr;    // [tokens, top]
  int32_t* slot = nullptr;    // [tokens, top]
  int32_t* row = nullptr;     // [slots]: the token
  ExpertJob* jobs = nullptr;  // [slots] at most
  int32_t* counts = nullptr;  // jobs; then a ticket that is zero before and after

  static constexpr int64_t Bytes(int64_t tokens, int64_t top) {
    return tokens * top * (4 * 4 + static_cast<int64_t>(sizeof(ExpertJob))) + 8;
  }
  static MoePlan In(std::byte* memory, int64_t tokens, int64_t top);  // zeroed memory
};

// Products with the router's rows in f32: another expert changes a token more than any rounding.
struct MoeRouterArgs {
  const float* x = nullptr;     // [tokens, hidden]
  const float* norm = nullptr;  // [hidden]
  float eps = 1e-5f;
  const float* router = nullptr;  // [experts, hidden]
  int tokens = 0, experts = 0, hidden = 0;
  bool deterministic = false;  // a token's logits have the same bits however many there are; slower for many
  float* logits = nullptr;     // [tokens, experts], written
};
cudaError_t LaunchMoeRouter(const MoeRouterArgs& args, cudaStream_t stream);

struct MoeRouteArgs {
  const float* logits = nullptr;  // [tokens, logits_stride] of the router
  int logits_stride = 0;          // 0: experts
  int tokens = 0, experts = 0;
  int top = 0;               // experts of a token, with the shared ones
  int shared = 0;            // how many of them are shared: those behind `experts`
  bool shared_gate = false;  // their weight is the sigmoid of the logit behind the experts', else 1
  MoeForm form;
  int job_tokens = 1;  // slots of a job at most
  const float* x = nullptr;
  const float* norm = nullptr;
  float eps = 1e-5f;
  int hidden = 0;
  // Written, x under the norm: f32 [tokens, hidden], or if it is given bf16 [tokens, bf16_width], zero beyond
  // `hidden`.
  float* normed = nullptr;
  void* normed_bf16 = nullptr;
  int bf16_width = 0;
  MoePlan plan;
};
cudaError_t LaunchMoeRoute(const MoeRouteArgs& args, cudaStream_t stream);

// The experts' matrices lie at equal distances.
struct ExpertMatrices {
  DeviceMatrix first, up;  // of expert 0; up: for gate and up, of the same format as `first`
  int64_t data_stride = 0, scale_stride = 0;              // bytes
  const float *first_bias = nullptr, *up_bias = nullptr;  // [experts, rows]; may be none
};

struct MoeProductArgs {
  ExpertMatrices w;
  bool gate_up = false;  // out = act(gate x) * (up x), where rows of x are tokens; else a row is a slot
  const float* x = nullptr;
  float* out = nullptr;  // [slots, rows of the matrix]
  DeviceActivation activation = DeviceActivation::kSilu;
  float swiglu_limit = 0;
  int top = 0;         // experts of a token
  int job_tokens = 1;  // as in MoeRouteArgs
  MoePlan plan;
};
// How many tokens a job may have, so that their activations fit beside the weights; 0 if not even one does.
int MoeJobTokens(const ExpertMatrices& gate_up, const ExpertMatrices& down, int tokens);
// The product with `gate_up` must directly follow LaunchMoeRoute, and the other one must directly follow it.
cudaError_t LaunchMoeProduct(const MoeProductArgs& args, cudaStream_t stream);

// Grouped GEMM: the same products with bf16 activations and f32 accumulators, for more tokens than a step
// has: each expert's weights are read once for up to kGroupedTokens slots, which is what a job has at most.
constexpr int kGroupedTokens = 64;

struct MoeGroupedArgs {
  ExpertMatrices w;
  bool gate_up = false;
  const void* x = nullptr;  // bf16 [tokens or slots, padded columns of the matrix], zero beyond its columns
  void* out = nullptr;  // gate and up: bf16, else f32 [slots, out_stride]; nothing is written beyond the rows
  int64_t out_stride = 0;
  DeviceActivation activation = DeviceActivation::kSilu;
  float swiglu_limit = 0;
  int job_tokens = kGroupedTokens;  // of a job at most
  MoePlan plan;
  int tokens = 0;  // if not 0: there is no plan, one expert has this many tokens, which are their own slots
};
bool MoeGroupedRuns(const DeviceMatrix& gate_up, const DeviceMatrix& down);
cudaError_t LaunchMoeGrouped(const MoeGroupedArgs& args, cudaStream_t stream);

struct MoeCombineArgs {
  const float* out = nullptr;  // [slots, hidden] of the experts
  int tokens = 0, top = 0, hidden = 0;
  MoePlan plan;
  const float* shared = nullptr;       // [tokens, hidden] of the shared expert, or null
  const float* shared_gate = nullptr;  // [tokens], shared_gate_stride apart: its sigmoid scales that; null: 1
  int shared_gate_stride = 1;
  float* x = nullptr;  // [tokens, hidden], added to
};
cudaError_t LaunchMoeCombine(const MoeCombineArgs& args, cudaStream_t stream);

// Everything above for up to kMaxMatvecTokens tokens.
constexpr int kMaxStepTop = 16, kMaxStepExperts = 1024;
constexpr int kMaxStepPairs = kMaxMatvecTokens * kMaxStepTop;

struct MoeStepArgs {
  const float* norm = nullptr;  // [hidden]
  float eps = 1e-5f;
  const float* router = nullptr;  // [routed, hidden]
  int tokens = 0, hidden = 0;
  int experts = 0, routed = 0;      // routed: the experts, and one more row if a shared one has a gate
  int top = 0, shared_experts = 0;  // as top and shared of MoeRouteArgs
  MoeForm form;
  DeviceActivation activation = DeviceActivation::kSilu;
  float swiglu_limit = 0;
  const float* shared = nullptr;               // [tokens, hidden] of a shared expert apart, or null
  float* x = nullptr;                          // [tokens, hidden], added to
  float *logits = nullptr, *normed = nullptr;  // written: [tokens, routed], [tokens, hidden]
  float *mid = nullptr, *out = nullptr;        // written: [pairs, intermediate], [pairs, hidden]
  int32_t* rows = nullptr;                     // of MoeStepMemory
  uint64_t* arrived = nullptr;
};
// Memory of the steps on one stream, which begins as zeros.
struct MoeStepMemory {
  static int64_t Bytes();
  static void In(std::byte* memory, MoeStepArgs* args);
};
bool MoeStepRuns(const ExpertMatrices& gate_up, const ExpertMatrices& down, int experts, int top, int hidden);
cudaError_t LaunchMoeStep(const MoeStepArgs& args, const ExpertMatrices& gate_up, const ExpertMatrices& down,
                          cudaStream_t stream);

}  // namespace celer::cuda
