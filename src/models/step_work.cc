#include "models/step_work.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "base/dtype.h"
#include "models/op_profile.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

class Counter {
 public:
  OperatorWork& At(Op op) {
    std::optional<OperatorWork>& slot = work_[static_cast<size_t>(op)];
    if (!slot) slot = OperatorWork{.name = Name(op)};
    return *slot;
  }

  // `reads` may be fractional: of a mixture's experts as many as are expected to be needed.
  void Matrix(Op op, const MatrixSize& m, double rows_of_x, double reads = 1) {
    if (m.rows == 0) return;
    OperatorWork& work = At(op);
    work.bytes += reads * static_cast<double>(m.bytes);
    work.flops[m.compute] += 2 * rows_of_x * static_cast<double>(m.rows) * static_cast<double>(m.cols);
  }

  void Expert(const StepMatrices::Expert& e, double rows_of_x, double reads) {
    for (const MatrixSize* m : {&e.gate, &e.up, &e.down}) Matrix(Op::kMoe, *m, rows_of_x, reads);
  }

  std::vector<OperatorWork> Take() {
    std::vector<OperatorWork> out;
    for (std::optional<OperatorWork>& slot : work_)
      if (slot) out.push_back(std::move(*slot));
    return out;
  }

 private:
  std::array<std::optional<OperatorWork>, kOpCount> work_;
};

// Keys and values of a token that a layer reads: its own, or another layer's.
int64_t KvNumbers(const DecoderConfig& c, int64_t layer) {
  if (!c.HasAttention(layer)) return 0;
  return c.IsLatent() ? c.latent.kv_rank + c.latent.rope_dim : 2 * c.KvHeads(layer) * c.HeadDim(layer);
}

// In all layers that have their own.
int64_t KeptKvNumbers(const DecoderConfig& c) {
  int64_t sum = 0;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.KvFrom(i) == i) sum += KvNumbers(c, i);
  return std::max<int64_t>(1, sum);
}

// Multiply-adds of one query and one key, and of its value.
double PairMacs(const DecoderConfig& c, int64_t layer) {
  const LatentConfig& l = c.latent;
  return static_cast<double>(c.heads * (c.IsLatent() ? 2 * l.kv_rank + l.rope_dim : 2 * c.HeadDim(layer)));
}

// Query-key pairs of one sequence, and the keys that any of its queries sees; window 0: all before.
struct Attended {
  double pairs = 0, keys = 0;
};
Attended CountAttended(const StepShape& s, int64_t window) {
  Attended a;
  for (int64_t t = 0; t < s.tokens; ++t) {
    const int64_t seen = s.position + t + 1;
    a.pairs += static_cast<double>(window > 0 ? std::min(seen, window) : seen);
  }
  const int64_t first = window > 0 ? std::max<int64_t>(0, s.position + 1 - window) : 0;
  a.keys = static_cast<double>(s.position + s.tokens - first);
  return a;
}

void CountAttention(const DecoderConfig& c, const StepMatrices::Layer& w, const StepShape& shape,
                    int64_t layer, double key_bytes, bool narrow_kv, Counter* count) {
  const auto sequences = static_cast<double>(shape.sequences);
  for (const MatrixSize& m : w.qkv) count->Matrix(Op::kQkv, m, sequences * static_cast<double>(shape.tokens));
  const Attended attended = CountAttended(shape, c.Window(layer));
  OperatorWork& attention = count->At(Op::kAttention);
  attention.bytes += sequences * attended.keys * key_bytes;
  attention.flops[narrow_kv ? "auto" : "f32"] += sequences * attended.pairs * 2 * PairMacs(c, layer);
}

// A step reads and writes the state of each sequence once, and takes three passes over its matrices for each token, of
// Mamba-2 two.
void CountState(const RecurrentConfig& r, double sequences, double tokens, OperatorWork* work) {
  work->bytes += sequences * 2 * sizeof(float) * static_cast<double>(StateFloats(r));
  const double matrices = static_cast<double>(r.value_heads * r.key_dim) * static_cast<double>(r.value_dim);
  work->flops["f32"] += tokens * ((r.kind == RecurrentKind::kMamba2 ? 4 : 6) * matrices +
                                  2 * static_cast<double>(r.conv_kernel * ConvChannels(r)));
}

}  // namespace

void AddWork(std::vector<OperatorWork>* all, const std::vector<OperatorWork>& some) {
  for (const OperatorWork& work : some) {
    const auto same = std::find_if(all->begin(), all->end(),
                                   [&](const OperatorWork& one) { return one.name == work.name; });
    if (same != all->end())
      *same += work;
    else
      all->push_back(work);
  }
}

const char* ComputeType(const WeightView& w) {
  if (w.kind == WeightView::Kind::kFp8) return "f32";
  if (w.kind != WeightView::Kind::kStored || IsBlockQuantized(w.dtype)) return "int8";
  return w.dtype == DType::kBf16 ? "bf16" : "f32";
}

StepMatrices MatricesOf(const DecoderWeights& weights) {
  const auto size = [](const WeightView& w) {
    if (!w) return MatrixSize{};
    return MatrixSize{
        .rows = w.rows, .cols = w.cols, .bytes = static_cast<int64_t>(w.bytes()), .compute = ComputeType(w)};
  };
  const auto expert = [&](const ExpertWeights& e) {
    return StepMatrices::Expert{size(e.gate), size(e.up), size(e.down)};
  };
  StepMatrices all;
  all.embedding_row_bytes = static_cast<int64_t>(weights.embedding.row_bytes);
  all.head = size(weights.head);
  for (const LayerWeights& w : weights.layers) {
    StepMatrices::Layer layer{
        .qkv = {size(w.q), size(w.k), size(w.v)},
        .output = size(w.recurrent.out ? w.recurrent.out : w.o),
        .dense = expert(w.dense),
        .experts = {},
        .shared = expert(w.shared),
        .router = size(w.router),
        .shared_gate = size(w.shared_gate),
        .beside = {size(w.per_layer_gate), size(w.per_layer_out), size(w.laurel_left), size(w.laurel_right),
                   size(w.altup.router), size(w.altup.predict), size(w.altup.correct)}};
    if (const RecurrentWeights& r = w.recurrent; r.out)
      layer.qkv = {size(r.q), size(r.k), size(r.v), size(r.z), size(r.a), size(r.b), size(r.mixed)};
    if (const LatentWeights& l = w.latent; l.kv_a)
      layer.qkv = {size(l.q_a), size(l.q_b), size(l.kv_a), size(l.k_b), size(l.v_b)};
    for (const ExpertWeights& e : w.experts) layer.experts.push_back(expert(e));
    all.layers.push_back(std::move(layer));
  }
  return all;
}

std::vector<OperatorWork> CountStep(const DecoderConfig& c, const StepMatrices& matrices,
                                    int64_t kv_bytes_per_token, const StepShape& shape) {
  CELER_CHECK(shape.sequences > 0 && shape.tokens > 0 && shape.position >= 0);
  Counter count;
  const auto sequences = static_cast<double>(shape.sequences);
  const double tokens = sequences * static_cast<double>(shape.tokens);
  count.At(Op::kEmbed).bytes = tokens * static_cast<double>(matrices.embedding_row_bytes);

  const int64_t kept = KeptKvNumbers(c);
  const double number_bytes = static_cast<double>(kv_bytes_per_token) / static_cast<double>(kept);
  const bool narrow_kv = kv_bytes_per_token < int64_t{4} * kept;
  const LlmShape llm = ToLlmShape(c, "");
  for (int64_t i = 0; i < c.layers; ++i) {
    const StepMatrices::Layer& w = matrices.layers[i];
    if (c.HasMixer(i) && c.IsRecurrent(i)) {
      for (const MatrixSize& m : w.qkv) count.Matrix(Op::kRecurrent, m, tokens);
      CountState(c.recurrent, sequences, tokens, &count.At(Op::kRecurrent));
    } else if (c.HasMixer(i)) {
      CountAttention(c, w, shape, i, number_bytes * static_cast<double>(KvNumbers(c, i)), narrow_kv, &count);
    }
    for (const MatrixSize& m : w.beside) count.Matrix(Op::kGateUp, m, tokens);
    count.Matrix(Op::kOutput, w.output, tokens);
    if (c.IsSparse(i)) {
      count.Matrix(Op::kMoe, w.router, tokens);
      const auto experts = static_cast<double>(w.experts.size());
      const double per_token = static_cast<double>(c.moe.experts_per_token);
      for (const StepMatrices::Expert& e : w.experts)
        count.Expert(e, tokens * per_token / experts, ExpectedExperts(llm, tokens) / experts);
      count.Expert(w.shared, tokens, 1);
      count.Matrix(Op::kMoe, w.shared_gate, tokens);
    }
    if (!c.IsSparse(i) || c.moe.beside_dense) {
      count.Matrix(Op::kGateUp, w.dense.gate, tokens);
      count.Matrix(Op::kGateUp, w.dense.up, tokens);
      count.Matrix(Op::kDown, w.dense.down, tokens);
    }
  }
  count.Matrix(Op::kLogits, matrices.head, sequences);
  count.At(Op::kSampling);  // reads logits that the step has just written
  return count.Take();
}

}  // namespace celer
