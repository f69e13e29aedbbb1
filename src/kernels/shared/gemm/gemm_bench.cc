// f32 products by every variant, with one core and with all: a square one, and linear layers of ViT-tiny and
// MiniLM. Prints GFLOP/s, and the ratio to the limit by this machine's measured peaks.
#include "kernels/shared/gemm/gemm.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "device/aligned_vector.h"
#include "limits/measured_machine.h"
#include "limits/roofline.h"

namespace celer {
namespace {

struct Case {
  const char* name;
  int64_t m, n, k;
  bool packed_a, packed_b;
};
constexpr Case kCases[] = {
    {"square", 1024, 1024, 1024, false, false},   {"square_packed", 1024, 1024, 1024, true, false},
    {"vit_qkv", 197, 576, 192, false, true},      {"vit_up", 197, 768, 192, false, true},
    {"vit_down", 197, 192, 768, false, true},     {"minilm_up", 128, 1536, 384, false, true},
    {"minilm_down", 128, 384, 1536, false, true}, {"classifier", 1, 1000, 2048, false, true},
};

void Measure(benchmark::State& state, const GemmKernels& kernels, const Case& c, int threads) {
  ThreadPool pool({.threads = threads});
  AlignedVector<float> a(static_cast<size_t>(c.m * c.k), 0.5f), b(static_cast<size_t>(c.k * c.n), 0.25f),
      out(static_cast<size_t>(c.m * c.n));
  AlignedVector<float> packed_a(static_cast<size_t>(GemmPackedAFloats(c.m, c.k, kernels)));
  AlignedVector<float> packed_b(static_cast<size_t>(GemmPackedBFloats(c.k, c.n, kernels)));
  GemmArgs args{.m = c.m,
                .n = c.n,
                .k = c.k,
                .a = GemmOperand::Rows(a.data(), c.k),
                .b = GemmOperand::Rows(b.data(), c.n),
                .out = out.data(),
                .out_stride = c.n,
                .pool = &pool};
  if (c.packed_a) {
    GemmPackA(args.a, c.m, c.k, packed_a.data(), kernels);
    args.a = GemmOperand::Packed(packed_a.data());
  }
  if (c.packed_b) {
    GemmPackB(args.b, c.k, c.n, packed_b.data(), kernels);
    args.b = GemmOperand::Packed(packed_b.data());
  }
  AlignedVector<float> workspace(static_cast<size_t>(GemmWorkspaceFloats(args, threads, kernels)));
  args.workspace = workspace.data();
  double best = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    Gemm(args, kernels);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const auto machine = LoadOrMeasureThisMachine(/*allow_measure=*/true, Device::Cpu(), threads);
  if (!machine) return state.SkipWithError(machine.error().message().c_str());
  const auto roof = RoofOf(*machine, "f32");
  if (!roof) return state.SkipWithError(roof.error().message().c_str());
  const Work work = MatmulWork({.m = c.m, .n = c.n, .k = c.k, .a_bits = 32, .w_bits = 32, .out_bits = 32});
  const RooflineLimit limit = LimitOf(work, *roof);
  state.counters["GFLOP/s"] = 2e-9 * static_cast<double>(c.m * c.n * c.k) / best;
  state.counters["best_ms"] = best * 1e3;
  state.counters["ratio"] = RatioToLimit(limit, best);
  state.SetLabel("bound by " + BoundBy(limit, *roof));
}

const bool kRegistered = [] {
  for (const auto& variant : GemmVariants()) {
    if (!variant.RunsHere() || std::string_view(variant.name) == "reference") continue;
    for (const Case& c : kCases)
      for (const int threads : {1, 2}) {
        if (threads > UsableCpus()) continue;
        benchmark::RegisterBenchmark(
            ("gemm/" + std::string(variant.name) + "/" + c.name + "/threads:" + std::to_string(threads))
                .c_str(),
            [=, kernels = variant.run](benchmark::State& state) { Measure(state, *kernels, c, threads); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->MinTime(0.3);
      }
  }
  return true;
}();

}  // namespace
}  // namespace celer
