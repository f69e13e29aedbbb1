#include "kernels/llm/moe/experts_together.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "base/check.h"
#include "device/aligned_vector.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/shared/vec.h"

namespace celer {
namespace {

using Floats = AlignedVector<float>;

// For products inside of a run, which are one thread's alone.
ThreadPool& OneThread() {
  static auto* const pool = new ThreadPool({.threads = 1});  // never destroyed, as DefaultThreadPool()
  return *pool;
}

// Rows of a slice begin at multiples of this: a cache line of floats, and what is interleaved in a packed matrix.
int64_t UnitOf(const WeightView& w) {
  constexpr int64_t kLine = 16;
  return w.packed ? std::lcm(kLine, w.packed_for->grid(w).rows) : kLine;
}

// Rows [begin, end), and a matrix that ends earlier has fewer; CELER_CHECKs hold for what UnitOf() gave.
WeightView Slice(const WeightView& w, int64_t begin, int64_t end) {
  if (!w) return {};
  Result<WeightView> part = w.SliceRows(begin, std::min(end, w.rows) - begin);
  CELER_CHECK(part.has_value());
  return *part;
}

const float* From(const float* bias, int64_t row) {
  return bias ? bias + row : nullptr;
}

// Calls fn(begin, end) for runs of units that cover [0, count) once. Most of them are divided beforehand, in long streams;
// the rest is taken by whoever is free, because a core that others slow down would keep all waiting.
void ForUnits(ThreadPool& pool, int64_t count, FunctionRef<void(int64_t, int64_t)> fn) {
  const int64_t threads = pool.size(), fixed = threads > 1 ? count * 7 / 8 / threads * threads : count;
  alignas(64) std::atomic<int64_t> next{fixed};
  pool.Run([&](int thread) {
    const int64_t begin = fixed * thread / threads, end = fixed * (thread + 1) / threads;
    if (begin < end) fn(begin, end);
    for (int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < count;) fn(unit, unit + 1);
  });
}

// An expert that tokens were routed to, with what it reads and makes of each.
struct Chosen {
  const ExpertWeights* weights = nullptr;
  std::span<const MoeSlot> slots;
  const float* x = nullptr;             // [slots, hidden]
  float *up = nullptr, *mid = nullptr;  // [slots, intermediate]
  int64_t count() const { return std::ssize(slots); }
};

void GateUpRows(const MoeArgs& args, const Chosen& one, int64_t begin, int64_t end) {
  const ExpertWeights& w = *one.weights;
  GateUp({.x = one.x,
          .tokens = one.count(),
          .gate = Slice(w.gate, begin, end),
          .up = Slice(w.up, begin, end),
          .gate_bias = From(w.gate_bias, begin),
          .up_bias = From(w.up_bias, begin),
          .activation = args.activation,
          .swiglu_limit = args.swiglu_limit,
          .up_out = one.up + begin,
          .out = one.mid + begin,
          .out_stride = w.up.rows,
          .pool = &OneThread()});
}

// These rows of all experts' down, weighted and added in rank order.
void DownRows(const MoeArgs& args, std::span<const Chosen> chosen, int64_t begin, int64_t end, float* to) {
  const int64_t hidden = args.router.cols, rows = end - begin, top = args.experts_per_token;
  static thread_local Floats out, contribution;
  contribution.assign(static_cast<size_t>(args.tokens * top * rows), 0.0f);
  for (const Chosen& one : chosen) {
    out.resize(std::max(out.size(), static_cast<size_t>(one.count() * rows)));
    Matmul({.x = one.mid, .tokens = one.count(), .pool = &OneThread()},
           {.w = Slice(one.weights->down, begin, end),
            .bias = From(one.weights->down_bias, begin),
            .out = out.data(),
            .out_stride = rows});
    for (int64_t i = 0; i < one.count(); ++i) {
      const MoeSlot& slot = one.slots[static_cast<size_t>(i)];
      vec::Axpy(args.weight_on_input ? 1.0f : slot.weight, out.data() + i * rows,
                contribution.data() + (slot.token * top + slot.rank) * rows, rows);
    }
  }
  for (int64_t i = 0; i < args.tokens * top; ++i)
    vec::Axpy(args.residual_scale, contribution.data() + i * rows, to + i / top * hidden + begin, rows);
}

}  // namespace

bool FewSlots(const MoeArgs& args) {
  constexpr int64_t kSlots = 128;
  return args.tokens * args.experts_per_token <= kSlots;
}

void RunExpertsTogether(const MoeArgs& args, std::span<const std::vector<MoeSlot>> by_expert,
                        const float* normed, float* to) {
  const int64_t hidden = args.router.cols, width = args.experts[0].up.rows;
  const int64_t slots = args.tokens * args.experts_per_token;
  Floats gathered, up(static_cast<size_t>(slots * width)), mid(static_cast<size_t>(slots * width));
  if (args.tokens > 1 || args.weight_on_input) gathered.resize(static_cast<size_t>(slots * hidden));
  std::vector<Chosen> chosen;
  int64_t unit = 1, down_unit = 1, slot = 0;
  for (size_t e = 0; e < by_expert.size(); ++e) {
    if (by_expert[e].empty()) continue;
    const ExpertWeights& w = args.experts[e];
    CELER_CHECK(w.up.rows == width && w.down.rows == hidden);
    Chosen one{.weights = &w,
               .slots = by_expert[e],
               .x = normed,
               .up = up.data() + slot * width,
               .mid = mid.data() + slot * width};
    if (!gathered.empty()) {
      float* row = gathered.data() + slot * hidden;
      one.x = row;
      for (const MoeSlot& each : one.slots) {
        std::copy_n(normed + each.token * hidden, hidden, row);
        if (args.weight_on_input) vec::Scale(each.weight, row, hidden);
        row += hidden;
      }
    }
    slot += one.count();
    unit = std::lcm(unit, UnitOf(w.up));
    if (w.gate) unit = std::lcm(unit, UnitOf(w.gate));
    down_unit = std::lcm(down_unit, UnitOf(w.down));
    chosen.push_back(one);
  }
  const int64_t units = (width + unit - 1) / unit;  // of an expert
  ForUnits(*args.pool, units * std::ssize(chosen), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t expert = begin / units, first = begin % units;
      const int64_t last = std::min(units, first + end - begin);
      GateUpRows(args, chosen[static_cast<size_t>(expert)], first * unit, std::min(last * unit, width));
      begin += last - first;
    }
  });
  ForUnits(*args.pool, (hidden + down_unit - 1) / down_unit, [&](int64_t begin, int64_t end) {
    DownRows(args, chosen, begin * down_unit, std::min(end * down_unit, hidden), to);
  });
}

}  // namespace celer
