// PNNX networks, made by the real converter, give what PyTorch gives; the same networks as ONNX do too; and
// what is written back is the same network. tools/make_golden_networks.py made the files.
#include "graph/load/load_pnnx.h"
#include "graph/load/load_onnx.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/source_dir.h"
#include "graph/load/pnnx/expression.h"
#include "graph/load/write_onnx.h"
#include "graph/passes/pass.h"
#include "graph/run/program.h"
#include "graph/run/session.h"
#include "io/file/test_folder.h"
#include "io/json/json.h"
#include "io/npy/store_zip.h"
#include "io/safetensors/safetensors.h"

namespace celer::graph {
namespace {

const std::filesystem::path kNetworks = std::filesystem::path(kSourceDir) / "tests/golden/networks";

std::vector<double> Doubles(DType dtype, const std::byte* bytes, int64_t count) {
  std::vector<double> out;
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kF32) {
      float value;
      std::memcpy(&value, bytes + i * 4, 4);
      out.push_back(double{value});
    } else if (dtype == DType::kI64) {
      int64_t value;
      std::memcpy(&value, bytes + i * 8, 8);
      out.push_back(static_cast<double>(value));
    } else {
      out.push_back(static_cast<double>(bytes[i]));
    }
  }
  return out;
}

// The network gives the reference's outputs for its inputs, within 1e-5 of their scale.
void ExpectGolden(Network network, const std::string& name) {
  auto golden = SafetensorsFile::Open(kNetworks / (name + ".safetensors"));
  ASSERT_TRUE(golden) << golden.error().message();
  auto program = Program::Make(std::move(network));
  ASSERT_TRUE(program) << program.error().message();
  std::vector<Data> inputs;
  for (size_t i = 0; const TensorRecord* record = golden->Find("x" + std::to_string(i)); ++i)
    inputs.push_back(Data::Of(TensorView::Contiguous(const_cast<std::byte*>(record->bytes.data()),
                                                     record->dtype, Device::Cpu(), record->shape)));
  Session session(*program);
  auto outputs = session.Run(inputs);
  ASSERT_TRUE(outputs) << outputs.error().message();
  size_t i = 0;
  for (; const TensorRecord* record = golden->Find("y" + std::to_string(i)); ++i) {
    ASSERT_LT(i, outputs->size());
    const TensorView& got = (*outputs)[i].tensor;
    ASSERT_TRUE(std::equal(got.shape.dims().begin(), got.shape.dims().end(), record->shape.dims().begin(),
                           record->shape.dims().end()))
        << "output " << i;
    const int64_t count = *got.shape.elements();
    const auto a = Doubles(got.dtype, static_cast<const std::byte*>(got.data), count),
               b = Doubles(record->dtype, record->bytes.data(), count);
    double scale = 1e-6, worst = 0;
    for (const double value : b) scale = std::max(scale, std::abs(value));
    for (size_t k = 0; k < a.size(); ++k) worst = std::max(worst, std::abs(a[k] - b[k]));
    EXPECT_LT(worst / scale, 1e-5) << "output " << i;
  }
  EXPECT_EQ(i, outputs->size());
}

class Networks : public testing::TestWithParam<const char*> {};

TEST_P(Networks, PnnxGivesWhatPyTorchGives) {
  auto network = LoadPnnx(kNetworks / (std::string(GetParam()) + ".pnnx.param"));
  ASSERT_TRUE(network) << network.error().message();
  ExpectGolden(std::move(*network), GetParam());
}

TEST_P(Networks, OnnxGivesWhatPyTorchGives) {
  auto network = LoadOnnx(kNetworks / (std::string(GetParam()) + ".onnx"));
  ASSERT_TRUE(network) << network.error().message();
  ExpectGolden(std::move(*network), GetParam());
}

TEST_P(Networks, WrittenAsPnnxTheyAreTheSame) {
  TestFolder folder;
  const auto path = folder.path() / "again.pnnx.param";
  for (const char* end : {".pnnx.param", ".onnx"}) {
    const auto source = kNetworks / (std::string(GetParam()) + end);
    auto network = std::string_view(end) == ".onnx" ? LoadOnnx(source) : LoadPnnx(source);
    ASSERT_TRUE(network) << network.error().message();
    auto file = ToPnnx(*network);
    ASSERT_TRUE(file) << file.error().message();
    const Status written = WritePnnx(*file, path);
    ASSERT_TRUE(written) << written.error().message();
    auto again = LoadPnnx(path);
    ASSERT_TRUE(again) << again.error().message();
    ExpectGolden(std::move(*again), GetParam());
  }
}

TEST_P(Networks, WrittenAsOnnxTheyAreTheSame) {
  TestFolder folder;
  const auto path = folder.path() / "again.onnx";
  for (const char* end : {".pnnx.param", ".onnx"}) {
    auto network = LoadNetwork(kNetworks / (std::string(GetParam()) + end));
    ASSERT_TRUE(network) << network.error().message();
    ASSERT_TRUE(Optimize(&network->graph, {.portable = true}));
    // There and back: as PNNX, then as ONNX.
    auto file = ToPnnx(*network);
    ASSERT_TRUE(file) << file.error().message();
    auto middle = ToNetwork(*file);
    ASSERT_TRUE(middle) << middle.error().message();
    const Status written = WriteOnnx(*middle, path);
    ASSERT_TRUE(written) << written.error().message();
    auto again = LoadOnnx(path);
    ASSERT_TRUE(again) << again.error().message();
    ExpectGolden(std::move(*again), GetParam());
  }
}

TEST_P(Networks, OptimizedTheyAreTheSame) {
  for (const char* end : {".pnnx.param", ".onnx"}) {
    const auto source = kNetworks / (std::string(GetParam()) + end);
    auto network = std::string_view(end) == ".onnx" ? LoadOnnx(source) : LoadPnnx(source);
    ASSERT_TRUE(network) << network.error().message();
    auto reports = Optimize(&network->graph);
    ASSERT_TRUE(reports) << reports.error().message();
    ExpectGolden(std::move(*network), GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Networks,
                         testing::Values("resnet", "mobilenet", "yolo", "unet", "vit", "minilm", "mixed"),
                         [](const auto& test) { return std::string(test.param); });

TEST(PnnxExpression, EveryFunctionGivesWhatPyTorchGives) {
  auto rows = ReadJsonFile(kNetworks / "expressions.json");
  ASSERT_TRUE(rows) << rows.error().message();
  for (const auto& row : *rows) {
    const std::string expression = row["expression"];
    SCOPED_TRACE(expression);
    PnnxFile file{.source = "test"};
    std::vector<std::vector<std::byte>> memory;
    std::vector<Data> inputs;
    PnnxOperator op{
        .type = "pnnx.Expression", .name = "e", .outputs = {"out"}, .parameters = {{"expr", expression}}};
    for (const auto& input : row["inputs"]) {
      const std::string name = std::to_string(inputs.size());
      const DType dtype = input["type"] == "f32"   ? DType::kF32
                          : input["type"] == "i64" ? DType::kI64
                                                   : DType::kBool;
      const std::vector<int64_t> dims = input["shape"];
      ValueType type{.dtype = dtype, .shape = std::vector<Dim>()};
      for (const int64_t dim : dims) type.shape->push_back({dim, ""});
      file.operands[name] = type;
      file.operators.push_back({.type = "pnnx.Input", .name = "in" + name, .outputs = {name}});
      op.inputs.push_back(name);
      auto& bytes = memory.emplace_back();
      for (const double value : input["values"]) {
        const auto put = [&](auto number) {
          const auto* from = reinterpret_cast<const std::byte*>(&number);
          bytes.insert(bytes.end(), from, from + sizeof(number));
        };
        if (dtype == DType::kF32)
          put(static_cast<float>(value));
        else if (dtype == DType::kI64)
          put(static_cast<int64_t>(value));
        else
          put(static_cast<char>(value));
      }
      inputs.push_back(Data::Of(TensorView::Contiguous(nullptr, dtype, Device::Cpu(), Shape(dims))));
    }
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i].tensor.data = memory[i].data();
    file.operators.push_back(op);
    file.operators.push_back({.type = "pnnx.Output", .name = "y", .inputs = {"out"}});
    auto network = ToNetwork(file);
    ASSERT_TRUE(network) << network.error().message();
    auto program = Program::Make(std::move(*network));
    ASSERT_TRUE(program) << program.error().message();
    Session session(*program);
    auto outputs = session.Run(inputs);
    ASSERT_TRUE(outputs) << outputs.error().message();
    const TensorView& got = (*outputs)[0].tensor;
    const auto& expected = row["result"];
    EXPECT_EQ(std::vector<int64_t>(got.shape.dims().begin(), got.shape.dims().end()),
              expected["shape"].get<std::vector<int64_t>>());
    EXPECT_EQ(Name(got.dtype), expected["type"].get<std::string>());
    const auto numbers = Doubles(got.dtype, static_cast<const std::byte*>(got.data), *got.shape.elements());
    ASSERT_EQ(numbers.size(), expected["values"].size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double want = expected["values"][i];
      EXPECT_NEAR(numbers[i], want, 1e-5 * std::max(1.0, std::abs(want))) << i;
    }
  }
}

TEST(PnnxExpression, ReadsAndPrints) {
  for (const char* text :
       {"add(@0,1)", "[size(@0,1),-1,2.5,True,None]", "[]", "mul(add(@10,1e-05),neg(@1))", "f()"}) {
    auto expression = ParseExpression(text);
    ASSERT_TRUE(expression) << expression.error().message();
    EXPECT_EQ(Print(*expression), text);
  }
}

TEST(PnnxExpression, SaysWhatIsWrongAndWhere) {
  const auto error = [](const std::string& text) {
    auto expression = ParseExpression(text);
    return expression ? "" : expression.error().message();
  };
  EXPECT_EQ(error("add(@0"), "'add(@0': expected ',' or ')' at 6");
  EXPECT_EQ(error("add(@0,)"), "'add(@0,)': expected an expression at 7");
  EXPECT_EQ(error("@x"), "'@x': expected a number at 1");
  EXPECT_EQ(error("add(1,2)3"), "'add(1,2)3': expected the end at 8");
  EXPECT_NE(error(std::string(1000, '[')).find("nested deeper than 200"), std::string::npos);
  EXPECT_NE(error(""), "");
}

// Numbers that follow from a seed; written down with a network and used by the test.
std::vector<float> SomeNumbers(size_t count, int seed) {
  std::vector<float> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>((static_cast<int>(i) * 37 + seed * 11) % 23 - 11) / 10);
  return out;
}

Result<Network> PnnxNetwork(std::string_view text, const std::map<std::string, std::vector<float>>& weights) {
  if (weights.empty()) {
    CELER_ASSIGN(const PnnxFile file, ParsePnnx(text, nullptr, "n.param"));
    return ToNetwork(file);
  }
  const TestFolder folder;
  std::vector<std::pair<std::string, std::span<const std::byte>>> entries;
  for (const auto& [name, numbers] : weights) entries.emplace_back(name, std::as_bytes(std::span(numbers)));
  CELER_RETURN_IF_ERROR(WriteStoreZip(folder / "n.bin", entries));
  CELER_ASSIGN(const StoreZip zip, StoreZip::Open(folder / "n.bin"));
  CELER_ASSIGN(const PnnxFile file, ParsePnnx(text, &zip, "n.param"));
  return ToNetwork(file);
}

std::vector<float> RunNetwork(Result<Network> network, std::vector<float> x, const Shape& shape) {
  EXPECT_TRUE(network) << network.error().message();
  if (!network) return {};
  auto program = Program::Make(std::move(*network));
  EXPECT_TRUE(program) << program.error().message();
  if (!program) return {};
  Session session(*program);
  auto outputs = session.Run({Data::Of(TensorView::Contiguous(x.data(), DType::kF32, Device::Cpu(), shape))});
  EXPECT_TRUE(outputs) << outputs.error().message();
  if (!outputs) return {};
  const TensorView& y = (*outputs)[0].tensor;
  return {y.as<float>(), y.as<float>() + *y.shape.elements()};
}

// What the converter makes of a Swin transformer's windows: two inputs, and the second is no key but the mask
// [windows * heads, queries, keys] with the relative position bias.
TEST(PnnxFile, AttentionTakesItsMaskByName) {
  constexpr int64_t kWindows = 2, kTokens = 3, kHeads = 2, kWidth = 4, kHead = kWidth / kHeads;
  const std::vector<float> in_weight = SomeNumbers(3 * kWidth * kWidth, 1),
                           in_bias = SomeNumbers(3 * kWidth, 2), out_weight = SomeNumbers(kWidth * kWidth, 3),
                           out_bias = SomeNumbers(kWidth, 4),
                           mask = SomeNumbers(kWindows * kHeads * kTokens * kTokens, 5),
                           x = SomeNumbers(kWindows * kTokens * kWidth, 6);
  const auto got = RunNetwork(
      PnnxNetwork(
          "7767517\n"
          "4 3\n"
          "pnnx.Input in0 0 1 0 #0=(2,3,4)f32\n"
          "pnnx.Attribute bias 0 1 1 @data=(4,3,3)f32 #1=(4,3,3)f32\n"
          "nn.MultiheadAttention att 2 1 0 1 2 add_bias_kv=False add_zero_attn=False batch_first=True "
          "bias=True embed_dim=4 kdim=4 num_heads=2 vdim=4 @in_proj_bias=(12)f32 "
          "@in_proj_weight=(12,4)f32 @out_proj.bias=(4)f32 @out_proj.weight=(4,4)f32 $attn_mask=1 "
          "#0=(2,3,4)f32 #1=(4,3,3)f32 #2=(2,3,4)f32\n"
          "pnnx.Output out0 1 0 2 #2=(2,3,4)f32\n",
          {{"bias.data", mask},
           {"att.in_proj_bias", in_bias},
           {"att.in_proj_weight", in_weight},
           {"att.out_proj.bias", out_bias},
           {"att.out_proj.weight", out_weight}}),
      x, Shape{2, 3, 4});
  ASSERT_EQ(got.size(), x.size());
  // part 0, 1, 2: queries, keys, values
  const auto projected = [&](int64_t part, int64_t window, int64_t token, int64_t i) {
    const int64_t row = part * kWidth + i;
    double sum = in_bias[row];
    for (int64_t j = 0; j < kWidth; ++j)
      sum += static_cast<double>(in_weight[row * kWidth + j]) * x[(window * kTokens + token) * kWidth + j];
    return sum;
  };
  for (int64_t w = 0; w < kWindows; ++w)
    for (int64_t t = 0; t < kTokens; ++t) {
      double joined[kWidth] = {};
      for (int64_t h = 0; h < kHeads; ++h) {
        double p[kTokens], total = 0;
        for (int64_t s = 0; s < kTokens; ++s) {
          double score = 0;
          for (int64_t i = 0; i < kHead; ++i)
            score += projected(0, w, t, h * kHead + i) * projected(1, w, s, h * kHead + i);
          const int64_t at = ((w * kHeads + h) * kTokens + t) * kTokens + s;
          total += p[s] = std::exp(score / std::sqrt(double{kHead}) + mask[at]);
        }
        for (int64_t s = 0; s < kTokens; ++s)
          for (int64_t i = 0; i < kHead; ++i)
            joined[h * kHead + i] += p[s] / total * projected(2, w, s, h * kHead + i);
      }
      for (int64_t i = 0; i < kWidth; ++i) {
        double want = out_bias[i];
        for (int64_t j = 0; j < kWidth; ++j) want += joined[j] * out_weight[i * kWidth + j];
        EXPECT_NEAR(got[(w * kTokens + t) * kWidth + i], want, 1e-5);
      }
    }
}

TEST(PnnxFile, ChannelShuffleLetsGroupsTakeTurns) {
  const auto got =
      RunNetwork(PnnxNetwork("7767517\n"
                             "3 2\n"
                             "pnnx.Input in0 0 1 0 #0=(1,6,1,2)f32\n"
                             "nn.ChannelShuffle s 1 1 0 1 groups=3 #0=(1,6,1,2)f32 #1=(1,6,1,2)f32\n"
                             "pnnx.Output out0 1 0 1 #1=(1,6,1,2)f32\n",
                             {}),
                 {0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51}, Shape{1, 6, 1, 2});
  EXPECT_EQ(got, (std::vector<float>{0, 1, 20, 21, 40, 41, 10, 11, 30, 31, 50, 51}));
}

TEST(PnnxFile, LyingFilesAreRefusedInOneSentence) {
  const auto error = [](std::string_view text) {
    auto file = ParsePnnx(text, nullptr, "n.param");
    if (!file) return file.error().message();
    auto network = ToNetwork(*file);
    return network ? std::string() : network.error().message();
  };
  EXPECT_EQ(error(""), "n.param: not a PNNX file: its first line is not 7767517");
  EXPECT_EQ(error("7767517\nx y\n"), "n.param:2: expected the numbers of operators and operands");
  EXPECT_EQ(error("7767517\n2 1\npnnx.Input a 0 1 0\n"),
            "n.param: says 2 operators and has 1; it is cut short or was changed");
  EXPECT_EQ(error("7767517\n1 1\nnn.ReLU a 1 9 0\n"),
            "n.param:3: 'a' says 1 inputs and 9 outputs, and names fewer");
  EXPECT_EQ(error("7767517\n1 1\nnn.ReLU a 1 1 0 1 @w=(2)f32\n"),
            "n.param:3: there is no 'a.w' among the weights; is the .bin file the right one?");
  EXPECT_EQ(error("7767517\n2 2\nnn.ReLU a 1 1 7 1\npnnx.Output o 1 0 1\n"),
            "n.param:3: nn.ReLU 'a': it reads operand '7', which no operator before it gives");
  EXPECT_EQ(error("7767517\n2 1\nmodels.Detect a 0 1 0\nmodels.Detect b 0 1 1\n"),
            "n.param: 1 operator is not known: models.Detect (2 times); exporting the network to ONNX may "
            "write them in known ones");
  EXPECT_NE(error("7767517\n2 1\nInput a 0 1 0\nConvolution b 1 1 0 1 0=8\n").find("ncnn"),
            std::string::npos);
  EXPECT_EQ(error("7767517\n1 1\npnnx.Input a 0 1 0 #0=(1,-3)f32\n"), "n.param:3: '(1,-3)f32' is no shape");
}

}  // namespace
}  // namespace celer::graph
