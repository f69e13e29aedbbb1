// stories260K, a real model of 260,000 parameters: the published greedy text and the top-5 logits of every
// position.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/model_runner.h"
#if CELER_WITH_TEXT
#include "engine/text_model.h"
#endif

namespace celer {
namespace {

const std::filesystem::path kStories = std::filesystem::path(CELER_SOURCE_DIR) / "../shared/data/stories260K";

bool Missing() {
  return !std::filesystem::exists(kStories / "stories260K.bin");
}

TEST(Stories260K, TopFiveLogitsOfEveryPosition) {
  if (Missing()) GTEST_SKIP() << "no shared/data/stories260K beside the checkout";
  ThreadPool pool;
  auto decoder = Decoder::Load(kStories / "stories260K.bin", {}, pool);
  ASSERT_TRUE(decoder) << decoder.error().message();
  auto kv = KvCache::Make(decoder->config(), DType::kF32, 16, CpuAllocator());
  ASSERT_TRUE(kv) << kv.error().message();
  ModelRunner runner(std::move(*decoder), std::move(*kv));
  std::vector<int32_t> table(16);
  std::iota(table.begin(), table.end(), 0);

  std::ifstream lines(kStories / "expected_top5.jsonl");
  std::string line;
  int checked = 0;
  for (; std::getline(lines, line); ++checked) {
    const auto expected = nlohmann::json::parse(line);
    const int32_t token = expected["in"];
    const Piece piece{
        .tokens = {&token, 1}, .position = expected["pos"].get<int64_t>(), .block_table = table};
    const auto logits = runner.Run({&piece, 1});
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + 5, order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    for (size_t i = 0; i < 5; ++i) {
      const int32_t id = expected["top5"][i][0];
      EXPECT_NEAR(logits[static_cast<size_t>(id)], expected["top5"][i][1].get<double>(), 1e-3)
          << "position " << checked;
      EXPECT_NEAR(logits[static_cast<size_t>(order[i])], expected["top5"][i][1].get<double>(), 1e-3)
          << "rank " << i;
    }
    EXPECT_EQ(order[0], expected["top5"][0][0].get<int32_t>()) << "position " << checked;
  }
  EXPECT_EQ(checked, 200);
}

#if CELER_WITH_TEXT
TEST(Stories260K, GreedyTextIsThePublishedOne) {
  if (Missing()) GTEST_SKIP() << "no shared/data/stories260K beside the checkout";
  TextModelOptions options;
  options.engine.model = (kStories / "stories260K.bin").string();
  options.engine.kv = "f32";
  auto model = TextModel::Load(options);
  ASSERT_TRUE(model) << model.error().message();
  TextRequest request;
  request.prompt = model->EncodeText("");
  request.max_tokens = 200;
  std::string streamed;
  auto result = model->Generate(request, [&](std::string_view text) { return streamed += text, true; });
  ASSERT_TRUE(result) << result.error().message();
  std::ifstream file(kStories / "expected_greedy_200.txt");
  std::string expected(std::istreambuf_iterator<char>(file), {});
  while (!expected.empty() && expected.back() == '\n') expected.pop_back();
  EXPECT_EQ(result->text.substr(0, expected.size()), expected);
  EXPECT_EQ(streamed, result->text);
}
#endif

}  // namespace
}  // namespace celer
