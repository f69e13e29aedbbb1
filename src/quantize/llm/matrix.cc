#include "quantize/llm/matrix.h"

#include <algorithm>
#include <cmath>

namespace celer {
namespace {

constexpr int64_t kStrip = 192;  // columns of the Gram matrix that are computed at once
constexpr int64_t kBlock = 64;   // of the triangular factorisation

// The diagonal block [n, n] of `a` (stride ld), in place: its upper half becomes R with R R^T = a.
bool FactorBlock(float* a, int64_t ld, int64_t n) {
  for (int64_t j = n - 1; j >= 0; --j) {
    double pivot = a[j * ld + j];
    for (int64_t k = j + 1; k < n; ++k) pivot -= static_cast<double>(a[j * ld + k]) * a[j * ld + k];
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    const auto root = static_cast<float>(std::sqrt(pivot));
    a[j * ld + j] = root;
    for (int64_t i = 0; i < j; ++i) {
      double sum = a[i * ld + j];
      for (int64_t k = j + 1; k < n; ++k) sum -= static_cast<double>(a[i * ld + k]) * a[j * ld + k];
      a[i * ld + j] = static_cast<float>(sum) / root;
    }
  }
  return true;
}

// x R^T = row, in place: the part of one row above a factored block.
void SolveRow(const float* r, int64_t ld, int64_t n, float* row) {
  for (int64_t j = n - 1; j >= 0; --j) {
    float sum = row[j];
    for (int64_t k = j + 1; k < n; ++k) sum -= row[k] * r[j * ld + k];
    row[j] = sum / r[j * ld + j];
  }
}

// out = the inverse of the upper triangular block r.
void InvertBlock(const float* r, int64_t ld, int64_t n, float* out, int64_t out_ld) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = n - 1; i >= 0; --i) {
      double sum = i == j ? 1.0 : 0.0;
      for (int64_t k = i + 1; k <= j; ++k) sum -= static_cast<double>(r[i * ld + k]) * out[k * out_ld + j];
      out[i * out_ld + j] = i > j ? 0.0f : static_cast<float>(sum / r[i * ld + i]);
    }
  }
}

}  // namespace

void Product(GemmArgs args, ThreadPool& pool) {
  AlignedVector<float> workspace(static_cast<size_t>(GemmWorkspaceFloats(args, pool.size())));
  args.workspace = workspace.data();
  args.pool = &pool;
  Gemm(args);
}

PackedWeight::PackedWeight(const float* w, int64_t rows, int64_t cols, ThreadPool& pool)
    : rows_(rows), cols_(cols), pool_(&pool) {
  packed_.resize(GemmPackedBFloats(cols, rows));
  GemmPackB(GemmOperand::Transposed(w, cols), cols, rows, packed_.data());
}

void PackedWeight::Multiply(const float* x, int64_t tokens, const float* bias, const float* add,
                            float* out) const {
  Product({.m = tokens,
           .n = rows_,
           .k = cols_,
           .a = GemmOperand::Rows(x, cols_),
           .b = GemmOperand::Packed(packed_.data()),
           .out = out,
           .out_stride = rows_,
           .epilogue = {.col_bias = bias, .add = add, .add_stride = rows_}},
          *pool_);
}

void InputStatistics::Add(const float* x, int64_t tokens, int64_t cols, ThreadPool& pool) {
  if (cols_ == 0) {
    cols_ = cols;
    gram_.resize(cols * cols);
    magnitudes_.resize(cols);
  }
  tokens_ += tokens;
  for (int64_t first = 0; first < cols; first += kStrip) {
    const int64_t n = std::min(kStrip, cols - first);
    float* out = gram_.data() + first;  // rows 0 .. first + n of these columns
    Product({.m = first + n,
             .n = n,
             .k = tokens,
             .a = GemmOperand::Transposed(x, cols),
             .b = GemmOperand::Rows(x + first, cols),
             .out = out,
             .out_stride = cols,
             .epilogue = {.add = out, .add_stride = cols}},
            pool);
  }
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < cols; ++c) magnitudes_[c] += std::fabs(x[t * cols + c]);
}

InputStatistics InputStatistics::From(int64_t tokens, AlignedVector<float> gram,
                                      std::vector<double> magnitudes) {
  InputStatistics out;
  out.cols_ = static_cast<int64_t>(magnitudes.size());
  out.tokens_ = tokens;
  out.gram_ = std::move(gram);
  out.magnitudes_ = std::move(magnitudes);
  return out;
}

void InputStatistics::Divide(std::span<const float> by) {
  for (int64_t r = 0; r < cols_; ++r) {
    magnitudes_[r] /= by[r];
    for (int64_t c = r; c < cols_; ++c) gram_[r * cols_ + c] /= by[r] * by[c];
  }
}

AlignedVector<float> InputStatistics::Hessian() const {
  AlignedVector<float> out = gram_;
  const auto count = static_cast<float>(tokens_);
  for (int64_t r = 0; r < cols_; ++r)
    for (int64_t c = r; c < cols_; ++c)
      out[c * cols_ + r] = out[r * cols_ + c] = gram_[r * cols_ + c] / count;
  return out;
}

std::vector<float> InputStatistics::MeanSquares() const {
  std::vector<float> out(static_cast<size_t>(cols_));
  for (int64_t c = 0; c < cols_; ++c) out[c] = gram_[c * cols_ + c] / static_cast<float>(tokens_);
  return out;
}

std::vector<float> InputStatistics::MeanMagnitudes() const {
  std::vector<float> out;
  for (const double sum : magnitudes_) out.push_back(static_cast<float>(sum / static_cast<double>(tokens_)));
  return out;
}

bool InverseCholesky(const float* h, int64_t n, float* u, ThreadPool& pool) {
  // H = R R^T with R upper triangular, from the last block to the first; then U = R^-1.
  AlignedVector<float> a(h, h + n * n);
  AlignedVector<float> minus(static_cast<size_t>(n * kBlock));
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    const int64_t first = block * kBlock, size = std::min(kBlock, n - first);
    const float* diagonal = a.data() + first * n + first;
    if (!FactorBlock(a.data() + first * n + first, n, size)) return false;
    if (first == 0) break;
    pool.ParallelFor(first, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* row = a.data() + i * n + first;
        SolveRow(diagonal, n, size, row);
        for (int64_t k = 0; k < size; ++k) minus[i * kBlock + k] = -row[k];
      }
    });
    Product({.m = first,
             .n = first,
             .k = size,
             .a = GemmOperand::Rows(minus.data(), kBlock),
             .b = GemmOperand::Transposed(a.data() + first, n),
             .out = a.data(),
             .out_stride = n,
             .epilogue = {.add = a.data(), .add_stride = n}},
            pool);
  }
  std::fill_n(u, n * n, 0.0f);
  AlignedVector<float> left(static_cast<size_t>(n * kBlock)), corner(static_cast<size_t>(kBlock * kBlock));
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * kBlock, size = std::min(kBlock, n - first);
    InvertBlock(a.data() + first * n + first, n, size, u + first * n + first, n);
    if (first == 0) continue;
    Product({.m = first,
             .n = size,
             .k = first,
             .a = GemmOperand::Rows(u, n),
             .b = GemmOperand::Rows(a.data() + first, n),
             .out = left.data(),
             .out_stride = kBlock},
            pool);
    for (int64_t i = 0; i < size; ++i)
      for (int64_t k = 0; k < size; ++k) corner[i * kBlock + k] = -u[(first + i) * n + first + k];
    Product({.m = first,
             .n = size,
             .k = size,
             .a = GemmOperand::Rows(left.data(), kBlock),
             .b = GemmOperand::Rows(corner.data(), kBlock),
             .out = u + first,
             .out_stride = n},
            pool);
  }
  return true;
}

}  // namespace celer
