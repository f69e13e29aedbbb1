#include "cli/plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "limits/quantity.h"
#include "loadtest/load_report.h"
#include "report/output.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string RateText(double per_second) {
  return per_second >= 1000 ? FormatCount(Floor(per_second + 0.5)) : FormatNumber(per_second);
}

std::string MoneyText(double amount) {
  return amount >= 1000 ? FormatCount(Floor(amount + 0.5)) : fmt::format("{:.2f}", amount);
}

std::string Three(const Percentiles& p) {
  return fmt::format("{} / {} / {}", FormatSeconds(p.p50), FormatSeconds(p.p90), FormatSeconds(p.p99));
}

std::string MachineText(const PlanRow& row) {
  return row.choice.devices > 1 ? fmt::format("{} x {}", row.choice.devices, row.machine) : row.machine;
}

// Of a million tokens of answers.
std::optional<double> CostOfTokens(const PlanQuery& query, const PlanRow& row) {
  if (!row.cost || row.replicas == 0) return std::nullopt;
  const double tokens =
      row.load_each * static_cast<double>(row.replicas) * static_cast<double>(query.load.output);
  return *row.cost / (tokens * 3600) * 1e6;
}

std::string LoadText(const PlanLoad& load) {
  std::string text =
      load.rate > 0 ? fmt::format("{} requests/s", RateText(load.rate)) : "as much as the machines hold";
  text += load.has_trace()
              ? fmt::format(" of {} ({} requests in {})", load.trace.name,
                            FormatCount(std::ssize(load.trace.requests)), FormatSeconds(load.trace.seconds()))
              : std::string(", at random");
  text += fmt::format("; {} tokens in and {} out{}", FormatCount(load.prompt), FormatCount(load.output),
                      load.has_trace() ? " on average" : "");
  if (load.shared > 0) text += fmt::format("; {} of the prompts came before", Percent(load.shared));
  return text;
}

std::string TargetText(const PlanTarget& target) {
  std::string text;
  const auto add = [&](const char* name, double limit) {
    if (limit > 0)
      text += fmt::format("{}{} p{} up to {}", text.empty() ? "" : ", ", name, target.percentile,
                          FormatSeconds(limit));
  };
  add("first token (TTFT)", target.ttft_s);
  add("each further token (TPOT)", target.tpot_s);
  return text.empty() ? "none: as many tokens as possible" : text;
}

std::string SetupText(const PlanRow& row) {
  return fmt::format("{} weights, {} KV, steps of {} tokens", row.choice.weights.ToString(),
                     Name(row.choice.kv), FormatCount(row.choice.chunk));
}

std::string WinnerText(const PlanQuery& query, const Plan& plan) {
  const PlanRow& row = plan.rows[*plan.winner];
  std::string text = fmt::format("{} x {}: {}", FormatCount(row.replicas), MachineText(row), SetupText(row));
  if (row.cost)
    text += fmt::format("; {} {}/h, {} a million tokens of answers", MoneyText(*row.cost),
                        query.prices->currency, MoneyText(*CostOfTokens(query, row)));
  text += fmt::format("; each takes {} requests/s of at most {} within the target, about {} at once",
                      RateText(row.load_each), RateText(row.choice.rate()), FormatNumber(row.sequences()));
  return text;
}

// Without quantization, if that is not what won.
std::string BasisText(const PlanQuery& query, const PlanRow& row) {
  const FittedEfficiency& fitted = *row.choice.fitted;
  const PlanMachine& machine = query.machines[row.choice.machine];
  std::string text = fmt::format("{}: {}", fitted.basis, fitted.efficiency.ToString());
  if (!fitted.errors.empty())
    text += fmt::format("; off by {} in the middle, by {} at most", Percent(Percentile(fitted.errors, 0.5)),
                        Percent(Percentile(fitted.errors, 1)));
  if (!machine.timed && !machine.measured())
    text += fmt::format("; not measured on {}, but taken to come as near to its peaks", row.machine);
  return text;
}

Json PercentilesJson(const Percentiles& p) {
  return {{"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
}

Json OrNull(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json RowJson(const PlanQuery& query, const PlanRow& row) {
  const PlanChoice& c = row.choice;
  Json json = {{"machine", row.machine},
               {"devices_of_a_replica", c.devices},
               {"replicas", row.replicas},
               {"can_run", row.can_run},
               {"weights", c.weights.weights.ToString()},
               {"activations", Name(c.weights.activations)},
               {"kv", Name(c.kv)},
               {"chunk", c.chunk},
               {"rate_each", row.load_each},
               {"rate_within_target", c.rate()},
               {"rate_at_most", c.saturation},
               {"kv_tokens", Floor(c.replica->kv_tokens())},
               {"simulated", c.simulated},
               {"estimate",
                {{"holds", row.steady.holds},
                 {"sequences", row.steady.sequences},
                 {"step_s", row.steady.step_s},
                 {"ttft_s", PercentilesJson(row.steady.ttft)},
                 {"tpot_s", PercentilesJson(row.steady.tpot)}}},
               {"cost_per_hour", OrNull(row.cost)},
               {"cost_per_million_tokens", OrNull(CostOfTokens(query, row))},
               {"why_not", row.why},
               {"efficiency", c.fitted->efficiency.ToString()},
               {"efficiency_basis", c.fitted->basis}};
  json["checked"] = nullptr;
  if (row.checked)
    json["checked"] = {{"requests", row.checked->requests},
                       {"failed", row.checked->failed},
                       {"output_tokens_per_s", row.checked->output_per_s},
                       {"kv_peak", row.checked->kv_peak},
                       {"hit_rate", row.checked->hit_rate},
                       {"sequences", row.checked->sequences},
                       {"ttft_s", PercentilesJson(row.checked->ttft)},
                       {"tpot_s", PercentilesJson(row.checked->tpot)}};
  return json;
}

}  // namespace

Facts PlanFacts(const PlanQuery& query, const Plan& plan) {
  Facts facts = {
      {"model", query.model},
      {"load", LoadText(query.load)},
      {"target", TargetText(query.target)},
      {"prices", query.prices ? fmt::format("{} per hour and device, of {}{}{}", query.prices->currency,
                                            query.prices->date, query.prices->source.empty() ? "" : ", ",
                                            query.prices->source)
                              : "none (--price FILE): the fewest devices win"},
      {"searched", fmt::format("{} ways to run it, {} simulated loads", FormatCount(plan.choices),
                               FormatCount(plan.simulations))}};
  if (query.draft.depth > 0)
    facts.emplace_back("speculation", fmt::format("{} drafted tokens a step, {} accepted: {} tokens a step",
                                                  query.draft.depth, FormatNumber(query.draft.acceptance),
                                                  FormatNumber(query.draft.TokensPerStep())));
  if (!plan.winner) {
    facts.emplace_back("cheapest", "none of these machines holds the load within the target");
    return facts;
  }
  facts.emplace_back("cheapest", WinnerText(query, plan));
  if (!plan.fewer.empty()) facts.emplace_back("one fewer fails", plan.fewer);
  for (const std::string& text : plan.cheaper) facts.emplace_back("cheaper fails", text);
  facts.emplace_back("rests on", BasisText(query, plan.rows[*plan.winner]));
  return facts;
}

Table PlanTable(const PlanQuery& query, const Plan& plan) {
  Table table;
  table.title = "Each machine at its best";
  table.header = {"",
                  "replicas",
                  "weights",
                  "KV",
                  "chunk",
                  "req/s each",
                  "of",
                  "at once",
                  "TTFT p50 / p90 / p99",
                  "TPOT p50 / p90 / p99"};
  if (query.prices) table.header.insert(table.header.end(), {"per hour", "per 1M tokens"});
  table.header.emplace_back("");
  table.last_is_words = true;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    const bool shown = row.load_each > 0, holds = row.steady.holds;
    const std::string mark = row.checked ? "" : "~";
    std::vector<std::string> cells = {MachineText(row), row.replicas > 0 ? FormatCount(row.replicas) : "-"};
    if (shown)
      cells.insert(cells.end(),
                   {row.choice.weights.ToString(), Name(row.choice.kv), FormatCount(row.choice.chunk),
                    RateText(row.load_each), RateText(row.choice.rate()),
                    holds || row.checked ? FormatNumber(row.sequences()) : "-",
                    holds || row.checked ? mark + Three(row.ttft()) : "-",
                    holds || row.checked ? mark + Three(row.tpot()) : "-"});
    else
      cells.insert(cells.end(),
                   {row.choice.weights.ToString(), Name(row.choice.kv), "-", "-", "-", "-", "-", "-"});
    if (query.prices) {
      const auto tokens = CostOfTokens(query, row);
      cells.push_back(row.cost ? MoneyText(*row.cost) : "-");
      cells.push_back(tokens ? MoneyText(*tokens) : "-");
    }
    cells.push_back(plan.winner == i ? "cheapest" : row.why);
    table.rows.push_back(std::move(cells));
  }
  table.notes = {
      "req/s each: of one replica under this load; of: the most it takes within the target. at once: "
      "requests on one "
      "replica.",
      "~: estimated from the mean step; the others were played by the engine on a simulated machine."};
  return table;
}

std::string PlanText(const PlanQuery& query, const Plan& plan, bool brief) {
  std::string out = FactsText(PlanFacts(query, plan)) + TableText(PlanTable(query, plan), !brief);
  if (!plan.winner) return out;
  const PlanRow& row = plan.rows[*plan.winner];
  out += fmt::format("\nRun it on each\n  {}\n", ServeCommandLine(query, row));
  if (!brief) out += fmt::format("\nOr with Kubernetes\n{}", KubernetesManifest(query, row));
  return out;
}

Json PlanJson(const PlanQuery& query, const Plan& plan) {
  Json json = {{"model", query.model},
               {"load",
                {{"rate", query.load.rate},
                 {"prompt", query.load.prompt},
                 {"output", query.load.output},
                 {"longest", query.load.longest},
                 {"shared", query.load.shared},
                 {"trace", query.load.trace.name},
                 {"requests", query.load.trace.requests.size()}}},
               {"target",
                {{"ttft_s", query.target.ttft_s},
                 {"tpot_s", query.target.tpot_s},
                 {"percentile", query.target.percentile}}},
               {"count", query.count},
               {"choices", plan.choices},
               {"simulations", plan.simulations}};
  json["speculation"] = {{"depth", query.draft.depth},
                         {"acceptance", query.draft.acceptance},
                         {"tokens_per_step", query.draft.TokensPerStep()}};
  json["prices"] = nullptr;
  if (query.prices)
    json["prices"] = {{"date", query.prices->date},
                      {"currency", query.prices->currency},
                      {"source", query.prices->source},
                      {"per_hour", query.prices->hourly}};
  Json rows = Json::array();
  for (const PlanRow& row : plan.rows) rows.push_back(RowJson(query, row));
  json["rows"] = rows;
  json["winner"] = nullptr;
  if (plan.winner) {
    const PlanRow& row = plan.rows[*plan.winner];
    json["winner"] = *plan.winner;
    json["one_fewer_fails"] = plan.fewer;
    json["cheaper_fails"] = plan.cheaper;
    json["serve"] = ServeArguments(query, row);
    json["kubernetes"] = KubernetesManifest(query, row);
  }
  return json;
}

}  // namespace celer::cli
