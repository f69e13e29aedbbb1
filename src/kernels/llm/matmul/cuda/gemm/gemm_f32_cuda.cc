#include "kernels/llm/matmul/cuda/gemm/gemm_f32_cuda.h"

#include <algorithm>
#include <compare>
#include <map>

#include "device/buffer.h"
#include "device/cublaslt_cuda.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"

namespace celer::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

// The key of an algorithm: all that decides it.
struct Key {
  int64_t m, n, k, a_stride, b_stride, out_stride, a_batch, b_batch, out_batch, batch;
  bool a_transposed, b_transposed;
  uint32_t a_align, b_align, out_align;
  auto operator<=>(const Key&) const = default;
};

// Bytes that the addresses of all matrices of a batch are a multiple of, up to what cuBLASLt cares about.
uint32_t AlignmentOf(const float* data, int64_t batch, int64_t batch_stride) {
  constexpr uintptr_t kMost = 256;
  uintptr_t bits = reinterpret_cast<uintptr_t>(data) | kMost;
  if (batch > 1) bits |= static_cast<uintptr_t>(batch_stride) * sizeof(float);
  return static_cast<uint32_t>(bits & (~bits + 1));
}

}  // namespace

struct GemmF32::State {
  const CublasLt* lt = nullptr;
  cublasLtHandle_t handle = nullptr;
  Buffer workspace;

  // The cuBLASLt descriptors and algorithm of one shape.
  struct GemmPlan {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;  // as cuBLASLt names them
    cublasLtMatmulAlgo_t algorithm = {};
  };
  std::map<Key, GemmPlan> plans;

  ~State() {
    for (auto& [key, plan] : plans) {
      for (const cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.d})
        if (layout) lt->MatrixLayoutDestroy(layout);
      if (plan.desc) lt->MatmulDescDestroy(plan.desc);
    }
    if (handle) lt->Destroy(handle);
  }

  Result<const GemmPlan*> Find(const Key& key);
  Status Describe(const Key& key, GemmPlan* plan);
  Status Choose(const Key& key, GemmPlan* plan);
};

GemmF32::GemmF32(std::unique_ptr<State> state) : state_(std::move(state)) {}
GemmF32::GemmF32(GemmF32&&) noexcept = default;
GemmF32& GemmF32::operator=(GemmF32&&) noexcept = default;
GemmF32::~GemmF32() = default;

Result<GemmF32> GemmF32::Create(int device) {
  auto state = std::make_unique<State>();
  CELER_ASSIGN(state->lt, CublasLt::Load());
  const CudaDeviceScope scope(device);
  CELER_RETURN_IF_ERROR(CublasStatus(state->lt->Create(&state->handle), "starting"));
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  CELER_ASSIGN(state->workspace, Buffer::Allocate(*allocator, kWorkspaceBytes));
  return GemmF32(std::move(state));
}

// Column-major, as cuBLAS sees memory, a row-major matrix is its own transpose: out^T [n, m] = b^T . a^T, and
// an operand that lies as it is multiplied here needs no transposing there.
Status GemmF32::State::Describe(const Key& key, GemmPlan* plan) {
  CELER_RETURN_IF_ERROR(CublasStatus(lt->MatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                     "describing a product"));
  const cublasOperation_t first = key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                          second = key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  CELER_RETURN_IF_ERROR(
      CublasStatus(lt->MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)),
                   "transposing"));
  CELER_RETURN_IF_ERROR(CublasStatus(
      lt->MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)),
      "transposing"));
  const auto layout = [&](cublasLtMatrixLayout_t* out, int64_t rows, int64_t cols, int64_t stride,
                          int64_t batch_stride) -> Status {
    CELER_RETURN_IF_ERROR(CublasStatus(lt->MatrixLayoutCreate(out, CUDA_R_32F, static_cast<uint64_t>(rows),
                                                              static_cast<uint64_t>(cols), stride),
                                       "describing a matrix"));
    if (key.batch == 1) return {};
    const auto count = static_cast<int32_t>(key.batch);
    CELER_RETURN_IF_ERROR(CublasStatus(
        lt->MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
        "describing a batch"));
    return CublasStatus(lt->MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                     &batch_stride, sizeof(batch_stride)),
                        "describing a batch");
  };
  CELER_RETURN_IF_ERROR(key.b_transposed ? layout(&plan->a, key.k, key.n, key.b_stride, key.b_batch)
                                         : layout(&plan->a, key.n, key.k, key.b_stride, key.b_batch));
  CELER_RETURN_IF_ERROR(key.a_transposed ? layout(&plan->b, key.m, key.k, key.a_stride, key.a_batch)
                                         : layout(&plan->b, key.k, key.m, key.a_stride, key.a_batch));
  return layout(&plan->d, key.n, key.m, key.out_stride, key.out_batch);
}

Status GemmF32::State::Choose(const Key& key, GemmPlan* plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  CELER_RETURN_IF_ERROR(CublasStatus(lt->MatmulPreferenceCreate(&preference), "creating a preference"));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    lt->MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.out_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_align);
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = lt->MatmulAlgoGetHeuristic(handle, plan->desc, plan->a, plan->b, plan->d,
                                                           plan->d, preference, 1, &found, &count);
  lt->MatmulPreferenceDestroy(preference);
  CELER_RETURN_IF_ERROR(CublasStatus(status, "looking for an algorithm"));
  if (count == 0)
    return Error::Device("cuBLASLt has no algorithm for ", key.m, " x ", key.n, " x ", key.k, " in f32");
  plan->algorithm = found.algo;
  return {};
}

Result<const GemmF32::State::GemmPlan*> GemmF32::State::Find(const Key& key) {
  if (const auto it = plans.find(key); it != plans.end()) return &it->second;
  GemmPlan& plan = plans[key];
  Status status = Describe(key, &plan);
  if (status) status = Choose(key, &plan);
  if (!status) {
    plans.erase(key);
    return status.error();
  }
  return &plan;
}

Status GemmF32::Run(const Args& args, cudaStream_t stream) {
  const auto& [m, n, k, a, b, out, out_stride, out_batch, alpha, add, batch] = args;
  if (m == 0 || n == 0 || batch == 0) return {};
  const Key key{m,
                n,
                k,
                a.stride,
                b.stride,
                out_stride,
                batch > 1 ? a.batch_stride : 0,
                batch > 1 ? b.batch_stride : 0,
                batch > 1 ? out_batch : 0,
                batch,
                a.transposed,
                b.transposed,
                AlignmentOf(a.data, batch, a.batch_stride),
                AlignmentOf(b.data, batch, b.batch_stride),
                AlignmentOf(out, batch, out_batch)};
  CELER_ASSIGN(const State::GemmPlan* plan, state_->Find(key));
  const float beta = add ? 1.0f : 0.0f;
  return CublasStatus(state_->lt->Matmul(state_->handle, plan->desc, &alpha, b.data, plan->a, a.data, plan->b,
                                         &beta, out, plan->d, out, plan->d, &plan->algorithm,
                                         state_->workspace.data(), kWorkspaceBytes, stream),
                      "multiplying in f32");
}

}  // namespace celer::cuda
