// GroupQueryAttention of com.microsoft: attention of a decoder with a cache of keys and values, as the models
// of onnxruntime-genai have it.
#include <cmath>
#include <limits>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/other_domains.h"

namespace celer::graph {
namespace {

// query, key, value, past key, past value, lengths - 1, the longest length, cos, sin, positions, bias
struct Groups {
  int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, width = 0, past = 0;
  bool packed = false;  // keys and values stand behind the queries
  int64_t rotated = 0;  // elements of a head that are rotated

  int64_t Columns() const { return (heads + (packed ? 2 * kv_heads : 0)) * width; }
};
Result<Groups> GroupsOf(const OpInputs& c) {
  const Node& node = c.node;
  Groups g{.heads = node.Int("num_heads", 0), .kv_heads = node.Int("kv_num_heads", 0), .packed = !c.has(1)};
  const Shape& q = c.shape(0);
  if (q.rank() != 3) return Error::Invalid("queries of ", q.ToString());
  if (g.heads < 1 || g.kv_heads < 1 || g.heads > 65536 || g.heads % g.kv_heads != 0)
    return Error::Invalid(g.heads, " heads of queries for ", g.kv_heads, " of keys");
  g.batch = q[0], g.tokens = q[1];
  const int64_t parts = g.heads + (g.packed ? 2 * g.kv_heads : 0);
  if (q[2] < 1 || q[2] % parts != 0) return Error::Invalid(parts, " heads in ", q.ToString());
  g.width = q[2] / parts;
  for (size_t i = 1; i < 3 && !g.packed; ++i)
    if (!c.has(i) || !HasDims(c.shape(i), {g.batch, g.tokens, g.kv_heads * g.width}) ||
        c.dtype(i) != c.dtype(0))
      return Error::Invalid("keys and values do not fit queries of ", q.ToString());
  if (c.has(3) != c.has(4)) return Error::Invalid("past keys without past values, or the other way round");
  if (c.has(3)) {
    g.past = c.shape(3).rank() == 4 ? c.shape(3)[2] : -1;
    const std::initializer_list<int64_t> wanted = {g.batch, g.kv_heads, g.past, g.width};
    if (!HasDims(c.shape(3), wanted) || !HasDims(c.shape(4), wanted) || c.dtype(3) != c.dtype(0) ||
        c.dtype(4) != c.dtype(0))
      return Error::Invalid("past keys of ", c.shape(3).ToString(), " and values of ", c.shape(4).ToString());
  }
  if (!c.has(5) || c.elements(5) != g.batch || c.dtype(5) != DType::kI32)
    return Error::Invalid("lengths that are not ", g.batch, " numbers of i32");
  if (!c.has(6) || c.elements(6) != 1 || c.dtype(6) != DType::kI32)
    return Error::Invalid("the longest length is not one number of i32");
  if (node.Int("do_rotary", 0) != 0) {
    if (!c.has(7) || !c.has(8) || c.shape(7).rank() != 2 || !(c.shape(7) == c.shape(8)) ||
        c.shape(7)[1] < 1 || 2 * c.shape(7)[1] > g.width || c.dtype(7) != c.dtype(0) ||
        c.dtype(8) != c.dtype(0))
      return Error::Invalid("tables of sines and cosines do not fit heads of ", g.width);
    g.rotated = 2 * c.shape(7)[1];
  }
  if (c.has(9) && (c.dtype(9) != DType::kI64 || c.elements(9) != g.batch * g.tokens))
    return Error::Invalid("positions of ", c.shape(9).ToString());
  for (size_t i = 11; i < c.inputs(); ++i)
    if (c.has(i)) return Error::Unsupported("its input ", i, " is not supported");
  if (node.Int("smooth_softmax", 0) > 0) return Error::Unsupported("smooth_softmax is not supported");
  if (node.Text("k_quant_type", "NONE") != "NONE")
    return Error::Unsupported("a quantized cache is not supported");
  return g;
}
// Of the cache that comes out; the longest length must be known.
Result<int64_t> CacheTokens(const OpInputs& c, const Groups& g) {
  const int64_t total = ReadInts(c.in(6))[0];
  if (total < g.tokens || total > (int64_t{1} << 31))
    return Error::Invalid("a longest length of ", total, " for ", g.tokens, " tokens");
  return std::max(g.past, total);
}

Status InferGroups(InferContext& c) {
  CELER_ASSIGN(const Groups g, GroupsOf(c));
  CELER_RETURN_IF_ERROR(c.Set(0, c.dtype(0), std::vector<int64_t>{g.batch, g.tokens, g.heads * g.width}));
  if (!c.known(6)) return {};
  CELER_ASSIGN(const int64_t tokens, CacheTokens(c, g));
  if (c.has(10)) {
    CELER_RETURN_IF_ERROR(CheckSameType(c, 10));
    const Shape& bias = c.shape(10);
    if (bias.rank() != 4 || (bias[0] != 1 && bias[0] != g.batch) || (bias[1] != 1 && bias[1] != g.heads) ||
        bias[2] != g.tokens || bias[3] < ReadInts(c.in(6))[0])
      return Error::Invalid("a bias of ", bias.ToString());
  }
  const std::vector<int64_t> cache = {g.batch, g.kv_heads, tokens, g.width};
  CELER_RETURN_IF_ERROR(c.Set(1, c.dtype(0), cache));
  return c.Set(2, c.dtype(0), cache);
}

std::vector<float> GroupFloats(const KernelContext& c, size_t i) {
  std::vector<float> out(static_cast<size_t>(c.elements(i)));
  CastElements(c.pool, c.in(i), TensorView::Contiguous(out.data(), DType::kF32, Device::Cpu(), c.shape(i)));
  return out;
}

class GroupAttention {
 public:
  GroupAttention(KernelContext& c, const Groups& g, int64_t cache)
      : c_(c), g_(g), cache_(cache), q_(GroupFloats(c, 0)), scale_(c.node.Float("scale", 0)) {
    if (scale_ == 0) scale_ = 1 / std::sqrt(static_cast<float>(g.width));
    if (!g.packed) k_ = GroupFloats(c, 1), v_ = GroupFloats(c, 2);
    if (g.rotated > 0) cos_ = GroupFloats(c, 7), sin_ = GroupFloats(c, 8);
    if (c.has(10)) bias_ = GroupFloats(c, 10);
    for (const int64_t length : ReadInts(c.in(5))) lengths_.push_back(length + 1);
    // The first tokens of a sequence may be filled up; later ones stand behind what is in the cache.
    const bool first = ReadInts(c.in(6))[0] == g.tokens;
    for (const int64_t length : lengths_) befores_.push_back(first ? 0 : length - g.tokens);
  }

  Status Run() {
    for (size_t b = 0; b < lengths_.size(); ++b)
      if (lengths_[b] < 1 || lengths_[b] > cache_ || befores_[b] < 0 || befores_[b] > g_.past ||
          befores_[b] + g_.tokens > cache_)
        return Error::Invalid("a length of ", lengths_[b], " for ", g_.tokens, " tokens and a cache of ",
                              g_.past);
    CELER_RETURN_IF_ERROR(CheckPositions());
    const auto size = static_cast<size_t>(g_.batch * g_.kv_heads * cache_ * g_.width);
    keys_.assign(size, 0), values_.assign(size, 0);
    FillCache(3, keys_, k_, g_.heads, true);
    FillCache(4, values_, v_, g_.heads + g_.kv_heads, false);
    out_.assign(g_.batch * g_.tokens * g_.heads * g_.width, 0);
    c_.pool.ParallelFor(g_.batch * g_.heads * g_.tokens, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> query(static_cast<size_t>(g_.width)), scores(static_cast<size_t>(cache_));
      for (int64_t i = begin; i < end; ++i)
        One(i / (g_.heads * g_.tokens), i / g_.tokens % g_.heads, i % g_.tokens, query.data(), scores.data());
    });
    const auto store = [&](size_t i, std::vector<float>& from) {
      if (c_.wants(i))
        CastElements(c_.pool,
                     TensorView::Contiguous(from.data(), DType::kF32, Device::Cpu(), c_.out(i).shape),
                     c_.out(i));
    };
    store(0, out_), store(1, keys_), store(2, values_);
    return {};
  }

 private:
  int64_t PositionOf(int64_t b, int64_t t) const {
    if (c_.has(9)) return c_.in(9).as<int64_t>()[b * g_.tokens + t];
    return befores_[b] + t;
  }
  Status CheckPositions() const {
    for (int64_t b = 0; b < g_.batch && g_.rotated > 0; ++b)
      for (int64_t t = 0; t < g_.tokens; ++t)
        if (const int64_t at = PositionOf(b, t); at < 0 || at >= c_.shape(7)[0])
          return Error::Invalid("the position ", at, " of ", c_.shape(7)[0]);
    return {};
  }
  void Rotate(float* x, int64_t position) const {
    const int64_t half = g_.rotated / 2;
    const bool interleaved = c_.node.Int("rotary_interleaved", 0) != 0;
    for (int64_t i = 0; i < half; ++i) {
      float &a = x[interleaved ? 2 * i : i], &b = x[interleaved ? 2 * i + 1 : i + half];
      const float cs = cos_[position * half + i], sn = sin_[position * half + i];
      const float turned = a * cs - b * sn;
      b = a * sn + b * cs;
      a = turned;
    }
  }
  // What was there before, and the new rows behind it: [batch, heads, cache, width].
  void FillCache(size_t past, std::vector<float>& to, const std::vector<float>& fresh, int64_t packed_head,
                 bool rotate) {
    const std::vector<float> before = g_.past > 0 ? GroupFloats(c_, past) : std::vector<float>();
    const int64_t w = g_.width;
    for (int64_t b = 0; b < g_.batch; ++b)
      for (int64_t h = 0; h < g_.kv_heads; ++h) {
        const int64_t bh = b * g_.kv_heads + h, old = befores_[b];
        float* const rows = to.data() + bh * cache_ * w;
        if (g_.past > 0) std::copy_n(before.begin() + bh * g_.past * w, g_.past * w, rows);
        for (int64_t t = 0; t < g_.tokens; ++t) {
          const float* const from =
              g_.packed ? q_.data() + (b * g_.tokens + t) * g_.Columns() + (packed_head + h) * w
                        : fresh.data() + ((b * g_.tokens + t) * g_.kv_heads + h) * w;
          std::copy_n(from, w, rows + (old + t) * w);
          if (rotate && g_.rotated > 0) Rotate(rows + (old + t) * w, PositionOf(b, t));
        }
      }
  }
  void One(int64_t b, int64_t head, int64_t t, float* query, float* scores) {
    const int64_t w = g_.width, kv = b * g_.kv_heads + head / (g_.heads / g_.kv_heads);
    std::copy_n(q_.data() + (b * g_.tokens + t) * g_.Columns() + head * w, w, query);
    if (g_.rotated > 0) Rotate(query, PositionOf(b, t));
    // Keys up to the token itself; of a window, so many of the last.
    const int64_t end = std::min(befores_[b] + t + 1, lengths_[b]);
    const int64_t window = c_.node.Int("local_window_size", -1),
                  begin = window >= 0 ? std::max<int64_t>(0, end - window) : 0;
    const float cap = c_.node.Float("softcap", 0);
    float most = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t j = begin; j < end; ++j) {
      const float* const key = keys_.data() + (kv * cache_ + j) * w;
      float sum = 0;
      for (int64_t i = 0; i < w; ++i) sum += query[i] * key[i];
      sum *= scale_;
      if (cap > 0) sum = cap * std::tanh(sum / cap);
      if (!bias_.empty()) {
        const Shape& shape = c_.shape(10);
        sum += bias_[static_cast<size_t>(
            (((shape[0] > 1 ? b : 0) * shape[1] + (shape[1] > 1 ? head : 0)) * shape[2] + t) * shape[3] + j)];
      }
      scores[j] = sum;
      most = std::max(most, sum);
    }
    for (int64_t j = begin; j < end; ++j) total += scores[j] = std::exp(scores[j] - most);
    float* const out = out_.data() + ((b * g_.tokens + t) * g_.heads + head) * w;
    for (int64_t j = begin; j < end; ++j) {
      const float share = scores[j] / total;
      const float* const value = values_.data() + (kv * cache_ + j) * w;
      for (int64_t i = 0; i < w; ++i) out[i] += share * value[i];
    }
  }

  KernelContext& c_;
  const Groups& g_;
  const int64_t cache_;
  std::vector<float> q_, k_, v_, cos_, sin_, bias_, keys_, values_, out_;
  float scale_;
  std::vector<int64_t> lengths_, befores_;
};

Status GroupQuery(KernelContext& c) {
  CELER_ASSIGN(const Groups g, GroupsOf(c));
  CELER_ASSIGN(const int64_t cache, CacheTokens(c, g));
  return GroupAttention(c, g, cache).Run();
}

constexpr Operator kRows[] = {
    {"GroupQueryAttention", 1, Arity(1, 16), Arity(1, 4), kFloats, InferGroups, GroupQuery, Operator::kPlain,
     nullptr, kNoFastKernels, "com.microsoft"},
};

}  // namespace

std::span<const Operator> GroupQueryOperators() {
  return kRows;
}

}  // namespace celer::graph
