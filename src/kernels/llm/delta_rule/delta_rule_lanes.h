// Scans with vectors as wide as the flags of the including file allow.
#pragma once

#include "kernels/llm/delta_rule/delta_scan.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

// One row of a piece of S, or numbers for its columns.
struct DeltaRow {
  static constexpr int64_t kVectors = kDeltaColumns / Simd::kLanes;
  Simd::F at[kVectors];

  static CELER_INLINE DeltaRow Zeros() {
    DeltaRow row;
    for (int64_t i = 0; i < kVectors; ++i) row.at[i] = Simd::Set(0);
    return row;
  }
  static CELER_INLINE DeltaRow Load(const float* p) {
    DeltaRow row;
    for (int64_t i = 0; i < kVectors; ++i) row.at[i] = Simd::Load(p + i * Simd::kLanes);
    return row;
  }
  static CELER_INLINE DeltaRow LoadSome(const float* p, int64_t n) {
    float all[kDeltaColumns] = {};
    for (int64_t i = 0; i < n; ++i) all[i] = p[i];
    return Load(all);
  }
  CELER_INLINE void Store(float* p) const {
    for (int64_t i = 0; i < kVectors; ++i) Simd::Store(p + i * Simd::kLanes, at[i]);
  }
  CELER_INLINE void StoreSome(float* p, int64_t n) const {
    float all[kDeltaColumns];
    Store(all);
    for (int64_t i = 0; i < n; ++i) p[i] = all[i];
  }
  // this + scale * row
  CELER_INLINE void Add(Simd::F scale, const DeltaRow& row) {
    for (int64_t i = 0; i < kVectors; ++i) at[i] = Simd::Fma(scale, row.at[i], at[i]);
  }
  CELER_INLINE void Add(const DeltaRow& row) {
    for (int64_t i = 0; i < kVectors; ++i) at[i] = Simd::Add(at[i], row.at[i]);
  }
  CELER_INLINE void Scale(Simd::F scale) {
    for (int64_t i = 0; i < kVectors; ++i) at[i] = Simd::Mul(at[i], scale);
  }
};

// Sums over rows, of rows with the same remainder each: one alone would be bound by the latency of its additions, and
// where a row takes many registers there are none for two.
constexpr int kDeltaSums = DeltaRow::kVectors > 4 ? 1 : 2;

CELER_INLINE DeltaRow TotalOf(DeltaRow (&sums)[kDeltaSums]) {
  for (int s = 1; s < kDeltaSums; ++s) sums[0].Add(sums[s]);
  return sums[0];
}

// S^T k.
CELER_INLINE DeltaRow Recall(const float* state, const float* k, int64_t rows) {
  DeltaRow sums[kDeltaSums];
  for (DeltaRow& sum : sums) sum = DeltaRow::Zeros();
  int64_t i = 0;
  for (; i + kDeltaSums <= rows; i += kDeltaSums)
    for (int s = 0; s < kDeltaSums; ++s)
      sums[s].Add(Simd::Set(k[i + s]), DeltaRow::Load(state + (i + s) * kDeltaColumns));
  for (; i < rows; ++i) sums[0].Add(Simd::Set(k[i]), DeltaRow::Load(state + i * kDeltaColumns));
  return TotalOf(sums);
}

// A row of S gets its decay and what is new, and `sum` the row times q.
CELER_INLINE void UpdateRow(float* row, Simd::F decay, float k, const DeltaRow& delta, float q,
                            DeltaRow* sum) {
  DeltaRow s = DeltaRow::Load(row);
  s.Scale(decay);
  s.Add(Simd::Set(k), delta);
  s.Store(row);
  sum->Add(Simd::Set(q), s);
}

// S <- decay * S + k delta^T, and S^T q.
CELER_INLINE DeltaRow Update(float* state, float decay, const float* k, const DeltaRow& delta, const float* q,
                             int64_t rows) {
  const Simd::F decays = Simd::Set(decay);
  DeltaRow sums[kDeltaSums];
  for (DeltaRow& sum : sums) sum = DeltaRow::Zeros();
  int64_t i = 0;
  for (; i + kDeltaSums <= rows; i += kDeltaSums)
    for (int s = 0; s < kDeltaSums; ++s)
      UpdateRow(state + (i + s) * kDeltaColumns, decays, k[i + s], delta, q[i + s], &sums[s]);
  for (; i < rows; ++i) UpdateRow(state + i * kDeltaColumns, decays, k[i], delta, q[i], &sums[0]);
  return TotalOf(sums);
}

CELER_INLINE void ScanDeltaLanes(const DeltaScan& scan) {
  for (int64_t t = 0; t < scan.tokens; ++t) {
    const float *q = scan.q + t * scan.stride, *k = scan.k + t * scan.stride, *v = scan.v + t * scan.stride;
    const float decay = scan.decay[t * scan.gate_stride], beta = scan.beta[t * scan.gate_stride];
    DeltaRow delta = DeltaRow::LoadSome(v, scan.columns);
    delta.Add(Simd::Set(-decay), Recall(scan.state, k, scan.key_dim));
    delta.Scale(Simd::Set(beta));
    Update(scan.state, decay, k, delta, q, scan.key_dim)
        .StoreSome(scan.out + t * scan.out_stride, scan.columns);
  }
}

}  // namespace
}  // namespace celer
