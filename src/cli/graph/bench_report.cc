#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/graph/bench.h"
#include "limits/quantity.h"

namespace celer::cli {
namespace {

std::string Ratio(double limit, double seconds) {
  return limit > 0 && seconds > 0 ? fmt::format("{:.2f}", limit / seconds) : "";
}
std::string Threads(int threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

}  // namespace

double GraphTimes::one_by_one() const {
  double sum = 0;
  for (const NodeTime& node : nodes) sum += LimitOf(node.work, roof).seconds();
  return sum;
}

std::vector<OperatorTime> ByOperator(const GraphTimes& times) {
  std::map<std::pair<std::string, std::string>, OperatorTime> groups;
  for (const NodeTime& node : times.nodes) {
    OperatorTime& group = groups[{node.op, node.kernel}];
    group.op = node.op, group.kernel = node.kernel;
    ++group.nodes;
    group.seconds += node.seconds;
    group.limit += LimitOf(node.work, times.roof).seconds();
    group.work = group.work + node.work;
  }
  std::vector<OperatorTime> out;
  for (auto& [key, group] : groups) out.push_back(std::move(group));
  std::stable_sort(out.begin(), out.end(),
                   [](const OperatorTime& a, const OperatorTime& b) { return a.seconds > b.seconds; });
  return out;
}

Facts GraphBenchFacts(const GraphBench& bench) {
  Facts facts = {{"network", bench.path + ": " + bench.network + (bench.optimized ? "" : ", not optimised") +
                                 (bench.precision == "f32" ? "" : ", in " + bench.precision)}};
  for (const std::string& input : bench.inputs) facts.emplace_back("input", input);
  facts.emplace_back("work", fmt::format("{:.3f} GFLOP; {} of activations", bench.flops / 1e9,
                                         FormatBytes(bench.activation_bytes)));
  for (const GraphTimes& times : bench.times)
    facts.emplace_back("machine", fmt::format("{}, {}: {}, {} ({})", times.machine.name,
                                              Threads(times.threads), FormatBandwidth(times.roof.bytes_per_s),
                                              FormatFlops(times.roof.flops_per_s), times.roof.source));
  return facts;
}

Table SpeedTable(const GraphBench& bench) {
  Table table;
  table.title = "Time of a run";
  table.header = {"threads", "median", "p10", "p90", "speed", "limit", "ratio", "in cache", "ratio"};
  for (const GraphTimes& times : bench.times) {
    const auto at = [&](double part) {
      return times.runs[static_cast<size_t>(part * static_cast<double>(times.runs.size() - 1))];
    };
    const double limit = times.one_by_one(), whole = LimitOf(times.whole, times.roof).seconds();
    table.rows.push_back({std::to_string(times.threads), FormatSeconds(times.median()),
                          FormatSeconds(at(0.1)), FormatSeconds(at(0.9)),
                          FormatFlops(times.whole.flops / times.median()), FormatSeconds(limit),
                          Ratio(limit, times.median()), FormatSeconds(whole), Ratio(whole, times.median())});
  }
  table.notes = {
      "limit: each operator reads its inputs from memory and writes its outputs there, one after the other. "
      "In cache: only weights, inputs and outputs of the network touch memory. A ratio above 1 means that "
      "values came from a cache, or that a kernel needs fewer multiplications than the sum (Winograd)."};
  return table;
}

Table OperatorTable(const GraphTimes& times) {
  Table table;
  table.title = "Operators with " + Threads(times.threads);
  table.header = {"operator", "kernel", "nodes", "time",  "share",
                  "GFLOP",    "MB",     "limit", "ratio", "bound by"};
  table.last_is_words = true;
  table.keys = 2;
  double sum = 0;
  for (const NodeTime& node : times.nodes) sum += node.seconds;
  for (const OperatorTime& group : ByOperator(times)) {
    const RooflineLimit limit = LimitOf(group.work, times.roof);
    table.rows.push_back({group.op, group.kernel, std::to_string(group.nodes), FormatSeconds(group.seconds),
                          sum > 0 ? Percent(group.seconds / sum) : "",
                          fmt::format("{:.3f}", group.work.flops / 1e9),
                          fmt::format("{:.2f}", group.work.bytes() / 1e6), FormatSeconds(group.limit),
                          Ratio(group.limit, group.seconds),
                          group.limit <= 0       ? ""
                          : limit.memory_bound() ? "memory"
                                                 : "arithmetic"});
  }
  return table;
}

Table NodeTable(const GraphTimes& times, size_t most) {
  std::vector<const NodeTime*> nodes;
  for (const NodeTime& node : times.nodes) nodes.push_back(&node);
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const NodeTime* a, const NodeTime* b) { return a->seconds > b->seconds; });
  Table table;
  table.title = fmt::format("The slowest nodes with {}", Threads(times.threads));
  table.header = {"node", "operator", "kernel", "output", "time", "FLOP/byte", "limit", "ratio"};
  table.keys = 2;
  for (size_t i = 0; i < nodes.size() && i < most; ++i) {
    const NodeTime& node = *nodes[i];
    const double limit = LimitOf(node.work, times.roof).seconds();
    table.rows.push_back({node.name.empty() ? fmt::format("{}", i) : node.name, node.op, node.kernel,
                          node.shape, FormatSeconds(node.seconds), fmt::format("{:.2f}", node.intensity()),
                          FormatSeconds(limit), Ratio(limit, node.seconds)});
  }
  return table;
}

nlohmann::ordered_json GraphBenchJson(const GraphBench& bench) {
  using Json = nlohmann::ordered_json;
  Json out = {{"path", bench.path},
              {"network", bench.network},
              {"inputs", bench.inputs},
              {"optimized", bench.optimized},
              {"precision", bench.precision},
              {"flops", bench.flops},
              {"weight_bytes", bench.weight_bytes},
              {"activation_bytes", bench.activation_bytes},
              {"times", Json::array()}};
  for (const GraphTimes& times : bench.times) {
    Json nodes = Json::array();
    for (const NodeTime& node : times.nodes)
      nodes.push_back({{"name", node.name},
                       {"op", node.op},
                       {"kernel", node.kernel},
                       {"shape", node.shape},
                       {"seconds", node.seconds},
                       {"flops", node.work.flops},
                       {"bytes", node.work.bytes()},
                       {"limit_seconds", LimitOf(node.work, times.roof).seconds()}});
    out["times"].push_back({{"threads", times.threads},
                            {"median_seconds", times.median()},
                            {"seconds", times.runs},
                            {"limit_seconds", times.one_by_one()},
                            {"in_cache_limit_seconds", LimitOf(times.whole, times.roof).seconds()},
                            {"read_bytes_per_s", times.roof.bytes_per_s},
                            {"flops_per_s", times.roof.flops_per_s},
                            {"nodes", nodes}});
  }
  return out;
}

}  // namespace celer::cli
