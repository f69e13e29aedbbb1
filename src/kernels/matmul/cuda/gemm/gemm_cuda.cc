#include "kernels/matmul/cuda/gemm/gemm_cuda.h"

#include "core/cublaslt_cuda.h"
#include "core/cuda_allocator.h"
#include "core/cuda_status.h"

namespace celer::cuda {
namespace {

Status BlasStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Error::Device("cuBLASLt: ", what, ": ", CublasStatusName(status));
}

}  // namespace

struct Gemm::State {
  const CublasLt* lt = nullptr;
  cublasLtHandle_t handle = nullptr;
  Buffer workspace;

  // Descriptions and algorithm of one shape.
  struct Plan {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, bool, int64_t, bool>;
  std::map<Key, Plan> plans;

  ~State() {
    for (auto& [key, plan] : plans) {
      lt->MatrixLayoutDestroy(plan.a);
      lt->MatrixLayoutDestroy(plan.b);
      lt->MatrixLayoutDestroy(plan.d);
      lt->MatmulDescDestroy(plan.desc);
    }
    if (handle) lt->Destroy(handle);
  }

  Result<const Plan*> Find(const Key& key);
};

Gemm::Gemm(std::unique_ptr<State> state) : state_(std::move(state)) {}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

Result<Gemm> Gemm::Create(int device) {
  auto state = std::make_unique<State>();
  CELER_ASSIGN(state->lt, CublasLt::Load());
  const CudaDeviceScope scope(device);
  CELER_RETURN_IF_ERROR(BlasStatus(state->lt->Create(&state->handle), "starting"));
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  CELER_ASSIGN(state->workspace, Buffer::Allocate(*allocator, kWorkspaceBytes));
  return Gemm(std::move(state));
}

Result<const Gemm::State::Plan*> Gemm::State::Find(const Key& key) {
  if (const auto it = plans.find(key); it != plans.end()) return &it->second;
  const auto& [rows, tokens, padded, f32_out, out_stride, add] = key;
  Plan plan;
  CELER_RETURN_IF_ERROR(
      BlasStatus(lt->MatmulDescCreate(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product"));
  // Column-major, as cuBLAS sees memory: out^T [rows, tokens] = w [padded, rows]^T . x [padded, tokens].
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CELER_RETURN_IF_ERROR(BlasStatus(
      lt->MatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "transposing"));
  const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
  CELER_RETURN_IF_ERROR(BlasStatus(lt->MatrixLayoutCreate(&plan.a, CUDA_R_16BF, u(padded), u(rows), padded),
                                   "describing weights"));
  CELER_RETURN_IF_ERROR(BlasStatus(lt->MatrixLayoutCreate(&plan.b, CUDA_R_16BF, u(padded), u(tokens), padded),
                                   "describing activations"));
  CELER_RETURN_IF_ERROR(BlasStatus(
      lt->MatrixLayoutCreate(&plan.d, f32_out ? CUDA_R_32F : CUDA_R_16BF, u(rows), u(tokens), out_stride),
      "describing the output"));
  cublasLtMatmulPreference_t preference = nullptr;
  CELER_RETURN_IF_ERROR(BlasStatus(lt->MatmulPreferenceCreate(&preference), "creating a preference"));
  size_t bytes = kWorkspaceBytes;
  lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                   sizeof(bytes));
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = lt->MatmulAlgoGetHeuristic(handle, plan.desc, plan.a, plan.b, plan.d, plan.d,
                                                           preference, 1, &found, &count);
  lt->MatmulPreferenceDestroy(preference);
  CELER_RETURN_IF_ERROR(BlasStatus(status, "looking for an algorithm"));
  if (count == 0) return Error::Device("cuBLASLt has no algorithm for ", rows, " x ", tokens, " x ", padded);
  plan.algorithm = found.algo;
  return &plans.emplace(key, plan).first->second;
}

Status Gemm::Run(const void* w, const void* x, int64_t rows, int64_t tokens, int64_t padded, void* out,
                 bool f32_out, int64_t out_stride, bool add, cudaStream_t stream) {
  CELER_ASSIGN(const State::Plan* plan, state_->Find({rows, tokens, padded, f32_out, out_stride, add}));
  const float one = 1, beta = add ? 1.0f : 0.0f;
  return BlasStatus(
      state_->lt->Matmul(state_->handle, plan->desc, &one, w, plan->a, x, plan->b, &beta, out, plan->d, out,
                         plan->d, &plan->algorithm, state_->workspace.data(), kWorkspaceBytes, stream),
      "multiplying");
}

}  // namespace celer::cuda
