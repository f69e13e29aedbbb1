// What a model takes of a GPU's memory: as planned, and while it is loaded never much more.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/device.h"
#include "device/cuda_allocator.h"
#include "models/config/presets.h"
#include "models/cuda/decoder.h"
#include "models/synth/synth.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

ThreadPool& Pool() {
  static ThreadPool pool;
  return pool;
}

// A file of the shape, gone at the end.
class File {
 public:
  explicit File(const LlmShape& shape) : path_(fs::temp_directory_path() / "celer_cuda_memory_test.gguf") {
    auto model = MakeSynthModel(shape, DType::kBf16, 1);
    EXPECT_TRUE(model) << model.error().message();
    const Status written = WriteSynthGguf(*model, path_, Pool());
    EXPECT_TRUE(written) << written.error().message();
  }
  ~File() { fs::remove(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(CudaMemory, IsAsPlannedAtEveryMomentOfLoading) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  LlmShape dense{{.layers = 6,
                  .hidden = 1024,
                  .intermediate = 2816,
                  .vocab = 16384,
                  .heads = 16,
                  .kv_heads = 4,
                  .head_dim = 64},
                 {},
                 ""};
  LlmShape sparse = dense;
  sparse.experts = 8, sparse.experts_per_token = 2;
  for (const LlmShape& shape : {dense, sparse}) {
    const File file(shape);
    auto host = Model::Load(file.path(), {.pack = false}, Pool());
    ASSERT_TRUE(host) << host.error().message();
    for (const char* weights : {"stored", "int8", "int4-g128", "fp8"})
      for (const bool exact : {false, true}) {
        SCOPED_TRACE(std::string(shape.experts > 0 ? "sparse " : "dense ") + weights);
        auto pool = CudaPool(0);
        ASSERT_TRUE(pool) << pool.error().message();
        (*pool)->Trim();
        const auto before = static_cast<int64_t>((*pool)->Stats().reserved),
                   peak_before = static_cast<int64_t>((*pool)->Stats().peak_reserved);
        CudaDecoderOptions options{.context = 8192, .exact = exact};
        options.weights = *WeightOptions::Parse(weights);
        auto decoder = CudaDecoder::Make(*host, options);
        ASSERT_TRUE(decoder) << decoder.error().message();
        const CudaMemoryPlan& plan = (*decoder)->plan();
        constexpr int64_t kMiB = 1 << 20;
        // Norms and the rounding of addresses come on top of the matrices.
        EXPECT_LE((*decoder)->device_bytes(), plan.weights + 4 * kMiB);
        EXPECT_GE((*decoder)->device_bytes(), plan.weights);
        EXPECT_LE((*decoder)->buffer_bytes(), plan.workspace);
        EXPECT_LE((*decoder)->peak_load_bytes(), (*decoder)->device_bytes() + plan.staging + 4 * kMiB);
        EXPECT_GE(plan.kv_blocks, 2 * KvBlocksFor(options.context))
            << "a GPU has room for more than one sequence";
        EXPECT_LE(plan.total(), plan.free);
        const auto peak = static_cast<int64_t>((*pool)->Stats().peak_reserved);
        EXPECT_LE(peak, std::max(peak_before, before + plan.weights + plan.workspace + 512 * kMiB));
      }
  }
}

TEST(CudaMemory, OfLatentAttentionIsAsPlanned) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  auto config = FindConfigPreset("deepseek-v2-lite");
  ASSERT_TRUE(config) << config.error().message();
  config->layers = 2;
  config->moe.sparse_layer.resize(2);
  for (const int64_t q_rank : {int64_t{0}, int64_t{768}})
    for (const char* weights : {"bf16", "int8"}) {
      SCOPED_TRACE(weights);
      config->latent.q_rank = q_rank;
      CudaDecoderOptions options{.context = 8192};
      options.weights = *WeightOptions::Parse(weights);
      auto decoder = CudaDecoder::Random(*config, options);
      ASSERT_TRUE(decoder) << decoder.error().message();
      const CudaMemoryPlan& plan = (*decoder)->plan();
      EXPECT_EQ(plan.kv_block_bytes, 2 * kKvBlockTokens * 576 * 2);
      EXPECT_LE((*decoder)->device_bytes(), plan.weights + (4 << 20));
      EXPECT_GE((*decoder)->device_bytes(), plan.weights);
      EXPECT_LE((*decoder)->buffer_bytes(), plan.workspace);
    }
}

}  // namespace
}  // namespace celer
