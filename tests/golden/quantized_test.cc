// Checkpoints that the packages themselves wrote, against what transformers computes in f32 with the weights
// that the writer's own code decodes. src/weights/published compares those weights bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/source_dir.h"
#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
const fs::path kQuantized = fs::path(kSourceDir) / "tests/golden/quantized";

// With float products nothing but the order of additions differs. The kernels that a user gets make
// activations int8, which a tiny model does not average out: a sanity bound, as in golden_test.cc.
double MostOff(float greatest_logit) {
  const char* const force = std::getenv("CELER_FORCE");
  return force && std::string_view(force) == "matmul:portable" ? 1e-3 : 0.1 * greatest_logit;
}

TEST(Quantized, LogitsAgreeWithTransformers) {
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(kQuantized)) {
    const fs::path folder = entry.path();
    if (!fs::exists(folder / "golden.safetensors")) continue;
    SCOPED_TRACE(folder.filename().string());
    const auto golden = ReadJsonFile(folder / "golden.json");
    ASSERT_TRUE(golden) << golden.error().message();
    const auto file = SafetensorsFile::Open(folder / "golden.safetensors");
    ASSERT_TRUE(file) << file.error().message();
    const TensorRecord* record = file->Find("prompt_logits");
    ASSERT_TRUE(record);
    std::vector<float> expected(record->bytes.size() / sizeof(float));
    std::memcpy(expected.data(), record->bytes.data(), record->bytes.size());

    auto runner = MakeRunner({.model = folder.string(), .kv = KvType::kF32, .sequences = 1});
    ASSERT_TRUE(runner) << runner.error().message();
    const std::vector<int32_t> prompt = (*golden)["prompt"], table = {0};
    const Slice slice{.tokens = prompt, .position = 0, .block_table = table, .rows = Slice::Rows::kAll};
    const auto logits = RunLogits(**runner, {&slice, 1});
    ASSERT_TRUE(logits) << logits.error().message();
    ASSERT_EQ(logits->size(), expected.size());
    float greatest = 0;
    for (const float value : expected) greatest = std::max(greatest, std::fabs(value));
    EXPECT_TRUE(testing::AllNear(*logits, expected, {.absolute = MostOff(greatest)}));
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

// What was asked for counts more than what the file holds.
TEST(Quantized, OtherFormatsOnRequest) {
  for (const char* weights : {"f32", "int8", "int4"}) {
    const auto runner = MakeRunner({.model = (kQuantized / "gptq").string(),
                                    .weights = *WeightOptions::Parse(weights),
                                    .kv = KvType::kF32,
                                    .sequences = 1});
    EXPECT_TRUE(runner) << weights << ": " << runner.error().message();
  }
}

TEST(Quantized, Fp8WeightsAreForCuda) {
  const auto runner =
      MakeRunner({.model = (kQuantized / "fp8-row").string(), .weights = *WeightOptions::Parse("fp8")});
  ASSERT_FALSE(runner);
  EXPECT_EQ(runner.error().message(), "`weights` fp8 runs on CUDA only; int8 takes as many bits on the CPU");
}

}  // namespace
}  // namespace celer
