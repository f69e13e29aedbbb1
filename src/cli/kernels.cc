// celer kernels: every operator, its variants best first, and which one runs here.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/operators.h"
#include "core/cpu_features.h"
#include "core/variant.h"
#include "io/json.h"
#include "kernels/operators.h"
#include "limits/probe.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

void PrintJson(const std::vector<OperatorInfo>& operators) {
  Json list = Json::array();
  for (const OperatorInfo& op : operators) {
    Json variants = Json::array();
    for (const VariantInfo& variant : op.variants)
      variants.push_back({{"name", variant.name},
                          {"isa", Name(variant.isa)},
                          {"runs_here", variant.runs_here},
                          {"chosen", variant.chosen},
                          {"why_not", variant.runs_here ? Json(nullptr) : Json(variant.why_not)}});
    list.push_back({{"operator", op.name}, {"variants", variants}});
  }
  const Json out = {{"cpu", HostCpu().model}, {"features", HostCpu().FlagList()}, {"operators", list}};
  fmt::print("{}\n", JsonText(out, 2));
}

void PrintTable(const std::vector<OperatorInfo>& operators) {
  size_t op_width = 8, variant_width = 7, isa_width = 5;
  for (const OperatorInfo& op : operators) {
    op_width = std::max(op_width, op.name.size());
    for (const VariantInfo& variant : op.variants) {
      variant_width = std::max(variant_width, variant.name.size());
      isa_width = std::max(isa_width, Name(variant.isa).size());
    }
  }
  fmt::print("{}: {}\n\n", HostCpu().model, HostCpu().FlagList());
  fmt::print("{:<{}}     {:<{}}  {:<{}}  here\n", "operator", op_width, "variant", variant_width, "needs",
             isa_width);
  for (const OperatorInfo& op : operators) {
    bool first = true;
    for (const VariantInfo& variant : op.variants) {
      const std::string here = variant.chosen      ? "chosen"
                               : variant.runs_here ? "could run"
                                                   : "cannot run: " + variant.why_not;
      fmt::print("{:<{}}  {}  {:<{}}  {:<{}}  {}\n", first ? op.name : "", op_width,
                 variant.chosen ? '*' : ' ', variant.name, variant_width, Name(variant.isa), isa_width, here);
      first = false;
    }
  }
  fmt::print(
      "\nBest first; * is chosen. CELER_FORCE=operator:variant[,operator:variant] chooses otherwise.\n");
}

}  // namespace

// Explicit, because a static library's linker drops objects that only register themselves.
std::vector<OperatorInfo> AllOperators() {
  std::vector<OperatorInfo> all;
  for (const auto& tables : {KernelOperators, ProbeOperators}) {
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
