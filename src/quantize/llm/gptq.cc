#include "quantize/llm/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/block_io.h"
#include "formats/decode.h"

namespace celer {
namespace {

constexpr int kRows = 16;        // rounded together: their columns are vectors
constexpr int64_t kBlock = 128;  // columns whose updates of what follows are collected

// A panel of kRows rows, transposed: column j of the order is kRows floats.
struct Rows {
  std::vector<float> w;       // [cols, kRows]
  std::vector<float> errors;  // [kBlock, kRows]
};

// The lazy batch update, w_j -= sum over the block's columns i of errors_i * U_ij, for kN columns j behind
// the block at once: accumulators stay in registers.
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

// What the columns of kRows rows from `first` on are quantized to. Fit() makes the grids of row first + r,
// Round() gives the level of a value of it, Finish() stores the row. State is a thread's own.
struct IntGrids {
  struct State {};

  State Start() const { return {}; }
  void Fit(State*, int64_t first, int64_t r, const float* row) const {
    out->FitRow(first + r, row, importance, kGridCandidates);
  }
  float Round(State*, int64_t first, int64_t r, int64_t column, float value) const {
    const IntGrid grid = out->grid(first + r, column / out->group());
    const int q = RoundToGrid(value, grid, out->levels());
    out->Set(first + r, column, q);
    return static_cast<float>(q - grid.zero) * grid.scale;
  }
  void Finish(State*, int64_t, int64_t) const {}

  IntTensor* out;
  const float* importance;
};

// Scales and offsets are those that the encoder fits by importance.
struct BlockGrids {
  struct State {
    std::vector<float> scale, offset, inverse;  // [groups, kRows]
    std::vector<uint8_t> codes;                 // [kRows, cols]
    std::vector<float> low, high;               // [cols]
  };

  State Start() const {
    const auto groups = static_cast<size_t>(cols / grid.group * kRows), n = static_cast<size_t>(cols);
    return {std::vector<float>(groups),      std::vector<float>(groups), std::vector<float>(groups),
            std::vector<uint8_t>(kRows * n), std::vector<float>(n),      std::vector<float>(n)};
  }
  // The grid is what the lowest and the highest codes decode to.
  void Fit(State* state, int64_t first, int64_t r, const float* row) const {
    std::byte* const bytes = out + (first + r) * row_bytes;
    uint8_t* const codes = state->codes.data() + r * cols;
    EncodeRow(dtype, row, cols, bytes, importance);
    std::fill_n(codes, cols, uint8_t{0});
    SetCodes(dtype, codes, cols, bytes);
    DecodeRow(dtype, bytes, cols, state->low.data());
    std::fill_n(codes, cols, static_cast<uint8_t>(grid.levels));
    SetCodes(dtype, codes, cols, bytes);
    DecodeRow(dtype, bytes, cols, state->high.data());
    for (int64_t g = 0; g < cols / grid.group; ++g) {
      const auto at = static_cast<size_t>(g * kRows + r), column = static_cast<size_t>(g * grid.group);
      state->offset[at] = state->low[column];
      state->scale[at] = (state->high[column] - state->low[column]) / static_cast<float>(grid.levels);
      state->inverse[at] = ReciprocalOrZero(state->scale[at]);
    }
  }
  float Round(State* state, int64_t /*first*/, int64_t r, int64_t column, float value) const {
    const auto at = static_cast<size_t>(column / grid.group * kRows + r);
    const float offset = state->offset[at];
    const int q = RoundClamped((value - offset) * state->inverse[at], 0, grid.levels);
    state->codes[r * cols + column] = static_cast<uint8_t>(q);
    return state->scale[at] * static_cast<float>(q) + offset;
  }
  void Finish(State* state, int64_t first, int64_t r) const {
    SetCodes(dtype, state->codes.data() + r * cols, cols, out + (first + r) * row_bytes);
  }

  DType dtype;
  BlockGrid grid;
  int64_t cols, row_bytes;
  const float* importance;
  std::byte* out;
};

}  // namespace

std::vector<int32_t> GptqOrder(const std::vector<float>& mean_squares, bool act_order) {
  std::vector<int32_t> order(mean_squares.size());
  std::iota(order.begin(), order.end(), 0);
  if (act_order)
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return mean_squares[a] > mean_squares[b]; });
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
            const int64_t row = out.order_[i];
            for (int64_t j = 0; j < n; ++j) {
              const int64_t col = out.order_[j];
              const int64_t at = row < col ? row * n + col : col * n + row;  // the upper half
              ordered[i * n + j] = gram[at] / tokens;
            }
            float& diagonal = ordered[i * n + i];
            if (diagonal == 0) diagonal = 1;  // an input that is always zero: its weight may be anything
            diagonal += damping;
          }
        });
        return InverseCholesky(ordered.data(), n, out.u_.data(), pool);
      }));
  return out;
}

template <class Grids>
void GptqSolver::Round(const float* w, int64_t rows, ThreadPool& pool, const Grids& grids) const {
  const int64_t n = cols_;
  pool.ParallelForDynamic((rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
    Rows work{std::vector<float>(static_cast<size_t>(n * kRows)),
              std::vector<float>(static_cast<size_t>(kBlock * kRows))};
    auto state = grids.Start();
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kRows, count = std::min<int64_t>(kRows, rows - first);
      for (int64_t r = 0; r < count; ++r) {
        const float* row = w + (first + r) * n;
        grids.Fit(&state, first, r, row);
        for (int64_t i = 0; i < n; ++i) work.w[i * kRows + r] = row[order_[i]];
      }
      for (int64_t b = 0; b < n; b += kBlock) {
        const int64_t b_end = std::min(b + kBlock, n);
        for (int64_t i = b; i < b_end; ++i) {
          float* const column = work.w.data() + i * kRows;
          float* const error = work.errors.data() + (i - b) * kRows;
          const int64_t at = order_[i];
          const float inverse = 1.0f / u_[i * n + i];
          for (int64_t r = 0; r < count; ++r)
            error[r] = (column[r] - grids.Round(&state, first, r, at, column[r])) * inverse;
          const float* const u = u_.data() + i * n;
          for (int64_t j = i + 1; j < b_end; ++j)
            for (int r = 0; r < kRows; ++r) work.w[j * kRows + r] -= error[r] * u[j];
        }
        int64_t j = b_end;
        for (; j + 4 <= n; j += 4)
          Update<4>(work.errors.data(), u_.data() + b * n + j, n, b_end - b, work.w.data() + j * kRows);
        for (; j < n; ++j)
          Update<1>(work.errors.data(), u_.data() + b * n + j, n, b_end - b, work.w.data() + j * kRows);
      }
      for (int64_t r = 0; r < count; ++r) grids.Finish(&state, first, r);
    }
  });
}

IntTensor GptqSolver::Quantize(const float* w, int64_t rows, const Target& target, ThreadPool& pool) const {
  IntTensor out(target, rows, cols_);
  Round(w, rows, pool, IntGrids{&out, importance_.data()});
  return out;
}

std::vector<std::byte> GptqSolver::QuantizeBlocks(const float* w, int64_t rows, DType dtype,
                                                  ThreadPool& pool) const {
  const int64_t row_bytes = *BytesFor(dtype, cols_);
  std::vector<std::byte> out(static_cast<size_t>(rows * row_bytes));
  Round(w, rows, pool, BlockGrids{dtype, GridOf(dtype), cols_, row_bytes, importance_.data(), out.data()});
  return out;
}

}  // namespace celer
