// RNN, GRU and LSTM with the usual activations and constant weights: W x for all steps is one product, and R
// h for the whole batch is one per step. Directions run one after the other, with threads inside the
// products.
#include "graph/ops/rnn.h"
#include "graph/ops/common.h"
#include "graph/ops/fast/fast.h"
#include "kernels/network/elementwise/elementwise.h"
#include "kernels/shared/gemm/gemm.h"

namespace celer::graph {
namespace {

constexpr Pointwise kSigmoid = {Pointwise::Kind::kSigmoid}, kTanh = {Pointwise::Kind::kTanh};

struct Direction {
  PackCache::Packed w;     // [input, gates * hidden]
  PackCache::Packed r;     // [hidden, gates * hidden]; of a GRU that resets first, without its last gate
  PackCache::Packed last;  // that gate's, [hidden, hidden]
  AlignedVector<float> input_bias, state_bias;  // what is added to W x, and to R h
};

struct State {
  Recurrent r = {};
  bool is_gru = false, is_lstm = false;
  bool reset_after = false;  // a GRU multiplies R h by its reset gate, not h
  std::vector<Direction> directions;
  // In the workspace, in floats.
  int64_t step_gates = 0, h = 0, cell = 0, reset = 0, gemm = 0;

  int64_t width() const { return r.gates * r.hidden; }
  int64_t state_width() const { return is_gru && !reset_after ? 2 * r.hidden : width(); }
};

int64_t Aligned(int64_t floats) {
  return (floats + 15) / 16 * 16;
}

// The products, without the run's pointers.
GemmArgs InputProduct(const State& s, const Direction& d) {
  const Recurrent& r = s.r;
  return {.m = r.steps * r.batch,
          .n = s.width(),
          .k = r.input,
          .a = GemmOperand::Rows(nullptr, r.input),
          .b = GemmOperand::Packed(d.w->data()),
          .out_stride = s.width(),
          .epilogue = {.col_bias = d.input_bias.data()}};
}
GemmArgs StepProduct(const State& s, const float* packed, int64_t width) {
  const Recurrent& r = s.r;
  return {.m = r.batch,
          .n = width,
          .k = r.hidden,
          .a = GemmOperand::Rows(nullptr, r.hidden),
          .b = GemmOperand::Packed(packed),
          .out_stride = s.width(),
          .epilogue = {.add_stride = r.batch_first ? r.steps * s.width() : s.width()}};
}

AlignedVector<float> PackTransposed(const float* rows, int64_t k, int64_t n) {
  AlignedVector<float> packed(static_cast<size_t>(GemmPackedBFloats(k, n)));
  GemmPackB(GemmOperand::Transposed(rows, k), k, n, packed.data());
  return packed;
}

Direction MakeDirection(const InferContext& c, const State& s, int64_t d, PackCache& packs) {
  const Recurrent& r = s.r;
  const int64_t width = s.width(), hidden = r.hidden;
  const float* const w = c.in(1).as<float>() + d * width * r.input;
  const float* const state = c.in(2).as<float>() + d * width * hidden;
  const std::string which = " " + std::to_string(d) + " " + std::to_string(s.state_width());
  Direction out;
  out.w = packs.Get(c.in(1).data, "recurrent" + which, [&] { return PackTransposed(w, r.input, width); });
  out.r = packs.Get(c.in(2).data, "recurrent" + which,
                    [&] { return PackTransposed(state, hidden, s.state_width()); });
  if (s.state_width() < width)
    out.last = packs.Get(c.in(2).data, "recurrent last" + which,
                         [&] { return PackTransposed(state + 2 * hidden * hidden, hidden, hidden); });
  out.input_bias.resize(width);
  out.state_bias.resize(width);
  if (!c.has(3)) return out;
  const float* const bias = c.in(3).as<float>() + d * 2 * width;
  for (int64_t i = 0; i < width; ++i) {
    const bool apart = s.reset_after && i >= 2 * hidden;
    out.input_bias[i] = bias[i] + (apart ? 0 : bias[width + i]);
    out.state_bias[i] = apart ? bias[width + i] : 0;
  }
  return out;
}

// One sequence's step, from its gates. LSTM: input, output, forget, cell.
void LstmRow(float* gates, float* cell, float* h, int64_t n) {
  UnaryRow(kSigmoid, gates, gates, 3 * n);
  UnaryRow(kTanh, gates + 3 * n, gates + 3 * n, n);
  for (int64_t i = 0; i < n; ++i) cell[i] = gates[2 * n + i] * cell[i] + gates[i] * gates[3 * n + i];
  UnaryRow(kTanh, cell, h, n);
  for (int64_t i = 0; i < n; ++i) h[i] *= gates[n + i];
}
// GRU: update, reset, hidden. `x` are W x, `gates` R h.
void GruRow(const float* x, float* gates, float* h, int64_t n) {
  BinaryRow(Binary::kAdd, kSigmoid, x, 1, gates, 1, gates, 2 * n);
  float* const own = gates + 2 * n;
  for (int64_t i = 0; i < n; ++i) own[i] *= gates[n + i];
  BinaryRow(Binary::kAdd, kTanh, x + 2 * n, 1, own, 1, own, n);
  for (int64_t i = 0; i < n; ++i) h[i] = own[i] + gates[i] * (h[i] - own[i]);
}

class Runner {
 public:
  Runner(KernelContext& c, const State& s)
      : c_(c), s_(s), r_(s.r), work_(reinterpret_cast<float*>(c.workspace)) {}

  void Run() {
    for (int64_t d = 0; d < r_.directions; ++d) {
      const Direction& direction = s_.directions[d];
      GemmArgs product = InputProduct(s_, direction);
      product.a.data = c_.in(0).as<float>();
      Multiply(product, work_);
      Begin(d);
      const bool backwards = d == 1 || r_.direction == "reverse";
      for (int64_t k = 0; k < r_.steps; ++k) {
        const int64_t t = backwards ? r_.steps - 1 - k : k;
        Step(direction, work_ + t * (r_.batch_first ? 1 : r_.batch) * s_.width());
        if (c_.wants(0)) Store(t, d);
      }
      End(d);
    }
  }

 private:
  float* h(int64_t b) const { return work_ + s_.h + b * r_.hidden; }
  float* cell(int64_t b) const { return work_ + s_.cell + b * r_.hidden; }
  float* gates(int64_t b) const { return work_ + s_.step_gates + b * s_.width(); }
  // Where a sequence's state is in the tensors that hold all of them.
  int64_t StateAt(int64_t d, int64_t b) const {
    return (r_.batch_first ? b * r_.directions + d : d * r_.batch + b) * r_.hidden;
  }
  void Multiply(GemmArgs& args, float* out) const {
    args.out = out;
    args.workspace = work_ + s_.gemm;
    args.pool = &c_.pool;
    celer::Gemm(args);
  }
  template <class Fn>
  void ForBatch(const Fn& fn) const {
    Parallel(c_.pool, r_.batch, 16 * s_.width(), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) fn(b);
    });
  }

  void Begin(int64_t d) const {
    for (int64_t b = 0; b < r_.batch; ++b)
      for (const size_t input : {size_t{5}, size_t{6}}) {
        float* const to = input == 5 ? h(b) : cell(b);
        if (c_.has(input))
          std::copy_n(c_.in(input).as<float>() + StateAt(d, b), r_.hidden, to);
        else
          std::fill_n(to, r_.hidden, 0.0f);
      }
  }

  // `x`: W x of this step for the first sequence.
  void Step(const Direction& d, const float* x) const {
    const int64_t n = r_.hidden, next = r_.batch_first ? r_.steps * s_.width() : s_.width();
    GemmArgs product = StepProduct(s_, d.r->data(), s_.state_width());
    product.a.data = h(0);
    if (s_.is_gru && s_.reset_after) {
      product.epilogue = {.col_bias = d.state_bias.data()};
      Multiply(product, gates(0));
      ForBatch([&](int64_t b) { GruRow(x + b * next, gates(b), h(b), n); });
      return;
    }
    product.epilogue.add = x;
    if (s_.is_lstm) {
      Multiply(product, gates(0));
      ForBatch([&](int64_t b) { LstmRow(gates(b), cell(b), h(b), n); });
      return;
    }
    product.epilogue.f = s_.is_gru ? kSigmoid : kTanh;
    Multiply(product, gates(0));
    if (!s_.is_gru) {
      for (int64_t b = 0; b < r_.batch; ++b) std::copy_n(gates(b), n, h(b));
      return;
    }
    float* const reset = work_ + s_.reset;
    for (int64_t b = 0; b < r_.batch; ++b)
      for (int64_t i = 0; i < n; ++i) reset[b * n + i] = gates(b)[n + i] * h(b)[i];
    GemmArgs last = StepProduct(s_, d.last->data(), n);
    last.a.data = reset;
    last.epilogue.add = x + 2 * n;
    last.epilogue.f = kTanh;
    Multiply(last, gates(0) + 2 * n);
    for (int64_t b = 0; b < r_.batch; ++b)
      for (int64_t i = 0; i < n; ++i) {
        const float own = gates(b)[2 * n + i];
        h(b)[i] = own + gates(b)[i] * (h(b)[i] - own);
      }
  }

  void Store(int64_t t, int64_t d) const {
    for (int64_t b = 0; b < r_.batch; ++b) {
      const int64_t row =
          r_.batch_first ? (b * r_.steps + t) * r_.directions + d : (t * r_.directions + d) * r_.batch + b;
      std::copy_n(h(b), r_.hidden, c_.out(0).as<float>() + row * r_.hidden);
    }
  }
  void End(int64_t d) const {
    for (int64_t b = 0; b < r_.batch; ++b) {
      if (c_.wants(1)) std::copy_n(h(b), r_.hidden, c_.out(1).as<float>() + StateAt(d, b));
      if (c_.wants(2)) std::copy_n(cell(b), r_.hidden, c_.out(2).as<float>() + StateAt(d, b));
    }
  }

  KernelContext& c_;
  const State& s_;
  const Recurrent& r_;
  float* const work_;  // first W x, [steps, batch, gates * hidden]
};

bool RecurrentFits(const InferContext& c) {
  if (c.dtype(0) != DType::kF32 || !c.known(1) || !c.known(2) || (c.has(3) && !c.known(3)) || c.has(4) ||
      c.has(7))
    return false;
  const auto r = RecurrentOf(c);
  if (!r || r->clip > 0 || c.node.Int("input_forget", 0) != 0) return false;
  if (r->steps == 0 || r->batch == 0 || r->input == 0 || r->hidden == 0) return false;
  for (size_t i = 0; i < r->activations.size(); ++i)
    if (r->activations[i].name != (i % r->per == 0 && c.node.op != "RNN" ? "sigmoid" : "tanh")) return false;
  return true;
}

Prepared PrepareRecurrent(const InferContext& c, int threads, PackCache& packs) {
  auto state = std::make_shared<State>();
  State& s = *state;
  s.r = *RecurrentOf(c);
  s.is_gru = c.node.op == "GRU";
  s.is_lstm = c.node.op == "LSTM";
  s.reset_after = s.is_gru && c.node.Int("linear_before_reset", 0) != 0;
  for (int64_t d = 0; d < s.r.directions; ++d) s.directions.push_back(MakeDirection(c, s, d, packs));
  const Recurrent& r = s.r;
  s.step_gates = Aligned(r.steps * r.batch * s.width());
  s.h = s.step_gates + Aligned(r.batch * s.width());
  s.cell = s.h + Aligned(r.batch * r.hidden);
  s.reset = s.cell + Aligned(r.batch * r.hidden);
  s.gemm = s.reset + Aligned(r.batch * r.hidden);
  const Direction& d = s.directions[0];
  int64_t floats = std::max(GemmWorkspaceFloats(InputProduct(s, d), threads),
                            GemmWorkspaceFloats(StepProduct(s, d.r->data(), s.state_width()), threads));
  if (d.last)
    floats = std::max(floats, GemmWorkspaceFloats(StepProduct(s, d.last->data(), r.hidden), threads));
  return {std::move(state), (s.gemm + floats) * static_cast<int64_t>(sizeof(float))};
}

Status RunRecurrent(KernelContext& c) {
  Runner(c, *static_cast<const State*>(c.state)).Run();
  return {};
}

}  // namespace

constexpr FastKernel kFastRecurrent[] = {{"gemm", RecurrentFits, RunRecurrent, PrepareRecurrent}};

}  // namespace celer::graph
