// Whole networks, small ones: placing of quantizers, equalization, bias correction, dispatch, recipes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "graph/load/write_onnx.h"
#include "graph/passes/build_graph.h"
#include "io/file/test_folder.h"
#include "quantize/network/analyze.h"
#include "quantize/network/fall_back.h"
#include "quantize/network/network_recipe.h"
#include "quantize/network/quantizer.h"

namespace celer::ptq {
namespace {

using graph::Attribute;
using graph::testing::Build;

graph::Network NetworkOf(Build& build) {
  EXPECT_TRUE(build.graph.Sort());
  graph::Network out;
  out.graph = build.graph;
  out.source = "test.onnx";
  out.opset = 18;
  return out;
}

Samples RandomSamples(const std::vector<int64_t>& dims, int64_t count, float bad = 0) {
  Samples out;
  out.count = count;
  out.get = [=](int64_t index) -> Result<std::vector<NpyArray>> {
    std::mt19937 random(static_cast<uint32_t>(index) + 1);
    NpyArray array{DType::kF32, Shape(std::span<const int64_t>(dims)), {}};
    std::vector<float> numbers(static_cast<size_t>(*array.shape.elements()));
    for (float& x : numbers) x = std::normal_distribution<float>()(random);
    if (bad != 0) numbers[0] = bad;
    array.bytes.resize(numbers.size() * 4);
    std::memcpy(array.bytes.data(), numbers.data(), array.bytes.size());
    return std::vector<NpyArray>{std::move(array)};
  };
  out.name = [](int64_t index) { return "sample " + std::to_string(index); };
  return out;
}

const std::vector<int64_t> kDims = {1, 4, 9, 9};

std::vector<std::pair<std::string, Attribute>> Padded(int64_t group = 1) {
  return {{"pads", std::vector<int64_t>{1, 1, 1, 1}}, {"group", group}};
}

// x, conv, relu, depthwise conv, clip, conv, + x, max pool, concat of it with itself relued, conv.
struct SmallNet {
  Build build{kDims};
  ValueId relu, clip, third, add, pool, again, concat, head;

  SmallNet() {
    Build& b = build;
    relu = b.Op("Relu", {b.Op("Conv", {b.x, b.Floats({8, 4, 3, 3}), b.Floats({8})}, Padded())});
    clip = b.Op("Clip", {b.Op("Conv", {relu, b.Floats({8, 1, 3, 3}), b.Floats({8})}, Padded(8)), b.Scalar(0),
                         b.Scalar(6)});
    third = b.Op("Conv", {clip, b.Floats({4, 8, 1, 1}), b.Floats({4})});
    add = b.Op("Add", {third, b.x});
    pool = b.Op("MaxPool", {add}, {{"kernel_shape", std::vector<int64_t>{2, 2}}});
    again = b.Op("Relu", {pool});
    concat = b.Op("Concat", {pool, again}, {{"axis", int64_t{1}}});
    head = b.Out(b.Op("Conv", {concat, b.Floats({5, 8, 8, 8}), b.Floats({5})}));
  }
};

Result<NetworkQuantizer> Open(Build& build, const NetworkOptions& options = {}) {
  return NetworkQuantizer::Open(NetworkOf(build), options);
}

TEST(NetworkPlan, OneKernelForConvAndItsRelu) {
  SmallNet net;
  auto quantizer = Open(net.build);
  ASSERT_TRUE(quantizer) << quantizer.error().message();
  const QuantizerPlan plan = quantizer->PlanWithout({});
  int products = 0, with_cut = 0, elementwise = 0, passive = 0;
  for (const Layer& layer : plan.layers) {
    products += layer.kind == Layer::Kind::kProduct ? 1 : 0;
    with_cut += layer.kind == Layer::Kind::kProduct && !layer.followers.empty() ? 1 : 0;
    elementwise += layer.kind == Layer::Kind::kElementwise ? 1 : 0;
    passive += layer.kind == Layer::Kind::kPassive ? 1 : 0;
  }
  EXPECT_EQ(products, 4);
  EXPECT_EQ(with_cut, 2);
  EXPECT_EQ(elementwise, 1);
  EXPECT_EQ(passive, 3);
  // x, relu, clip, third, add, pool, again, concat: the outputs of the convolutions inside and the network's
  // own output are not rounded.
  EXPECT_EQ(plan.values.size(), 8u);
  EXPECT_FALSE(plan.layers.back().quantize_output);
}

TEST(NetworkPlan, PassiveOperatorsShareTheirInputsGrid) {
  SmallNet net;
  auto quantizer = Open(net.build);
  ASSERT_TRUE(quantizer);
  ASSERT_TRUE(quantizer->Calibrate(RandomSamples(kDims, 4), {}));
  const auto grids = quantizer->GridsFor(quantizer->PlanWithout({}));
  ASSERT_TRUE(grids);
  EXPECT_EQ(grids->at(net.pool), grids->at(net.add));
  EXPECT_EQ(grids->at(net.again), grids->at(net.add));
  EXPECT_EQ(grids->at(net.concat), grids->at(net.add));
  EXPECT_NE(grids->at(net.third), grids->at(net.build.x));
  NetworkOptions aligned;
  aligned.align_add = true;
  auto together = Open(net.build, aligned);
  ASSERT_TRUE(together && together->Calibrate(RandomSamples(kDims, 4), {}));
  const auto shared = together->GridsFor(together->PlanWithout({}));
  EXPECT_EQ(shared->at(net.third), shared->at(net.build.x));
}

TEST(NetworkQuantizer, IsCloseAndCloserWithFewerIntegers) {
  SmallNet net;
  const Samples samples = RandomSamples(kDims, 6);
  for (const auto method : {RangeMethod::kMinMax, RangeMethod::kAverage, RangeMethod::kPercentile,
                            RangeMethod::kKl, RangeMethod::kMse})
    for (const auto type : {ActivationType::kU8, ActivationType::kI8, ActivationType::kI8Symmetric}) {
      NetworkOptions options;
      options.range.method = method;
      options.range.type = type;
      auto quantizer = Open(net.build, options);
      ASSERT_TRUE(quantizer && quantizer->Calibrate(samples, {}));
      auto built = quantizer->Build(quantizer->PlanWithout({}));
      ASSERT_TRUE(built) << built.error().message();
      auto scores = Evaluate(quantizer->original(), built->network, samples, {}, {});
      ASSERT_TRUE(scores) << scores.error().message();
      // Kl and the moving average clip a little more than they should on so few values.
      EXPECT_LT(scores->nsr(), method == RangeMethod::kKl || method == RangeMethod::kAverage ? 0.05 : 0.01)
          << Name(method) << " " << Name(type);
      EXPECT_GT(scores->nsr(), 1e-9);
    }
}

TEST(NetworkQuantizer, PowersOfTwo) {
  SmallNet net;
  NetworkOptions options;
  options.range.power_of_two = true;
  auto quantizer = Open(net.build, options);
  ASSERT_TRUE(quantizer && quantizer->Calibrate(RandomSamples(kDims, 2), {}));
  auto built = quantizer->Build(quantizer->PlanWithout({}));
  ASSERT_TRUE(built);
  int scales = 0;
  for (const graph::Node& node : built->network.graph.nodes) {
    if (node.op != "DequantizeLinear") continue;
    for (const float scale : graph::FloatsOf(*built->network.graph.value(node.inputs[1]).constant)) {
      int exponent = 0;
      EXPECT_EQ(std::frexp(scale, &exponent), 0.5f);
      ++scales;
    }
  }
  EXPECT_GT(scales, 20);
}

TEST(Equalize, KeepsWhatTheNetworkComputesAndHelpsOneScale) {
  Build b({1, 3, 8, 8});
  // Rows of very different size, as batch norms leave them.
  auto weights = std::make_shared<std::vector<float>>(16 * 3 * 9);
  std::mt19937 random(9);
  for (size_t i = 0; i < weights->size(); ++i)
    (*weights)[i] = std::normal_distribution<float>()(random) * std::exp2(static_cast<float>(i / 27) - 8);
  const ValueId first = b.graph.AddConstant(
      "first", {DType::kF32, Shape{16, 3, 3, 3}, std::as_bytes(std::span<const float>(*weights)), weights});
  const ValueId relu = b.Op("Relu", {b.Op("Conv", {b.x, first, b.Floats({16})}, Padded())});
  const ValueId deep = b.Op("Relu", {b.Op("Conv", {relu, b.Floats({16, 1, 3, 3})}, Padded(16))});
  b.Out(b.Op("Conv", {deep, b.Floats({4, 16, 1, 1})}));
  const Samples samples = RandomSamples({1, 3, 8, 8}, 4);
  double error[2];
  for (const bool equalize : {false, true}) {
    NetworkOptions options;
    options.per_channel = false;
    options.equalize = equalize;
    auto quantizer = Open(b, options);
    ASSERT_TRUE(quantizer) << quantizer.error().message();
    ASSERT_TRUE(quantizer->Calibrate(samples, {}));
    EXPECT_EQ(quantizer->equalized().pairs, equalize ? 2 : 0);
    auto same = Evaluate(quantizer->original(), quantizer->network(), samples, {}, {});
    ASSERT_TRUE(same);
    EXPECT_LT(same->nsr(), 1e-10);
    auto built = quantizer->Build(quantizer->PlanWithout({}));
    ASSERT_TRUE(built);
    error[equalize ? 1 : 0] = Evaluate(quantizer->original(), built->network, samples, {}, {})->nsr();
  }
  EXPECT_LT(error[1], 0.5 * error[0]);
}

TEST(Equalize, ClipsStayExactOnTheSamples) {
  SmallNet net;
  NetworkOptions options;
  options.equalize = true;
  auto quantizer = Open(net.build, options);
  const Samples samples = RandomSamples(kDims, 4);
  ASSERT_TRUE(quantizer && quantizer->Calibrate(samples, {}));
  EXPECT_EQ(quantizer->equalized().pairs, 2);
  EXPECT_LT(quantizer->equalized().held, quantizer->equalized().channels);
  auto same = Evaluate(quantizer->original(), quantizer->network(), samples, {}, {});
  ASSERT_TRUE(same);
  EXPECT_LT(same->nsr(), 1e-10);
}

TEST(BiasCorrection, TakesTheMeanErrorBack) {
  // Inputs far from zero: what rounding adds does not average out.
  Build b({1, 8, 6, 6});
  const ValueId shifted = b.Op("Add", {b.x, b.Scalar(5)});
  const ValueId relu = b.Op("Relu", {shifted});
  b.Out(b.Op("Conv", {relu, b.Floats({4, 8, 1, 1}), b.Floats({4})}));
  const Samples samples = RandomSamples({1, 8, 6, 6}, 8);
  double mean[2] = {0, 0};
  for (const bool correct : {false, true}) {
    NetworkOptions options;
    options.per_channel = false;
    options.correct_bias = correct;
    auto quantizer = Open(b, options);
    ASSERT_TRUE(quantizer && quantizer->Calibrate(samples, {}));
    auto built = quantizer->Build(quantizer->PlanWithout({}));
    ASSERT_TRUE(built);
    auto exact = Runner::Make(quantizer->original(), false), rounded = Runner::Make(built->network, false);
    ASSERT_TRUE(exact && rounded);
    std::vector<double> sums(4, 0.0);
    for (int64_t s = 0; s < samples.count; ++s) {
      const auto sample = *samples.get(s);
      const auto a = exact->Run(sample), c = rounded->Run(sample);
      const auto x = FloatsIn(&(*a)[0]), y = FloatsIn(&(*c)[0]);
      for (size_t i = 0; i < x.size(); ++i) sums[i / 36] += double{y[i]} - double{x[i]};
    }
    for (const double sum : sums) mean[correct ? 1 : 0] += std::abs(sum);
  }
  EXPECT_LT(mean[1], 0.5 * mean[0]);
}

TEST(FallBack, LeavesTheWorstLayersFloatUntilTheBoundHolds) {
  SmallNet net;
  const Samples samples = RandomSamples(kDims, 4);
  auto quantizer = Open(net.build);
  ASSERT_TRUE(quantizer && quantizer->Calibrate(samples, {}));
  auto reference = Reference::Make(quantizer->original(), samples);
  ASSERT_TRUE(reference);
  const QuantizerPlan plan = quantizer->PlanWithout({});
  auto inserted = quantizer->Build(plan);
  auto layers = Graphwise(*quantizer, plan, *inserted, samples, {});
  ASSERT_TRUE(layers) << layers.error().message();
  ASSERT_EQ(layers->size(), 5u);
  for (const LayerError& layer : *layers) EXPECT_GT(layer.graphwise.nsr(), 0) << layer.name;
  ASSERT_TRUE(Layerwise(*quantizer, *reference, &*layers, {}));
  const double all = reference->Compare(inserted->network)->nsr();
  double worst = 0;
  for (const LayerError& layer : *layers) {
    EXPECT_GT(*layer.layerwise, 0) << layer.name;
    EXPECT_LT(*layer.layerwise, 3 * all) << layer.name;
    worst = std::max(worst, *layer.layerwise);
  }
  auto held = FallBack(*quantizer, *layers, {}, {.max_error = all / 2}, *reference, nullptr, {});
  ASSERT_TRUE(held) << held.error().message();
  EXPECT_LE(held->scores.nsr(), all / 2);
  EXPECT_GE(held->floats.size(), 1u);
  EXPECT_GE(held->steps.size(), held->floats.size());
  auto two = FallBack(*quantizer, *layers, {}, {.worst = 2}, *reference, nullptr, {});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->floats.size(), 2u);
  EXPECT_TRUE(std::any_of(layers->begin(), layers->end(), [&](const LayerError& layer) {
    return *layer.layerwise == worst && two->floats.contains(layer.name);
  }));
  EXPECT_FALSE(FallBack(*quantizer, *layers, {}, {.max_error = 0}, *reference, nullptr, {}));
}

// Two classes, and samples on either side of the border, so near that rounding makes mistakes.
struct NearTheBorder {
  Build build{{1, 16}};
  Samples samples;

  NearTheBorder() {
    const ValueId hidden =
        build.Op("Relu", {build.Op("Gemm", {build.x, build.Floats({16, 8}), build.Floats({8})})});
    build.Out(build.Op("Gemm", {hidden, build.Floats({8, 3}), build.Floats({3})}));
    samples = RandomSamples({1, 16}, 400);
  }
};

TEST(FallBack, UntilTooFewAnswersChange) {
  NearTheBorder net;
  auto quantizer = Open(net.build);
  ASSERT_TRUE(quantizer && quantizer->Calibrate(net.samples, {}));
  auto inserted = quantizer->Build(quantizer->PlanWithout({}));
  ASSERT_TRUE(inserted);
  const auto all = Evaluate(quantizer->original(), inserted->network, net.samples, {}, {});
  ASSERT_TRUE(all);
  ASSERT_GT(all->disagreement(), 0);
  auto answers = Answers::Make(quantizer->original(), net.samples, {}, {});
  ASSERT_TRUE(answers) << answers.error().message();
  EXPECT_FALSE(answers->labelled());
  const auto drop = answers->MeasureDrop(inserted->network, 100);
  ASSERT_TRUE(drop);
  EXPECT_DOUBLE_EQ(drop->percent, all->disagreement());
  EXPECT_FALSE(drop->at_least);
  const auto stopped = answers->MeasureDrop(inserted->network, all->disagreement() / 2);
  ASSERT_TRUE(stopped);
  EXPECT_GT(stopped->percent, all->disagreement() / 2);
  EXPECT_LE(stopped->percent, all->disagreement());

  auto few = net.samples;
  few.count = 8;
  auto reference = Reference::Make(quantizer->original(), few);
  std::vector<LayerError> layers;
  for (const Layer& layer : quantizer->PlanWithout({}).layers)
    if (layer.kind != Layer::Kind::kPassive) layers.push_back({.name = layer.name, .op = ""});
  ASSERT_EQ(layers.size(), 2u);
  ASSERT_TRUE(Layerwise(*quantizer, *reference, &layers, {}));
  // A bound that holds leaves nothing float; one that does not leaves one layer, and then it holds.
  const auto none =
      FallBack(*quantizer, layers, {}, {.max_drop = all->disagreement()}, *reference, &*answers, {});
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_TRUE(none->floats.empty());
  const auto worst = std::max_element(
      layers.begin(), layers.end(), [](const auto& a, const auto& b) { return *a.layerwise < *b.layerwise; });
  auto without = quantizer->Build(quantizer->PlanWithout({{worst->name, "a test"}}));
  const double left = answers->MeasureDrop(without->network, 100)->percent;
  ASSERT_LT(left, all->disagreement());
  const auto held = FallBack(*quantizer, layers, {}, {.max_drop = left}, *reference, &*answers, {});
  ASSERT_TRUE(held) << held.error().message();
  ASSERT_EQ(held->floats.size(), 1u);
  EXPECT_TRUE(held->floats.contains(worst->name));
  ASSERT_EQ(held->steps.size(), 3u);
  EXPECT_NE(held->steps[0].find("with all layers as integers"), std::string::npos) << held->steps[0];
  EXPECT_NE(held->steps[1].find("the bound holds"), std::string::npos) << held->steps[1];
  EXPECT_NE(held->steps[2].find("stays float"), std::string::npos) << held->steps[2];
}

TEST(FallBack, RightAnswersCountWhereClassesAreKnown) {
  NearTheBorder net;
  auto quantizer = Open(net.build);
  ASSERT_TRUE(quantizer && quantizer->Calibrate(net.samples, {}));
  auto inserted = quantizer->Build(quantizer->PlanWithout({}));
  // Every sample is said to be of class 1.
  const Truth truth = [](int64_t) { return std::optional<int64_t>(1); };
  const auto all = Evaluate(quantizer->original(), inserted->network, net.samples, truth, {});
  auto answers = Answers::Make(quantizer->original(), net.samples, truth, {});
  ASSERT_TRUE(all && answers);
  EXPECT_TRUE(answers->labelled());
  const auto drop = answers->MeasureDrop(inserted->network, 100);
  ASSERT_TRUE(drop);
  EXPECT_DOUBLE_EQ(drop->percent, 100 * static_cast<double>(all->right_exact - all->right) / 400);
  // Without scores there is nothing to lose.
  Build flat({1, 16});
  flat.Out(flat.Op("Gemm", {flat.x, flat.Floats({16, 1})}));
  auto other = Open(flat);
  ASSERT_TRUE(other);
  EXPECT_FALSE(Answers::Make(other->original(), net.samples, {}, {}));
}

TEST(Recipe, GivesTheSameBytesWithoutSamples) {
  SmallNet net;
  const TestFolder folder;
  NetworkOptions options;
  options.range.method = RangeMethod::kMse;
  options.equalize = true;
  auto quantizer = Open(net.build, options);
  ASSERT_TRUE(quantizer && quantizer->Calibrate(RandomSamples(kDims, 3), {}));
  const FloatLayers floats = {{quantizer->PlanWithout({}).layers[0].name, "a test"}};
  auto first = quantizer->Build(quantizer->PlanWithout(floats));
  ASSERT_TRUE(first);
  const auto path = folder.path() / "recipe.json";
  std::ofstream(path) << NetworkRecipe::Of(*quantizer, floats).ToJson();
  auto recipe = NetworkRecipe::Read(path);
  ASSERT_TRUE(recipe) << recipe.error().message();
  EXPECT_EQ(recipe->floats, floats);
  auto again = Open(net.build, recipe->options);
  ASSERT_TRUE(again);
  auto known = recipe->For(*again);
  ASSERT_TRUE(known) << known.error().message();
  ASSERT_TRUE(again->Use(std::move(*known)));
  auto second = again->Build(again->PlanWithout(recipe->floats));
  ASSERT_TRUE(second);
  EXPECT_EQ(*graph::ToOnnx(first->network), *graph::ToOnnx(second->network));
  // Of another network.
  Build other(kDims);
  other.Out(other.Op("Conv", {other.x, other.Floats({2, 4, 1, 1})}));
  auto wrong = Open(other, recipe->options);
  ASSERT_TRUE(wrong);
  EXPECT_FALSE(recipe->For(*wrong));
}

TEST(NetworkQuantizer, RefusesWhatItCannotDo) {
  Build nothing(kDims);
  nothing.Out(nothing.Op("Relu", {nothing.x}));
  EXPECT_FALSE(Open(nothing));
  Build twice(kDims);
  twice.Out(twice.Op("QuantizeLinear", {twice.x, twice.Scalar(1)}));
  auto refused = Open(twice);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("already"), std::string::npos);
  SmallNet net;
  auto quantizer = Open(net.build);
  ASSERT_TRUE(quantizer);
  const Status bad =
      quantizer->Calibrate(RandomSamples(kDims, 2, std::numeric_limits<float>::quiet_NaN()), {});
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message().find("not finite"), std::string::npos);
  EXPECT_FALSE(quantizer->Calibrate(RandomSamples({1, 4, 9, 8, 1}, 2), {}));
}

// Before opset 13 Softmax needs a known rank to be written in a newer one, which the file tells of the value
// that is rounded.
TEST(NetworkQuantizer, RoundedValuesKeepTheirTypes) {
  Build b({2, 3, 16});
  const ValueId scores = b.Op("MatMul", {b.Op("Squeeze", {b.x}, {}, 11), b.Floats({16, 12})});
  b.graph.value(scores).type = {.dtype = DType::kF32, .shape = std::vector<graph::Dim>(3)};
  b.Out(b.Op("Softmax", {scores}, {{"axis", int64_t{2}}}, 12));
  auto quantizer = Open(b);
  ASSERT_TRUE(quantizer && quantizer->Calibrate(RandomSamples({2, 3, 16}, 2), {}));
  auto built = quantizer->Build(quantizer->PlanWithout({}));
  ASSERT_TRUE(built) << built.error().message();
  const graph::Node& softmax = built->network.graph.nodes.back();
  ASSERT_EQ(softmax.op, "Softmax");
  EXPECT_NE(softmax.inputs[0], scores);
  const auto& type = built->network.graph.value(softmax.inputs[0]).type;
  ASSERT_TRUE(type.shape.has_value());
  EXPECT_EQ(type.shape->size(), 3u);
  EXPECT_TRUE(graph::ToOnnx(built->network));
}

TEST(NetworkQuantizer, MatMulGemmAndSplit) {
  Build b({2, 3, 16});
  const ValueId sum = b.Op("Add", {b.Op("MatMul", {b.x, b.Floats({16, 12})}), b.Floats({12})});
  const ValueId act = b.Op("Sigmoid", {sum});
  const ValueId flat = b.Op("Reshape", {act, b.Ints({6, 12})});
  b.Out(b.Op("Gemm", {flat, b.Floats({7, 12}), b.Floats({7})}, {{"transB", int64_t{1}}}));
  b.Out(b.Op("Gemm", {flat, b.Floats({12, 7})}));
  auto quantizer = Open(b);
  ASSERT_TRUE(quantizer);
  const Samples samples = RandomSamples({2, 3, 16}, 4);
  ASSERT_TRUE(quantizer->Calibrate(samples, {}));
  auto built = quantizer->Build(quantizer->PlanWithout({}));
  ASSERT_TRUE(built) << built.error().message();
  auto scores = Evaluate(quantizer->original(), built->network, samples, {}, {});
  ASSERT_TRUE(scores) << scores.error().message();
  EXPECT_EQ(scores->outputs.size(), 2u);
  EXPECT_LT(scores->nsr(), 0.01);
}

// x * clip(x + 3, 0, 6) / 6 with a factor and a term behind it: one layer, rounded before and behind, and a
// table when it runs. A gate by another value is a layer of its own, and so is what cuts a product's sums.
TEST(NetworkPlan, AFunctionOfOneValueIsOneLayer) {
  Build b(kDims);
  const ValueId conv = b.Op("Conv", {b.x, b.Floats({8, 4, 1, 1})});
  const ValueId gate = b.Op("Clip", {b.Op("Add", {conv, b.Scalar(3)}), b.Scalar(0), b.Scalar(6)});
  const ValueId swish = b.Op("Div", {b.Op("Mul", {conv, gate}), b.Scalar(6)});
  const ValueId scaled = b.Op("Add", {b.Op("Mul", {swish, b.Scalar(1.5f)}), b.Scalar(0.25f)});
  const ValueId cut = b.Op("Relu", {b.Op("Conv", {scaled, b.Floats({8, 8, 1, 1})})});
  const ValueId gated = b.Op("Mul", {cut, b.Op("Sigmoid", {b.Op("Conv", {cut, b.Floats({8, 8, 1, 1})})})});
  b.Out(b.Op("Conv", {gated, b.Floats({5, 8, 1, 1})}));
  auto quantizer = Open(b);
  ASSERT_TRUE(quantizer) << quantizer.error().message();
  const QuantizerPlan plan = quantizer->PlanWithout({});
  std::vector<size_t> sizes;  // of elementwise layers
  for (const Layer& layer : plan.layers)
    if (layer.kind == Layer::Kind::kElementwise) sizes.push_back(1 + layer.followers.size());
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 1, 1}));  // factor and term went into the next convolution
  EXPECT_EQ(plan.candidates, 7);
  // Left float, nothing of it is rounded.
  for (const Layer& layer : plan.layers) {
    if (layer.followers.size() != 3) continue;
    EXPECT_EQ(quantizer->PlanWithout({{layer.name, "a test"}}).layers.size(), plan.layers.size() - 1);
  }
  const Samples samples = RandomSamples(kDims, 3);
  ASSERT_TRUE(quantizer->Calibrate(samples, {}));
  auto built = quantizer->Build(plan);
  ASSERT_TRUE(built) << built.error().message();
  EXPECT_LT(Evaluate(quantizer->original(), built->network, samples, {}, {})->nsr(), 0.01);
  ASSERT_TRUE(graph::Optimize(&built->network.graph, {.integers_anyway = true}));
  int tables = 0, divisions = 0;
  for (const graph::Node& node : built->network.graph.nodes) {
    tables += node.op == "Table" ? 1 : 0;
    divisions += node.op == "Div" ? 1 : 0;
  }
  EXPECT_EQ(tables, 2);
  EXPECT_EQ(divisions, 0);
}

// Four products of which one is too narrow, two read one value, and two share their weights.
struct ProductNet {
  Build build{{2, 3, 40}};
  ValueId first, second;

  ProductNet() {
    Build& b = build;
    const ValueId weight = b.Floats({40, 32});
    first = b.Op("Add", {b.Floats({32}), b.Op("MatMul", {b.x, weight})});
    second = b.Op("MatMul", {b.Op("Tanh", {b.x}), weight});
    const ValueId third = b.Op("MatMul", {b.x, b.Floats({40, 32})});
    const ValueId sum = b.Op("Relu", {b.Op("Add", {b.Op("Add", {first, second}), third})});
    const ValueId flat = b.Op("Reshape", {sum, b.Ints({6, 32})});
    b.Out(b.Op("Gemm", {flat, b.Floats({24, 32}), b.Floats({24})}, {{"transB", int64_t{1}}}));
    b.Out(b.Op("Gemm", {flat, b.Floats({32, 7})}));
  }
};

TEST(Dynamic, RoundsProductsAsTheyCome) {
  ProductNet net;
  const Samples samples = RandomSamples({2, 3, 40}, 4);
  double error[2];
  for (const bool per_channel : {false, true}) {
    NetworkOptions options;
    options.dynamic = true;
    options.per_channel = per_channel;
    auto quantizer = Open(net.build, options);
    ASSERT_TRUE(quantizer) << quantizer.error().message();
    const QuantizerPlan plan = quantizer->PlanWithout({});
    ASSERT_EQ(plan.layers.size(), 4u);
    EXPECT_EQ(plan.candidates, 4);
    EXPECT_TRUE(plan.values.empty());
    EXPECT_EQ(plan.layers[0].followers.size(), 1u);
    auto built = quantizer->Build(plan);
    ASSERT_TRUE(built) << built.error().message();
    int rounded = 0, products = 0, gemms = 0;
    std::set<ValueId> weights;
    for (const graph::Node& node : built->network.graph.nodes) {
      rounded += node.op == "DynamicQuantizeLinear" ? 1 : 0;
      gemms += node.op == "Gemm" ? 1 : 0;
      if (node.op != "MatMulInteger") continue;
      ++products;
      weights.insert(node.inputs[1]);
      EXPECT_EQ(built->network.graph.value(node.inputs[3]).constant->shape.rank(), per_channel ? 1 : 0);
    }
    EXPECT_EQ(products, 4);
    EXPECT_EQ(rounded, 3);
    EXPECT_EQ(weights.size(), 3u);
    EXPECT_EQ(gemms, 1);
    auto scores = Evaluate(quantizer->original(), built->network, samples, {}, {});
    ASSERT_TRUE(scores) << scores.error().message();
    error[per_channel] = scores->nsr();
    EXPECT_LT(scores->nsr(), 0.001);
    EXPECT_GT(scores->nsr(), 1e-9);
    // A layer that stays float is what it was.
    auto less = quantizer->Build(quantizer->PlanWithout({{plan.layers[1].name, "a test"}}));
    ASSERT_TRUE(less);
    EXPECT_LT(Evaluate(quantizer->original(), less->network, samples, {}, {})->nsr(), scores->nsr());
    auto alone = quantizer->Build(quantizer->PlanOnly(plan.layers[3].name));
    ASSERT_TRUE(alone);
    EXPECT_LT(Evaluate(quantizer->original(), alone->network, samples, {}, {})->nsr(), scores->nsr());
  }
  EXPECT_LT(error[true], 1.1 * error[false]);  // columns of one size gain nothing
}

TEST(Dynamic, RecipeGivesTheSameBytes) {
  ProductNet net;
  const TestFolder folder;
  NetworkOptions options;
  options.dynamic = true;
  options.per_channel = false;
  auto quantizer = Open(net.build, options);
  ASSERT_TRUE(quantizer);
  const FloatLayers floats = {{quantizer->PlanWithout({}).layers[0].name, "a test"}};
  const auto path = folder.path() / "recipe.json";
  std::ofstream(path) << NetworkRecipe::Of(*quantizer, floats).ToJson();
  auto recipe = NetworkRecipe::Read(path);
  ASSERT_TRUE(recipe) << recipe.error().message();
  EXPECT_TRUE(recipe->options.dynamic);
  auto again = Open(net.build, recipe->options);
  ASSERT_TRUE(again);
  EXPECT_EQ(*graph::ToOnnx(quantizer->Build(quantizer->PlanWithout(floats))->network),
            *graph::ToOnnx(again->Build(again->PlanWithout(recipe->floats))->network));
  SmallNet convolutions;
  auto refused = Open(convolutions.build, options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("no Gemm or MatMul"), std::string::npos);
}

}  // namespace
}  // namespace celer::ptq
