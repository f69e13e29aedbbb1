#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/source_dir.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "io/file/test_folder.h"

namespace celer::cli {
namespace {

using testing::HasSubstr;

const std::string kCorpus = std::string(kSourceDir) + "/tests/fuzz/corpus/";

struct Output {
  int code;
  std::string out;
  std::string err;
};

Output Inspect(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = InspectCommand(args);
  std::fflush(stdout);
  std::fflush(stderr);
  std::string out = testing::internal::GetCapturedStdout();
  return {code, std::move(out), testing::internal::GetCapturedStderr()};
}

TEST(Inspect, GgufAsTextAndJson) {
  const std::string path = kCorpus + "gguf/python_package.gguf";
  const Output text = Inspect({path, "--tensors"});
  EXPECT_EQ(text.code, kOk) << text.err;
  EXPECT_THAT(text.out, HasSubstr("GGUF, version 3"));
  EXPECT_THAT(text.out, HasSubstr("blk.0.attn_q.weight"));
  EXPECT_THAT(text.out, HasSubstr("str[3]"));
  EXPECT_THAT(text.out, HasSubstr("[2, 32]"));

  const auto json = nlohmann::json::parse(Inspect({path, "--json", "--tensors"}).out);
  EXPECT_EQ(json["kind"], "GGUF");
  EXPECT_EQ(json["architecture"], "llama");
  EXPECT_EQ(json["parameters"], 69);
  EXPECT_EQ(json["types"]["q4_0"]["bytes"], 36);
  EXPECT_EQ(json["metadata"]["llama.block_count"], 1);
  EXPECT_EQ(json["metadata"]["synthetic"], true);
  EXPECT_EQ(json["metadata"]["tokenizer.ggml.tokens"][1], "a");
  EXPECT_EQ(json["tensors"].size(), 2u);
}

TEST(Inspect, QuantizedFolder) {
  const std::string path = std::string(kSourceDir) + "/tests/golden/quantized/awq";
  const Output text = Inspect({path, "--tensors"});
  EXPECT_EQ(text.code, kOk) << text.err;
  EXPECT_THAT(text.out, HasSubstr("AWQ, 4 bits, groups of 32, asymmetric"));
  EXPECT_THAT(text.out, HasSubstr("awq int4-g32, held as int8-g32"));
  const auto json = nlohmann::json::parse(Inspect({path, "--json", "--tensors"}).out);
  EXPECT_EQ(json["quantization"], "AWQ, 4 bits, groups of 32, asymmetric");
  EXPECT_EQ(json["types"]["awq int4-g32"]["tensors"], 7);
  bool found = false;
  for (const auto& tensor : json["tensors"]) {
    if (tensor["name"] != "model.layers.0.mlp.up_proj.weight") continue;
    found = true;
    EXPECT_EQ(tensor["type"], "awq int4-g32");
    EXPECT_EQ(tensor["held"], "int8-g32");
    EXPECT_EQ(tensor["shape"], (std::vector<int64_t>{96, 64}));
  }
  EXPECT_TRUE(found);
}

TEST(Inspect, QuantizedFolderThatCannotBeRun) {
  const TestFolder folder;
  const std::filesystem::path from = std::string(kSourceDir) + "/tests/golden/quantized/awq";
  std::filesystem::copy_file(from / "model.safetensors", folder / "model.safetensors");
  folder.Write("config.json",
               R"({"model_type": "llama", "quantization_config": {"quant_method": "torchao"}})");
  const Output text = Inspect({folder.path().string()});
  EXPECT_EQ(text.code, kOk) << text.err;
  EXPECT_THAT(text.out, HasSubstr("cannot be run"));
  EXPECT_THAT(text.out, HasSubstr("'torchao' are not read"));
}

TEST(Inspect, EveryMetadataTypeAndVocabularyOnly) {
  const Output text = Inspect({kCorpus + "gguf/every_type.gguf"});
  EXPECT_EQ(text.code, kOk) << text.err;
  EXPECT_THAT(text.out, HasSubstr("a vocabulary only"));
  const auto json = nlohmann::json::parse(Inspect({kCorpus + "gguf/every_type.gguf", "--json"}).out);
  EXPECT_EQ(json["metadata"]["u64"], 18446744073709551615u);
  EXPECT_EQ(json["metadata"]["i8"], -1);
}

TEST(Inspect, SafetensorsAndLlama2c) {
  const auto file =
      nlohmann::json::parse(Inspect({kCorpus + "safetensors/python_package.safetensors", "--json"}).out);
  EXPECT_EQ(file["kind"], "safetensors");
  EXPECT_EQ(file["parameters"], 11);
  EXPECT_EQ(file["metadata"]["format"], "np");
  const auto llama2c = nlohmann::json::parse(Inspect({kCorpus + "llama2c/v2.bin", "--json"}).out);
  EXPECT_EQ(llama2c["kind"], "llama2.c");
  EXPECT_EQ(llama2c["metadata"]["group_size"], 2);
  // The scales are bytes but no parameters: 3 norms of 4, and 12 + 16 + 8 + 8 + 16 * 4 in matrices.
  EXPECT_EQ(llama2c["parameters"], 12 + 108);
}

TEST(Inspect, Folder) {
  const TestFolder folder;
  folder.Write("config.json",
               R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4})");
  std::filesystem::copy_file(kCorpus + "safetensors/python_package.safetensors",
                             folder / "model.safetensors");
  const auto json = nlohmann::json::parse(Inspect({folder.path().string(), "--json"}).out);
  EXPECT_EQ(json["architecture"], "llama");
  EXPECT_EQ(json["detail"], "LlamaForCausalLM");
  EXPECT_EQ(json["metadata"]["hidden_size"], 4);
  EXPECT_EQ(json["files"][0], "model.safetensors");
}

TEST(Inspect, BadFilesGiveOneSentence) {
  for (const char* name : {"gguf/overlap.gguf", "gguf/huge_counts.gguf", "safetensors/twins.safetensors"}) {
    const Output bad = Inspect({kCorpus + name});
    EXPECT_EQ(bad.code, kUsage) << name;
    EXPECT_EQ(bad.out, "");
    EXPECT_THAT(bad.err, testing::StartsWith("error: "));
    EXPECT_EQ(std::count(bad.err.begin(), bad.err.end(), '\n'), 1) << bad.err;
  }
  const TestFolder folder;
  EXPECT_THAT(Inspect({folder.Write("m.pt", "\x80\x02}q.").string()}).err, HasSubstr("pickle"));
}

}  // namespace
}  // namespace celer::cli
