// Hidden states and embeddings of the tiny models against transformers' last_hidden_state.
// tools/make_golden_hidden.py made the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "golden.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::WorstRelative;
namespace fs = std::filesystem;

double Tolerance() {
  return Exact() ? 1e-4 : 0.1;
}

struct GoldenHidden {
  std::string name;
  fs::path model;
  std::vector<int32_t> prompt = {};
  std::vector<float> hidden = {};  // [prompt, width]
  size_t width = 0;
};

std::vector<GoldenHidden> All() {
  std::vector<GoldenHidden> all;
  auto file = SafetensorsFile::Open(kGolden / "hidden.safetensors");
  EXPECT_TRUE(file) << file.error().message();
  if (!file) return all;
  for (const auto& entry : fs::directory_iterator(kGolden / "models")) {
    GoldenHidden golden{.name = entry.path().filename(), .model = entry.path()};
    const auto json = ReadJsonFile(entry.path() / "golden.json");
    EXPECT_TRUE(json) << json.error().message();
    golden.prompt = (*json)["prompt"].get<std::vector<int32_t>>();
    const TensorRecord* const record = file->Find(golden.name);
    EXPECT_NE(record, nullptr) << golden.name << ": run tools/make_golden_hidden.py";
    if (!record) continue;
    golden.hidden.resize(record->bytes.size() / sizeof(float));
    std::memcpy(golden.hidden.data(), record->bytes.data(), record->bytes.size());
    golden.width = golden.hidden.size() / golden.prompt.size();
    all.push_back(std::move(golden));
  }
  return all;
}

TEST(Hidden, EveryRowIsThatOfTransformers) {
  for (const GoldenHidden& golden : All()) {
    SCOPED_TRACE(golden.name);
    auto runner = MakeRunner({.model = golden.model.string(), .kv = KvType::kF32, .sequences = 2});
    ASSERT_TRUE(runner) << runner.error().message();
    const std::vector<int32_t> table = {1, 0}, other_table = {3, 2};
    // Beside a sequence whose logits are wanted, and one of which only the last row is.
    const Slice slices[] = {{.sequence = 1,
                             .tokens = golden.prompt,
                             .state = 0,
                             .block_table = table,
                             .rows = Slice::Rows::kHidden},
                            {.sequence = 2,
                             .tokens = golden.prompt,
                             .state = 1,
                             .block_table = other_table,
                             .rows = Slice::Rows::kLast}};
    ASSERT_TRUE((*runner)->Queue(slices));
    auto output = (*runner)->Take();
    ASSERT_TRUE(output) << output.error().message();
    ASSERT_EQ(output->hidden.size(), golden.hidden.size());
    ASSERT_EQ(output->logits.size(), static_cast<size_t>((*runner)->info().config.vocab));
    EXPECT_LE(WorstRelative(output->hidden, golden.hidden), Tolerance());
    const std::vector<float> all(output->hidden.begin(), output->hidden.end());

    const Slice last{.sequence = 1,
                     .tokens = golden.prompt,
                     .state = 0,
                     .block_table = table,
                     .rows = Slice::Rows::kLastHidden};
    ASSERT_TRUE((*runner)->Queue({&last, 1}));
    output = (*runner)->Take();
    ASSERT_TRUE(output) << output.error().message();
    EXPECT_EQ(std::vector<float>(output->hidden.begin(), output->hidden.end()),
              std::vector<float>(all.end() - static_cast<int64_t>(golden.width), all.end()));
  }
}

TEST(Hidden, EmbeddingsAreTheirMeanAndTheirLast) {
  for (const GoldenHidden& golden : All()) {
    SCOPED_TRACE(golden.name);
    auto engine = Engine::Load({.model = golden.model.string(), .kv = KvType::kF32, .chunk = 7});
    ASSERT_TRUE(engine) << engine.error().message();
    float scale = 0;
    for (const float value : golden.hidden) scale = std::max(scale, std::abs(value));
    std::vector<float> mean(golden.width),
        last(golden.hidden.end() - static_cast<int64_t>(golden.width), golden.hidden.end());
    for (size_t i = 0; i < golden.width; ++i) {
      double sum = 0;
      for (size_t t = 0; t < golden.prompt.size(); ++t) sum += double{golden.hidden[t * golden.width + i]};
      mean[i] = static_cast<float>(sum / static_cast<double>(golden.prompt.size()));
    }
    for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
      ASSERT_TRUE((*engine)->Submit({.prompt = golden.prompt, .pooling = pooling}));
      std::vector<TokenEvent> events;
      while ((*engine)->HasWork())
        for (TokenEvent& event : (*engine)->Step()) events.push_back(std::move(event));
      ASSERT_EQ(events.size(), 1u);
      ASSERT_EQ(events[0].error, "");
      // Against the rows' own scale: where rows of either sign nearly cancel, what rounding left stays.
      const std::vector<float>& expected = pooling == Pooling::kMean ? mean : last;
      ASSERT_EQ(events[0].embedding.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(events[0].embedding[i], expected[i], Tolerance() * double{scale}) << i;
    }
  }
}

}  // namespace
}  // namespace celer
