// Beam search against what Hugging Face transformers finds with the same settings. tools/make_golden_beams.py
// made the cases.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "celer/engine.h"
#include "golden.h"
#include "io/json/json.h"

namespace celer {
namespace {

TEST(Beams, AreThoseOfTransformers) {
  if (!Exact()) GTEST_SKIP() << "for the portable kernels";
  auto cases = ReadJsonFile(kGolden / "beams.json");
  ASSERT_TRUE(cases) << cases.error().message();
  std::map<std::string, std::unique_ptr<Engine>> engines;
  int longer = 0;
  for (const auto& expected : *cases) {
    SCOPED_TRACE(expected.dump());
    auto& engine = engines[expected["model"]];
    if (!engine) {
      auto loaded = Engine::Load({.model = kGolden / "models" / expected["model"].get<std::string>(),
                                  .kv = KvType::kF32,
                                  .chunk = 16,
                                  .sequences = 64});
      ASSERT_TRUE(loaded) << loaded.error().message();
      engine = std::move(*loaded);
    }
    Request request{.prompt = expected["prompt"],
                    .max_tokens = expected["max_tokens"],
                    .min_tokens = expected["min_tokens"],
                    .stop_tokens = expected["stop_tokens"],
                    .n = expected["n"]};
    const auto& early = expected["early_stopping"];
    request.beam = {.width = expected["width"],
                    .length_penalty = expected["length_penalty"],
                    .early_stopping = early.is_string()   ? BeamSearch::EarlyStopping::kNever
                                      : early.get<bool>() ? BeamSearch::EarlyStopping::kYes
                                                          : BeamSearch::EarlyStopping::kHeuristic};
    ASSERT_TRUE(engine->Submit(request));
    std::vector<std::vector<int32_t>> texts(static_cast<size_t>(request.n));
    std::vector<double> scores(texts.size());
    while (engine->HasWork())
      for (const TokenEvent& event : engine->Step()) {
        ASSERT_EQ(event.error, "");
        texts[static_cast<size_t>(event.answer)].push_back(event.token);
        scores[static_cast<size_t>(event.answer)] += event.score;
      }
    EXPECT_EQ(texts, expected["texts"].get<std::vector<std::vector<int32_t>>>());
    for (size_t i = 0; i < scores.size(); ++i)
      EXPECT_NEAR(scores[i], expected["scores"][i].get<double>(), 2e-4 * std::max(1.0, std::abs(scores[i])));
    longer += texts[0].size() > 1 ? 1 : 0;
  }
  EXPECT_GT(longer, 50);
}

}  // namespace
}  // namespace celer
