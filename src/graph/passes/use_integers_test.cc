// Integer operators are made where they mean the same, give what the floats give but for the rounding of
// halves, and are not made elsewhere.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/ops/fast/fast.h"
#include "graph/ops/quant/integer.h"
#include "graph/passes/build_graph.h"

namespace celer::graph {
namespace {

using testing::Build;
using Attributes = std::vector<std::pair<std::string, Attribute>>;

struct Scale {
  float scale = 0.05f;
  int zero = 128;
  bool is_signed = false;
};

class Quantized : public Build {
 public:
  using Build::Build;

  template <class T>
  ValueId Constant(DType dtype, const std::vector<int64_t>& dims, std::vector<T> numbers) {
    auto copy = std::make_shared<std::vector<T>>(std::move(numbers));
    return graph.AddConstant("c" + std::to_string(graph.values.size()),
                             {dtype, Shape(dims), std::as_bytes(std::span<const T>(*copy)), copy});
  }
  ValueId Zero(const Scale& q) {
    if (q.is_signed) return Constant<int8_t>(DType::kI8, {}, {static_cast<int8_t>(q.zero)});
    return Constant<uint8_t>(DType::kU8, {}, {static_cast<uint8_t>(q.zero)});
  }
  ValueId Q(ValueId value, const Scale& q = {}) {
    return Op("QuantizeLinear", {value, Scalar(q.scale), Zero(q)});
  }
  ValueId DQ(ValueId value, const Scale& q = {}) {
    return Op("DequantizeLinear", {value, Scalar(q.scale), Zero(q)});
  }
  ValueId QDQ(ValueId value, const Scale& q = {}) { return DQ(Q(value, q), q); }

  // Weights of i8 with a scale per slice of `axis`.
  ValueId Weights(const std::vector<int64_t>& dims, int64_t axis, int least = -127) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    std::vector<int8_t> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<int8_t>(std::uniform_int_distribution<int>(least, 127)(numbers_)));
    const int64_t n = dims[axis];
    std::vector<float> scales;
    for (int64_t i = 0; i < n; ++i) scales.push_back(0.001f * static_cast<float>(1 + i % 4));
    return Op("DequantizeLinear", {Constant(DType::kI8, dims, values), Constant(DType::kF32, {n}, scales)},
              {{"axis", axis}});
  }
  ValueId Bias(int64_t n) {
    std::vector<int32_t> values;
    for (int64_t i = 0; i < n; ++i)
      values.push_back(std::uniform_int_distribution<int>(-2000, 2000)(numbers_));
    std::vector<float> scales;
    for (int64_t i = 0; i < n; ++i) scales.push_back(0.05f * 0.001f * static_cast<float>(1 + i % 4));
    return Op("DequantizeLinear", {Constant(DType::kI32, {n}, values), Constant(DType::kF32, {n}, scales)},
              {{"axis", int64_t{0}}});
  }

  // How often the pass fires. Outputs are floats, at most one `step` from what the floats give, and rarely
  // that.
  int FiresWithin(double step, bool anyway = true, double share = 0.03) {
    EXPECT_TRUE(graph.Sort());
    const auto before = Run();
    auto reports = Optimize(&graph, {.integers_anyway = anyway});
    EXPECT_TRUE(reports) << reports.error().message();
    if (!reports) return -1;
    const auto after = Run();
    EXPECT_EQ(before.size(), after.size());
    for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      EXPECT_EQ(before[i].size(), after[i].size());
      size_t differ = 0, different = 0;
      for (size_t k = 0; k < std::min(before[i].size(), after[i].size()); ++k) {
        EXPECT_NEAR(before[i][k], after[i][k], step * 1.001);
        differ += before[i][k] != after[i][k] ? 1 : 0;
        different += before[i][k] != before[i][0] ? 1 : 0;
      }
      EXPECT_LE(static_cast<double>(differ), 1 + share * static_cast<double>(before[i].size()));
      if (i == 0) {
        EXPECT_GT(different, before[i].size() / 4) << "a test of nothing";
      }
    }
    const auto report = std::find_if(reports->begin(), reports->end(),
                                     [](const PassReport& one) { return one.name == "use-integers"; });
    return report == reports->end() ? -1 : report->changes;
  }

 private:
  std::mt19937 numbers_{11};
};

constexpr Scale kIn = {0.05f, 120, false}, kOut = {0.04f, 100, false}, kSignedIn = {0.05f, -3, true};
const std::vector<int64_t> kBorder = {1, 1, 1, 1};

TEST(UseIntegers, ConvolutionsWithWhatFollowsThem) {
  for (const Scale& in : {kIn, kSignedIn})
    for (const int64_t groups : {int64_t{1}, int64_t{2}, int64_t{12}})
      for (const char* const ends : {"", "Relu", "Clip"}) {
        Quantized b({2, 12, 9, 7});
        const ValueId y =
            b.Op("Conv", {b.QDQ(b.x, in), b.Weights({12, 12 / groups, 3, 3}, 0), b.Bias(12)},
                 {{"group", groups}, {"pads", kBorder}, {"strides", std::vector<int64_t>{2, 1}}});
        ValueId z = y;
        if (*ends == 'R') z = b.Op("Relu", {y});
        if (*ends == 'C') z = b.Op("Clip", {y, b.Scalar(-1), b.Scalar(1.5f)});
        b.Out(b.QDQ(z, kOut));
        EXPECT_EQ(b.FiresWithin(kOut.scale), 1) << groups << ends;
        EXPECT_EQ(b.Count("IntegerConv"), 1);
        EXPECT_EQ(b.Count("Conv"), 0);
        EXPECT_EQ(b.Count("DequantizeLinear"), 1);
      }
}

TEST(UseIntegers, TransposesStandAtTheBordersOnly) {
  Quantized b({1, 8, 6, 6});
  const ValueId x = b.QDQ(b.x, kIn);
  const ValueId y = b.QDQ(b.Op("Conv", {x, b.Weights({8, 8, 1, 1}, 0), b.Bias(8)}), kOut);
  const ValueId z = b.QDQ(b.Op("Add", {x, y}), kOut);
  const ValueId p = b.QDQ(b.Op("MaxPool", {z}, {{"kernel_shape", std::vector<int64_t>{2, 2}}}), kOut);
  const ValueId s = b.QDQ(b.Op("Sigmoid", {p}), {1.0f / 255, 0, false});
  const ValueId m = b.QDQ(b.Op("Mul", {p, s}), kOut);
  b.Out(b.QDQ(b.Op("Concat", {m, p, s}, {{"axis", int64_t{1}}}), {0.05f, 90, false}));
  EXPECT_EQ(b.FiresWithin(0.06, true, 0.1), 6);  // what one rounds otherwise the next ones see
  EXPECT_EQ(b.Count("Transpose"), 2);
  EXPECT_EQ(b.Count("QuantizeLinear"), 1);
  EXPECT_EQ(b.Count("DequantizeLinear"), 1);
}

TEST(UseIntegers, Products) {
  for (const bool gemm : {false, true}) {
    Quantized b({5, 37});
    const ValueId x = b.QDQ(b.x, kIn);
    const ValueId y = gemm ? b.Op("Gemm", {x, b.Weights({20, 37}, 0), b.Bias(20)}, {{"transB", int64_t{1}}})
                           : b.Op("MatMul", {x, b.Weights({37, 20}, 1)});
    b.Out(b.QDQ(b.Op("Relu", {y}), {0.02f, 0, false}));
    EXPECT_EQ(b.FiresWithin(0.02), 1);
    EXPECT_EQ(b.Count("IntegerMatMul"), 1);
  }
}

TEST(UseIntegers, Means) {
  for (const char* const op : {"GlobalAveragePool", "AveragePool", "ReduceMean"}) {
    Quantized b({2, 6, 8, 8});
    Attributes attributes;
    if (*op == 'A')
      attributes = {
          {"kernel_shape", std::vector<int64_t>{3, 3}}, {"pads", kBorder}, {"count_include_pad", int64_t{1}}};
    if (*op == 'R') attributes = {{"axes", std::vector<int64_t>{2, 3}}, {"keepdims", int64_t{0}}};
    b.Out(b.QDQ(b.Op(op, {b.QDQ(b.x, kIn)}, attributes, 13), {0.01f, 128, false}));
    EXPECT_EQ(b.FiresWithin(0.01), 1) << op;
    EXPECT_EQ(b.Count("IntegerAveragePool"), 1);
  }
  Quantized border({2, 6, 8, 8});  // windows at the border are means of fewer elements
  border.Out(border.QDQ(border.Op("AveragePool", {border.QDQ(border.x, kIn)},
                                  {{"kernel_shape", std::vector<int64_t>{3, 3}},
                                   {"pads", kBorder},
                                   {"count_include_pad", int64_t{0}}}),
                        {0.01f, 128, false}));
  EXPECT_EQ(border.FiresWithin(0), 0);
}

TEST(UseIntegers, FunctionsAreTables) {
  for (const char* const op : {"Sigmoid", "Tanh", "HardSwish", "Exp", "LeakyRelu", "Erf"}) {
    Quantized b({3, 50});
    b.Out(b.QDQ(b.Op(op, {b.QDQ(b.x, kSignedIn)}), {0.03f, 60, false}));
    EXPECT_EQ(b.FiresWithin(0), 1) << op;
    EXPECT_EQ(b.Count("Table"), 1);
    EXPECT_EQ(b.graph.nodes.size(), 3u);
  }
  Quantized chain({3, 50});  // x * sigmoid(1.702 x)
  const ValueId x = chain.QDQ(chain.x, kIn);
  chain.Out(chain.QDQ(chain.Op("Mul", {x, chain.Op("Sigmoid", {chain.Op("Mul", {x, chain.Scalar(1.702f)})})}),
                      kOut));
  EXPECT_EQ(chain.FiresWithin(0), 1);
  EXPECT_EQ(chain.Count("Table"), 1);
}

TEST(UseIntegers, WeightsThatAreStoredAsFloatsAndQuantizedOnTheWay) {
  Quantized b({1, 8, 6, 6});
  const Scale weights = {0.01f, 0, true};
  b.Out(b.QDQ(b.Op("Conv", {b.QDQ(b.x, kIn), b.QDQ(b.Floats({8, 8, 3, 3}), weights), b.Floats({8})}), kOut));
  EXPECT_EQ(b.FiresWithin(kOut.scale), 1);
  EXPECT_EQ(b.Count("IntegerConv"), 1);
}

TEST(UseIntegers, NotWhereItMustNot) {
  const auto refused = [](const char* why, const std::function<void(Quantized&)>& make) {
    Quantized b({1, 8, 6, 6});
    make(b);
    EXPECT_EQ(b.FiresWithin(0), 0) << why;
    EXPECT_EQ(b.Count("IntegerConv") + b.Count("Table") + b.Count("IntegerAdd"), 0) << why;
  };
  refused("the real result is read elsewhere", [](Quantized& b) {
    const ValueId y = b.Op("Conv", {b.QDQ(b.x, kIn), b.Weights({8, 8, 1, 1}, 0)});
    b.Out(b.QDQ(y, kOut));
    b.Out(y);
  });
  refused("the input is real", [](Quantized& b) {
    b.Out(b.QDQ(b.Op("Conv", {b.x, b.Weights({8, 8, 1, 1}, 0)}), kOut));
  });
  refused("the weights are real", [](Quantized& b) {
    b.Out(b.QDQ(b.Op("Conv", {b.QDQ(b.x, kIn), b.Floats({8, 8, 1, 1})}), kOut));
  });
  refused("weights without a sign, far from their zero", [](Quantized& b) {
    const ValueId w = b.Constant<uint8_t>(DType::kU8, {8, 8, 1, 1}, std::vector<uint8_t>(64, 250));
    b.Out(b.QDQ(b.Op("Conv", {b.QDQ(b.Op("Tanh", {b.x}), kIn), b.DQ(w, {0.0001f, 3, false})}), kOut));
  });
  refused("scales along the wrong axis", [](Quantized& b) {
    b.Out(b.QDQ(b.Op("Conv", {b.QDQ(b.x, kIn), b.Weights({8, 8, 1, 1}, 1)}), kOut));
  });
  refused("sixteen bits", [](Quantized& b) {
    const ValueId zero = b.Constant<uint16_t>(DType::kU16, {}, {1000});
    const ValueId y =
        b.Op("QuantizeLinear",
             {b.Op("Conv", {b.QDQ(b.x, kIn), b.Weights({8, 8, 1, 1}, 0)}), b.Scalar(0.001f), zero}, {}, 21);
    b.Out(b.Op("DequantizeLinear", {y, b.Scalar(0.001f), zero}, {}, 21));
  });
  refused("a term that is real", [](Quantized& b) {
    b.Out(b.QDQ(b.Op("Add", {b.QDQ(b.x, kIn), b.x}), kOut));
  });
  refused("a bias that does not fit 32 bits", [](Quantized& b) {
    const ValueId bias = b.Constant<float>(DType::kF32, {8}, std::vector<float>(8, 1e6f));
    b.Out(b.Op("Tanh", {b.x}));
    b.Out(b.QDQ(b.Op("Conv", {b.QDQ(b.x, kIn), b.Weights({8, 8, 1, 1}, 0), bias}), {0.001f, 100, false}));
  });
}

// A channel that hardly depends on its input, as ONNX Runtime stores it: a tiny scale, and a bias at the end
// of 32 bits.
TEST(UseIntegers, ABiasAtTheEndOf32Bits) {
  Quantized b({1, 4, 6, 6});
  std::vector<int8_t> w;
  for (int i = 0; i < 2 * 4; ++i) w.push_back(static_cast<int8_t>(i * 53 % 255 - 127));
  const ValueId scales = b.Constant<float>(DType::kF32, {2}, {0.01f, 2e-8f});
  const ValueId bias_scales = b.Constant<float>(DType::kF32, {2}, {0.05f * 0.01f, 0.05f * 2e-8f});
  const ValueId weights =
      b.Op("DequantizeLinear", {b.Constant(DType::kI8, {2, 4, 1, 1}, w), scales}, {{"axis", int64_t{0}}});
  const ValueId bias =
      b.Op("DequantizeLinear", {b.Constant<int32_t>(DType::kI32, {2}, {1000, 2147268960}), bias_scales},
           {{"axis", int64_t{0}}});
  b.Out(b.QDQ(b.Op("Conv", {b.QDQ(b.x, kIn), weights, bias}), kOut));
  EXPECT_EQ(b.FiresWithin(kOut.scale), 1);
  EXPECT_EQ(b.Count("IntegerConv"), 1);
}

TEST(UseIntegers, OnlyWhereItIsFaster) {
  // One product per output: padding would make sixteen of it.
  const ConvShape thin{.channels = 2, .in_h = 30, .in_w = 30, .out_channels = 2};
  const ConvShape wide{.channels = 128, .in_h = 30, .in_w = 30, .out_channels = 128};
  EXPECT_FALSE(IntegersAreFaster(thin));
  EXPECT_EQ(IntegersAreFaster(wide), IntegersAreFast());
  Quantized b({1, 2, 30, 30});
  b.Out(b.QDQ(b.Op("Conv", {b.QDQ(b.x, kIn), b.Weights({2, 2, 1, 1}, 0)}), {0.01f, 128, false}));
  EXPECT_EQ(b.FiresWithin(0.01, false), 0);
}

TEST(UseIntegers, ProductsOfBytesThatStayReal) {
  for (const Scale& in : {kIn, kSignedIn})
    for (const char* const bias : {"", "gemm", "add"}) {
      Quantized b({6, 40});
      const bool gemm = *bias == 'g';
      std::vector<ValueId> inputs = {
          b.QDQ(b.x, in),
          b.Weights(gemm ? std::vector<int64_t>{12, 40} : std::vector<int64_t>{40, 12}, gemm ? 0 : 1)};
      if (gemm) inputs.push_back(b.Bias(12));
      ValueId y = gemm ? b.Op("Gemm", inputs, {{"transB", int64_t{1}}}) : b.Op("MatMul", inputs);
      if (*bias == 'a') y = b.Op("Add", {y, b.Bias(12)});
      b.Out(y);
      EXPECT_EQ(b.FiresWithin(1e-4, true, 1), 1);  // floats
      EXPECT_EQ(b.Count("DynamicMatMul"), 1);
      EXPECT_EQ(b.graph.nodes.size(), 2u);  // and what makes bytes of x
    }
}

// Weights that integers are not used for are dequantized once, however large.
TEST(UseIntegers, WeightsForFloatsAreUnpackedOnce) {
  Quantized b({2, 600});
  b.Out(b.Op("MatMul", {b.x, b.Weights({600, 600}, 1)}));  // 1.4 MB
  EXPECT_EQ(b.FiresWithin(1e-5, true, 1), 0);
  EXPECT_EQ(b.Count("DequantizeLinear"), 0);
}

TEST(UseIntegers, ProductsQuantizedAsTheyCome) {
  for (const bool biased : {false, true}) {
    Quantized b({6, 40});
    const std::string names[] = {"bytes", "scale", "zero"};
    const auto made =
        b.graph
            .AddNode({.op = "DynamicQuantizeLinear", .name = "dynamic", .opset = 11, .inputs = {b.x}}, names)
            .outputs;
    std::vector<int8_t> w;
    for (int i = 0; i < 40 * 12; ++i) w.push_back(static_cast<int8_t>(i * 37 % 255 - 127));
    const ValueId sums = b.Op("MatMulInteger", {made[0], b.Constant(DType::kI8, {40, 12}, w), made[2],
                                                b.Constant<int8_t>(DType::kI8, {}, {0})});
    const ValueId scale = b.Op("Mul", {made[1], b.Scalar(0.003f)});
    ValueId y = b.Op("Mul", {b.Op("Cast", {sums}, {{"to", int64_t{1}}}), scale});
    if (biased) y = b.Op("Add", {b.Floats({12}), y});
    b.Out(y);
    EXPECT_EQ(b.FiresWithin(1e-4, true, 1), 1);  // floats
    EXPECT_EQ(b.Count("DynamicMatMul"), 1);
    EXPECT_EQ(b.graph.nodes.size(), 1u);
  }
}

// x dynamically quantized, by products with i8 weights of [k, n] and scales per column or one.
struct Dynamic : Quantized {
  using Quantized::Quantized;
  std::vector<ValueId> made;

  void Round() {
    const std::string names[] = {"bytes", "scale", "zero"};
    made =
        graph.AddNode({.op = "DynamicQuantizeLinear", .name = "dynamic", .opset = 11, .inputs = {x}}, names)
            .outputs;
  }
  ValueId Product(int64_t k, int64_t n, bool per_column) {
    std::vector<int8_t> w;
    for (int64_t i = 0; i < k * n; ++i) w.push_back(static_cast<int8_t>(i * 37 % 255 - 127));
    std::vector<float> scales;
    for (int64_t i = 0; i < n; ++i) scales.push_back(0.0003f * static_cast<float>(1 + i % 5));
    const std::vector<int64_t> of = per_column ? std::vector<int64_t>{n} : std::vector<int64_t>{};
    if (!per_column) scales.resize(1);
    const ValueId zero = Constant(DType::kI8, of, std::vector<int8_t>(scales.size(), 0));
    const ValueId sums = Op("MatMulInteger", {made[0], Constant(DType::kI8, {k, n}, w), made[2], zero});
    return Op("Mul", {Op("Cast", {sums}, {{"to", int64_t{1}}}),
                      Op("Mul", {made[1], Constant(DType::kF32, of, scales)})});
  }
};

TEST(UseIntegers, ProductsThatReadOneValueShareItsBytes) {
  Dynamic b({6, 40});
  b.Round();
  b.Out(b.Product(40, 24, true));
  b.Out(b.Op("Add", {b.Product(40, 20, false), b.Floats({20})}));
  EXPECT_EQ(b.FiresWithin(1e-4, true, 1), 2);
  EXPECT_EQ(b.Count("DynamicMatMul"), 2);
  EXPECT_EQ(b.Count("DynamicQuantizeLinear"), 1);
  EXPECT_EQ(b.graph.nodes.size(), 3u);
}

TEST(UseIntegers, DynamicProductsAddAndApplyFunctions) {
  for (const bool shared : {false, true}) {
    Dynamic b({2, 30, 40});  // more rows than one block has
    b.Round();
    const ValueId bias = b.Op("Add", {b.Floats({48}), b.Product(40, 48, true)});
    b.Out(b.Op("Gelu", {bias}, {}, 20));
    const ValueId other = b.Op("Tanh", {b.Op("Concat", {b.x, b.x}, {{"axis", int64_t{2}}})});
    if (shared) b.Out(b.Op("Relu", {b.Op("Add", {b.Product(40, 80, false), other})}));
    EXPECT_EQ(b.FiresWithin(1e-4, true, 1), shared ? 2 : 1);
    EXPECT_EQ(b.Count("DynamicMatMul"), shared ? 2 : 1);
    EXPECT_EQ(b.Count("Gelu") + b.Count("Relu") + b.Count("Add") + b.Count("MatMulInteger"), 0);
  }
}

// What is added may be larger than the product, which is known only when it runs.
TEST(UseIntegers, ADynamicProductThatIsRepeatedByWhatIsAdded) {
  Dynamic b({1, 40});
  b.Round();
  b.Out(b.Op("Add", {b.Product(40, 16, true), b.Floats({5, 16})}));
  EXPECT_EQ(b.FiresWithin(1e-4, true, 1), 1);
}

}  // namespace
}  // namespace celer::graph
