#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace celer {
namespace {

constexpr int kRows = 16;        // rounded together: their columns are vectors
constexpr int64_t kBlock = 128;  // columns whose updates of what follows are collected

// Of kRows rows, transposed: column j of the order is kRows floats.
struct Rows {
  std::vector<float> w;       // [cols, kRows]
  std::vector<float> errors;  // [kBlock, kRows]
};

// w_j -= sum over the block's columns i of errors_i * U_ij, for kN columns j behind the block at once: their
// sums stay in registers.
template <int kN>
void Update(const float* errors, const float* u, int64_t ld, int64_t count, float* w) {
  float sum[kN][kRows];
  for (int j = 0; j < kN; ++j) std::copy_n(w + j * kRows, kRows, sum[j]);
  for (int64_t i = 0; i < count; ++i)
    for (int j = 0; j < kN; ++j) {
      const float factor = u[i * ld + j];
      for (int r = 0; r < kRows; ++r) sum[j][r] -= errors[i * kRows + r] * factor;
    }
  for (int j = 0; j < kN; ++j) std::copy_n(sum[j], kRows, w + j * kRows);
}

}  // namespace

std::vector<int32_t> GptqOrder(const std::vector<float>& mean_squares, bool act_order) {
  std::vector<int32_t> order(mean_squares.size());
  std::iota(order.begin(), order.end(), 0);
  if (act_order)
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return mean_squares[static_cast<size_t>(a)] > mean_squares[static_cast<size_t>(b)];
    });
  return order;
}

Status WithDamping(const std::vector<float>& mean_squares, float damping, const std::string& name,
                   const std::function<Result<bool>(float)>& factor) {
  double mean = 0;
  for (const float value : mean_squares) mean += value;
  mean /= static_cast<double>(mean_squares.size());
  if (!std::isfinite(mean))
    return Error::Invalid(name, ": its inputs are not finite on the calibration text");
  for (; damping <= 1.0f; damping *= 4) {
    CELER_ASSIGN(const bool done, factor(damping * static_cast<float>(mean)));
    if (done) return {};
  }
  return Error::Invalid(name,
                        ": the inputs on the calibration text are too alike to learn from; give a longer and "
                        "more varied text");
}

Result<GptqSolver> GptqSolver::Make(const InputStatistics& input, const GptqOptions& options,
                                    const std::string& name, ThreadPool& pool) {
  GptqSolver out;
  const int64_t n = out.cols_ = input.cols();
  out.importance_ = input.MeanSquares();
  out.order_ = GptqOrder(out.importance_, options.act_order);
  const AlignedVector<float>& gram = input.gram();
  const auto tokens = static_cast<float>(input.tokens());
  AlignedVector<float> ordered(static_cast<size_t>(n * n));
  out.u_.resize(ordered.size());
  CELER_RETURN_IF_ERROR(
      WithDamping(out.importance_, options.damping, name, [&](float damping) -> Result<bool> {
        pool.ParallelFor(n, 16, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t row = out.order_[static_cast<size_t>(i)];
            for (int64_t j = 0; j < n; ++j) {
              const int64_t col = out.order_[static_cast<size_t>(j)];
              const int64_t at = row < col ? row * n + col : col * n + row;  // the upper half
              ordered[static_cast<size_t>(i * n + j)] = gram[static_cast<size_t>(at)] / tokens;
            }
            float& diagonal = ordered[static_cast<size_t>(i * n + i)];
            if (diagonal == 0) diagonal = 1;  // an input that is always zero: its weight may be anything
            diagonal += damping;
          }
        });
        return InverseCholesky(ordered.data(), n, out.u_.data(), pool);
      }));
  return out;
}

IntTensor GptqSolver::Quantize(const float* w, int64_t rows, const Target& target, ThreadPool& pool) const {
  IntTensor out(target, rows, cols_);
  const int64_t n = cols_, group = out.group();
  const int levels = out.levels();
  pool.ParallelForDynamic((rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    Rows work{std::vector<float>(static_cast<size_t>(n * kRows)),
              std::vector<float>(static_cast<size_t>(kBlock * kRows))};
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kRows, count = std::min<int64_t>(kRows, rows - first);
      for (int64_t r = 0; r < count; ++r) {
        const float* row = w + (first + r) * n;
        out.FitRow(first + r, row, importance_.data(), kGridCandidates);
        for (int64_t i = 0; i < n; ++i)
          work.w[static_cast<size_t>(i * kRows + r)] = row[order_[static_cast<size_t>(i)]];
      }
      for (int64_t b = 0; b < n; b += kBlock) {
        const int64_t b_end = std::min(b + kBlock, n);
        for (int64_t i = b; i < b_end; ++i) {
          float* const column = work.w.data() + i * kRows;
          float* const error = work.errors.data() + (i - b) * kRows;
          const int64_t at = order_[static_cast<size_t>(i)];
          const float inverse = 1.0f / u_[static_cast<size_t>(i * n + i)];
          for (int64_t r = 0; r < count; ++r) {
            const IntGrid grid = out.grid(first + r, at / group);
            const int q = RoundToGrid(column[r], grid, levels);
            out.Set(first + r, at, q);
            error[r] = (column[r] - static_cast<float>(q - grid.zero) * grid.scale) * inverse;
          }
          const float* const u = u_.data() + i * n;
          for (int64_t j = i + 1; j < b_end; ++j)
            for (int r = 0; r < kRows; ++r) work.w[static_cast<size_t>(j * kRows + r)] -= error[r] * u[j];
        }
        int64_t j = b_end;
        for (; j + 4 <= n; j += 4)
          Update<4>(work.errors.data(), u_.data() + b * n + j, n, b_end - b, work.w.data() + j * kRows);
        for (; j < n; ++j)
          Update<1>(work.errors.data(), u_.data() + b * n + j, n, b_end - b, work.w.data() + j * kRows);
      }
    }
  });
  return out;
}

}  // namespace celer
