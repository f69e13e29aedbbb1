#include "convert/fill_tensor.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "formats/decode.h"

namespace celer {
namespace {

constexpr int64_t kPieceFloats = int64_t{4} << 20;  // values that are converted at once

std::string KeyOf(const ModelPart& part, int64_t number) {
  std::string key = part.key;
  if (const size_t at = key.find('#'); at != std::string::npos) key.replace(at, 1, std::to_string(number));
  return key;
}

bool IsStack(const FileTensor& tensor) {
  return tensor.role != WeightRole::kVector && tensor.parts[0].shape.rank() == 3;
}

// The heads of latent attention: one matrix, which a file has as a stack.
bool IsOfHeads(const FileTensor& tensor) {
  return IsStack(tensor) && tensor.role == WeightRole::kHeads;
}

// How many matrices follow each other.
int64_t CountOf(const FileTensor& tensor) {
  if (tensor.stacked > 0) return tensor.stacked;
  return IsStack(tensor) && !IsOfHeads(tensor) ? tensor.parts[0].shape[0] : 1;
}

}  // namespace

struct TensorFiller::Matrix {
  struct Piece {
    ModelParts::Part part;
    PartOrder order;
    int64_t rows_of_group = 0;
  };
  std::vector<Piece> pieces;
  int64_t group = 0;  // rows of a group
  int64_t rows = 0, cols = 0;
  std::vector<float> turned_keys;  // all of it, if it is that

  struct RowPlace {
    const Piece* piece;
    int64_t row;  // of the part
  };
  RowPlace Find(int64_t row) const {
    int64_t at = row % group;
    const Piece* piece = pieces.data();
    for (; at >= piece->rows_of_group; ++piece) at -= piece->rows_of_group;
    const int64_t in_part = row / group * piece->rows_of_group + at;
    return {piece, piece->order.rows.empty() ? in_part : piece->order.rows[in_part]};
  }
};

bool TensorFiller::Has(const FileTensor& tensor) const {
  return std::all_of(tensor.parts.begin(), tensor.parts.end(),
                     [&](const ModelPart& part) { return from_.Has(KeyOf(part, 0)); });
}

// As the file that is written has its elements. A table may be stored as its rows.
Result<std::vector<float>> TensorFiller::Vector(const ModelPart& part) const {
  const int64_t elements = part.shape.elements().value_or(0);
  const bool rows = part.key.find('#') != std::string::npos;
  const int64_t count = rows ? part.shape[0] : 1;
  std::vector<float> values;
  for (int64_t r = 0; r < count; ++r) {
    CELER_ASSIGN(const std::vector<float> some, from_.Vector(KeyOf(part, r), elements / count));
    values.insert(values.end(), some.begin(), some.end());
  }
  if (!gguf_) return values;
  const PartOrder order = OrderInGguf(from_.config(), part, true);
  if (!order.cols.empty()) {
    std::vector<float> moved(values.size());
    for (size_t i = 0; i < values.size(); ++i) moved[i] = values[order.cols[i]];
    values.swap(moved);
  }
  if (order.decay)
    for (float& value : values) value = Decay(value);
  return values;
}

Result<std::vector<float>> TensorFiller::Floats(const FileTensor& tensor) const {
  std::vector<float> out;
  if (tensor.role != WeightRole::kVector) {
    for (int64_t m = 0; m < CountOf(tensor); ++m) {
      CELER_ASSIGN(const Matrix matrix, MatrixOf(tensor, m));
      for (int64_t r = 0; r < matrix.rows; ++r) {
        const Matrix::RowPlace at = matrix.Find(r);
        out.resize(out.size() + static_cast<size_t>(matrix.cols));
        if (!from_.Row(at.piece->part, at.row, out.data() + std::ssize(out) - matrix.cols))
          return from_.NotFinite(at.piece->part);
      }
    }
    return out;
  }
  std::vector<std::vector<float>> parts;
  int64_t group = 0, elements = 0;
  for (const ModelPart& part : tensor.parts) {
    CELER_ASSIGN(std::vector<float> values, Vector(part));
    elements += std::ssize(values);
    group += std::ssize(values) / tensor.groups;
    parts.push_back(std::move(values));
  }
  out.reserve(static_cast<size_t>(elements));
  for (int64_t g = 0; g < elements / group; ++g)
    for (const std::vector<float>& part : parts) {
      const int64_t each = std::ssize(part) / tensor.groups;
      out.insert(out.end(), part.begin() + g * each, part.begin() + (g + 1) * each);
    }
  if (tensor.minus_one)
    for (float& value : out) value = FewestBits(value - 1, value, [](float x) { return x + 1; });
  return out;
}

Result<TensorFiller::Matrix> TensorFiller::MatrixOf(const FileTensor& tensor, int64_t number) const {
  const size_t per_matrix = tensor.parts.size() / static_cast<size_t>(std::max<int64_t>(1, tensor.stacked));
  const size_t first = tensor.stacked > 0 ? static_cast<size_t>(number) * per_matrix : 0;
  const bool heads = IsOfHeads(tensor);
  Matrix matrix;
  for (size_t p = 0; p < per_matrix; ++p) {
    const ModelPart& part = tensor.parts[first + p];
    const Shape& shape = part.shape;
    Matrix::Piece piece;
    if (gguf_) piece.order = OrderInGguf(from_.config(), part, false);
    int64_t cols = shape[shape.rank() - 1], rows = shape[shape.rank() - 2] * (heads ? shape[0] : 1);
    const int64_t rows_in_file = rows;
    if (heads) {  // the folder's matrix has keys and values
      const LatentConfig& l = from_.config().latent;
      rows = shape[0] * (l.nope_dim + l.value_dim), cols = l.kv_rank;
    }
    CELER_ASSIGN(piece.part, from_.Matrix(KeyOf(part, number), rows, cols));
    piece.rows_of_group = rows_in_file / tensor.groups;
    matrix.group += piece.rows_of_group;
    matrix.cols = shape[shape.rank() - 1];
    matrix.pieces.push_back(std::move(piece));
  }
  matrix.rows = matrix.group * tensor.groups;
  if (!matrix.pieces[0].order.turned_keys) return matrix;
  const LatentConfig& l = from_.config().latent;
  CELER_ASSIGN(const std::vector<float> both, from_.Values(matrix.pieces[0].part));
  const int64_t each = l.nope_dim + l.value_dim;
  matrix.turned_keys.resize(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r)
    for (int64_t c = 0; c < matrix.cols; ++c)
      matrix.turned_keys[r * matrix.cols + c] = both[(r / l.kv_rank * each + c) * l.kv_rank + r % l.kv_rank];
  return matrix;
}

Status TensorFiller::Write(const std::vector<float>& values, int64_t cols, DType dtype,
                           const TensorSink& sink) {
  const int64_t rows = std::ssize(values) / cols, bytes = *BytesFor(dtype, cols);
  std::vector<std::byte> out(static_cast<size_t>(rows * bytes));
  pool_.ParallelForDynamic(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      EncodeRow(dtype, values.data() + r * cols, cols, out.data() + r * bytes);
  });
  CELER_RETURN_IF_ERROR(sink(out));
  done_ += std::ssize(out);
  return progress_ ? progress_(std::min(done_, total_), total_) : Status();
}

Status TensorFiller::Rows(const Matrix& matrix, DType dtype, const TensorSink& sink) {
  if (!matrix.turned_keys.empty()) return Write(matrix.turned_keys, matrix.cols, dtype, sink);
  const int64_t cols = matrix.cols, bytes = *BytesFor(dtype, cols);
  const int64_t at_once = std::clamp<int64_t>(kPieceFloats / cols, 1, matrix.rows);
  std::vector<std::byte> out(static_cast<size_t>(at_once * bytes));
  for (int64_t first = 0; first < matrix.rows; first += at_once) {
    const int64_t count = std::min(at_once, matrix.rows - first);
    std::atomic<const ModelParts::Part*> broken{nullptr};
    pool_.ParallelForDynamic(count, 16, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(cols)), moved(row.size());
      for (int64_t r = begin; r < end; ++r) {
        const Matrix::RowPlace at = matrix.Find(first + r);
        if (!from_.Row(at.piece->part, at.row, row.data())) broken = &at.piece->part;
        const std::vector<int32_t>& order = at.piece->order.cols;
        for (size_t c = 0; c < order.size(); ++c) moved[c] = row[order[c]];
        EncodeRow(dtype, order.empty() ? row.data() : moved.data(), cols, out.data() + r * bytes);
      }
    });
    if (broken) return from_.NotFinite(*broken.load());
    CELER_RETURN_IF_ERROR(sink(std::span(out).first(static_cast<size_t>(count * bytes))));
    done_ += count * bytes;
    if (progress_) CELER_RETURN_IF_ERROR(progress_(std::min(done_, total_), total_));
  }
  return {};
}

// The columns of the parts as rows.
Status TensorFiller::Turned(const FileTensor& tensor, const Matrix& matrix, DType dtype,
                            const TensorSink& sink) {
  const int64_t height = tensor.shape[tensor.shape.rank() - 2], width = matrix.rows;
  std::vector<float> turned(static_cast<size_t>(height * width));
  std::atomic<const ModelParts::Part*> broken{nullptr};
  pool_.ParallelForDynamic(width, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(height));
    for (int64_t r = begin; r < end; ++r) {
      const Matrix::RowPlace at = matrix.Find(r);
      if (!from_.Row(at.piece->part, at.row, row.data())) broken = &at.piece->part;
      for (int64_t c = 0; c < height; ++c) turned[c * width + r] = row[c];
    }
  });
  if (broken) return from_.NotFinite(*broken.load());
  return Write(turned, width, dtype, sink);
}

Status TensorFiller::Fill(const FileTensor& tensor, DType dtype, const TensorSink& sink) {
  if (tensor.role == WeightRole::kVector) {
    CELER_ASSIGN(const std::vector<float> values, Floats(tensor));
    return Write(values, std::ssize(values), dtype, sink);
  }
  for (int64_t m = 0; m < CountOf(tensor); ++m) {
    CELER_ASSIGN(const Matrix matrix, MatrixOf(tensor, m));
    CELER_RETURN_IF_ERROR(tensor.transposed ? Turned(tensor, matrix, dtype, sink)
                                            : Rows(matrix, dtype, sink));
    for (const Matrix::Piece& piece : matrix.pieces) from_.Done(piece.part);
  }
  return {};
}

}  // namespace celer
