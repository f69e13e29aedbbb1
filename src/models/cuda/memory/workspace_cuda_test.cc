#include <gtest/gtest.h>

#include "base/device.h"
#include "device/cuda_status.h"
#include "models/cuda/memory/workspace.h"

namespace celer {
namespace {

// Every code of the driver and of a launch becomes one sentence that says what was tried.
TEST(CudaStatus, NamesWhatWasTriedAndWhatWentWrong) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "copying"));
  for (const auto& [code, name] : {std::pair{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
                                   {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice"},
                                   {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
                                   {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver"}}) {
    const Status status = CudaStatus(code, "running the model on the GPU");
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Error::Code::kDevice);
    EXPECT_EQ(status.error().message().find('\n'), std::string::npos);
    for (const char* word : {"running the model on the GPU", name})
      EXPECT_NE(status.error().message().find(word), std::string::npos) << status.error().message();
  }
  const Status full = CudaStatus(cudaErrorMemoryAllocation, "allocating");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), Error::Code::kOutOfMemory);
}

TEST(CudaWorkspace, EveryRowHasItsOwnNameAndField) {
  const auto rows = CudaWorkspace::Rows();
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      EXPECT_STRNE(rows[i].name, rows[j].name);
      if (!std::holds_alternative<std::monostate>(rows[i].field)) {
        EXPECT_FALSE(rows[i].field == rows[j].field) << rows[i].name << " and " << rows[j].name;
      }
    }
}

// What is allocated is what the plan counts, less what others take; nothing grows with the pool.
TEST(CudaWorkspace, AllocatesWhatIsPlanned) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const DecoderConfig config = FromLlmShape({{.layers = 2,
                                              .hidden = 512,
                                              .intermediate = 1408,
                                              .vocab = 1000,
                                              .heads = 8,
                                              .kv_heads = 4,
                                              .head_dim = 64},
                                             {},
                                             "test"});
  for (const bool exact : {false, true}) {
    const CudaShape shape{
        .config = &config, .max_tokens = 64, .context = 1024, .exact = exact, .wgmma = !exact, .fused = true};
    int64_t own = 0, all = 0;
    for (const CudaWorkspace::Row& row : CudaWorkspace::Rows()) {
      all += row.bytes(shape);
      if (!std::holds_alternative<std::monostate>(row.field)) own += row.bytes(shape);
    }
    EXPECT_EQ(CudaWorkspace::Bytes(shape), all);
    CudaWorkspace workspace;
    const Status made = workspace.Allocate(0, shape);
    ASSERT_TRUE(made) << made.error().message();
    EXPECT_EQ(workspace.allocated(), own);
    EXPECT_NE(workspace.memory().x, nullptr);
    EXPECT_NE(workspace.memory().step, nullptr);
    EXPECT_EQ(workspace.memory().unpacked_a, nullptr);
    EXPECT_EQ(workspace.memory().x_bf16 == nullptr, exact);
  }
}

}  // namespace
}  // namespace celer
