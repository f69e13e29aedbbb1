// The command's flags, config files, answers and pictures; the formulas are tested in src/limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>

#include "cli/limits/figures.h"
#include "cli/limits/model.h"
#include "cli/limits/options.h"
#include "cli/shared/resolve_model.h"
#include "report/chart.h"

namespace celer::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LimitsOptions Options(const std::string& model = "qwen1.5-7b", const std::string& machine = "rtx4090") {
  LimitsOptions options;
  options.model = model;
  options.machine.machine = machine;
  return options;
}

LimitsRequest Request(const LimitsOptions& options) {
  auto request = MakeLimitsRequest(options);
  EXPECT_TRUE(request) << request.error().message();
  return *request;
}

// --- flags -------------------------------------------------------------------------------------------------

TEST(LimitsOptions, DefaultPairsAreThoseOfTheContract) {
  std::vector<std::string> names;
  for (const LlmSetup& setup : Request(Options()).setups) names.push_back(SetupName(setup));
  EXPECT_EQ(names, (std::vector<std::string>{"w16kv16", "w8kv16", "w4kv16", "w6kv16", "w4kv8"}));
}

TEST(LimitsOptions, ListsCombineAndSort) {
  LimitsOptions options = Options();
  options.weight_bits = {"8.5", "4.5", "8.5"};
  options.kv_bits = {"16", "8"};
  options.contexts = {"4k", "1024", "1024"};
  options.batch = "3";
  const LimitsRequest request = Request(options);
  ASSERT_EQ(request.setups.size(), 4u);
  EXPECT_EQ(SetupName(request.setups[3]), "w4.5kv8");
  EXPECT_EQ(request.contexts, (std::vector<int64_t>{1024, 4096}));
  EXPECT_EQ(request.batch(), 3);
}

TEST(LimitsOptions, DevicesTogetherHaveWhatEachHas) {
  LimitsOptions options = Options("qwen1.5-72b");
  EXPECT_FALSE(KvCapacityTokens(Request(options).shape, Request(options).machine, LlmSetup{}));
  options.devices = "8";
  const LimitsRequest request = Request(options);
  EXPECT_EQ(request.machine.name, "8 x rtx4090");
  EXPECT_TRUE(KvCapacityTokens(request.shape, request.machine, LlmSetup{}));
  EXPECT_THAT(LimitsText(request), HasSubstr("tensor parallelism"));
  EXPECT_EQ(LimitsJson(request)["devices"], 8);
}

TEST(LimitsOptions, StagesHaveTheMemoryOfAllAndReadInTurn) {
  LimitsOptions options = Options("qwen1.5-72b");
  const LimitsRequest one = Request(options);
  options.stages = "8";
  const LimitsRequest eight = Request(options);
  EXPECT_TRUE(KvCapacityTokens(eight.shape, eight.machine, LlmSetup{}));
  EXPECT_DOUBLE_EQ(eight.machine.memory_bytes, 8 * one.machine.memory_bytes);
  EXPECT_DOUBLE_EQ(eight.machine.read_bytes_per_s, one.machine.read_bytes_per_s);
  EXPECT_DOUBLE_EQ(eight.machine.flops.at("f16"), 8 * one.machine.flops.at("f16"));
  EXPECT_THAT(LimitsText(eight), HasSubstr("one after the other"));
  EXPECT_EQ(LimitsJson(eight)["stages"], 8);
  options.stages = "81";
  EXPECT_THAT(MakeLimitsRequest(options).error().message(),
              HasSubstr("--pipeline 81: the model has 80 layers"));
}

TEST(LimitsOptions, SpeculationIsATableOfItsOwn) {
  LimitsOptions options = Options();
  EXPECT_THAT(LimitsText(Request(options)), Not(HasSubstr("Speculation")));
  options.speculate = "4,0.7";
  const LimitsRequest request = Request(options);
  EXPECT_THAT(LimitsText(request), HasSubstr("Speculation: 4 drafted tokens a step, 0.700 of them accepted"));
  const auto json = LimitsJson(request)["speculation"];
  EXPECT_NEAR(json["tokens_per_step"], 2.7731, 1e-9);
  // While memory binds, a step takes as long as without drafts.
  const double rate = json["steps"]["w16kv16"][0]["tokens_per_s"];
  const double before = LimitsJson(request)["decode"]["w16kv16"]["steps"][0]["tokens_per_s"];
  EXPECT_NEAR(rate, 2.7731 * before, 1e-6 * rate);
}

TEST(LimitsOptions, EveryImpossibleValueGivesOneSentence) {
  const struct {
    void (*spoil)(LimitsOptions&);
    const char* sentence;
  } cases[] = {
      {[](LimitsOptions& o) { o.model = ""; },
       "--model is missing; give a name from celer limits --list, or a path"},
      {[](LimitsOptions& o) { o.model = "qwen1.5-7"; },
       "unknown model 'qwen1.5-7'; did you mean 'qwen1.5-7b'?"},
      {[](LimitsOptions& o) { o.model = "no/such/config.json"; },
       "no/such/config.json: no such file or folder"},
      {[](LimitsOptions& o) { o.machine.machine = "rtx4900"; },
       "unknown machine 'rtx4900'; did you mean 'rtx4090'?"},
      {[](LimitsOptions& o) { o.units = "binry"; },
       "--units 'binry': must be si or binary; did you mean 'binary'?"},
      {[](LimitsOptions& o) { o.batch = "0"; }, "--batch 0: must be from 1 to 1,000,000"},
      {[](LimitsOptions& o) { o.batch = "-3"; }, "--batch -3: must be from 1 to 1,000,000"},
      {[](LimitsOptions& o) { o.batch = "2.5"; }, "--batch '2.5': not a whole number"},
      {[](LimitsOptions& o) { o.devices = "0"; }, "--devices 0: must be from 1 to 1,024"},
      {[](LimitsOptions& o) { o.speculate = "4"; },
       "--speculate '4': expected drafted tokens and the share that is accepted, as in 4,0.7"},
      {[](LimitsOptions& o) { o.speculate = "4,1.5"; }, "--speculate 1.5: must be at most 1"},
      {[](LimitsOptions& o) { o.prompts = {"99999999999999999999"}; },
       "--prompt 99999999999999999999: must be from 1 to 1,073,741,824"},
      {[](LimitsOptions& o) {
         o.contexts = {"1024", "0"};
       },
       "--context 0: must be from 1 to 1,073,741,824"},
      {[](LimitsOptions& o) { o.contexts = {""}; }, "--context '': not a whole number"},
      {[](LimitsOptions& o) { o.contexts.assign(17, "5"); },
       "--context: 17 values are too many, give at most 16"},
      {[](LimitsOptions& o) { o.weight_bits = {"nan"}; }, "--weights-bits nan: must be a finite number"},
      {[](LimitsOptions& o) { o.weight_bits = {"0"}; }, "--weights-bits 0: must be above 0"},
      {[](LimitsOptions& o) { o.weight_bits = {"1e-9"}; }, "--weights-bits 1e-9: must be at least 0.1"},
      {[](LimitsOptions& o) { o.kv_bits = {"128"}; }, "--kv-bits 128: must be at most 64"},
      {[](LimitsOptions& o) { o.machine.memory = "24"; },
       "--memory 24: the unit is missing, write it like 24GiB"},
      {[](LimitsOptions& o) { o.machine.bandwidth = "-1GB/s"; }, "--bandwidth -1GB/s: must be above 0"},
      {[](LimitsOptions& o) { o.machine.bandwidth = "10GB"; },
       "--bandwidth 10GB: unknown unit 'GB', write it like 1008GB/s"},
      {[](LimitsOptions& o) { o.machine.tflops = "1e400"; },
       "--tflops 1e400: the number is too large or too small"},
      {[](LimitsOptions& o) { o.machine.tflops = "inf"; }, "--tflops inf: must be a finite number"},
      {[](LimitsOptions& o) { o.compute = "fp8"; },
       "--compute 'fp8': machine 'rtx4090' has peaks for auto, bf16, f16, f32; did you mean 'f16'?"},
  };
  for (const auto& c : cases) {
    LimitsOptions options = Options();
    c.spoil(options);
    const auto request = MakeLimitsRequest(options);
    ASSERT_FALSE(request) << c.sentence;
    EXPECT_EQ(request.error().message(), c.sentence);
  }
}

TEST(LimitsOptions, FlagsDefineAMachineOrOverrideOne) {
  LimitsOptions options = Options("qwen1.5-7b", "");
  options.machine.memory = "24GiB";
  options.machine.bandwidth = "1008GB/s";
  options.machine.tflops = "82.58";
  options.units = "binary";
  const LimitsRequest custom = Request(options);
  EXPECT_EQ(custom.machine.name, "custom");
  // The same numbers as the built-in machine in binary units.
  EXPECT_EQ(LimitsJson(custom)["prefill"]["turning_points"]["w16kv16"]["exact"],
            nlohmann::ordered_json({113, 481}));
  LimitsOptions half = Options();
  half.machine.bandwidth = "504GB/s";
  const LimitsRequest request = Request(half);
  EXPECT_EQ(request.machine.read_bytes_per_s, 504e9);
  EXPECT_EQ(request.machine.flops.at("f16"), 82.58e12);
  EXPECT_EQ(request.machine.source, "data sheet, without tensor cores, overridden by flags");
}

// --- config.json -------------------------------------------------------------------------------------------

constexpr const char* kQwen3 =
    R"({"model_type":"qwen3","num_hidden_layers":28,"hidden_size":1024,"intermediate_size":3072,
  "vocab_size":151936,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"tie_word_embeddings":true,
  "attention_bias":false})";

TEST(ConfigJson, GivesTheShapeOfThePreset) {
  const auto shape = ParseConfigShape(kQwen3, "config.json", "qwen3-0.6b");
  ASSERT_TRUE(shape) << shape.error().message();
  const LlmShape preset = *FindModelPreset("qwen3-0.6b");
  EXPECT_EQ(CountParams(*shape).total, CountParams(preset).total);
  EXPECT_EQ(CountParams(*shape).norms, CountParams(preset).norms);
  EXPECT_EQ(KvParamsPerToken(*shape), KvParamsPerToken(preset));
}

TEST(ConfigJson, ExpertsAndDefaults) {
  const auto mixtral = ParseConfigShape(
      R"({"model_type":"mixtral","num_hidden_layers":32,"hidden_size":4096,"intermediate_size":14336,
      "vocab_size":32000,"num_attention_heads":32,"num_key_value_heads":8,"num_local_experts":8,"num_experts_per_tok":2,
      "head_dim":null})",
      "c", "m");
  ASSERT_TRUE(mixtral) << mixtral.error().message();
  EXPECT_EQ(CountParams(*mixtral).total, CountParams(*FindModelPreset("mixtral-8x7b")).total);
  EXPECT_EQ(mixtral->head_dim, 128);
  const auto moe = ParseConfigShape(
      R"({"model_type":"qwen2_moe","num_hidden_layers":24,"hidden_size":2048,"intermediate_size":5632,
      "moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"vocab_size":151936,"num_attention_heads":16,
      "num_key_value_heads":16,"num_experts":60,"num_experts_per_tok":4,"decoder_sparse_step":1})",
      "c", "m");
  ASSERT_TRUE(moe) << moe.error().message();
  EXPECT_EQ(CountParams(*moe).total, CountParams(*FindModelPreset("qwen1.5-moe-a2.7b")).total);
  const auto nested = ParseConfigShape(std::string("{\"text_config\":") + kQwen3 + "}", "c", "m");
  ASSERT_TRUE(nested);
  EXPECT_EQ(nested->layers, 28);
}

TEST(ConfigJson, FamiliesOfTheirOwnAreThoseOfTheirPresets) {
  const auto shape = ParseConfigShape(
      R"({"model_type":"qwen3_next","num_hidden_layers":48,"hidden_size":2048,"intermediate_size":5120,
          "vocab_size":151936,"num_attention_heads":16,"num_key_value_heads":2,"num_experts":512,"num_experts_per_tok":10})",
      "c", "m");
  ASSERT_TRUE(shape) << shape.error().message();
  EXPECT_EQ(shape->kinds, FindModelPreset("qwen3-next-80b-a3b")->kinds);
}

TEST(ConfigJson, RefusesWhatItCannotAnswer) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "c: not valid JSON"},
      {"{", "c: not valid JSON"},
      {"[1]", "c: must hold a JSON object"},
      {"{}", "c: 'num_hidden_layers' is missing; is this the config of a Llama-like decoder?"},
      {R"({"num_hidden_layers":"many"})", "c: 'num_hidden_layers' is \"many\", but must be a whole number"},
      {R"({"num_hidden_layers":2.5})", "c: 'num_hidden_layers' is 2.5, but must be a whole number"},
      {R"({"num_hidden_layers":18446744073709551615})",
       "c: 'num_hidden_layers' is 18446744073709551615, which is absurdly large"},
      {R"({"model_type":"jamba","num_hidden_layers":32,"hidden_size":4096,"intermediate_size":14336,"vocab_size":65536,
          "num_attention_heads":32,"num_key_value_heads":8})",
       "c: model_type 'jamba' is not one that the formulas are known to hold for; they are for cohere, "},
      {R"({"model_type":"bert","num_hidden_layers":12,"hidden_size":768,"intermediate_size":3072,"vocab_size":30522,
          "num_attention_heads":12})",
       "c: model_type 'bert' is not one"},
      {R"({"model_type":"gpt_bigcode"})",
       "c: model_type 'gpt_bigcode' has no gated MLP, which the formulas assume"},
      {R"({"kv_lora_rank":512})", "c: 'kv_lora_rank' means latent attention, whose KV cache is not modelled"},
      {R"({"first_k_dense_replace":1})", "c: layers with and without experts in one model are not modelled"},
      {R"({"num_hidden_layers":2,"hidden_size":-8,"intermediate_size":8,"vocab_size":8,"num_attention_heads":2})",
       "c: model 'm': hidden is -8, but must be at least 1"},
      {R"({"num_hidden_layers":2,"hidden_size":8,"intermediate_size":8,"vocab_size":8,"num_attention_heads":0})",
       "c: model 'm': heads is 0, but must be at least 1"},
      {R"({"num_hidden_layers":9000000000000000000,"hidden_size":9000000000000000000,"intermediate_size":8,"vocab_size":8,
           "num_attention_heads":2})",
       "c: model 'm': its shape gives"},
      // A family that runs here is read as it is there: its own error counts.
      {R"({"model_type":"mistral","num_hidden_layers":2,"hidden_size":64,"intermediate_size":128,"vocab_size":320,
           "num_attention_heads":4,"num_key_value_heads":2,"sliding_window":-1})",
       "c: 'sliding_window' is -1"},
  };
  for (const auto& [text, sentence] : cases) {
    const auto shape = ParseConfigShape(text, "c", "m");
    ASSERT_FALSE(shape) << text;
    EXPECT_THAT(shape.error().message(), HasSubstr(sentence));
  }
}

TEST(ResolveModel, ReadsAFileOrItsFolder) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "limits-my-model";
  std::filesystem::create_directories(folder);
  EXPECT_THAT(ResolveModel(folder.string()).error().message(), HasSubstr("holds no config.json"));
  std::ofstream(folder / "config.json") << kQwen3;
  for (const auto& path : {folder, folder / "config.json"}) {
    const auto shape = ResolveModel(path.string());
    ASSERT_TRUE(shape) << shape.error().message();
    EXPECT_EQ(shape->name, "limits-my-model");
    EXPECT_EQ(shape->kv_heads, 8);
  }
  std::filesystem::remove_all(folder);
}

// --- answers -----------------------------------------------------------------------------------------------

TEST(LimitsJson, HoldsTheContract) {
  LimitsOptions options = Options();
  options.units = "binary";
  const auto json = LimitsJson(Request(options));
  EXPECT_EQ(json["params"]["layers"], 6476398592);
  EXPECT_EQ(json["params"]["lm_head"], 622329856);
  EXPECT_EQ(json["params"]["active"], 7098728448);
  EXPECT_EQ(json["params"]["total"], 7721058304);
  EXPECT_EQ(json["kv"]["params_per_token"], 262144);
  EXPECT_EQ(json["kv"]["capacity_tokens"]["w16kv16"], 22072);
  EXPECT_EQ(json["kv"]["capacity_tokens"]["w8kv16"], 35612);
  EXPECT_EQ(json["kv"]["capacity_tokens"]["w4kv16"], 42382);
  EXPECT_EQ(json["kv"]["capacity_tokens"]["w6kv16"], 38997);
  EXPECT_EQ(json["kv"]["capacity_tokens"]["w4kv8"], 84764);
  const auto& points = json["prefill"]["turning_points"];
  EXPECT_EQ(points["w16kv16"]["rough"], nlohmann::ordered_json({99, 553}));
  EXPECT_EQ(points["w8kv16"]["exact"], nlohmann::ordered_json({50, 544}));
  EXPECT_EQ(points["w4kv16"]["rough"], nlohmann::ordered_json({21, 630}));
  EXPECT_NEAR(json["decode"]["w16kv16"]["W"].get<double>(), 2064, 0.5);
  EXPECT_NEAR(json["decode"]["w16kv16"]["B_ms"].get<double>(), 13.12, 0.005);
  EXPECT_NEAR(json["decode"]["w4kv8"]["W"].get<double>(), 4129, 0.5);
}

TEST(LimitsJson, NullMeansItDoesNotFitOrNeverTurns) {
  LimitsOptions options = Options("qwen1.5-72b");
  EXPECT_TRUE(LimitsJson(Request(options))["kv"]["capacity_tokens"]["w4kv8"].is_null());
  options.model = "qwen1.5-0.5b";
  EXPECT_TRUE(LimitsJson(Request(options))["prefill"]["turning_points"]["w16kv16"]["exact"].is_null());
  // Arithmetic that is slow against memory binds forever: there is no second point.
  options.machine.tflops = "0.5";
  const auto forever = LimitsJson(Request(options))["prefill"]["turning_points"]["w16kv16"]["exact"];
  ASSERT_TRUE(forever.is_array());
  EXPECT_TRUE(forever[1].is_null());
}

TEST(LimitsText, NamesTheBottleneckAndWhatDoesNotFit) {
  const std::string text = LimitsText(Request(Options()));
  EXPECT_THAT(text, HasSubstr("reading weights, then reading KV"));
  EXPECT_THAT(text, HasSubstr("arithmetic"));
  EXPECT_THAT(text, HasSubstr("22,072"));
  EXPECT_THAT(LimitsText(Request(Options("qwen1.5-72b"))), HasSubstr("do not fit"));
  const std::string brief = LimitsText(Request(Options()), true);
  EXPECT_THAT(brief, HasSubstr("Decode"));
  EXPECT_THAT(brief, Not(HasSubstr("Turning")));
}

// Every preset on every machine, with tiny and huge settings: no figure may leave the drawing or become NaN.
TEST(LimitsFigures, AreFiniteForEveryModelAndMachine) {
  for (const std::string& machine : MachinePresetNames())
    for (const char* model : {"smollm2-135m", "llama-3.1-405b", "qwen3-30b-a3b", "qwen1.5-7b"})
      for (const char* batch : {"1", "1000000"}) {
        LimitsOptions options = Options(model, machine);
        options.batch = batch;
        options.contexts = {"1", "1073741824"};
        options.prompts = {"1", "1073741824"};
        const LimitsRequest request = Request(options);
        const std::string svg = LimitsSvg(request);
        EXPECT_THAT(svg, Not(HasSubstr("nan"))) << model << " " << machine;
        EXPECT_THAT(svg, Not(HasSubstr("inf"))) << model << " " << machine;
        EXPECT_THAT(LimitsText(request), Not(HasSubstr("nan"))) << model << " " << machine;
        EXPECT_THAT(LimitsJson(request).dump(), Not(HasSubstr("nan")));
      }
}

TEST(LimitsFigures, MarkTheTurningPointsAndEscapeNames) {
  LimitsOptions options = Options();
  options.units = "binary";
  LimitsRequest request = Request(options);
  request.shape.name = "<b>&\"model\"\x01</script>";
  const std::string svg = LimitsSvg(request), html = LimitsHtml(request);
  for (const char* label : {"rough 99", "rough 553", "exact 113", "exact 481", "exact 50", "exact 571"})
    for (const std::string* page : {&svg, &html}) EXPECT_THAT(*page, HasSubstr(label));
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&amp;&#34;model&#34;&lt;/script&gt; on rtx4090"));
  EXPECT_THAT(html, HasSubstr(R"(Limits of \u003cb>&\"model\"\u0001\u003c/script> on rtx4090)"));
  for (const std::string* page : {&svg, &html}) EXPECT_THAT(*page, Not(HasSubstr("<b>")));
}

// A text of a figure as a rectangle, slanted or not.
struct TextBox {
  std::string text;
  std::array<std::pair<double, double>, 4> corners;
};

std::vector<TextBox> TextBoxes(const std::string& svg) {
  const std::regex element("<text ([^>]*)>([^<]*)</text>"), place("\\bx=\"([-0-9.]+)\" y=\"([-0-9.]+)\""),
      moved("translate\\(([-0-9.]+) ([-0-9.]+)\\) rotate\\(([-0-9.]+)\\)"), size("font-size=\"([0-9.]+)\""),
      anchor("text-anchor=\"([a-z]+)\"");
  std::vector<TextBox> boxes;
  for (std::sregex_iterator it(svg.begin(), svg.end(), element), end; it != end; ++it) {
    const std::string attributes = (*it)[1], text = (*it)[2];
    std::smatch at;
    double x = 0, y = 0, degrees = 0;
    if (std::regex_search(attributes, at, moved))
      x = std::stod(at[1]), y = std::stod(at[2]), degrees = std::stod(at[3]);
    else if (std::regex_search(attributes, at, place))
      x = std::stod(at[1]), y = std::stod(at[2]);
    else
      ADD_FAILURE() << attributes;
    EXPECT_TRUE(std::regex_search(attributes, at, size)) << attributes;
    const double em = std::stod(at[1]), width = 0.52 * em * double(text.size());
    const std::string side = std::regex_search(attributes, at, anchor) ? at[1].str() : "start";
    const double from = side == "start" ? 0 : side == "end" ? -width : -width / 2;
    const double cosine = std::cos(degrees * M_PI / 180), sine = std::sin(degrees * M_PI / 180);
    TextBox box{text, {}};
    const std::pair<double, double> flat[] = {
        {from, -0.75 * em}, {from + width, -0.75 * em}, {from + width, 0.2 * em}, {from, 0.2 * em}};
    for (size_t i = 0; i < 4; ++i)
      box.corners[i] = {x + cosine * flat[i].first - sine * flat[i].second,
                        y + sine * flat[i].first + cosine * flat[i].second};
    boxes.push_back(box);
  }
  return boxes;
}

// Two rectangles are apart if an edge of one of them has all of the other on its far side.
bool Overlap(const TextBox& a, const TextBox& b) {
  for (const TextBox* box : {&a, &b})
    for (size_t i = 0; i < 2; ++i) {
      const double nx = box->corners[i + 1].first - box->corners[i].first,
                   ny = box->corners[i + 1].second - box->corners[i].second;
      const auto range = [&](const TextBox& of) {
        std::pair<double, double> span{1e300, -1e300};
        for (const auto& [x, y] : of.corners)
          span = {std::min(span.first, x * nx + y * ny), std::max(span.second, x * nx + y * ny)};
        return span;
      };
      const auto first = range(a), second = range(b);
      if (first.second <= second.first || second.second <= first.first) return false;
    }
  return true;
}

TEST(LimitsFigures, NoTwoTextsOverlapAndNoneLeavesThePicture) {
  for (const std::string& machine : MachinePresetNames())
    for (const char* model : {"smollm2-135m", "llama-3.1-8b", "llama-3.1-405b", "qwen3-30b-a3b", "qwen1.5-7b",
                              "mixtral-8x7b", "qwen1.5-0.5b"})
      for (const char* batch : {"1", "64"}) {
        LimitsOptions options = Options(model, machine);
        options.batch = batch;
        const LimitsRequest request = Request(options);
        for (const Figure& figure : LimitsFigures(request)) {
          const std::vector<TextBox> boxes = TextBoxes(figure.drawing.body);
          ASSERT_GT(boxes.size(), 10u);
          for (size_t i = 0; i < boxes.size(); ++i) {
            for (const auto& [x, y] : boxes[i].corners)
              EXPECT_TRUE(x >= 0 && x <= figure.drawing.width && y >= 0 && y <= figure.drawing.height)
                  << model << " on " << machine << ", " << figure.title << ": '" << boxes[i].text << "' at "
                  << x << ", " << y;
            for (size_t j = 0; j < i; ++j)
              EXPECT_FALSE(Overlap(boxes[i], boxes[j]))
                  << model << " on " << machine << ", " << figure.title << ": '" << boxes[j].text << "' and '"
                  << boxes[i].text << "'";
          }
        }
      }
}

// A page of 700 pixels shows the figures as they are drawn, so no letter may be smaller than it is read.
TEST(LimitsFigures, LettersAreLargeEnoughAt700Pixels) {
  const LimitsRequest request = Request(Options());
  const std::regex size("font-size=\"([0-9.]+)\"");
  for (const Figure& figure : LimitsFigures(request)) {
    const std::string& body = figure.drawing.body;
    for (std::sregex_iterator it(body.begin(), body.end(), size), end; it != end; ++it)
      EXPECT_GE(std::stod((*it)[1]) * std::min(1.0, 700 / figure.drawing.width), 10) << figure.title;
  }
}

TEST(Chart, TicksLieInsideAndReadWell) {
  EXPECT_EQ(Ticks({.low = 0, .high = 100}), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(Ticks({.low = 1, .high = 1e6, .log = true}).size(), 7u);
  EXPECT_EQ(Ticks({.low = 1, .high = 100, .log = true}), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(TickText(10000), "10k");
  EXPECT_EQ(TickText(0.5), "0.5");
  EXPECT_EQ(TickText(2e12), "2T");
}

}  // namespace
}  // namespace celer::cli
