#include "device/cublaslt_cuda.h"

#include <gtest/gtest.h>

#include <string>

namespace celer {
namespace {

TEST(CublasLt, LoadsOnceOrSaysWhatToDo) {
  const Result<const CublasLt*> first = CublasLt::Load();
  const Result<const CublasLt*> second = CublasLt::Load();
  ASSERT_EQ(first.has_value(), second.has_value());
  if (!first) {
    EXPECT_NE(first.error().message().find("LD_LIBRARY_PATH"), std::string::npos) << first.error().message();
    GTEST_SKIP() << first.error().message();
  }
  EXPECT_EQ(*first, *second);
  EXPECT_GE((*first)->GetVersion(), 120000u);
}

TEST(CublasLt, NamesItsStatus) {
  EXPECT_STREQ(CublasStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_STREQ(CublasStatusName(static_cast<cublasStatus_t>(12345)), "an unknown cuBLAS status");
}

}  // namespace
}  // namespace celer
