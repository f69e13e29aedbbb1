// cuBLASLt, loaded when it is first needed. Linking it would make every start of the program read hundreds of
// megabytes, and would tie the program to machines that have it.
#pragma once

#include <cublasLt.h>

#include <string_view>

#include "base/result.h"

namespace celer {

// The functions we use, under their own names without the prefix.
struct CublasLt {
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtDestroy) Destroy;
  decltype(&cublasLtGetVersion) GetVersion;
  decltype(&cublasLtMatmul) Matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute;

  // The library stays loaded for the life of the process; the answer, good or bad, is found once.
  // Thread-safe.
  static Result<const CublasLt*> Load();
};

// "CUBLAS_STATUS_NOT_SUPPORTED" and so on; cuBLASLt's own function for it is not in every version.
const char* CublasStatusName(cublasStatus_t status);
// "cuBLASLt: multiplying: CUBLAS_STATUS_...", or success.
Status CublasStatus(cublasStatus_t status, std::string_view what);

}  // namespace celer
