#include "limits/work.h"

#include <algorithm>

#include "base/check.h"

namespace celer {
namespace {

double Bytes(double elements, double bits) {
  return elements * bits / 8;
}

}  // namespace

Work operator+(const Work& a, const Work& b) {
  return {a.read_bytes + b.read_bytes, a.write_bytes + b.write_bytes, a.flops + b.flops};
}

Work operator*(double times, const Work& work) {
  return {times * work.read_bytes, times * work.write_bytes, times * work.flops};
}

Work MatmulWork(const MatmulShape& s) {
  CELER_CHECK(s.m > 0 && s.n > 0 && s.k > 0);
  const double m = double(s.m), n = double(s.n), k = double(s.k);
  Work work;
  work.read_bytes = Bytes(m * k, s.a_bits) + Bytes(n * k + (s.bias ? n : 0), s.w_bits);
  work.write_bytes = Bytes(m * n, s.out_bits);
  work.flops = 2 * m * n * k + (s.bias ? m * n : 0);
  return work;
}

Work AttentionWork(const AttentionShape& s) {
  CELER_CHECK(s.queries > 0 && s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0);
  CELER_CHECK_GE(s.context, s.queries);
  const double queries = double(s.queries), context = double(s.context);
  // The first query sees context - queries + 1 tokens, the last sees all.
  const double pairs = s.causal ? queries * (context - 0.5 * (queries - 1)) : queries * context;
  const double q_elements = queries * double(s.heads) * double(s.head_dim);
  Work work;
  work.read_bytes =
      Bytes(2 * context * double(s.kv_heads) * double(s.head_dim), s.kv_bits) + Bytes(q_elements, s.act_bits);
  work.write_bytes = Bytes(q_elements, s.act_bits);
  work.flops = pairs * double(s.heads) * (4 * double(s.head_dim) + 5) + q_elements;
  return work;
}

Work RmsNormWork(int64_t rows, int64_t cols, double in_bits, double out_bits, double weight_bits) {
  const double elements = double(rows) * double(cols);
  return {Bytes(elements, in_bits) + Bytes(double(cols), weight_bits), Bytes(elements, out_bits),
          4 * elements};
}

Work LayerNormWork(int64_t rows, int64_t cols, double in_bits, double out_bits, double weight_bits) {
  const double elements = double(rows) * double(cols);
  return {Bytes(elements, in_bits) + Bytes(2 * double(cols), weight_bits), Bytes(elements, out_bits),
          7 * elements};
}

Work SoftmaxWork(int64_t rows, int64_t cols, double in_bits, double out_bits) {
  return ElementwiseWork(rows * cols, 1, 5, in_bits, out_bits);
}

Work EmbeddingWork(int64_t tokens, int64_t hidden, double table_bits, double out_bits) {
  const double elements = double(tokens) * double(hidden);
  return {Bytes(elements, table_bits) + 4 * double(tokens), Bytes(elements, out_bits), 0};
}

Work RopeWork(int64_t tokens, int64_t heads, int64_t head_dim, double bits) {
  return ElementwiseWork(tokens * heads * head_dim, 1, 3, bits, bits);
}

Work ElementwiseWork(int64_t elements, int inputs, double flops_per_element, double in_bits,
                     double out_bits) {
  const double n = double(elements);
  return {inputs * Bytes(n, in_bits), Bytes(n, out_bits), flops_per_element * n};
}

Work CopyWork(double bytes) {
  return {bytes, bytes, 0};
}

namespace {

// Query-token pairs of a prompt's end, and the tokens that any of its queries sees.
struct Attended {
  double pairs = 0, seen = 0;
};
Attended CountAttended(const Pass& pass, int64_t window) {
  const double n = double(pass.tokens), first = double(pass.context - pass.tokens);
  if (window == 0 || pass.context <= window) return {n * (first + 0.5 * (n + 1)), double(pass.context)};
  const double w = double(window), open = std::clamp(w - first, 0.0, n);  // queries that see all before them
  return {open * (first + 0.5 * (open + 1)) + (n - open) * w, std::min(double(pass.context), w + n - 1)};
}

// Of layers of one kind; activations lie in memory between operators, as in PassOperators().
std::vector<NamedWork> KindOperators(const LlmShape& s, const LayerKind& k, const LlmSetup& setup,
                                     const Pass& pass) {
  const double batch = double(setup.batch), rows = batch * double(pass.tokens), hidden = double(s.hidden);
  const double touched = ExpectedExperts(s, rows), chosen = double(s.experts_per_token);
  const auto matmul = [&](double read, double used, double in, double out) {
    return Work{Bytes(read, setup.weight_bits) + Bytes(rows * in, pass.act_bits),
                Bytes(rows * out, pass.act_bits), 2 * rows * used};
  };
  Work qkv = matmul(k.qkv, k.qkv, hidden, k.query);
  qkv.write_bytes += Bytes(rows * k.kv, setup.kv_bits);
  const Attended attended = CountAttended(pass, k.window);
  const bool prompt = k.prompt_pair_macs > 0 && pass.tokens > 1;
  Work attention;
  attention.read_bytes =
      batch * (Bytes(attended.seen * (k.kv + k.borrowed_kv), setup.kv_bits) + Bytes(k.state, 32)) +
      Bytes(rows * k.query, pass.act_bits);
  attention.write_bytes = Bytes(rows * k.query, pass.act_bits) + batch * Bytes(k.state, 32);
  attention.flops =
      2 * batch * attended.pairs * (prompt ? k.prompt_pair_macs : k.pair_macs) + 2 * rows * k.state_macs;
  // Of two matrices, one reads `columns` that the other has written.
  const double columns = (k.down + chosen * k.expert_down) / hidden;
  return {
      {"qkv", qkv},
      {"attention", attention},
      {"o", matmul(k.o, k.o, k.query, hidden)},
      {"gate/up", matmul(k.up + touched * k.expert_up, k.up + chosen * k.expert_up, hidden, columns)},
      {"down", matmul(k.down + touched * k.expert_down, k.down + chosen * k.expert_down, columns, hidden)}};
}

// Of a model whose layers differ.
std::vector<NamedWork> SumOfKinds(const LlmShape& s, const LlmSetup& setup, const Pass& pass) {
  std::vector<NamedWork> sum;
  for (const LayerKind& kind : s.kinds) {
    const std::vector<NamedWork> one = KindOperators(s, kind, setup, pass);
    if (sum.empty())
      for (const NamedWork& op : one) sum.push_back({op.name, {}});
    for (size_t i = 0; i < one.size(); ++i) sum[i].work = sum[i].work + double(kind.count) * one[i].work;
  }
  const Work head = MatmulWork({.m = setup.batch * pass.logits,
                                .n = s.vocab,
                                .k = s.hidden,
                                .a_bits = pass.act_bits,
                                .w_bits = setup.weight_bits,
                                .out_bits = pass.act_bits});
  sum.push_back({"head", head});
  return sum;
}

}  // namespace

std::vector<NamedWork> PassOperators(const LlmShape& s, const LlmSetup& setup, const Pass& pass) {
  CELER_CHECK(pass.tokens > 0 && pass.logits > 0 && setup.batch > 0);
  if (!s.kinds.empty()) return SumOfKinds(s, setup, pass);
  const int64_t rows = setup.batch * pass.tokens;
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const double layers = double(s.layers);

  const auto matmul = [&](int64_t m, int64_t n, int64_t k, double out_bits, bool bias = false) {
    return MatmulWork({.m = m,
                       .n = n,
                       .k = k,
                       .a_bits = pass.act_bits,
                       .w_bits = setup.weight_bits,
                       .out_bits = out_bits,
                       .bias = bias});
  };

  // Q goes on to attention, K and V into the cache.
  Work qkv = matmul(rows, q + 2 * kv, s.hidden, 0, s.qkv_bias);
  qkv.write_bytes =
      Bytes(double(rows) * double(q), pass.act_bits) + Bytes(2.0 * double(rows) * double(kv), setup.kv_bits);
  const Work attention = double(setup.batch) * AttentionWork({.queries = pass.tokens,
                                                              .context = pass.context,
                                                              .heads = s.heads,
                                                              .kv_heads = s.kv_heads,
                                                              .head_dim = s.head_dim,
                                                              .kv_bits = setup.kv_bits,
                                                              .act_bits = pass.act_bits});
  const Work o = matmul(rows, s.hidden, q, pass.act_bits);

  Work gate_up, down;
  if (s.experts == 0) {
    gate_up = matmul(rows, (s.gated_mlp ? 2 : 1) * s.intermediate, s.hidden, 0);
    gate_up.write_bytes =
        Bytes(double(rows) * double(s.intermediate), pass.act_bits);  // gated before it is written
    down = matmul(rows, s.hidden, s.intermediate, pass.act_bits);
  } else {
    // Each token passes through experts_per_token experts and the shared one; the weights of an expert are
    // read once for all tokens that chose it.
    const double touched = ExpectedExperts(s, double(rows));
    const double columns =
        double(s.experts_per_token) * double(s.intermediate) + double(s.shared_intermediate);
    const double weights = touched * double(s.intermediate) + double(s.shared_intermediate);
    const double hidden = double(s.hidden), tokens = double(rows);
    gate_up.read_bytes = Bytes(hidden * (2 * weights + double(s.experts)), setup.weight_bits) +
                         Bytes(tokens * hidden, pass.act_bits);
    gate_up.write_bytes = Bytes(tokens * columns, pass.act_bits);
    gate_up.flops = 2 * tokens * hidden * (2 * columns + double(s.experts));
    down.read_bytes = Bytes(hidden * weights, setup.weight_bits) + Bytes(tokens * columns, pass.act_bits);
    down.write_bytes = Bytes(tokens * hidden, pass.act_bits);
    down.flops = 2 * tokens * hidden * columns;
  }
  const Work head = matmul(setup.batch * pass.logits, s.vocab, s.hidden, pass.act_bits);
  return {{"qkv", layers * qkv},         {"attention", layers * attention}, {"o", layers * o},
          {"gate/up", layers * gate_up}, {"down", layers * down},           {"head", head}};
}

}  // namespace celer
