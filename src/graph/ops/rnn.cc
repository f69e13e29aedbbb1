// Recurrent networks: RNN, GRU and LSTM, forwards, backwards and both.
#include "graph/ops/rnn.h"

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

constexpr std::string_view kActivations[] = {
    "sigmoid",    "tanh",        "relu", "affine",   "leakyrelu", "thresholdedrelu",
    "scaledtanh", "hardsigmoid", "elu",  "softsign", "softplus"};

// `usual`: the activations of one direction.
Result<Recurrent> Parse(const OpInputs& c, int gates, std::vector<std::string> usual) {
  Recurrent r;
  r.gates = gates;
  r.batch_first = c.node.Int("layout", 0) != 0;
  r.direction = c.node.Text("direction", "forward");
  if (r.direction != "forward" && r.direction != "reverse" && r.direction != "bidirectional")
    return Error::Invalid("the direction '", r.direction, "'");
  r.directions = r.direction == "bidirectional" ? 2 : 1;
  const Shape &x = c.shape(0), &w = c.shape(1), &rw = c.shape(2);
  if (x.rank() != 3 || w.rank() != 3 || rw.rank() != 3) return Error::Invalid("an input of ", x.ToString());
  r.steps = x[r.batch_first ? 1 : 0];
  r.batch = x[r.batch_first ? 0 : 1];
  r.input = x[2];
  r.hidden = rw[2];
  if (!HasDims(w, {r.directions, gates * r.hidden, r.input}) ||
      !HasDims(rw, {r.directions, gates * r.hidden, r.hidden}))
    return Error::Invalid("weights of ", w.ToString(), " and ", rw.ToString(), " for an input of ",
                          x.ToString(), " and ", r.directions, " directions");
  for (size_t i = 1; i < c.inputs(); ++i)
    if (c.has(i) && i != 4 && c.dtype(i) != c.dtype(0))
      return Error::Invalid("its input ", i, " is ", Name(c.dtype(i)));
  CELER_RETURN_IF_ERROR(MakeShape({r.directions, r.steps, r.batch, r.hidden}));
  if (c.has(3) && !HasDims(c.shape(3), {r.directions, 2 * gates * r.hidden}))
    return Error::Invalid("a bias of ", c.shape(3).ToString());
  if (c.has(4) && (c.elements(4) != r.batch || !kIntegers.Has(c.dtype(4))))
    return Error::Invalid("lengths of ", c.shape(4).ToString());
  for (const size_t state : {size_t{5}, size_t{6}})
    if (c.has(state) && c.elements(state) != r.directions * r.batch * r.hidden)
      return Error::Invalid("an initial state of ", c.shape(state).ToString());
  if (c.has(7) && c.elements(7) != r.directions * 3 * r.hidden)
    return Error::Invalid("peepholes of ", c.shape(7).ToString());
  r.per = usual.size();
  std::vector<std::string> names = c.node.Texts("activations");
  if (names.empty())
    for (int64_t d = 0; d < r.directions; ++d) names.insert(names.end(), usual.begin(), usual.end());
  if (names.size() != usual.size() * static_cast<size_t>(r.directions))
    return Error::Invalid(names.size(), " activations for ", r.directions, " directions");
  const std::vector<float> alphas = c.node.Floats("activation_alpha"),
                           betas = c.node.Floats("activation_beta");
  for (size_t i = 0; i < names.size(); ++i) {
    for (char& ch : names[i]) ch = static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
    if (std::find(std::begin(kActivations), std::end(kActivations), names[i]) == std::end(kActivations))
      return Error::Unsupported("the activation '", names[i], "'");
    const float alpha = names[i] == "leakyrelu" ? 0.01f : names[i] == "hardsigmoid" ? 0.2f : 1.0f;
    const float beta = names[i] == "hardsigmoid" ? 0.5f : names[i] == "affine" ? 0.0f : 1.0f;
    r.activations.push_back(
        {names[i], i < alphas.size() ? alphas[i] : alpha, i < betas.size() ? betas[i] : beta});
  }
  r.clip = c.node.Float("clip", 0);
  return r;
}

}  // namespace

Result<Recurrent> RecurrentOf(const OpInputs& c) {
  if (c.node.op == "LSTM") return Parse(c, 4, {"sigmoid", "tanh", "tanh"});
  if (c.node.op == "GRU") return Parse(c, 3, {"sigmoid", "tanh"});
  return Parse(c, 1, {"tanh"});
}

namespace {

Status Infer(InferContext& c) {
  CELER_ASSIGN(const Recurrent r, RecurrentOf(c));
  using Four = std::array<int64_t, 4>;
  using Three = std::array<int64_t, 3>;
  const Four all = r.batch_first ? Four{r.batch, r.steps, r.directions, r.hidden}
                                 : Four{r.steps, r.directions, r.batch, r.hidden};
  const Three last =
      r.batch_first ? Three{r.batch, r.directions, r.hidden} : Three{r.directions, r.batch, r.hidden};
  CELER_RETURN_IF_ERROR(c.Set(0, c.dtype(0), all));
  CELER_RETURN_IF_ERROR(c.Set(1, c.dtype(0), last));
  return c.Set(2, c.dtype(0), last);
}

// An input as floats.
std::vector<float> AsFloats(const OpInputs& c, ThreadPool& pool, size_t i) {
  if (!c.has(i)) return {};
  std::vector<float> out(static_cast<size_t>(c.elements(i)));
  CastElements(pool, c.in(i), TensorView::Contiguous(out.data(), DType::kF32, Device::Cpu(), c.shape(i)));
  return out;
}

// Computes `step(direction, gates of x, h, c)` over time. `x_gates` are W·x plus the input's bias.
template <class Step>
void Run(KernelContext& c, const Recurrent& r, bool has_cell, const Step& step) {
  const std::vector<float> x = AsFloats(c, c.pool, 0), w = AsFloats(c, c.pool, 1),
                           bias = AsFloats(c, c.pool, 3), h0 = AsFloats(c, c.pool, 5),
                           c0 = has_cell ? AsFloats(c, c.pool, 6) : std::vector<float>();
  const std::vector<int64_t> lengths = c.has(4) ? ReadInts(c.in(4)) : std::vector<int64_t>();
  const int64_t width = r.gates * r.hidden;
  std::vector<float> all(c.wants(0) ? static_cast<size_t>(r.steps * r.directions * r.batch * r.hidden) : 0,
                         0),
      last_h(static_cast<size_t>(r.directions * r.batch * r.hidden), 0), last_c = last_h;
  c.pool.ParallelFor(r.directions * r.batch, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> gates(static_cast<size_t>(width)), h(static_cast<size_t>(r.hidden)),
        cell(static_cast<size_t>(r.hidden));
    for (int64_t db = begin; db < end; ++db) {
      const int64_t d = db / r.batch, b = db % r.batch;
      const bool backwards = d == 1 || r.direction == "reverse";
      const int64_t length = lengths.empty() ? r.steps : std::clamp<int64_t>(lengths[b], 0, r.steps);
      const int64_t state = r.batch_first ? (b * r.directions + d) * r.hidden : (d * r.batch + b) * r.hidden;
      for (int64_t i = 0; i < r.hidden; ++i) {
        h[i] = h0.empty() ? 0 : h0[state + i];
        cell[i] = c0.empty() ? 0 : c0[state + i];
      }
      for (int64_t k = 0; k < length; ++k) {
        const int64_t t = backwards ? length - 1 - k : k;
        const float* const xt = x.data() + (r.batch_first ? b * r.steps + t : t * r.batch + b) * r.input;
        for (int64_t g = 0; g < width; ++g) {
          const float* const row = w.data() + (d * width + g) * r.input;
          float sum = bias.empty() ? 0 : bias[d * 2 * width + g];
          for (int64_t i = 0; i < r.input; ++i) sum += row[i] * xt[i];
          gates[g] = sum;
        }
        step(d, gates, h, cell);
        if (all.empty()) continue;
        float* const to = all.data() + (r.batch_first ? (b * r.steps + t) * r.directions + d
                                                      : (t * r.directions + d) * r.batch + b) *
                                           r.hidden;
        std::copy(h.begin(), h.end(), to);
      }
      std::copy(h.begin(), h.end(), last_h.begin() + state);
      std::copy(cell.begin(), cell.end(), last_c.begin() + state);
    }
  });
  const std::vector<float>* const made[] = {&all, &last_h, &last_c};
  for (size_t i = 0; i < 3; ++i)
    if (c.wants(i))
      CastElements(c.pool,
                   TensorView::Contiguous(const_cast<float*>(made[i]->data()), DType::kF32, Device::Cpu(),
                                          c.out(i).shape),
                   c.out(i));
}

// R·h plus the state's bias, for gate rows [first, first + rows).
void AddState(const Recurrent& r, const std::vector<float>& weights, const std::vector<float>& bias,
              int64_t d, int64_t first, int64_t rows, const std::vector<float>& h,
              std::vector<float>& gates) {
  const int64_t width = r.gates * r.hidden;
  for (int64_t g = first; g < first + rows; ++g) {
    const float* const row = weights.data() + (d * width + g) * r.hidden;
    float sum = bias.empty() ? 0 : bias[d * 2 * width + width + g];
    for (int64_t i = 0; i < r.hidden; ++i) sum += row[i] * h[i];
    gates[g] += sum;
  }
}
float Clipped(const Recurrent& r, float x) {
  return r.clip > 0 ? std::clamp(x, -r.clip, r.clip) : x;
}

Status Rnn(KernelContext& c) {
  CELER_ASSIGN(const Recurrent r, RecurrentOf(c));
  const std::vector<float> weights = AsFloats(c, c.pool, 2), bias = AsFloats(c, c.pool, 3);
  Run(c, r, false, [&](int64_t d, std::vector<float>& g, std::vector<float>& h, std::vector<float>&) {
    AddState(r, weights, bias, d, 0, r.hidden, h, g);
    const GateFunction& f = r.activations[d];
    for (size_t i = 0; i < h.size(); ++i) h[i] = f(Clipped(r, g[i]));
  });
  return {};
}

// Gates: update z, reset r, hidden h.
Status Gru(KernelContext& c) {
  CELER_ASSIGN(const Recurrent r, RecurrentOf(c));
  const std::vector<float> weights = AsFloats(c, c.pool, 2), bias = AsFloats(c, c.pool, 3);
  const bool reset_after = c.node.Int("linear_before_reset", 0) != 0;
  const auto n = static_cast<size_t>(r.hidden);
  Run(c, r, false, [&](int64_t d, std::vector<float>& g, std::vector<float>& h, std::vector<float>&) {
    const GateFunction &f = r.activations[static_cast<size_t>(d) * 2],
                       &gf = r.activations[static_cast<size_t>(d) * 2 + 1];
    AddState(r, weights, bias, d, 0, 2 * r.hidden, h, g);
    for (size_t i = 0; i < 2 * n; ++i) g[i] = f(Clipped(r, g[i]));
    std::vector<float> state(h), own(g.begin() + static_cast<long>(2 * n), g.end());
    if (!reset_after) {
      for (size_t i = 0; i < n; ++i) state[i] *= g[n + i];
      AddState(r, weights, bias, d, 2 * r.hidden, r.hidden, state, g);
    } else {
      std::fill(g.begin() + static_cast<long>(2 * n), g.end(), 0.0f);
      AddState(r, weights, bias, d, 2 * r.hidden, r.hidden, state, g);
      for (size_t i = 0; i < n; ++i) g[2 * n + i] = own[i] + g[n + i] * g[2 * n + i];
    }
    for (size_t i = 0; i < n; ++i) h[i] = (1 - g[i]) * gf(Clipped(r, g[2 * n + i])) + g[i] * h[i];
  });
  return {};
}

// Gates: input, output, forget, cell.
Status Lstm(KernelContext& c) {
  CELER_ASSIGN(const Recurrent r, RecurrentOf(c));
  const std::vector<float> weights = AsFloats(c, c.pool, 2), bias = AsFloats(c, c.pool, 3),
                           peep = AsFloats(c, c.pool, 7);
  const bool coupled = c.node.Int("input_forget", 0) != 0;
  const auto n = static_cast<size_t>(r.hidden);
  Run(c, r, true, [&](int64_t d, std::vector<float>& g, std::vector<float>& h, std::vector<float>& cell) {
    const GateFunction *const f = &r.activations[static_cast<size_t>(d) * 3], *const cf = f + 1,
                              *const hf = f + 2;
    AddState(r, weights, bias, d, 0, 4 * r.hidden, h, g);
    const float* const p = peep.empty() ? nullptr : peep.data() + d * 3 * r.hidden;
    for (size_t i = 0; i < n; ++i) {
      const float in = (*f)(Clipped(r, g[i] + (p ? p[i] * cell[i] : 0)));
      const float forget =
          coupled ? 1 - in : (*f)(Clipped(r, g[2 * n + i] + (p ? p[2 * n + i] * cell[i] : 0)));
      cell[i] = forget * cell[i] + in * (*cf)(Clipped(r, g[3 * n + i]));
      const float out = (*f)(Clipped(r, g[n + i] + (p ? p[n + i] * cell[i] : 0)));
      h[i] = out * (*hf)(cell[i]);
    }
  });
  return {};
}

double Flops(const InferContext& c) {
  const auto r = RecurrentOf(c);
  if (!r) return 0;
  return 2.0 * static_cast<double>(r->steps * r->batch * r->directions) *
         static_cast<double>(r->gates * r->hidden) * static_cast<double>(r->input + r->hidden);
}

constexpr Operator kRows[] = {
    {"GRU", 7, {3, 6}, {0, 2}, kFloats, Infer, Gru, Operator::kPlain, Flops, kFastRecurrent},
    {"LSTM", 7, {3, 8}, {0, 3}, kFloats, Infer, Lstm, Operator::kPlain, Flops, kFastRecurrent},
    {"RNN", 7, {3, 6}, {0, 2}, kFloats, Infer, Rnn, Operator::kPlain, Flops, kFastRecurrent},
};

}  // namespace

std::span<const Operator> RnnOperators() {
  return kRows;
}

}  // namespace celer::graph
