// The golden model whose shape every fused kernel and every vector kernel takes: the tokens that transformers
// chooses, with their probabilities, on every device, in every format that a decode step in one kernel has,
// alone and in a batch. The other golden models are too small for those kernels.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/device.h"
#include "base/source_dir.h"
#include "celer/engine.h"
#include "io/json/json.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(kSourceDir) / "tests/golden/gguf";

// What transformers says: tokens whose margins are wide enough that no rounding of activations turns one.
struct Reference {
  std::vector<int32_t> prompt, tokens;
  std::vector<float> logprobs;
};
Reference ReadReference() {
  auto json = ReadJsonFile(kFolder / "fused-q4_0.golden.json");
  if (!json) {
    ADD_FAILURE() << json.error().message();
    return {};
  }
  Reference out{(*json)["prompt"], (*json)["greedy"], (*json)["firm_logprobs"]};
  out.tokens.resize((*json)["firm"].get<size_t>());
  return out;
}

struct Said {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};

class FusedGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (on_gpu() && CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  }
  static bool on_gpu() { return std::string_view(GetParam()) != "cpu"; }

  // Sequence i starts with the prompt and the first i tokens that follow it.
  static std::vector<Said> Generate(const EngineOptions& options, const Reference& reference, int sequences,
                                    bool logprobs) {
    auto engine = Engine::Load(options);
    if (!engine) {
      ADD_FAILURE() << engine.error().message();
      return {};
    }
    std::map<int64_t, size_t> index;
    for (int i = 0; i < sequences; ++i) {
      Request request;
      request.prompt = reference.prompt;
      request.prompt.insert(request.prompt.end(), reference.tokens.begin(), reference.tokens.begin() + i);
      request.max_tokens = static_cast<int64_t>(reference.tokens.size()) - i;
      request.sampling.logprobs = logprobs ? 0 : -1;
      auto id = (*engine)->Submit(request);
      if (!id) ADD_FAILURE() << id.error().message();
      if (id) index[*id] = static_cast<size_t>(i);
    }
    std::vector<Said> out(static_cast<size_t>(sequences));
    while ((*engine)->HasWork())
      for (const TokenEvent& event : (*engine)->Step()) {
        EXPECT_NE(event.finish, FinishReason::kError) << event.error;
        Said& said = out[index[event.request]];
        said.tokens.push_back(event.token);
        said.logprobs.push_back(event.logprob);
      }
    EXPECT_FALSE((*engine)->fault());
    return out;
  }
};

TEST_P(FusedGolden, TokensAndProbabilitiesAreTheReferences) {
  const Reference reference = ReadReference();
  ASSERT_GE(reference.tokens.size(), 16u);
  const char* const force = std::getenv("CELER_FORCE");
  const bool exact = !on_gpu() && force != nullptr && std::string_view(force) == "matmul:portable";
  const std::vector<const char*> launches =
      on_gpu() ? std::vector<const char*>{"eager", "graph", "fused"} : std::vector<const char*>{"fused"};
  for (const char* weights : {"stored", "bf16", "int8", "int4-g128"})
    for (const char* launch : launches)
      for (const int sequences : {1, 3, 8})  // of each decode kernel: one, some, and the next one's
        for (const bool logprobs : {false, true}) {
          SCOPED_TRACE(::testing::Message() << weights << ", " << launch << ", " << sequences << " sequences"
                                            << (logprobs ? ", with logprobs" : ""));
          const EngineOptions options{.model = (kFolder / "fused-q4_0.gguf").string(),
                                      .weights = *WeightOptions::Parse(weights),
                                      .kv = exact ? KvType::kF32 : KvType::kF16,
                                      .device = *DeviceOptions::Parse(GetParam()),
                                      .launch = *ParseStepLaunch(launch),
                                      .context = 64,
                                      .sequences = 8};
          const auto said = Generate(options, reference, sequences, logprobs);
          ASSERT_EQ(said.size(), static_cast<size_t>(sequences));
          for (size_t i = 0; i < said.size(); ++i) {
            SCOPED_TRACE(i);
            const std::vector<int32_t> tokens(reference.tokens.begin() + static_cast<int64_t>(i),
                                              reference.tokens.end());
            ASSERT_EQ(said[i].tokens, tokens);
            if (!logprobs) continue;
            // As they are, and in bf16, the weights are exactly the file's. int8 and int4 round some of them.
            const bool same_weights =
                weights == std::string_view("stored") || weights == std::string_view("bf16");
            EXPECT_TRUE(testing::AllNear(said[i].logprobs, std::span(reference.logprobs).subspan(i),
                                         {.absolute = exact && same_weights ? 1e-4 : 0.15}));
          }
        }
}

INSTANTIATE_TEST_SUITE_P(Devices, FusedGolden,
#if CELER_WITH_CUDA
                         ::testing::Values("cpu", "cuda"),
#else
                         ::testing::Values("cpu"),
#endif
                         [](const auto& device) { return std::string(device.param); });

}  // namespace
}  // namespace celer
