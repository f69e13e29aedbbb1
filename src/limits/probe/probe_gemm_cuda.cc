#include "limits/probe/probe_gemm_cuda.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>

#include "base/log.h"
#include "device/cublaslt_cuda.h"
#include "device/cuda_status.h"
#include "limits/probe/probe_cuda.h"

namespace celer::probe {
namespace {

struct GemmType {
  const char* name;  // as in Machine::flops
  cudaDataType_t in, out, scale;
  cublasComputeType_t compute;
  CudaFill fill;
  size_t in_bytes, out_bytes;
};

// "f32" is the plain one; tf32 rounds its inputs to 10 bits of mantissa on the tensor cores.
constexpr GemmType kGemmTypes[] = {
    {"bf16", CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CudaFill::kBf16, 2, 2},
    {"f16", CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CudaFill::kF16, 2, 2},
    {"fp8", CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CudaFill::kFp8E4m3, 1, 2},
    {"int8", CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CudaFill::kInt8, 1, 4},
    {"tf32", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CudaFill::kF32, 4, 4},
    {"f32", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CudaFill::kF32, 4, 4},
};

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxAlgorithms = 8;

// cuBLASLt's handles, destroyed with the scope.
template <class Handle, class Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

// D = A^T B with all three column-major and n x n: both inputs run along k, as weights and activations do.
class Gemm {
 public:
  static Result<Gemm> Create(const CublasLt& lt, cublasLtHandle_t handle, const GemmType& type, int64_t n) {
    Gemm gemm(lt, handle, type);
    cublasLtMatmulDesc_t desc = nullptr;
    CELER_RETURN_IF_ERROR(
        CublasStatus(lt.MatmulDescCreate(&desc, type.compute, type.scale), "describing a product"));
    gemm.desc_ = {desc, lt.MatmulDescDestroy};
    const cublasOperation_t transpose = CUBLAS_OP_T;
    CELER_RETURN_IF_ERROR(CublasStatus(
        lt.MatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)),
        "transposing A"));
    if (type.in == CUDA_R_8F_E4M3) {
      // Partial sums stay in the tensor core's own precision: twice the rate, and what inference uses.
      const int8_t fast = 1;
      CELER_RETURN_IF_ERROR(
          CublasStatus(lt.MatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)),
                       "fast accumulation"));
    }
    const uint64_t rows = static_cast<uint64_t>(n);
    for (auto [layout, data_type] : {std::pair{&gemm.in_, type.in}, std::pair{&gemm.out_, type.out}}) {
      cublasLtMatrixLayout_t made = nullptr;
      CELER_RETURN_IF_ERROR(
          CublasStatus(lt.MatrixLayoutCreate(&made, data_type, rows, rows, n), "describing a matrix"));
      *layout = {made, lt.MatrixLayoutDestroy};
    }
    return gemm;
  }

  // The algorithms that the library proposes, likely best first; empty if it has none for this dtype here.
  Result<std::vector<cublasLtMatmulAlgo_t>> Algorithms() const {
    cublasLtMatmulPreference_t preference = nullptr;
    CELER_RETURN_IF_ERROR(CublasStatus(lt_->MatmulPreferenceCreate(&preference), "creating a preference"));
    const Owned<cublasLtMatmulPreference_t, decltype(CublasLt::MatmulPreferenceDestroy)> owner(
        preference, lt_->MatmulPreferenceDestroy);
    CELER_RETURN_IF_ERROR(
        CublasStatus(lt_->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
                     "limiting the workspace"));
    std::array<cublasLtMatmulHeuristicResult_t, kMaxAlgorithms> found{};
    int count = 0;
    const cublasStatus_t status =
        lt_->MatmulAlgoGetHeuristic(handle_, desc_.get(), in_.get(), in_.get(), out_.get(), out_.get(),
                                    preference, kMaxAlgorithms, found.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH)
      count = 0;
    else
      CELER_RETURN_IF_ERROR(CublasStatus(status, "looking for algorithms"));
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i)
      if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(found[i].algo);
    return algorithms;
  }

  Status Queue(const cublasLtMatmulAlgo_t& algorithm, const void* a, const void* b, void* d, void* workspace,
               cudaStream_t stream) const {
    // alpha and beta have the scale type's layout.
    const float one_f = 1, zero_f = 0;
    const int32_t one_i = 1, zero_i = 0;
    const bool integer = type_->scale == CUDA_R_32I;
    const void* one = integer ? static_cast<const void*>(&one_i) : &one_f;
    const void* zero = integer ? static_cast<const void*>(&zero_i) : &zero_f;
    return CublasStatus(
        lt_->Matmul(handle_, desc_.get(), one, a, in_.get(), b, in_.get(), zero, d, out_.get(), d, out_.get(),
                    &algorithm, workspace, kWorkspaceBytes, stream),
        type_->name);
  }

 private:
  Gemm(const CublasLt& lt, cublasLtHandle_t handle, const GemmType& type)
      : lt_(&lt), handle_(handle), type_(&type) {}

  const CublasLt* lt_;
  cublasLtHandle_t handle_;
  const GemmType* type_;
  Owned<cublasLtMatmulDesc_t, decltype(CublasLt::MatmulDescDestroy)> desc_{nullptr, nullptr};
  using Layout = Owned<cublasLtMatrixLayout_t, decltype(CublasLt::MatrixLayoutDestroy)>;
  Layout in_{nullptr, nullptr}, out_{nullptr, nullptr};
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Result<std::vector<Rate>> MeasureGemms(CudaTimer& timer, const ProbeOptions& options) {
  CELER_ASSIGN(const CublasLt* lt, CublasLt::Load());
  cublasLtHandle_t raw = nullptr;
  CELER_RETURN_IF_ERROR(CublasStatus(lt->Create(&raw), "starting"));
  const std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, decltype(lt->Destroy)> handle(raw,
                                                                                               lt->Destroy);

  size_t free = 0, total = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free GPU memory"));
  // 8192 fills every tensor core of the largest GPU; a card with little memory is also a small one.
  const int64_t n = free >= (size_t{2} << 30) ? 8192 : 4096;
  const size_t elements = static_cast<size_t>(n) * static_cast<size_t>(n);
  const double operations = 2.0 * std::pow(static_cast<double>(n), 3);
  CELER_ASSIGN(const CudaScratch a, CudaScratch::Allocate(elements * 4));
  CELER_ASSIGN(const CudaScratch b, CudaScratch::Allocate(elements * 4));
  CELER_ASSIGN(const CudaScratch d, CudaScratch::Allocate(elements * 4));
  CELER_ASSIGN(const CudaScratch workspace, CudaScratch::Allocate(kWorkspaceBytes));

  std::vector<Rate> rates;
  for (const GemmType& type : kGemmTypes) {
    if (options.progress)
      options.progress(fmt::format("{} matrix product, {} x {} x {}", type.name, n, n, n));
    CELER_ASSIGN(const Gemm gemm, Gemm::Create(*lt, handle.get(), type, n));
    CELER_ASSIGN(const std::vector<cublasLtMatmulAlgo_t> algorithms, gemm.Algorithms());
    if (algorithms.empty()) {
      log::Info("probe: cuBLASLt has no {} product for this GPU", type.name);
      continue;
    }
    CELER_RETURN_IF_ERROR(
        CudaStatus(LaunchProbeFill(type.fill, a.get(), elements, 1, timer.stream()), "filling A"));
    CELER_RETURN_IF_ERROR(
        CudaStatus(LaunchProbeFill(type.fill, b.get(), elements, 2, timer.stream()), "filling B"));

    // A first look at each algorithm, then a longer one at the winner, within about half a second together.
    const double budget = options.quick ? 0.15 : 0.5;
    std::optional<size_t> best;
    std::optional<Error> problem;  // a proposed algorithm may still refuse to run; the others count
    double best_seconds = 0, spent = 0;
    for (size_t i = 0; i < algorithms.size() && (!best || spent < budget / 2); ++i) {
      const Result<std::vector<double>> seconds = timer.Time(1, 3, [&] {
        return gemm.Queue(algorithms[i], a.get(), b.get(), d.get(), workspace.get(), timer.stream());
      });
      if (!seconds) {
        problem = seconds.error();
        continue;
      }
      const double median = Median(*seconds);
      spent += 4 * median;
      if (!best || median < best_seconds) {
        best = i;
        best_seconds = median;
      }
    }
    if (!best) return *problem;
    const int repetitions = static_cast<int>(std::clamp((budget - spent) / best_seconds, 10.0, 200.0));
    const auto queue = [&] {
      return gemm.Queue(algorithms[*best], a.get(), b.get(), d.get(), workspace.get(), timer.stream());
    };
    CELER_ASSIGN(std::vector<double> seconds, timer.Time(3, repetitions, queue));
    rates.push_back(internal::Summarize(type.name, operations, std::move(seconds)));
    rates.back().variant = fmt::format("cublaslt_{}", lt->GetVersion() / 10000);
  }
  return rates;
}

}  // namespace celer::probe
