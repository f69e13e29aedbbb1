#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"

#include "device/cublaslt_cuda.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"

namespace celer::cuda {

struct Gemm::State {
  const CublasLt* lt = nullptr;
  cublasLtHandle_t handle = nullptr;
  Buffer workspace;

  // The cuBLASLt descriptors and algorithm of one shape.
  struct GemmPlan {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
  };
  std::map<Shape, GemmPlan> plans;

  ~State() {
    for (auto& [shape, plan] : plans) {
      lt->MatrixLayoutDestroy(plan.a);
      lt->MatrixLayoutDestroy(plan.b);
      lt->MatrixLayoutDestroy(plan.d);
      lt->MatmulDescDestroy(plan.desc);
    }
    if (handle) lt->Destroy(handle);
  }

  Result<const GemmPlan*> Find(const Shape& shape);
};

Gemm::Gemm(std::unique_ptr<State> state) : state_(std::move(state)) {}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

Result<Gemm> Gemm::Create(int device) {
  auto state = std::make_unique<State>();
  CELER_ASSIGN(state->lt, CublasLt::Load());
  const CudaDeviceScope scope(device);
  CELER_RETURN_IF_ERROR(CublasStatus(state->lt->Create(&state->handle), "starting"));
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  CELER_ASSIGN(state->workspace, Buffer::Allocate(*allocator, kWorkspaceBytes));
  return Gemm(std::move(state));
}

Result<const Gemm::State::GemmPlan*> Gemm::State::Find(const Shape& shape) {
  if (const auto it = plans.find(shape); it != plans.end()) return &it->second;
  const auto& [type, rows, tokens, padded, f32_out, add, out_stride] = shape;
  GemmPlan plan;
  const bool integers = type == Type::kInt8;
  CELER_RETURN_IF_ERROR(
      CublasStatus(lt->MatmulDescCreate(&plan.desc, integers ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                        integers ? CUDA_R_32I : CUDA_R_32F),
                   "describing a product"));
  // Column-major, as cuBLAS sees memory: out^T [rows, tokens] = w [padded, rows]^T . x [padded, tokens].
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CELER_RETURN_IF_ERROR(CublasStatus(
      lt->MatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "transposing"));
  const cudaDataType_t element = integers             ? CUDA_R_8I
                                 : type == Type::kFp8 ? CUDA_R_8F_E4M3
                                                      : CUDA_R_16BF,
                       sum = integers  ? CUDA_R_32I
                             : f32_out ? CUDA_R_32F
                                       : CUDA_R_16BF;
  // Sums stay in the tensor cores, which keep fewer bits of them. Not compared with the other way.
  if (type == Type::kFp8) {
    const int8_t fast = 1;
    CELER_RETURN_IF_ERROR(CublasStatus(
        lt->MatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)),
        "asking for fast sums"));
  }
  const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
  CELER_RETURN_IF_ERROR(CublasStatus(lt->MatrixLayoutCreate(&plan.a, element, u(padded), u(rows), padded),
                                     "describing weights"));
  CELER_RETURN_IF_ERROR(CublasStatus(lt->MatrixLayoutCreate(&plan.b, element, u(padded), u(tokens), padded),
                                     "describing activations"));
  CELER_RETURN_IF_ERROR(CublasStatus(lt->MatrixLayoutCreate(&plan.d, sum, u(rows), u(tokens), out_stride),
                                     "describing the output"));
  cublasLtMatmulPreference_t preference = nullptr;
  CELER_RETURN_IF_ERROR(CublasStatus(lt->MatmulPreferenceCreate(&preference), "creating a preference"));
  size_t bytes = kWorkspaceBytes;
  lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                   sizeof(bytes));
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = lt->MatmulAlgoGetHeuristic(handle, plan.desc, plan.a, plan.b, plan.d, plan.d,
                                                           preference, 1, &found, &count);
  lt->MatmulPreferenceDestroy(preference);
  CELER_RETURN_IF_ERROR(CublasStatus(status, "looking for an algorithm"));
  if (count == 0) return Error::Device("cuBLASLt has no algorithm for ", rows, " x ", tokens, " x ", padded);
  plan.algorithm = found.algo;
  return &plans.emplace(shape, plan).first->second;
}

Status Gemm::Run(const Shape& shape, const void* w, const void* x, void* out, cudaStream_t stream) {
  CELER_ASSIGN(const State::GemmPlan* plan, state_->Find(shape));
  const float one = 1, beta = shape.add ? 1.0f : 0.0f;
  const int32_t whole_one = 1, whole_zero = 0;
  const bool integers = shape.type == Type::kInt8;
  const void *by = integers ? static_cast<const void*>(&whole_one) : &one,
             *keep = integers ? static_cast<const void*>(&whole_zero) : &beta;
  return CublasStatus(
      state_->lt->Matmul(state_->handle, plan->desc, by, w, plan->a, x, plan->b, keep, out, plan->d, out,
                         plan->d, &plan->algorithm, state_->workspace.data(), kWorkspaceBytes, stream),
      "multiplying");
}

}  // namespace celer::cuda
