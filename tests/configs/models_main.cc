// Prints the table of docs/models.md: the families that the code has, and what runs of each.
//   celer_models_table tests/golden/models
// Whether a family runs on a GPU and can be calibrated, the tiny models in that folder decide, and what the family's
// class in transformers takes for a config.json without fields.
#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "models/config/family.h"
#include "models/load/model.h"
#include "models/load/predictor.h"
#include "quantize/llm/calibrate.h"
#include "server/api/answer_syntax.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::vector<DecoderConfig>> ConfigsOf(const fs::path& folder) {
  std::map<std::string, std::vector<DecoderConfig>> configs;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths)
    if (fs::exists(path / "config.json"))
      if (auto config = LoadDecoderConfig(path)) configs[config->family].push_back(std::move(*config));
  for (const Family& family : Families())
    if (configs[family.name].empty())
      if (auto config = ConfigFromHf({{"model_type", family.model_type}}, "defaults"))
        configs[family.name].push_back(std::move(*config));
  return configs;
}

// "yes", "no: a softcap on attention scores", "not with a bias on ..."
std::string CudaCell(const std::vector<DecoderConfig>& configs) {
  std::string missing;
  size_t run = 0;
  for (const DecoderConfig& config : configs) {
    const Status status = CheckRunsOnGpu(config, 1);
    run += status ? 1 : 0;
    if (status || !missing.empty()) continue;
    const std::string text = status.error().message();
    constexpr std::string_view kBefore = "the model has ";
    missing = text.substr(kBefore.size(), text.find(", which") - kBefore.size());
  }
  if (missing.empty()) return configs.empty() ? "?" : "yes";
  return (run > 0 ? "not with " : "no: ") + missing;
}

std::string QuantizeCell(const std::vector<DecoderConfig>& configs) {
  bool calibrated = !configs.empty();
  for (const DecoderConfig& config : configs)
    calibrated = calibrated && config.moe.experts == 0 && NotCalibrated(config, /*gguf=*/false) == nullptr;
  return calibrated ? "any method" : "rtn";
}

// The names of the rows that list the family.
template <class Row>
std::string SyntaxCell(std::span<const Row> rows, const std::string& family) {
  std::string out;
  for (const Row& row : rows) {
    std::istringstream words(row.families);
    for (std::string word; words >> word;)
      if (word == family) out += (out.empty() ? "" : ", ") + std::string(row.name);
  }
  // The names of tags are code.
  std::string escaped;
  for (const char c : out) escaped += c == '<' ? "&lt;" : std::string(1, c);
  return escaped;
}

// Names between spaces.
std::string GgufCell(std::string names) {
  for (size_t at = 0; (at = names.find(' ', at)) != names.npos; at += 4) names.replace(at, 1, "`, `");
  return "`" + names + "`";
}

void Print(const fs::path& folder) {
  const auto configs = ConfigsOf(folder);
  std::cout << "| family | models | `model_type` | GGUF | CPU | CUDA | `celer quantize` | `mtp` | tool calls "
               "| thoughts |\n"
            << "|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Family& family : Families()) {
    const auto& of_family = configs.at(family.name);
    std::cout << "| " << family.name << " | " << family.examples << " | `" << family.model_type << "` | "
              << (family.gguf ? GgufCell(family.gguf) : "–") << " | yes | " << CudaCell(of_family) << " | "
              << QuantizeCell(of_family) << " | " << (HasPredictor(family.name) ? "CPU" : "") << " | "
              << SyntaxCell(server::ToolSyntaxes(), family.name) << " | "
              << SyntaxCell(server::ThoughtSyntaxes(), family.name) << " |\n";
  }
}

}  // namespace
}  // namespace celer

int main(int argc, char** argv) {
  celer::log::SetLevel(celer::log::Level::kError);
  if (argc != 2) {
    std::cerr << "celer_models_table FOLDER, with the folder tests/golden/models\n";
    return 2;
  }
  celer::Print(argv[1]);
}
