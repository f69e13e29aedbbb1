#include "quantize/llm/layer/cuda_gptq.h"

#include <algorithm>

#include "kernels/calibration/gptq/gptq_cuda.h"
#include "kernels/calibration/gptq/inverse_cholesky_cuda.h"

namespace celer {
namespace {

constexpr cudaStream_t kStream = nullptr;

}  // namespace

Result<std::vector<float>> MeanSquaresOf(const CudaGram& gram, int64_t tokens) {
  std::vector<float> out(static_cast<size_t>(gram.cols));
  const size_t step = static_cast<size_t>(gram.cols + 1) * sizeof(float);  // along the diagonal
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpy2D(out.data(), sizeof(float), gram.sums.get(), step,
                                                sizeof(float), out.size(), cudaMemcpyDeviceToHost),
                                   "copying a diagonal from the GPU"));
  for (float& value : out) value /= static_cast<float>(tokens);
  return out;
}

Status CudaGptq::Prepare(const CudaGram& gram, int64_t tokens, const GptqOptions& options,
                         const std::string& name) {
  const int64_t n = cols_ = gram.cols;
  CELER_ASSIGN(const std::vector<float> importance, MeanSquaresOf(gram, tokens));
  CELER_RETURN_IF_ERROR(importance_.Upload(memory_, importance));
  CELER_RETURN_IF_ERROR(order_.Upload(memory_, GptqOrder(importance, options.act_order)));
  CELER_RETURN_IF_ERROR(hessian_.Reserve(memory_, n * n));
  CELER_RETURN_IF_ERROR(u_.Reserve(memory_, n * n));
  return WithDamping(importance, options.damping, name, [&](float damping) -> Result<bool> {
    CELER_RETURN_IF_ERROR(CudaStatus(
        cuda::LaunchOrderHessian(gram.sums.get(), n, tokens, order_.get(), damping, hessian_.get(), kStream),
        "ordering a Hessian"));
    return cuda::InverseCholesky(gemm_, hessian_.get(), n, u_.get(), memory_, kStream);
  });
}

Result<IntTensor> CudaGptq::Quantize(CudaLayer::Matrix* matrix, const Target& target) {
  constexpr int64_t kBlock = cuda::kGptqBlock;
  const int64_t rows = matrix->rows, n = matrix->cols, group = target.group > 0 ? target.group : n;
  const int64_t groups = rows * (n / group), words = rows * n * target.bits / 32;
  CELER_RETURN_IF_ERROR(scales_.Reserve(memory_, groups));
  CELER_RETURN_IF_ERROR(zeros_.Reserve(memory_, groups));
  CELER_RETURN_IF_ERROR(codes_.Reserve(memory_, rows * n));
  CELER_RETURN_IF_ERROR(words_.Reserve(memory_, words));
  CELER_RETURN_IF_ERROR(ordered_.Reserve(memory_, rows * n));
  CELER_RETURN_IF_ERROR(errors_.Reserve(memory_, rows * kBlock));
  const cuda::GptqMatrix m{.w = matrix->values.get(),
                           .rows = rows,
                           .cols = n,
                           .grid = {.bits = target.bits, .group = group, .symmetric = target.symmetric},
                           .scales = scales_.get(),
                           .zeros = zeros_.get(),
                           .codes = codes_.get(),
                           .words = words_.get()};
  CELER_RETURN_IF_ERROR(
      CudaStatus(cuda::LaunchFitGrids(m, importance_.get(), kGridCandidates, kStream), "fitting grids"));
  CELER_RETURN_IF_ERROR(CudaStatus(
      cuda::LaunchOrderColumns(m.w, rows, n, order_.get(), ordered_.get(), kStream), "ordering columns"));
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    CELER_RETURN_IF_ERROR(CudaStatus(cuda::LaunchRoundColumns({.m = m,
                                                               .ordered = ordered_.get(),
                                                               .u = u_.get(),
                                                               .order = order_.get(),
                                                               .first = first,
                                                               .count = static_cast<int>(end - first),
                                                               .errors = errors_.get()},
                                                              kStream),
                                     "rounding columns"));
    CELER_RETURN_IF_ERROR(gemm_.Run({.m = rows,
                                     .n = n - end,
                                     .k = end - first,
                                     .a = {.data = errors_.get(), .stride = kBlock},
                                     .b = {.data = u_.get() + first * n + end, .stride = n},
                                     .out = ordered_.get() + end,
                                     .out_stride = n,
                                     .alpha = -1,
                                     .add = true},
                                    kStream));
  }
  CELER_RETURN_IF_ERROR(CudaStatus(cuda::LaunchPackCodes(m, kStream), "packing codes"));
  std::vector<int32_t> host_words(static_cast<size_t>(words));
  std::vector<uint16_t> host_scales(static_cast<size_t>(groups));
  std::vector<uint8_t> host_zeros(target.symmetric ? 0 : static_cast<size_t>(groups));
  CELER_RETURN_IF_ERROR(
      words_.Download(std::span(reinterpret_cast<uint32_t*>(host_words.data()), host_words.size())));
  CELER_RETURN_IF_ERROR(scales_.Download(host_scales));
  if (!host_zeros.empty()) CELER_RETURN_IF_ERROR(zeros_.Download(host_zeros));
  return IntTensor::From(target, rows, n, std::move(host_words), std::move(host_scales),
                         std::move(host_zeros));
}

}  // namespace celer
