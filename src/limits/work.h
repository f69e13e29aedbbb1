// What an operator cannot avoid: the bytes it must read and write once, and its floating-point operations.
// Counts are the floor of a perfect kernel: every input comes from memory once, every output goes there once,
// and nothing in between leaves the chip. A multiply-add is two operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "celer/limits.h"

namespace celer {

struct Work {
  double read_bytes = 0;
  double write_bytes = 0;
  double flops = 0;

  double bytes() const { return read_bytes + write_bytes; }
  double intensity() const { return flops / bytes(); }  // FLOP per byte moved
};

Work operator+(const Work& a, const Work& b);
Work operator*(double times, const Work& work);

// out[m, n] = a[m, k] * w[n, k]; bits per element may be fractional (4.5 for q4_0).
struct MatmulShape {
  int64_t m = 0, n = 0, k = 0;
  double a_bits = 16, w_bits = 16, out_bits = 16;
  bool bias = false;  // n more weights and m * n more operations
};
Work MatmulWork(const MatmulShape& shape);

// `queries` new tokens of one sequence attend to `context` tokens (the new ones are the last of them); with
// `causal`, query i sees context - queries + i + 1 tokens. The KV of the context is read once, Q once, the
// output is written once. Softmax counts 5 operations per score (scale, max, subtract, exp, add), its
// division once per output.
struct AttentionShape {
  int64_t queries = 0, context = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double kv_bits = 16, act_bits = 16;
  bool causal = true;
};
Work AttentionWork(const AttentionShape& shape);

// RMSNorm (4 operations per element: square, add, two multiplies) or LayerNorm (7), with the weights read
// once.
Work RmsNormWork(int64_t rows, int64_t cols, double in_bits, double out_bits, double weight_bits = 32);
Work LayerNormWork(int64_t rows, int64_t cols, double in_bits, double out_bits, double weight_bits = 32);

Work SoftmaxWork(int64_t rows, int64_t cols, double in_bits, double out_bits);

// `tokens` rows of `hidden` elements are looked up; the table itself is not read.
Work EmbeddingWork(int64_t tokens, int64_t hidden, double table_bits, double out_bits);

// Rotates `heads` vectors of `head_dim` elements per token: 3 operations per element, in place.
Work RopeWork(int64_t tokens, int64_t heads, int64_t head_dim, double bits);

// out[i] = f(in_1[i], ..., in_k[i]).
Work ElementwiseWork(int64_t elements, int inputs, double flops_per_element, double in_bits, double out_bits);

Work CopyWork(double bytes);

// --- the operators of one forward pass ---------------------------------------------------------------------

struct Pass {
  int64_t tokens = 1;   // new tokens of each sequence
  int64_t context = 1;  // tokens each sequence has after the pass
  int64_t logits = 1;   // rows of logits wanted per sequence
  double act_bits = 16;
};

struct NamedWork {
  std::string name;  // "qkv", "attention", "o", "gate/up", "down", "head"
  Work work;         // of all layers and all setup.batch sequences together
};

// The six operators that matter, in the order of the forward pass. Experts: weights as ExpectedExperts()
// says.
std::vector<NamedWork> PassOperators(const LlmShape& shape, const LlmSetup& setup, const Pass& pass);

}  // namespace celer
