#include "models/cpu/cpu_lora.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/file/printable.h"
#include "models/lora/lora_adapter.h"

namespace celer {
namespace {

WeightView Whole(const LoraMatrix& m) {
  WeightView w;
  w.dtype = m.whole_dtype;
  w.rows = m.at.rows;
  w.cols = m.at.cols;
  w.data = m.whole.data();
  w.row_bytes = *BytesFor(w.dtype, w.cols);
  w.name = m.module;
  return w;
}

LowRankTerm TermOf(const LoraMatrix& m) {
  return {.rank = m.rank,
          .a = m.a ? m.a->data() : nullptr,
          .b = m.b.empty() ? nullptr : m.b.data(),
          .row_scale = m.row_scale.empty() ? nullptr : m.row_scale.data(),
          .shift = m.shift.empty() ? nullptr : m.shift.data(),
          .whole = m.whole.empty() ? WeightView() : Whole(m)};
}

}  // namespace

Status CpuLora::Check(const LoraAdapter& adapter) const {
  const auto places = PlacesByPlace(model_.config());
  for (const LoraMatrix& m : adapter.matrices()) {
    const auto found = places.find(m.at.place);
    if (found != places.end() && found->second.rows == m.at.rows && found->second.cols == m.at.cols) continue;
    return Error::Invalid("adapter '", adapter.info().name, "' was loaded for another model than ",
                          model_.path(), ", which has no such module '", Printable(m.module), "'");
  }
  return {};
}

LowRankBatch CpuLora::Prepare(std::span<const std::shared_ptr<const LoraMix>> mixes,
                              std::span<const int32_t> starts) {
  std::erase_if(known_, [](const auto& entry) { return entry.second.adapter.expired(); });
  mixes_.clear();
  mix_of_.clear();
  std::vector<const LoraMix*> seen;
  for (size_t s = 0; s < mixes.size(); ++s) {
    int32_t number = -1;
    if (const LoraMix* const mix = mixes[s].get()) {
      auto found = std::find(seen.begin(), seen.end(), mix);
      if (found == seen.end()) {
        found = seen.insert(found, mix);
        std::vector<LowRankUse>& uses = mixes_.emplace_back();
        for (const LoraUse& use : mix->uses()) uses.push_back({&TermsOf(use.adapter), use.scale});
      }
      number = static_cast<int32_t>(found - seen.begin());
    }
    mix_of_.insert(mix_of_.end(), static_cast<size_t>(starts[s + 1] - starts[s]), number);
  }
  return {.mixes = mixes_, .mix_of = mix_of_};
}

const LowRankTerms& CpuLora::TermsOf(const std::shared_ptr<const LoraAdapter>& adapter) {
  const auto [found, fresh] = known_.try_emplace(adapter.get());
  Known& known = found->second;
  if (!fresh) return known.terms;
  known.adapter = adapter;
  for (const LoraMatrix& m : adapter->matrices()) {
    if (m.at.place.part == LoraPart::kEmbedding) {
      known.terms.SetEmbedding(TermOf(m));
    } else if (m.at.place.part == LoraPart::kLatentKvB) {
      AddHeads(m, &known);
    } else {
      const WeightView w = MatrixAt(model_.weights(), m.at.place);
      CELER_CHECK(w && w.rows == m.at.rows && w.cols == m.at.cols);
      known.terms.Add(w, TermOf(m));
    }
  }
  return known.terms;
}

// Rows of a head's keys and of its values are in two matrices.
void CpuLora::AddHeads(const LoraMatrix& m, Known* known) const {
  const DecoderConfig& c = model_.config();
  const LatentWeights& w = model_.weights().layers[m.at.place.layer].latent;
  const int64_t nope = c.latent.nope_dim, values = c.latent.value_dim, head = nope + values;
  const auto part = [&](const WeightView& view, int64_t first, int64_t rows) {
    std::vector<float>& b = known->own.emplace_back();
    for (int64_t r = 0; r < m.rank; ++r)
      for (int64_t h = 0; h < c.heads; ++h) {
        const float* const from = m.b.data() + r * m.at.rows + h * head + first;
        b.insert(b.end(), from, from + rows);
      }
    known->terms.Add(view, {.rank = m.rank, .a = m.a->data(), .b = b.data()});
  };
  part(w.k_b, 0, nope);
  part(w.v_b, nope, values);
}

}  // namespace celer
