#include "engine/runners/place/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
const Device kGpu = Device::Cuda(0), kGpu1 = Device::Cuda(1), kCpu = Device::Cpu();

// Four layers of 100 MiB, of which experts take 80, beside a GPU with room for `room` MiB.
PlacementFacts Facts(int64_t room, bool mixture = true) {
  PlacementFacts facts;
  facts.layers.assign(4, {.weights = 100 * kMiB, .experts = mixture ? 80 * kMiB : 0, .kv_block = kMiB});
  facts.embedding = facts.head = 50 * kMiB;
  facts.gpus = {{.index = 0, .room = room * kMiB}};
  facts.kv_blocks = 1;
  return facts;
}

std::vector<LayerTensors> Gguf(int64_t layers = 4) {
  std::vector<LayerTensors> all;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string blk = "blk." + std::to_string(i) + ".";
    LayerTensors names;
    for (const char* own : {"attn_q.weight", "attn_k.weight", "attn_output.weight"})
      names.own.push_back(blk + own);
    for (const char* expert : {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"})
      names.experts.push_back(blk + expert);
    names.beside_experts = {blk + "ffn_gate_inp.weight"};
    all.push_back(names);
  }
  return all;
}

Result<PlacedTensors> Place(const std::string& text, Device rest = kGpu,
                            std::vector<LayerTensors> layers = Gguf()) {
  const auto patterns = ParsePlace(text);
  if (!patterns) return patterns.error();
  std::vector<Device> devices;
  for (const PlacePattern& each : *patterns)
    devices.push_back(each.device == DeviceOptions() ? kCpu : Device::Cuda(each.device.index));
  return PlaceByPatterns({.patterns = *patterns,
                          .devices = devices,
                          .rest = rest,
                          .layers = std::move(layers),
                          .embedding = "token_embd.weight",
                          .head = "output.weight"});
}

std::string Refusal(const std::string& text, Device rest = kGpu) {
  const auto placed = Place(text, rest);
  return placed ? "none" : placed.error().message();
}

TEST(PlacePatterns, ExpertsOfLayers) {
  const auto all = Place("ffn_.*_exps=cpu");
  ASSERT_TRUE(all) << all.error().message();
  EXPECT_TRUE(all->layers.empty());
  EXPECT_THAT(all->cpu_experts, ElementsAre(true, true, true, true));
  const auto some = Place("blk\\.[13]\\.ffn_.*_exps\\.=CPU");
  ASSERT_TRUE(some) << some.error().message();
  EXPECT_THAT(some->cpu_experts, ElementsAre(false, true, false, true));
  // The first pattern counts: some stay on the GPU, all others go.
  const auto except = Place("blk\\.(0|1)\\.ffn_.*_exps=CUDA0,exps=cpu");
  ASSERT_TRUE(except) << except.error().message();
  EXPECT_THAT(except->cpu_experts, ElementsAre(false, false, true, true));
  EXPECT_TRUE(except->layers.empty());
}

TEST(PlacePatterns, WholeLayers) {
  const auto placed = Place("blk\\.[01]\\.=cpu");
  ASSERT_TRUE(placed) << placed.error().message();
  EXPECT_THAT(placed->layers, ElementsAre(kCpu, kCpu, kGpu, kGpu));
  EXPECT_TRUE(placed->cpu_experts.empty());
  const auto both = Place("blk\\.3\\.ffn_.*_exps=cpu,blk\\.[23]\\.=cuda:1");
  ASSERT_TRUE(both) << both.error().message();
  EXPECT_THAT(both->layers, ElementsAre(kGpu, kGpu, kGpu1, kGpu1));
  EXPECT_THAT(both->cpu_experts, ElementsAre(false, false, false, true));
  // The experts of a layer that is on the CPU are there in any case.
  const auto on_cpu = Place("exps=cpu", kCpu);
  ASSERT_TRUE(on_cpu) << on_cpu.error().message();
  EXPECT_TRUE(on_cpu->cpu_experts.empty());
}

TEST(PlacePatterns, WhatCannotBePlacedSaysWhatCan) {
  EXPECT_THAT(Refusal("attn_k=cpu"),
              HasSubstr("'blk.0.attn_q.weight' would be not placed and "
                        "'blk.0.attn_k.weight' on cpu; what can be placed is a whole"));
  EXPECT_THAT(Refusal("ffn_up_exps=cpu"), HasSubstr("what can be placed is a whole layer, and the experts"));
  EXPECT_THAT(Refusal("attn=cpu"), HasSubstr("and not the experts of its layer"));
  EXPECT_THAT(Refusal("ffn_gate_inp=cpu"), HasSubstr("and the experts elsewhere"));
  EXPECT_THAT(Refusal("exps=cuda:1"), HasSubstr("experts on the CPU, or where their layer is"));
  EXPECT_THAT(Refusal("^output=cpu"), HasSubstr("finds 'output.weight': the embedding is with the first"));
  EXPECT_THAT(Refusal("mlp=cpu"),
              HasSubstr("finds no tensor of a layer; they are called such as 'blk.0.attn_q"));
  EXPECT_THAT(Refusal("exps=cpu,up_exps=cpu"), HasSubstr("patterns in front of it"));
  EXPECT_EQ(Refusal("attn=cuda:0"), "none");  // where it would be
}

TEST(PlacePatterns, BadTextsAreSentences) {
  EXPECT_THAT(Refusal("exps"), HasSubstr("expected PATTERN=DEVICE"));
  EXPECT_THAT(Refusal("=cpu"), HasSubstr("expected PATTERN=DEVICE"));
  EXPECT_THAT(Refusal("exps=disk"), HasSubstr("the device is cpu, cuda or cuda:N"));
  EXPECT_THAT(Refusal("exps=auto"), HasSubstr("the device is cpu, cuda or cuda:N"));
  EXPECT_THAT(Refusal("ex(ps=cpu"), HasSubstr("is no regular expression"));
}

TEST(Placement, LayersOfPatternsAreDevicesAndShares) {
  const auto placed = Place("blk\\.[03]\\.=cpu");
  ASSERT_TRUE(placed) << placed.error().message();
  const auto asked = WithPlacedLayers({.place = {{"x", {}}}}, *placed);
  ASSERT_TRUE(asked);
  EXPECT_THAT(asked->devices, ElementsAre(DeviceOptions(), DeviceOptions::Cuda(), DeviceOptions()));
  EXPECT_THAT(asked->split, ElementsAre(1, 2, 1));
  const auto plan = PlanPlacement(*asked, Facts(400), *placed);
  ASSERT_TRUE(plan) << plan.error().message();
  ASSERT_EQ(plan->stages.size(), 3u);
  EXPECT_EQ(plan->stages[1].layers.first, 1);
  EXPECT_EQ(plan->stages[1].layers.count, 2);
  EXPECT_EQ(plan->stages[1].weights, 200 * kMiB);
  const auto full = PlanPlacement(*asked, Facts(150), *placed);
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message(), HasSubstr("give it less by `place`"));
  EXPECT_THAT(WithPlacedLayers({.gpu_layers = 2}, *placed).error().message(),
              HasSubstr("`place` puts layers on devices, and `gpu_layers` does, too"));
}

TEST(Placement, ExpertsOfAnyLayers) {
  const auto placed = Place("blk\\.[02]\\.ffn_.*_exps=cpu");
  ASSERT_TRUE(placed);
  PlacementOptions asked;
  asked.place = {{"x", {}}};
  const auto plan = PlanPlacement(asked, Facts(400), *placed);
  ASSERT_TRUE(plan) << plan.error().message();
  ASSERT_EQ(plan->stages.size(), 1u);
  EXPECT_FALSE(plan->alone());
  EXPECT_THAT(plan->stages[0].cpu_experts, ElementsAre(true, false, true, false));
  EXPECT_EQ(plan->stages[0].weights, (4 * 100 - 2 * 80 + 2 * 50) * kMiB);
  EXPECT_THAT(plan->ToString(Facts(400)), HasSubstr("experts of 2 layers on cpu"));
  asked.cpu_experts = 1;
  EXPECT_THAT(PlanPlacement(asked, Facts(400), *placed).error().message(),
              HasSubstr("both say where experts"));
}

TEST(Placement, ExpertsGoFirst) {
  PlacementOptions asked;
  asked.gpu_layers = PlacementOptions::kAuto;
  EXPECT_TRUE(PlanPlacement(asked, Facts(600))->alone());
  const auto some = PlanPlacement(asked, Facts(400));
  ASSERT_TRUE(some);
  ASSERT_EQ(some->stages.size(), 1u);
  EXPECT_THAT(some->stages[0].cpu_experts, ElementsAre(true, true, false, false));
  const auto layers = PlanPlacement(asked, Facts(120));
  ASSERT_TRUE(layers);
  ASSERT_EQ(layers->stages.size(), 2u);
  EXPECT_TRUE(layers->stages[0].device.is_cpu());
  EXPECT_EQ(layers->stages[1].layers.count, 3);  // 3 * (20 + 1) + 50
  const auto dense = PlanPlacement(asked, Facts(260, /*mixture=*/false));
  ASSERT_TRUE(dense);
  EXPECT_EQ(dense->stages[1].layers.count, 2);
}

TEST(Placement, PromptsAreSentWhereThatIsFaster) {
  // 2 GB at 20 GB/s take as long as 100 tokens of a thousandth of a second.
  EXPECT_EQ(StreamFrom({.sent_bytes = 2e9, .host_bytes_per_s = 20e9, .macs = 5e8, .cpu_flops = 1e12}), 100);
  EXPECT_EQ(StreamFrom({.sent_bytes = 2e9, .host_bytes_per_s = 50e9, .macs = 5e9, .cpu_flops = 1e12}), 32);
  EXPECT_GT(StreamFrom({.sent_bytes = 2e9, .host_bytes_per_s = 1e9, .macs = 1, .cpu_flops = 1e15}),
            1'000'000);
}

TEST(Placement, RoomForWhatIsSent) {
  PlacementOptions asked;
  asked.gpu_layers = PlacementOptions::kAuto;
  PlacementFacts facts = Facts(260, false);
  const auto plan = PlanPlacement(asked, facts);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->stages[1].layers.count, 2);
  const auto from = [&](int64_t fed, int64_t at, int64_t chunk) {
    facts.fed_layers = fed * kMiB;
    const auto with = WithStreaming(*plan, asked, facts, {}, at, chunk);
    EXPECT_TRUE(with);
    return with ? std::pair(with->stream_from, with->stages.back().layers.count)
                : std::pair<int64_t, int64_t>();
  };
  EXPECT_EQ(from(20, 64, 512), std::pair(int64_t{64}, int64_t{1}));  // a layer makes room
  EXPECT_EQ(from(5, 64, 512), std::pair(int64_t{64}, int64_t{2}));
  EXPECT_EQ(from(5, 1000, 512), std::pair(int64_t{0}, int64_t{2}));  // no batch is as large
  EXPECT_EQ(from(40, 64, 512), std::pair(int64_t{0}, int64_t{2}));   // too much of the GPU
  EXPECT_EQ(from(0, 64, 512), std::pair(int64_t{0}, int64_t{2}));    // it cannot be
  asked.stream_prompts = 64;
  EXPECT_EQ(from(40, 64, 32), std::pair(int64_t{64}, int64_t{1}));
  asked.stream_prompts = 0;
  EXPECT_EQ(from(5, 64, 512), std::pair(int64_t{0}, int64_t{2}));
  asked.stream_prompts = 64;
  asked.gpu_layers = 2;
  facts.fed_layers = 100 * kMiB;
  const auto fixed = WithStreaming(*PlanPlacement(asked, facts), asked, facts, {}, 64, 512);
  ASSERT_FALSE(fixed);
  EXPECT_THAT(fixed.error().message(), HasSubstr("`stream_prompts`"));
}

}  // namespace
}  // namespace celer
