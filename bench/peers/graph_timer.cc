// Times a network as a peer of bench_graphs.py: loads it, says how long that and the first run took, and then
// runs it once for every line on stdin. Every answer is one line of JSON.
//
//   celer_graph_timer model.onnx --threads 2 --input x=x.npy [--operators 20]
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "graph/load/load_network.h"
#include "graph/passes/pass.h"
#include "graph/run/profile.h"
#include "io/npy/npy.h"

namespace {

using celer::graph::Data;
using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Of all threads of this process: what a busy machine does not stretch.
double CpuMs() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
}

// The slowest operators, with what ran them.
void PrintOperators(const celer::graph::Profile& profile, int64_t runs) {
  struct Row {
    double ms = 0, gflops = 0, megabytes = 0;
    int count = 0;
  };
  std::map<std::string, Row> kinds;
  double total = 0;
  std::vector<celer::graph::OperatorTime> times = profile.Times();
  for (const auto& time : times) {
    Row& row = kinds[(time.node->domain.empty() ? "" : time.node->domain + ".") + time.node->op + " (" +
                     std::string(time.kernel) + ")"];
    row.ms += time.Median() * 1e3;
    row.gflops += time.flops * 1e-9;
    row.megabytes += time.bytes * 1e-6;
    row.count += time.how == celer::graph::PlannedNode::How::kPlanned ||
                 time.how == celer::graph::PlannedNode::How::kDynamic;
    total += time.Median() * 1e3;
  }
  std::vector<std::pair<std::string, Row>> sorted(kinds.begin(), kinds.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  std::fprintf(stderr, "%.3f ms in operators, medians of %lld runs\n", total, static_cast<long long>(runs));
  for (const auto& [name, row] : sorted)
    if (row.ms > 0.002 * total)
      std::fprintf(stderr, "%8.3f ms %5.1f%% %4d x %-36s %8.2f GFLOP/s %8.2f GB/s\n", row.ms,
                   100 * row.ms / total, row.count, name.c_str(), row.gflops / row.ms * 1e3,
                   row.megabytes / row.ms);
  std::sort(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.Median() > b.Median(); });
  for (size_t i = 0; i < std::min<size_t>(times.size(), 12); ++i)
    std::fprintf(stderr, "  %8.3f ms %-50s %8.2f GFLOP/s %8.2f GB/s\n", times[i].Median() * 1e3,
                 times[i].node->Label().c_str(), times[i].flops * 1e-9 / times[i].Median(),
                 times[i].bytes * 1e-9 / times[i].Median());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("times a network");
  std::string model, output;
  int threads = 1, operators = 0;
  bool plain = false;
  std::vector<std::string> files;
  app.add_option("model", model)->required();
  app.add_option("--threads", threads);
  app.add_option("--input", files, "NAME=FILE.npy");
  app.add_option("--operators", operators, "a table of operators over so many runs, and the end");
  app.add_option("--output", output, "FILE.npz for the outputs of the first run");
  app.add_flag("--no-optimize", plain);
  CLI11_PARSE(app, argc, argv);

  std::map<std::string, celer::NpyArray> arrays;
  for (const std::string& word : files) {
    const size_t equal = word.find('=');
    auto array = celer::ReadNpy(word.substr(equal + 1));
    if (!array) return Fail(array.error());
    arrays.emplace(word.substr(0, equal), std::move(*array));
  }
  const auto begin = Clock::now();
  auto network = celer::graph::LoadNetwork(model);
  if (!network) return Fail(network.error());
  if (!plain)
    if (auto passes = celer::graph::Optimize(&network->graph); !passes) return Fail(passes.error());
  auto program = celer::graph::Program::Make(std::move(*network));
  if (!program) return Fail(program.error());
  celer::ThreadPool pool({.threads = threads});
  celer::graph::Session session(*program, pool);
  std::vector<Data> inputs;
  for (const auto id : (*program)->graph().inputs) {
    const auto found = arrays.find((*program)->graph().value(id).name);
    if (found == arrays.end()) {
      std::fprintf(stderr, "no --input for '%s'\n", (*program)->graph().value(id).name.c_str());
      return 1;
    }
    const celer::NpyArray& array = found->second;
    inputs.push_back(Data::Of(celer::TensorView::Contiguous(const_cast<std::byte*>(array.bytes.data()),
                                                            array.dtype, celer::Device::Cpu(), array.shape)));
  }
  const double load = Since(begin);
  auto outputs = session.Run(inputs);
  if (!outputs) return Fail(outputs.error());
  const double first = Since(begin);
  if (!output.empty()) {
    std::vector<celer::NpzEntry> entries;
    for (size_t i = 0; i < outputs->size(); ++i) {
      const celer::TensorView& t = (*outputs)[i].tensor;
      const auto bytes = static_cast<size_t>(*celer::BytesFor(t.dtype, *t.shape.elements()));
      entries.push_back({(*program)->graph().value((*program)->graph().outputs[i]).name,
                         t.dtype,
                         t.shape,
                         {t.data, bytes}});
    }
    if (const auto status = celer::WriteNpz(output, entries); !status) return Fail(status.error());
  }
  const celer::graph::MemoryPlan& plan = *session.plan();
  std::printf(
      "{\"load_ms\": %.3f, \"first_ms\": %.3f, \"gflop\": %.4f, \"arena_bytes\": %lld, \"live_bytes\": %lld, "
      "\"naive_bytes\": %lld}\n",
      load, first, plan.flops * 1e-9, static_cast<long long>(plan.arena_bytes),
      static_cast<long long>(plan.live_bytes), static_cast<long long>(plan.naive_bytes));
  std::fflush(stdout);
  if (operators > 0) {
    celer::graph::Profile profile(session);
    for (int i = 0; i < operators; ++i)
      if (auto out = session.Run(inputs); !out) return Fail(out.error());
    PrintOperators(profile, operators);
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = Clock::now();
    const double cpu = CpuMs();
    auto out = session.Run(inputs);
    if (!out) return Fail(out.error());
    std::printf("{\"ms\": %.4f, \"cpu_ms\": %.4f}\n", Since(start), CpuMs() - cpu);
    std::fflush(stdout);
  }
  return 0;
}
