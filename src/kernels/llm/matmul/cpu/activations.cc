#include "kernels/llm/matmul/cpu/activations.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/llm/matmul/cpu/outliers.h"

namespace celer {
namespace {

// int8 with a scale to a block: a token's outliers are taken out. (kRow has its own way.)
bool TakesOutliersOut(XKind kind) {
  return kind == XKind::kBlocks || kind == XKind::kSupers || kind == XKind::kNibbles ||
         kind == XKind::kNibblesMin;
}

}  // namespace

Activations::Activations(const TileIsa& isa, const MatmulArgs& args, const bool (&needed)[kXKinds])
    : isa_(isa), args_(args), cols_(args.outputs[0].w.cols) {
  const int64_t units = (args.tokens + isa.x_tokens - 1) / isa.x_tokens;
  for (int k = 0; k < kXKinds; ++k) {
    begin_[k] = total_;
    if (!needed[k]) continue;
    unit_bytes_[k] = isa.x_bytes(static_cast<XKind>(k), cols_);
    total_ += unit_bytes_[k] * units;
  }
  const bool rows_only = total_ == unit_bytes(XKind::kRow) * units;
  portion_ = isa.prepare_tokens > 0 && rows_only ? isa.prepare_tokens : isa.x_tokens;
  for (int k = 0; k < kXKinds; ++k) splits_ |= needed[k] && TakesOutliersOut(static_cast<XKind>(k));
  outliers_begin_ = (total_ + 63) / 64 * 64;
  if (splits_) total_ = outliers_begin_ + args.tokens * static_cast<int64_t>(sizeof(TokenOutliers));
}

std::span<const TokenOutliers> Activations::Outliers(const uint8_t* base, XKind kind, int64_t token,
                                                     int64_t tokens) const {
  if (!TakesOutliersOut(kind)) return {};
  const auto* const all = reinterpret_cast<const TokenOutliers*>(base + outliers_begin_);
  return {all + token, static_cast<size_t>(tokens)};
}

void Activations::Prepare(int64_t begin, int64_t end, uint8_t* base) const {
  static thread_local AlignedVector<float> normed, without;
  constexpr int kMaxTokens = 16;
  CELER_CHECK_LE(isa_.x_tokens, kMaxTokens);
  if (args_.norm) normed.resize(portion_ * cols_);
  if (splits_) without.resize(portion_ * cols_);
  auto* const outliers = reinterpret_cast<TokenOutliers*>(base + outliers_begin_);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t unit = p * portion_ / isa_.x_tokens, unit_token = unit * isa_.x_tokens;
    const auto tokens = static_cast<int>(std::min<int64_t>(isa_.x_tokens, args_.tokens - unit_token));
    const auto first = static_cast<int>(p * portion_ - unit_token);
    const float* rows[kMaxTokens] = {};
    const float* rests[kMaxTokens] = {};  // the same without outliers
    for (int t = first; t < std::min<int64_t>(first + portion_, tokens); ++t) {
      const int64_t token = unit_token + t;
      rows[t] = args_.x + (args_.x_rows ? args_.x_rows[token] : token) * cols_;
      if (args_.norm) {
        float* out = normed.data() + (t - first) * cols_;
        if (isa_.norm && !args_.layer_norm)
          isa_.norm(rows[t], args_.norm, args_.eps, cols_, out);
        else
          NormInputRow(args_, rows[t], out);
        rows[t] = out;
      }
      if (!splits_) continue;
      float* const rest = without.data() + (t - first) * cols_;
      SplitOutliers(rows[t], cols_, rest, outliers + token);
      rests[t] = rest;
    }
    for (int k = 0; k < kXKinds; ++k)
      if (unit_bytes_[k] > 0)
        isa_.prepare(static_cast<XKind>(k), TakesOutliersOut(static_cast<XKind>(k)) ? rests : rows, tokens,
                     cols_, base + begin_[k] + unit * unit_bytes_[k]);
  }
}

}  // namespace celer
