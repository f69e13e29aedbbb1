// celer plan: the cheapest machines that hold a load within its target.
#include "plan/plan.h"

#include <fmt/format.h>

#include "base/result.h"
#include "cli/plan/options.h"
#include "cli/plan/report.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

int PrintMachines() {
  const PlanMachines& known = PlanMachines::BuiltIn();
  Table table;
  table.title = "machines";
  table.header = {"", "memory", "read", "efficiency of", "link", ""};
  table.last_is_words = true;
  for (const PlanMachine& machine : known.machines())
    table.rows.push_back({machine.machine.name, FormatBytes(machine.machine.memory_bytes, Units::kBinary),
                          FormatBandwidth(machine.machine.read_bytes_per_s), machine.like,
                          machine.link_bytes_per_s > 0 ? FormatBandwidth(machine.link_bytes_per_s) : "-",
                          machine.machine.source});
  table.rows.push_back(
      {"this", "-", "-", "steps timed here", "-", "this machine; of a model's file, its steps"});
  Table refused;
  refused.title = "machines that celer does not run on";
  refused.header.resize(2);
  refused.last_is_words = true;
  for (const auto& [name, why] : known.refused()) refused.rows.push_back({name, why});
  fmt::print("{}{}", TableText(table), TableText(refused));
  return kOk;
}

Status Answer(const PlanFlags& flags) {
  const StatusLine line;
  const auto progress = [&](const std::string& text) { line.Show(text); };
  CELER_ASSIGN(const PlanQuery query, MakePlanQuery(flags, progress));
  CELER_ASSIGN(const Plan plan, MakePlan(query, progress));
  progress("");
  // Files first: an answer followed by an error would look like success.
  if (!flags.svg.empty()) CELER_RETURN_IF_ERROR(WriteFile(flags.svg, PlanSvg(query, plan)));
  if (!flags.html.empty()) CELER_RETURN_IF_ERROR(WriteFile(flags.html, PlanHtml(query, plan)));
  if (flags.json)
    fmt::print("{}\n", JsonText(PlanJson(query, plan), 2));
  else
    fmt::print("{}", PlanText(query, plan, flags.brief));
  return {};
}

}  // namespace

int PlanCommand(const std::vector<std::string>& args) {
  CommandLine app(
      "plan", "the cheapest machines that hold a load within its target",
      "celer plan llama-3.1-8b --rate 10 --prompt 1155 --output 211 --ttft 2s --tpot 50ms --machines all");
  app.option_defaults()->always_capture_default(false);
  PlanFlags flags;
  flags.AddTo(app);
  if (const auto stop = Parse(app, args)) return *stop;
  if (flags.list) return PrintMachines();
  const Status status = Answer(flags);
  return status ? kOk : Fail(status.error());
}

}  // namespace celer::cli
