// stories260K, a real model of 260,000 parameters: the published greedy text and the top-5 logits of every
// position.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#if CELER_WITH_TEXT
#include "base/source_dir.h"
#include "engine/text/text_model.h"
#endif

namespace celer {
namespace {

const std::filesystem::path kStories = std::filesystem::path(kSourceDir) / "../shared/data/stories260K";

bool Missing() {
  return !std::filesystem::exists(kStories / "stories260K.bin");
}

TEST(Stories260K, TopFiveLogitsOfEveryPosition) {
  if (Missing()) GTEST_SKIP() << "no shared/data/stories260K beside the checkout";
  auto runner = MakeRunner({.model = (kStories / "stories260K.bin").string(), .kv = KvType::kF32});
  ASSERT_TRUE(runner) << runner.error().message();
  std::vector<int32_t> table(16);
  std::iota(table.begin(), table.end(), 0);

  std::ifstream lines(kStories / "expected_top5.jsonl");
  std::string line;
  int checked = 0;
  for (; std::getline(lines, line); ++checked) {
    const auto expected = nlohmann::json::parse(line);
    const int32_t token = expected["in"];
    const Slice slice{.tokens = {&token, 1},
                      .position = expected["pos"].get<int64_t>(),
                      .block_table = table,
                      .rows = Slice::Rows::kLast};
    const auto ran = RunLogits(**runner, {&slice, 1});
    ASSERT_TRUE(ran) << ran.error().message();
    const std::vector<float>& logits = *ran;
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
  options.engine.kv = KvType::kF32;
  auto model = TextModel::Load(options);
  ASSERT_TRUE(model) << model.error().message();
  TextRequest request;
  request.prompt = model->prompter.EncodeText("");
  request.max_tokens = 200;
  std::string streamed;
  auto result = Generate(*model, request, [&](std::string_view text) { return streamed += text, true; });
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
