// Attention as ONNX Runtime's optimizer fuses it, decomposed: split into heads, softmax(q k * scale + mask)
// v, and merged. The pass recover-attention fuses the middle again.
#include <cmath>
#include <limits>

#include "graph/load/microsoft/expansion.h"

namespace celer::graph {
namespace {

// [batch, heads, tokens, width] each.
struct Heads {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue;
};

// [batch, tokens, heads · width] -> [batch, heads, tokens, width]
ValueId SplitHeads(Expansion& e, ValueId x, int64_t heads) {
  return e.Transpose(e.Add("Reshape", {x, e.Ints({0, 0, heads, -1})}), {0, 2, 1, 3});
}

struct Mask {
  ValueId keys = kNoValue;  // as com.microsoft has it: 1 to 3 dimensions
  ValueId bias = kNoValue;  // is added to the scores
  bool causal = false;
  ValueId batch_from = kNoValue;  // a value whose first dimension is the batch
};

// The additive mask of padded keys: [batch, 1, 1 or tokens, keys]. kNoValue: nothing.
ValueId HiddenKeys(Expansion& e, const Mask& mask, ValueId total, ValueId like) {
  if (mask.keys == kNoValue) return kNoValue;
  const auto rank = e.Rank(mask.keys);
  if (!rank || *rank < 1 || *rank > 3)
    return e.Fail("a mask of ", rank ? std::to_string(*rank) : std::string("an unknown number of"),
                  " dimensions; 1, 2 and 3 are supported");
  const ValueId hidden = e.Float(e.node().Float("mask_filter_value", -10000.0f), like),
                shown = e.Float(0, like);
  if (*rank > 1) {
    const ValueId seen = e.Add("Cast", {mask.keys}, {{"to", int64_t{9}}});
    const ValueId terms = e.Add("Where", {seen, shown, hidden});
    return e.Add("Unsqueeze",
                 {terms, e.Ints(*rank == 2 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1})});
  }
  // Ends of the sequences, and perhaps their beginnings behind them.
  const Expansion::Attributes i64{{"to", int64_t{7}}};
  const ValueId batch = e.SizeOf(mask.batch_from, 0),
                none = e.Add("Cast", {e.Add("ConstantOfShape", {batch})}, i64);
  const ValueId given = e.Add("Concat", {e.Add("Cast", {mask.keys}, i64), none}, {{"axis", int64_t{0}}});
  const auto column = [&](ValueId begin, ValueId end) {
    return e.Add("Unsqueeze", {e.Add("Slice", {given, begin, end}), e.Ints({1})});
  };
  const ValueId ends = column(e.Ints({0}), batch), begins = column(batch, e.Add("Add", {batch, batch}));
  const ValueId places = e.Add("Range", {e.Int(0), total, e.Int(1)});
  const ValueId seen =
      e.Add("And", {e.Add("Less", {places, ends}), e.Add("GreaterOrEqual", {places, begins})});
  return e.Add("Unsqueeze", {e.Add("Where", {seen, shown, hidden}), e.Ints({1, 2})});
}

// The causal mask, keys behind a query: [tokens, keys].
ValueId Future(Expansion& e, ValueId q, ValueId total, ValueId like) {
  const ValueId tokens = e.ScalarSizeOf(q, 2);
  const ValueId keys = e.Add("Range", {e.Int(0), total, e.Int(1)}),
                queries = e.Add("Range", {e.Add("Sub", {total, tokens}), total, e.Int(1)});
  const ValueId seen = e.Add("LessOrEqual", {keys, e.Add("Unsqueeze", {queries, e.Ints({1})})});
  return e.Add("Where", {seen, e.Float(0, like), e.Float(-1e30, like)});
}

// 1 / sqrt(width) unless the node says otherwise. `width` may be known only to a run.
ValueId Scaled(Expansion& e, ValueId scores, ValueId q, ValueId like, std::optional<int64_t> width) {
  const float given = e.node().Float("scale", 0);
  if (given != 0) return e.Add("Mul", {scores, e.Float(given, like)});
  if (width && *width > 0)
    return e.Add("Mul", {scores, e.Float(1 / std::sqrt(static_cast<double>(*width)), like)});
  const ValueId size = e.Add("Cast", {e.ScalarSizeOf(q, 3)}, {{"to", int64_t{1}}});
  return e.Add("Div", {scores, e.Add("CastLike", {e.Add("Sqrt", {size}), q})});
}

// [batch, tokens, heads · width]
ValueId Attend(Expansion& e, const Heads& h, const Mask& mask, std::optional<int64_t> width, ValueId like) {
  ValueId scores = e.Add("MatMul", {h.q, e.Transpose(h.k, {0, 1, 3, 2})});
  scores = Scaled(e, scores, h.q, like, width);
  const ValueId total = mask.keys != kNoValue || mask.causal ? e.ScalarSizeOf(h.k, 2) : kNoValue;
  ValueId added = HiddenKeys(e, mask, total, like);
  const auto join = [&](ValueId more) {
    if (more != kNoValue) added = added == kNoValue ? more : e.Add("Add", {added, more});
  };
  if (mask.causal) join(Future(e, h.q, total, like));
  join(mask.bias);
  if (added != kNoValue) scores = e.Add("Add", {scores, added});
  const ValueId weights = e.Add("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const ValueId joined = e.Transpose(e.Add("MatMul", {weights, h.v}), {0, 2, 1, 3});
  return e.Add("Reshape", {joined, e.Ints({0, 0, -1})});
}

std::optional<int64_t> HeadCount(Expansion& e) {
  const int64_t heads = e.node().Int("num_heads", 0);
  if (heads >= 1 && heads <= 65536) return heads;
  e.Fail("num_heads is ", heads);
  return std::nullopt;
}

// input, weights, bias, mask, past, bias of the scores, past length
void Attention(Expansion& e) {
  const Constant* const weights = e.ConstantOf(e.In(1));
  if (!weights || weights->shape.rank() != 2) {
    e.Fail("its weights are no constant matrix");
    return;
  }
  if (e.node().Int("do_rotary", 0) != 0) e.Fail("do_rotary is not supported");
  if (e.Has(6) || e.node().Int("past_present_share_buffer", 0) != 0)
    e.Fail("past and present in one buffer are not supported");
  std::vector<int64_t> sizes = e.node().Ints("qkv_hidden_sizes");
  const int64_t columns = weights->shape[1];
  if (sizes.empty()) sizes = {columns / 3, columns / 3, columns - columns / 3 * 2};
  ValueId qkv = e.Add("MatMul", {e.In(0), e.In(1)});
  if (e.Has(2)) qkv = e.Add("Add", {qkv, e.In(2)});
  AttendPacked(e, {.qkv = qkv, .sizes = std::move(sizes), .mask = e.In(3), .past = e.In(4), .bias = e.In(5)});
}

// One of several tensors along an axis.
ValueId Pick(Expansion& e, ValueId x, int64_t axis, int64_t index) {
  return e.Add("Gather", {x, e.Int(index)}, {{"axis", axis}});
}

// query, key, value, bias, padding mask, bias of the scores, past key, past value, past length
void MultiHeadAttention(Expansion& e) {
  const auto heads = HeadCount(e);
  if (!heads) return;
  if (e.Has(8) || e.Has(9)) e.Fail("past and present in one buffer are not supported");
  if (e.Wants(3)) e.Fail("its output of scores is not supported");
  Heads h;
  std::optional<int64_t> hidden = e.Columns(e.In(0));
  const auto part_of = [&](ValueId packed, int64_t i) {  // of [batch, tokens, heads, parts, width]
    return e.Transpose(Pick(e, packed, 3, i), {0, 2, 1, 3});
  };
  // The bias of the three projections, in one list.
  const auto with_bias = [&](ValueId x, int64_t i) {
    if (!e.Has(3)) return x;
    const Constant* const all = e.ConstantOf(e.In(3));
    if (!all || all->shape.rank() != 1) return e.Fail("its bias is no constant list");
    const int64_t size = hidden.value_or(all->shape[0] / 3);
    const std::vector<int64_t> ends = {0, size, 2 * size, all->shape[0]};
    return e.Add("Add", {x, e.Add("Slice", {e.In(3), e.Ints({ends[i]}),
                                            e.Ints({ends[static_cast<size_t>(i) + 1]}), e.Ints({0})})});
  };
  std::optional<int64_t> width;
  if (!e.Has(1)) {
    if (e.Has(3)) e.Fail("a bias for packed queries, keys and values is not supported");
    width = hidden;  // the last dimension is a head's
    h = {part_of(e.In(0), 0), part_of(e.In(0), 1), part_of(e.In(0), 2)};
  } else {
    if (hidden) width = *hidden / *heads;
    h.q = SplitHeads(e, with_bias(e.In(0), 0), *heads);
    const auto rank = e.Rank(e.In(1));
    if (!rank) e.Fail("the number of dimensions of its keys is not known");
    if (rank && *rank == 5) {
      if (e.Has(3)) e.Fail("a bias for packed keys and values is not supported");
      h.k = part_of(e.In(1), 0), h.v = part_of(e.In(1), 1);
    } else if (rank && *rank == 4) {  // from a cache: in heads already
      h.k = e.In(1), h.v = e.In(2);
    } else {
      h.k = SplitHeads(e, with_bias(e.In(1), 1), *heads);
      h.v = SplitHeads(e, with_bias(e.In(2), 2), *heads);
    }
  }
  if (e.Has(6)) h.k = e.Add("Concat", {e.In(6), h.k}, {{"axis", int64_t{2}}});
  if (e.Has(7)) h.v = e.Add("Concat", {e.In(7), h.v}, {{"axis", int64_t{2}}});
  const Mask mask{.keys = e.In(4),
                  .bias = e.In(5),
                  .causal = e.node().Int("unidirectional", 0) != 0,
                  .batch_from = e.In(0)};
  e.Give(0, Attend(e, h, mask, width, e.In(0)));
  e.Give(1, h.k);
  e.Give(2, h.v);
}

// x, positions ([1]: of the first token; or [batch, tokens]), cos, sin
void RotaryEmbedding(Expansion& e) {
  const Node& node = e.node();
  if (node.Int("is_packed_batching", 0) != 0) e.Fail("is_packed_batching is not supported");
  if (const float scale = node.Float("scale", 1); scale != 1) e.Fail("a scale of ", scale);
  const auto rank = e.Rank(e.In(0)), places = e.Rank(e.In(1));
  if (!rank || !places) e.Fail("the number of dimensions of its inputs is not known");
  ValueId x = e.In(0);
  int64_t heads = node.Int("num_heads", 0);
  const Constant* const table = e.ConstantOf(e.In(2));
  if (rank == 3 && heads == 0) {
    const auto hidden = e.Columns(x);
    if (!table || table->shape.rank() != 2 || table->shape[1] < 1 || !hidden)
      e.Fail("num_heads is not given, and the shape does not say it");
    else
      heads = *hidden / (2 * table->shape[1]);
  }
  ValueId positions = e.In(1);
  if (places == 1) {
    const ValueId tokens = e.ScalarSizeOf(x, rank == 4 ? 2 : 1);
    const ValueId row = e.Add("Add", {e.Add("Range", {e.Int(0), tokens, e.Int(1)}), positions});
    const ValueId shape =
        e.Add("Concat", {e.SizeOf(x, 0), e.SizeOf(x, rank == 4 ? 2 : 1)}, {{"axis", int64_t{0}}});
    positions = e.Add("Expand", {row, shape});
  }
  e.Give(0, e.Add("RotaryEmbedding", {x, e.In(2), e.In(3), positions},
                  {{"interleaved", node.Int("interleaved", 0)},
                   {"num_heads", heads},
                   {"rotary_embedding_dim", node.Int("rotary_embedding_dim", 0)}},
                  23));
}

constexpr ExpansionRow kAttentionRows[] = {
    {"com.microsoft", "Attention", Attention},
    {"com.microsoft", "MultiHeadAttention", MultiHeadAttention},
    {"com.microsoft", "RotaryEmbedding", RotaryEmbedding},
};

}  // namespace

void AttendPacked(Expansion& e, const PackedAttention& a) {
  const auto heads = HeadCount(e);
  if (!heads) return;
  if (a.sizes.size() != 3 || a.sizes[0] < 1 || a.sizes[0] % *heads != 0 || a.sizes[2] < 1 ||
      a.sizes[2] % *heads != 0) {
    e.Fail(*heads, " heads do not divide its queries, keys and values");
    return;
  }
  const auto parts = e.AddMany("Split", {a.qkv, e.Ints(a.sizes)}, 3, {{"axis", int64_t{-1}}}, 13);
  Heads h{SplitHeads(e, parts[0], *heads), SplitHeads(e, parts[1], *heads), SplitHeads(e, parts[2], *heads)};
  if (a.past != kNoValue) {  // [2, batch, heads, tokens, width]
    h.k = e.Add("Concat", {Pick(e, a.past, 0, 0), h.k}, {{"axis", int64_t{2}}});
    h.v = e.Add("Concat", {Pick(e, a.past, 0, 1), h.v}, {{"axis", int64_t{2}}});
  }
  const Mask mask{
      .keys = a.mask, .bias = a.bias, .causal = e.node().Int("unidirectional", 0) != 0, .batch_from = a.qkv};
  const ValueId like = a.qkv;
  e.Give(0, Attend(e, h, mask, a.sizes[0] / *heads, like));
  if (e.Wants(1))
    e.Give(1,
           e.Add("Concat", {e.Add("Unsqueeze", {h.k, e.Ints({0})}), e.Add("Unsqueeze", {h.v, e.Ints({0})})},
                 {{"axis", int64_t{0}}}));
}

std::span<const ExpansionRow> AttentionExpansions() {
  return kAttentionRows;
}

}  // namespace celer::graph
