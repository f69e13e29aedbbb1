// Keys and values of 8 bits on the GPU, through the whole forward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/device.h"
#include "base/source_dir.h"
#include "celer/engine.h"
#include "engine/runners/cuda_runner.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "kernels/shared/test_util.h"
#include "models/cuda/decoder.h"

namespace celer {
namespace {

using testing::WorstRelative;
namespace fs = std::filesystem;
const fs::path kModels = fs::path(kSourceDir) / "tests/golden/models";

ThreadPool& Pool() {
  static ThreadPool pool;
  return pool;
}

TEST(CudaKv, EightBitsGiveNearlyTheLogitsOfThe16) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const char* model : {"llama3", "qwen2", "qwen3", "gemma3", "gpt2"}) {
    SCOPED_TRACE(model);
    auto host = Model::Load(kModels / model, {.pack = false}, Pool());
    ASSERT_TRUE(host) << host.error().message();
    std::vector<int32_t> tokens, table;
    for (int i = 0; i < 50; ++i)
      tokens.push_back(static_cast<int32_t>(3 + i * 7 % (host->config().vocab - 3)));
    for (int i = 0; i < 8; ++i) table.push_back(9 - i);
    const Slice slice{.tokens = tokens, .position = 0, .block_table = table, .rows = Slice::Rows::kAll};
    const auto on_gpu = [&](DType kv, bool exact) {
      std::vector<float> out;
      const CudaDecoderOptions options{
          .kv = kv, .context = 1024, .exact = exact, .kv_budget = {.context = 1024, .sequences = 1}};
      auto decoder = CudaDecoder::Make(*host, options);
      auto runner = decoder ? CudaRunner::Make(std::move(*decoder), options, 0, 1) : decoder.error();
      if (!runner) {
        ADD_FAILURE() << runner.error().message();
        return out;
      }
      auto logits = RunLogits(**runner, {&slice, 1});
      if (logits)
        out.assign(logits->begin(), logits->end());
      else
        ADD_FAILURE() << logits.error().message();
      return out;
    };
    const auto wide = on_gpu(DType::kF16, true), int8 = on_gpu(DType::kI8, true),
               fp8 = on_gpu(DType::kFp8E4M3, true);
    const auto int8_fast = on_gpu(DType::kI8, false), fp8_fast = on_gpu(DType::kFp8E4M3, false);
    ASSERT_FALSE(wide.empty());
    for (const auto* other : {&int8, &fp8, &int8_fast, &fp8_fast}) ASSERT_EQ(other->size(), wide.size());
    auto cpu = MakeRunner({.model = (kModels / model).string(), .kv = KvType::kInt8, .sequences = 1});
    ASSERT_TRUE(cpu) << cpu.error().message();
    const auto expected = *RunLogits(**cpu, {&slice, 1});
    EXPECT_LE(WorstRelative(int8, expected), 2e-2);  // a value on the edge rounds to either side
    EXPECT_LE(WorstRelative(int8, wide), 5e-2);
    EXPECT_GT(WorstRelative(int8, wide), 1e-6) << "8 bits were asked for";
    EXPECT_LE(WorstRelative(fp8, wide), 0.3);
    EXPECT_LE(WorstRelative(int8_fast, wide), 0.15);
    EXPECT_LE(WorstRelative(fp8_fast, wide), 0.4);
  }
}

TEST(CudaKv, EightBitsTakeHalfTheMemoryAndDecode) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  int64_t wide = 0;
  for (const char* type : {"f16", "int8", "fp8"}) {
    SCOPED_TRACE(type);
    auto engine = Engine::Load({.model = (kModels / "llama3").string(),
                                .kv = *ParseKvType(type),
                                .device = DeviceOptions::Cuda(),
                                .context = 256,
                                .chunk = 8,
                                .sequences = 4});
    ASSERT_TRUE(engine) << engine.error().message();
    for (int i = 0; i < 3; ++i) {
      Request request;
      for (int j = 0; j < 20 + i; ++j) request.prompt.push_back(5 + j * 3 % 40);
      request.max_tokens = 24;
      EXPECT_TRUE((*engine)->Submit(request));
    }
    const int64_t bytes = (*engine)->info().kv_bytes_per_token;
    if (std::string_view(type) == "f16") wide = bytes;
    EXPECT_LE(bytes, std::string_view(type) == "f16"   ? wide
                     : std::string_view(type) == "fp8" ? wide / 2
                                                       : wide * 3 / 4);
    size_t tokens = 0;
    while ((*engine)->HasWork()) tokens += (*engine)->Step().size();
    EXPECT_FALSE((*engine)->fault());
    EXPECT_GE(tokens, 3u);
  }
}

}  // namespace
}  // namespace celer
