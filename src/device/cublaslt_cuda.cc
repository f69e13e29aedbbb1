#include "device/cublaslt_cuda.h"

#include <dlfcn.h>

#include <array>
#include <string>
#include <type_traits>

namespace celer {
namespace {

// The header's major version is the one whose structs we were compiled with. The functions above have been
// the same since 12, so that one serves, too.
std::array<std::string, 6> Candidates() {
  const std::string this_major = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  return {this_major,
          "libcublasLt.so.13",
          "libcublasLt.so.12",
          "/usr/local/cuda/lib64/" + this_major,
          "/usr/local/cuda/lib64/libcublasLt.so.13",
          "/usr/local/cuda/lib64/libcublasLt.so.12"};
}

Result<CublasLt> Open() {
  void* library = nullptr;
  std::string first_problem;
  for (const std::string& name : Candidates()) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* problem = dlerror();
    if (first_problem.empty() && problem != nullptr) first_problem = problem;
  }
  if (library == nullptr)
    return Error::NotFound("cuBLASLt cannot be loaded (", first_problem,
                           "); install the CUDA runtime libraries, or add their folder to LD_LIBRARY_PATH");

  CublasLt table{};
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  find(table.Create, "cublasLtCreate");
  find(table.Destroy, "cublasLtDestroy");
  find(table.GetVersion, "cublasLtGetVersion");
  find(table.Matmul, "cublasLtMatmul");
  find(table.MatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(table.MatmulDescCreate, "cublasLtMatmulDescCreate");
  find(table.MatmulDescDestroy, "cublasLtMatmulDescDestroy");
  find(table.MatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
  find(table.MatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate");
  find(table.MatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
  find(table.MatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute");
  find(table.MatrixLayoutCreate, "cublasLtMatrixLayoutCreate");
  find(table.MatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy");
  find(table.MatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute");
  if (missing != nullptr)
    return Error::Unsupported("cuBLASLt has no function ", missing,
                              "; install the libraries of CUDA 12 or 13");
  return table;
}

}  // namespace

Result<const CublasLt*> CublasLt::Load() {
  static const Result<CublasLt> loaded = Open();
  if (!loaded) return loaded.error();
  return &*loaded;
}

const char* CublasStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "an unknown cuBLAS status";
}

Status CublasStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Error::Device("cuBLASLt: ", what, ": ", CublasStatusName(status));
}

}  // namespace celer
