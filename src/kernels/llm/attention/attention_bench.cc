// Every attention variant that runs here: decode of one token at several contexts, and a prefill of 512, on
// the shapes of TinyLlama 1.1B, Llama 3.2 1B and Llama 3 8B. A decode walks through as many layers as fill
// three last-level caches, as a model does. Prints bytes of KV per second, the limit by this machine's
// measured peaks, and the ratio of the two times. Sums are in f32 in every variant.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "device/allocator.h"
#include "device/buffer.h"
#include "device/cpu_features.h"
#include "kernels/llm/attention/attention.h"
#include "kernels/llm/kv_row.h"
#include "limits/measured_machine.h"
#include "limits/roofline.h"

namespace celer {
namespace {

struct Model {
  const char* name;
  int64_t heads, kv_heads, dim;
};
constexpr Model kModels[] = {{"tinyllama", 32, 4, 64}, {"llama3-1b", 32, 8, 64}, {"llama3-8b", 32, 8, 128}};
constexpr DType kTypes[] = {DType::kF16, DType::kBf16, DType::kI8, DType::kF32};

struct Case {
  AttentionFn run;
  Model model;
  DType dtype;
  int64_t queries, context;
};

void Measure(benchmark::State& state, const Case& c) {
  const int64_t size = 16, blocks = (c.context + size - 1) / size;
  KvLayerView kv{.dtype = c.dtype,
                 .blocks = blocks,
                 .kv_heads = c.model.kv_heads,
                 .block_size = size,
                 .head_dim = c.model.dim,
                 .run = 64};
  const int64_t bytes = 2 * kv.Blocks() * kv.BlockBytes();
  const int64_t enough = std::max<int64_t>(int64_t{96} << 20, 3 * HostCpu().last_level_bytes);
  const int64_t layers = c.queries > 1 ? 1 : (enough + bytes - 1) / bytes;
  auto buffer = Buffer::Allocate(CpuAllocator(), static_cast<size_t>(layers * bytes));  // in huge pages
  if (!buffer) return state.SkipWithError(buffer.error().message().c_str());
  std::byte* const memory = buffer->data();
  std::vector<float> row(c.model.dim);
  for (int64_t part = 0; part < 2 * layers; ++part)
    for (int64_t i = 0; i < blocks * c.model.kv_heads * size; ++i) {
      for (size_t d = 0; d < row.size(); ++d)
        row[d] = static_cast<float>((i * 31 + static_cast<int64_t>(d) * 17) % 64) / 32 - 1;
      StoreKvRow(kv, memory + part * (bytes / 2), i / size / c.model.kv_heads, i / size % c.model.kv_heads,
                 i % size, row.data());
    }

  const auto n = static_cast<size_t>(c.queries);
  std::vector<int32_t> tokens(n), positions(n), starts = {0, static_cast<int32_t>(n)}, table;
  for (size_t i = 0; i < n; ++i)
    positions[i] = static_cast<int32_t>(c.context - c.queries) + static_cast<int32_t>(i);
  for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(b));
  std::vector<float> q(n * static_cast<size_t>(c.model.heads * c.model.dim)), out(q.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 29 % 64) / 32 - 1;

  double best = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t layer = 0; layer < layers; ++layer) {
      kv.k = memory + layer * bytes;
      kv.v = kv.k + bytes / 2;
      c.run({.batch = {tokens, positions, starts, table, blocks, {}},
             .kv = kv,
             .q = q.data(),
             .heads = c.model.heads,
             .scale = 0.125f,
             .out = out.data(),
             .pool = &DefaultThreadPool()});
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                           static_cast<double>(layers);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const auto machine = LoadOrMeasureThisMachine(/*allow_measure=*/true, Device::Cpu());
  if (!machine) return state.SkipWithError(machine.error().message().c_str());
  const auto roof = RoofOf(*machine, "f32");
  if (!roof) return state.SkipWithError(roof.error().message().c_str());
  const Work work = AttentionWork(
      {.queries = c.queries,
       .context = c.context,
       .heads = c.model.heads,
       .kv_heads = c.model.kv_heads,
       .head_dim = c.model.dim,
       .kv_bits = 8.0 * static_cast<double>(kv.HeadBytes()) / static_cast<double>(size * c.model.dim),
       .act_bits = 32});
  const RooflineLimit limit = LimitOf(work, *roof);
  state.counters["GB/s"] = static_cast<double>(bytes) / best * 1e-9;
  state.counters["GFLOP/s"] = work.flops / best * 1e-9;
  state.counters["limit_us"] = limit.seconds() * 1e6;
  state.counters["memory_us"] = limit.memory_s * 1e6;
  state.counters["ratio"] = RatioToLimit(limit, best);
  state.SetLabel("bound by " + BoundBy(limit, *roof));
}

const bool kRegistered = [] {
  for (const auto& variant : AttentionVariants()) {
    if (!variant.RunsHere() || std::string_view(variant.name) == "reference") continue;
    for (const Model& model : kModels)
      for (const DType dtype : kTypes)
        for (const auto& [queries, context] :
             {std::pair<int64_t, int64_t>{1, 512}, {1, 4096}, {1, 16384}, {512, 512}}) {
          const Case c{variant.run, model, dtype, queries, context};
          benchmark::RegisterBenchmark(
              ("attention/" + std::string(variant.name) + "/" + model.name + "/" + std::string(Name(dtype)) +
               (queries > 1 ? "/prefill:" : "/decode:") + std::to_string(context))
                  .c_str(),
              [=](benchmark::State& state) { Measure(state, c); })
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond)
              ->Iterations(10);
        }
  }
  return true;
}();

}  // namespace
}  // namespace celer
