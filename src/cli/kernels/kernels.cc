// celer kernels: every operator, its variants best first, and which one runs here.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/operators.h"
#include "device/cpu_features.h"
#include "device/gpu/gpu_code.h"
#include "device/variant.h"
#include "io/json/json.h"
#include "kernels/operators.h"
#include "limits/probe/probe.h"
#include "models/cuda/strategy.h"
#include "report/table.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

void PrintJson(const std::vector<OperatorInfo>& operators) {
  Json list = Json::array();
  for (const OperatorInfo& op : operators) {
    Json variants = Json::array();
    for (const VariantInfo& variant : op.variants) {
      variants.push_back({{"name", variant.name},
                          {"isa", Name(variant.isa)},
                          {"runs_here", variant.runs_here},
                          {"chosen", variant.chosen},
                          {"why_not", variant.runs_here ? Json(nullptr) : Json(variant.why_not)}});
      if (!variant.when.empty()) variants.back()["when"] = variant.when;
    }
    list.push_back({{"operator", op.name}, {"variants", variants}});
  }
  const Json out = {{"cpu", HostCpu().model},
                    {"features", HostCpu().FlagList()},
                    {"gpus", DescribeGpuCode()},
                    {"operators", list}};
  fmt::print("{}\n", JsonText(out, 2));
}

std::string Here(const VariantInfo& variant) {
  const std::string state = !variant.runs_here ? "cannot run: " + variant.why_not
                            : variant.chosen   ? "chosen"
                                               : "";
  if (variant.when.empty()) return state.empty() ? "could run" : state;
  return "for " + variant.when + (state.empty() ? "" : "; " + state);
}

void PrintTable(const std::vector<OperatorInfo>& operators) {
  Table table;
  table.title = fmt::format("{}: {}", HostCpu().model, HostCpu().FlagList());
  table.header = {"operator", "", "variant", "needs", "here"};
  table.all_words = true;
  for (const OperatorInfo& op : operators) {
    bool first = true;
    for (const VariantInfo& variant : op.variants) {
      table.rows.push_back({first ? op.name : "", variant.chosen ? "*" : "", std::string(variant.name),
                            std::string(Name(variant.isa)), Here(variant)});
      first = false;
    }
  }
  fmt::print("{}", TableText(table).substr(1));
  for (const std::string& gpu : DescribeGpuCode()) fmt::print("\n{}\n", Wrap(gpu, OutputWidth(), 0));
  fmt::print("\n{}\n",
             Wrap("Best first; * is chosen, and among those for a kind of batch the first that fits it. "
                  "CELER_FORCE=operator:variant[,operator:variant] chooses otherwise.",
                  OutputWidth(), 0));
}

}  // namespace

// Explicit, because a static library's linker drops objects that only register themselves.
std::vector<OperatorInfo> AllOperators() {
  std::vector<OperatorInfo> all;
  for (const auto& tables : {KernelOperators, CudaStrategyOperators, ProbeOperators}) {
    std::vector<OperatorInfo> more = tables();
    std::move(more.begin(), more.end(), std::back_inserter(all));
  }
  return all;
}

int KernelsCommand(const std::vector<std::string>& args) {
  CommandLine app("kernels", "which kernel variants exist, and which run here", "celer kernels --json");
  bool json = false;
  app.add_flag("--json", json, "one JSON object instead of the table");
  if (const auto stop = Parse(app, args)) return *stop;
  const std::vector<OperatorInfo> operators = AllOperators();
  json ? PrintJson(operators) : PrintTable(operators);
  return kOk;
}

}  // namespace celer::cli
