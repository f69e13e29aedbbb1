// Layers of several shapes whose last ones read the keys and values of earlier ones, in the engine: sequences that are
// preempted, swapped, forked, gone on with as beams and found in the prefix cache say bit for bit what they say alone.
#include <gtest/gtest.h>

#include <vector>

#include "device/cpu_allocator.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/cpu_runner.h"
#include "engine_answers.h"
#include "golden.h"

namespace celer::layer_shapes {
namespace {

using engine_answers::Answers;
using engine_answers::Ask;
using engine_answers::AskAlone;
using engine_answers::Outcome;
using engine_answers::RandomRequest;

std::vector<Request> Mixed() {
  std::vector<Request> requests = {RandomRequest(1, 50, 60), RandomRequest(2, 3, 70),
                                   RandomRequest(1, 50, 20), RandomRequest(3, 33, 50)};
  requests[3].n = 3;
  requests[3].sampling.temperature = 1;
  requests[3].sampling.seed = 7;
  Request beams = RandomRequest(5, 20, 30);
  beams.beam.width = 3;
  beams.n = 2;
  requests.push_back(beams);
  return requests;
}

class LayerShapes : public ::testing::TestWithParam<const char*> {
 public:
  std::unique_ptr<Engine> Make(DType kv_type, int64_t blocks, int64_t host_blocks,
                               const EngineOptions& options) const {
    auto pool = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = 2});
    auto model = Model::Load(kGolden / "models" / GetParam(), {}, *pool);
    EXPECT_TRUE(model) << model.error().message();
    auto kv = KvCache::Make(model->config(), kv_type, blocks, CpuAllocator(), host_blocks);
    auto states = StateCache::Make(model->config().recurrent, 0, CpuAllocator());
    EXPECT_TRUE(kv && states);
    return EngineInternals::Make(
        std::make_unique<CpuRunner>(MakeWholeRank(std::move(pool), std::move(*model), std::move(*kv), kv_type,
                                                  200, std::move(*states))),
        options);
  }
  Answers Alone(DType kv_type, const std::vector<Request>& requests) const {
    auto engine = Make(kv_type, 400, 0, {.prefix_cache = false});
    return AskAlone(*engine, requests);
  }
};

TEST_P(LayerShapes, AnswersAreThoseOfSequencesLeftAlone) {
  const std::vector<Request> requests = Mixed();
  for (const DType type : {DType::kF32, DType::kI8}) {
    const Answers alone = Alone(type, requests);
    for (const int chunk : {5, 512}) {
      auto engine = Make(type, 400, 0, {.chunk = chunk});
      EXPECT_EQ(Ask(*engine, requests).answers, alone) << "in steps of " << chunk;
      const Outcome again = Ask(*engine, requests);
      EXPECT_EQ(again.answers, alone) << "with cached prefixes";
      EXPECT_GT(again.stats.cached_tokens, 0);
    }
  }
}

TEST_P(LayerShapes, PreemptionChangesNoAnswer) {
  const std::vector<Request> requests = Mixed();
  const Answers alone = Alone(DType::kF32, requests);
  for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSwap}) {
    auto engine = Make(DType::kF32, 18, 60, {.chunk = 13, .preemption = preemption});
    const Outcome outcome = Ask(*engine, requests);
    EXPECT_EQ(outcome.answers, alone);
    EXPECT_GT(preemption == Preemption::kSwap ? outcome.stats.swaps : outcome.stats.recomputations, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LayerShapes, ::testing::Values("gemma4", "gemma3n", "llama4"));

// Two layers with 2 heads of 6 and two with one of 12; the last two keep nothing.
TEST(LayerShapesMemory, SharedKeysTakeNone) {
  const auto config = LoadDecoderConfig(kGolden / "models/gemma4");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(KvBytesPerToken(*config, DType::kF32), 4 * 2 * 12 * 4);
  auto kv = KvCache::Make(*config, DType::kF32, 8, CpuAllocator());
  ASSERT_TRUE(kv);
  EXPECT_EQ(kv->layers()[4].k, kv->layers()[2].k);
  EXPECT_EQ(kv->layers()[5].v, kv->layers()[3].v);
  EXPECT_NE(kv->layers()[0].k, kv->layers()[2].k);
}

}  // namespace
}  // namespace celer::layer_shapes
