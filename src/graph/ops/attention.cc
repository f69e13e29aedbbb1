// Attention and rotary embeddings.
#include <cmath>
#include <limits>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"

namespace celer::graph {
namespace {

std::vector<float> AsFloats(const OpInputs& c, ThreadPool& pool, size_t i) {
  std::vector<float> out(static_cast<size_t>(c.elements(i)));
  CastElements(pool, c.in(i), TensorView::Contiguous(out.data(), DType::kF32, Device::Cpu(), c.shape(i)));
  return out;
}
void Store(ThreadPool& pool, std::vector<float>& from, const TensorView& to) {
  CastElements(pool, TensorView::Contiguous(from.data(), DType::kF32, Device::Cpu(), to.shape), to);
}

// q, k, v, mask, past k, past v, lengths without padding. Three dimensions are [batch, tokens, heads ·
// width], four are [batch, heads, tokens, width].
struct Heads {
  int64_t batch, q_heads, kv_heads, q_tokens, new_tokens, past, tokens, width, v_width;
  bool flat;
};
Result<Heads> HeadsOf(const OpInputs& c) {
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  Heads h;
  h.flat = q.rank() == 3;
  if ((q.rank() != 3 && q.rank() != 4) || k.rank() != q.rank() || v.rank() != q.rank())
    return Error::Invalid("queries of ", q.ToString(), ", keys of ", k.ToString(), " and values of ",
                          v.ToString());
  for (size_t i = 1; i < 3; ++i)
    if (!kFloats.Has(c.dtype(i))) return Error::Invalid("its input ", i, " is ", Name(c.dtype(i)));
  h.batch = q[0];
  h.q_heads = h.flat ? c.node.Int("q_num_heads", 0) : q[1];
  h.kv_heads = h.flat ? c.node.Int("kv_num_heads", 0) : k[1];
  if (h.q_heads < 1 || h.kv_heads < 1 || h.q_heads % h.kv_heads != 0)
    return Error::Invalid(h.q_heads, " heads of queries for ", h.kv_heads, " of keys");
  // Without elements any number of heads would divide them.
  if (h.flat && (h.q_heads > std::max<int64_t>(q[2], 1) || h.kv_heads > std::max<int64_t>(k[2], 1)))
    return Error::Invalid(h.q_heads, " and ", h.kv_heads, " heads for queries of ", q.ToString(),
                          " and keys of ", k.ToString());
  h.q_tokens = h.flat ? q[1] : q[2];
  h.new_tokens = h.flat ? k[1] : k[2];
  h.width = h.flat ? q[2] / h.q_heads : q[3];
  h.v_width = h.flat ? v[2] / h.kv_heads : v[3];
  const bool fits = h.flat
                        ? k[2] == h.width * h.kv_heads && q[2] == h.width * h.q_heads &&
                              v[2] == h.v_width * h.kv_heads && v[1] == k[1] && k[0] == q[0] && v[0] == q[0]
                        : k[3] == h.width && v[1] == k[1] && v[2] == k[2] && k[0] == q[0] && v[0] == q[0];
  if (!fits)
    return Error::Invalid("queries of ", q.ToString(), ", keys of ", k.ToString(), " and values of ",
                          v.ToString());
  h.past = c.has(4) && c.shape(4).rank() == 4 ? c.shape(4)[2] : 0;
  if (c.has(4) != c.has(5) || (c.has(4) && (!HasDims(c.shape(4), {h.batch, h.kv_heads, h.past, h.width}) ||
                                            !HasDims(c.shape(5), {h.batch, h.kv_heads, h.past, h.v_width}))))
    return Error::Invalid("past keys and values do not fit ", k.ToString());
  h.tokens = h.past + h.new_tokens;
  if (c.has(3)) {
    std::vector<int64_t> dims = Dims(c.shape(3));
    if (dims.empty() || dims.back() > h.tokens) return Error::Invalid("a mask of ", c.shape(3).ToString());
    if (dims.back() < h.tokens) dims.back() = h.tokens;
    CELER_ASSIGN(const Shape all, MakeShape({h.batch, h.q_heads, h.q_tokens, h.tokens}));
    CELER_ASSIGN(const Shape mask, MakeShape(dims));
    CELER_ASSIGN(const Shape together, Broadcast(std::vector<Shape>{mask, all}));
    if (!(together == all))
      return Error::Invalid("a mask of ", c.shape(3).ToString(), " for ", all.ToString());
    if (c.dtype(3) != DType::kBool && !kFloats.Has(c.dtype(3)))
      return Error::Invalid("a mask of ", Name(c.dtype(3)));
  }
  if (c.has(6) && (c.elements(6) != h.batch || c.dtype(6) != DType::kI64))
    return Error::Invalid("lengths of ", c.shape(6).ToString());
  return h;
}
Status InferAttention(InferContext& c) {
  CELER_ASSIGN(const Heads h, HeadsOf(c));
  CELER_RETURN_IF_ERROR(MakeShape({h.batch, h.q_heads, h.q_tokens, h.v_width}));
  CELER_RETURN_IF_ERROR(h.flat ? c.Set(0, c.dtype(0), {h.batch, h.q_tokens, h.q_heads * h.v_width})
                               : c.Set(0, c.dtype(0), {h.batch, h.q_heads, h.q_tokens, h.v_width}));
  CELER_RETURN_IF_ERROR(c.Set(1, c.dtype(1), {h.batch, h.kv_heads, h.tokens, h.width}));
  CELER_RETURN_IF_ERROR(c.Set(2, c.dtype(2), {h.batch, h.kv_heads, h.tokens, h.v_width}));
  return c.Set(3, c.dtype(0), {h.batch, h.q_heads, h.q_tokens, h.tokens});
}
Status Attention(KernelContext& c) {
  CELER_ASSIGN(const Heads h, HeadsOf(c));
  const float scale =
      c.node.Find("scale") ? c.node.Float("scale", 1) : 1 / std::sqrt(static_cast<float>(h.width));
  const float cap = c.node.Float("softcap", 0);
  const bool causal = c.node.Int("is_causal", 0) != 0;
  const int64_t mode = c.node.Int("qk_matmul_output_mode", 0);
  const std::vector<float> q = AsFloats(c, c.pool, 0);
  // Keys and values with what came before them: [batch, heads, tokens, width].
  const auto joined = [&](size_t fresh, size_t past, int64_t width) {
    const std::vector<float> now = AsFloats(c, c.pool, fresh),
                             before = h.past > 0 ? AsFloats(c, c.pool, past) : std::vector<float>();
    std::vector<float> out(static_cast<size_t>(h.batch * h.kv_heads * h.tokens * width));
    for (int64_t bh = 0; bh < h.batch * h.kv_heads; ++bh) {
      float* const to = out.data() + bh * h.tokens * width;
      if (h.past > 0) std::copy_n(before.begin() + bh * h.past * width, h.past * width, to);
      for (int64_t t = 0; t < h.new_tokens; ++t) {
        const int64_t b = bh / h.kv_heads, head = bh % h.kv_heads;
        const int64_t at = h.flat ? (b * h.new_tokens + t) * h.kv_heads + head : bh * h.new_tokens + t;
        std::copy_n(now.begin() + at * width, width, to + (h.past + t) * width);
      }
    }
    return out;
  };
  std::vector<float> k = joined(1, 4, h.width), v = joined(2, 5, h.v_width);
  // What is added to the scores, for one row of tokens.
  std::vector<int64_t> mask_at;
  const int64_t mask_tokens = c.has(3) ? c.shape(3)[c.shape(3).rank() - 1] : 0;
  std::vector<float> mask;
  if (c.has(3)) {
    mask.resize(c.elements(3));
    if (c.dtype(3) == DType::kBool) {
      for (size_t i = 0; i < mask.size(); ++i)
        mask[i] = c.in(3).as<bool>()[i] ? 0 : -std::numeric_limits<float>::infinity();
    } else {
      mask = AsFloats(c, c.pool, 3);
    }
    std::vector<int64_t> dims = Dims(c.shape(3));
    dims.insert(dims.begin(), 4 - dims.size(), 1);
    mask_at = {dims[0], dims[1], dims[2], dims[3]};
  }
  std::vector<float> out(static_cast<size_t>(h.batch * h.q_heads * h.q_tokens * h.v_width));
  std::vector<float> scores(c.wants(3) ? static_cast<size_t>(h.batch * h.q_heads * h.q_tokens * h.tokens)
                                       : 0);
  c.pool.ParallelFor(h.batch * h.q_heads * h.q_tokens, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(h.tokens));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t t = r % h.q_tokens, head = r / h.q_tokens % h.q_heads, b = r / (h.q_tokens * h.q_heads);
      const int64_t kv = b * h.kv_heads + head / (h.q_heads / h.kv_heads);
      const float* const query = q.data() + (h.flat ? (b * h.q_tokens + t) * h.q_heads + head : r) * h.width;
      const auto keep = [&](bool wanted) {
        if (wanted && !scores.empty()) std::copy(row.begin(), row.end(), scores.begin() + r * h.tokens);
      };
      for (int64_t j = 0; j < h.tokens; ++j) {
        const float* const key = k.data() + (kv * h.tokens + j) * h.width;
        float sum = 0;
        for (int64_t i = 0; i < h.width; ++i) sum += query[i] * key[i];
        sum *= scale;
        row[j] = cap > 0 ? cap * std::tanh(sum / cap) : sum;
      }
      keep(mode == 0 || mode == 1);
      float most = -std::numeric_limits<float>::infinity();
      for (int64_t j = 0; j < h.tokens; ++j) {
        float& s = row[j];
        bool hidden = (causal && j > h.past + t) || (c.has(6) && j >= c.in(6).as<int64_t>()[b]);
        if (c.has(3)) {
          if (j >= mask_tokens && mask_tokens > 1)
            hidden = true;
          else
            s += mask[static_cast<size_t>(
                (((mask_at[0] > 1 ? b : 0) * mask_at[1] + (mask_at[1] > 1 ? head : 0)) * mask_at[2] +
                 (mask_at[2] > 1 ? t : 0)) *
                    mask_at[3] +
                (mask_at[3] > 1 ? j : 0))];
        }
        if (hidden) s = -std::numeric_limits<float>::infinity();
        most = std::max(most, s);
      }
      keep(mode == 2);
      float total = 0;
      for (float& s : row) {
        s = std::isinf(most) && most < 0 ? 0 : std::exp(s - most);
        total += s;
      }
      const float inverse = total > 0 ? 1 / total : 0;
      for (float& s : row) s *= inverse;
      keep(mode == 3);
      float* const to = out.data() + (h.flat ? (b * h.q_tokens + t) * h.q_heads + head : r) * h.v_width;
      for (int64_t j = 0; j < h.tokens; ++j) {
        const float s = row[j];
        const float* const value = v.data() + (kv * h.tokens + j) * h.v_width;
        if (s != 0)
          for (int64_t i = 0; i < h.v_width; ++i) to[i] += s * value[i];
      }
    }
  });
  if (c.wants(0)) Store(c.pool, out, c.out(0));
  if (c.wants(1)) Store(c.pool, k, c.out(1));
  if (c.wants(2)) Store(c.pool, v, c.out(2));
  if (c.wants(3)) Store(c.pool, scores, c.out(3));
  return {};
}
double AttentionFlops(const InferContext& c) {
  const auto h = HeadsOf(c);
  if (!h) return 0;
  return 2.0 * static_cast<double>(h->batch * h->q_heads) * static_cast<double>(h->q_tokens) *
         static_cast<double>(h->tokens) * static_cast<double>(h->width + h->v_width);
}

// x, cos, sin, positions
struct Rotation {
  int64_t batch, heads, tokens, width, rotated;
  bool flat;
};
Result<Rotation> RotationOf(const OpInputs& c) {
  const Shape& x = c.shape(0);
  Rotation r{};
  r.flat = x.rank() == 3;
  if (x.rank() != 3 && x.rank() != 4) return Error::Invalid("an input of ", x.ToString());
  r.batch = x[0];
  r.heads = r.flat ? c.node.Int("num_heads", 0) : x[1];
  r.tokens = r.flat ? x[1] : x[2];
  if (r.heads < 1 || (r.flat && (x[2] % r.heads != 0 || r.heads > std::max<int64_t>(x[2], 1))))
    return Error::Invalid(r.heads, " heads for ", x.ToString());
  r.width = r.flat ? x[2] / r.heads : x[3];
  r.rotated = c.node.Int("rotary_embedding_dim", 0);
  if (r.rotated == 0) r.rotated = r.width;
  if (r.rotated < 0 || r.rotated > r.width || r.rotated % 2 != 0)
    return Error::Invalid("a rotation of ", r.rotated, " of ", r.width, " elements");
  for (size_t i = 1; i < 3; ++i) {
    CELER_RETURN_IF_ERROR(CheckSameType(c, i));
    const Shape& table = c.shape(i);
    const bool fits = c.has(3) ? table.rank() == 2 && table[1] == r.rotated / 2
                               : table.rank() == 3 && table[0] == r.batch && table[1] == r.tokens &&
                                     table[2] == r.rotated / 2;
    if (!fits) return Error::Invalid("a table of ", table.ToString(), " for ", x.ToString());
  }
  if (!(c.shape(1) == c.shape(2)))
    return Error::Invalid("tables of ", c.shape(1).ToString(), " and ", c.shape(2).ToString());
  if (c.has(3) && (c.dtype(3) != DType::kI64 || c.elements(3) != r.batch * r.tokens))
    return Error::Invalid("positions of ", c.shape(3).ToString());
  return r;
}
Status InferRotary(InferContext& c) {
  CELER_ASSIGN([[maybe_unused]] const Rotation r, RotationOf(c));
  return InferSame(c);
}
Status Rotary(KernelContext& c) {
  CELER_ASSIGN(const Rotation r, RotationOf(c));
  const bool interleaved = c.node.Int("interleaved", 0) != 0;
  const int64_t half = r.rotated / 2;
  std::vector<int64_t> rows;
  if (c.has(3)) {
    rows = ReadInts(c.in(3));
    for (const int64_t row : rows)
      if (row < 0 || row >= c.shape(1)[0]) return Error::Invalid("the position ", row, " of ", c.shape(1)[0]);
  }
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    for (int64_t b = 0; b < r.batch; ++b)
      for (int64_t t = 0; t < r.tokens; ++t)
        for (int64_t head = 0; head < r.heads; ++head) {
          const int64_t at =
              (r.flat ? (b * r.tokens + t) * r.heads + head : (b * r.heads + head) * r.tokens + t) * r.width;
          const int64_t row = rows.empty() ? b * r.tokens + t : rows[b * r.tokens + t];
          const T *const x = c.in(0).as<T>() + at, *const cosine = c.in(1).as<T>() + row * half,
                         *const sine = c.in(2).as<T>() + row * half;
          T* const y = c.out(0).as<T>() + at;
          for (int64_t i = 0; i < half; ++i) {
            const int64_t a = interleaved ? 2 * i : i, d = interleaved ? 2 * i + 1 : i + half;
            const auto xa = Wide(x[a]), xd = Wide(x[d]), cs = Wide(cosine[i]), sn = Wide(sine[i]);
            y[a] = static_cast<T>(cs * xa - sn * xd);
            y[d] = static_cast<T>(sn * xa + cs * xd);
          }
          for (int64_t i = r.rotated; i < r.width; ++i) y[i] = x[i];
        }
  });
  return {};
}

constexpr Operator kRows[] = {
    {"Attention", 23, {3, 7}, {1, 4}, kFloats, InferAttention, Attention, Operator::kPlain, AttentionFlops},
    {"RotaryEmbedding", 23, {3, 4}, {1, 1}, kFloats, InferRotary, Rotary},
};

}  // namespace

std::span<const Operator> AttentionOperators() {
  return kRows;
}

}  // namespace celer::graph
