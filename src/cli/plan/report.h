// What `celer plan` prints: text, JSON, a page, and what it takes to run the winner.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "plan/plan.h"
#include "report/chart.h"
#include "report/table.h"

namespace celer::cli {

Facts PlanFacts(const PlanQuery& query, const Plan& plan);
Table PlanTable(const PlanQuery& query, const Plan& plan);
std::string PlanText(const PlanQuery& query, const Plan& plan, bool brief);
nlohmann::ordered_json PlanJson(const PlanQuery& query, const Plan& plan);

// The cost over the load, and what a device gives over how long a token takes.
Drawing CostDrawing(const PlanQuery& query, const Plan& plan);
Drawing FrontierDrawing(const PlanQuery& query, const Plan& plan);
std::string PlanSvg(const PlanQuery& query, const Plan& plan);
std::string PlanHtml(const PlanQuery& query, const Plan& plan);

// To run a row: the arguments of celer serve, and a manifest with as many replicas.
std::vector<std::string> ServeArguments(const PlanQuery& query, const PlanRow& row);
std::string ServeCommandLine(const PlanQuery& query, const PlanRow& row);
std::string KubernetesManifest(const PlanQuery& query, const PlanRow& row);

}  // namespace celer::cli
