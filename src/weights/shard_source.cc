#include "weights/shard_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/file/printable.h"
#include "weights/squeezed.h"

namespace celer {
namespace {

constexpr std::string_view kScales = ".scales";  // of llama2.c's int8 matrices

struct Matrices {
  int64_t count = 1, rows = 1, cols = 1;
};
Matrices MatricesOf(const Shape& whole) {
  const int rank = whole.rank();
  return {.count = rank == 3 ? whole[0] : 1, .rows = whole[rank - 2], .cols = whole[rank - 1]};
}

// Where the numbers of a matrix are: in rows of the file, beside which there may be scales, or in a code.
struct Rows {
  const TensorRecord* record = nullptr;
  const TensorRecord* scales = nullptr;
  const CodedTensor* coded = nullptr;
  WeightFormatSpec format;
  Matrices whole;
};

// Rows that do not lie together, or a part of each row.
class PartOfTensor final : public CodedTensor {
 public:
  PartOfTensor(const Rows& from, const TensorSlice& slice) : from_(from), slice_(slice) {
    name = from.record->name;
    count = from.whole.count;
    rows = slice.columns ? from.whole.rows : slice.count;
    cols = slice.columns ? slice.count : from.whole.cols;
    format = from.format;
    scheme = fmt::format("{}{} {} + {}", from.coded ? from.coded->scheme + ", " : "",
                         slice.columns ? "columns" : "rows", slice.begin, slice.count);
    plain = !from.coded && !from.scales && !IsBlockQuantized(from.record->dtype);
    parts = from.coded ? from.coded->parts : std::vector<const TensorRecord*>{from.record};
    // int8 with one scale has it for a part of the row as well.
    if (!format.stored() && format.group == 0) row_scale_ = true;
    const Matrices& whole = from.whole;
    int64_t all = from.coded ? from.coded->stored_bytes : 0;
    if (all == 0)
      for (const TensorRecord* part : parts) all += static_cast<int64_t>(part->bytes.size());
    stored_bytes = all * rows / std::max<int64_t>(whole.rows, 1) * cols / std::max<int64_t>(whole.cols, 1);
  }

  void Row(int64_t row, std::byte* values, void* scales) const override {
    const Matrices& whole = from_.whole;
    const int64_t in_file =
        slice_.columns ? row : row / slice_.count * whole.rows + slice_.begin + row % slice_.count;
    if (from_.coded && !slice_.columns) return from_.coded->Row(in_file, values, scales);
    const int64_t row_bytes = format.RowBytes(whole.cols), scale_bytes = format.ScaleBytes(whole.cols);
    if (from_.coded) {
      // Its codes are spread over several tensors: the row is decoded, and a part of it taken.
      thread_local std::vector<std::byte> all;
      all.resize(static_cast<size_t>(row_bytes));
      std::vector<float> all_scales(static_cast<size_t>((scale_bytes + 3) / 4));
      from_.coded->Row(in_file, all.data(), all_scales.data());
      CopyPart(all.data(), reinterpret_cast<const std::byte*>(all_scales.data()), values, scales);
      return;
    }
    CopyPart(from_.record->bytes.data() + in_file * row_bytes,
             from_.scales ? from_.scales->bytes.data() + in_file * scale_bytes : nullptr, values, scales);
  }

 private:
  // Of a row in the file, what the slice has of it.
  void CopyPart(const std::byte* row, const std::byte* row_scales, std::byte* values, void* scales) const {
    const int64_t begin = slice_.columns ? slice_.begin : 0;
    std::memcpy(values, row + format.RowBytes(begin), static_cast<size_t>(format.RowBytes(cols)));
    const int64_t scale_bytes = format.ScaleBytes(cols);
    if (scale_bytes > 0 && scales)
      std::memcpy(scales, row_scales + (row_scale_ ? 0 : format.ScaleBytes(begin)),
                  static_cast<size_t>(scale_bytes));
  }

  Rows from_;
  TensorSlice slice_;
  bool row_scale_ = false;
};

Error CannotCut(const std::string& path, const TensorRecord& record, const TensorSlice& slice,
                std::string_view format, int64_t step) {
  return Error::Invalid(path, ": tensor '", Printable(record.name), "' of type ", format,
                        " cannot be cut at ", slice.columns ? "columns " : "elements ", slice.begin, " and ",
                        slice.begin + slice.count, ", only at multiples of ", step);
}

}  // namespace

Result<std::unique_ptr<ShardSource>> ShardSource::Open(std::unique_ptr<TensorSource> file,
                                                       const TensorSlices& slices) {
  std::unique_ptr<ShardSource> out(new ShardSource(std::move(file)));
  for (const TensorRecord& record : out->file_->tensors()) {
    // The scales of what is cut go with it.
    const std::string_view name = record.name;
    if (name.ends_with(kScales) && slices.contains(name.substr(0, name.size() - kScales.size()))) continue;
    const auto slice = slices.find(record.name);
    if (slice == slices.end()) {
      CELER_CHECK(out->table_.Add(record));
    } else {
      CELER_RETURN_IF_ERROR(out->Cut(record, slice->second));
    }
  }
  return out;
}

const CodedTensor* ShardSource::Coded(std::string_view name) const {
  if (const auto found = coded_.find(std::string(name)); found != coded_.end()) return found->second.get();
  // One that is cut has the same name in the file; without an entry here, its rows are plain ones.
  return file_->Coded(name);
}

Status ShardSource::Cut(const TensorRecord& record, const TensorSlice& slice) {
  if (Squeezed(record.shape) != Squeezed(slice.whole))
    return Error::Corrupt(path(), ": tensor '", Printable(record.name), "' has shape ",
                          record.shape.ToString(), ", expected ", slice.whole.ToString());
  const int rank = slice.whole.rank();
  CELER_CHECK(rank >= 1 && rank <= 3);
  const int64_t extent = slice.whole[slice.columns || rank == 1 ? rank - 1 : rank - 2];
  CELER_CHECK(slice.begin >= 0 && slice.count >= 0);
  CELER_CHECK_LE(slice.begin + slice.count, extent);
  const CodedTensor* coded = file_->Coded(record.name);
  if (rank == 1) {
    if (coded)
      return Error::Unsupported(path(), ": tensor '", Printable(record.name), "' is a quantized vector (",
                                coded->scheme, "), which cannot be cut");
    return CutVector(record, slice);
  }
  Rows from{.record = &record,
            .coded = coded,
            .format = coded ? coded->format : WeightFormatSpec::Stored(record.dtype),
            .whole = MatricesOf(slice.whole)};
  if (record.dtype == DType::kI8 && !coded) {
    from.scales = file_->Find(record.name + std::string(kScales));
    const Matrices& whole = from.whole;
    const int64_t groups = from.scales && from.scales->shape.rank() == 2 &&
                                   from.scales->dtype == DType::kF32 &&
                                   from.scales->shape[0] == whole.count * whole.rows
                               ? from.scales->shape[1]
                               : 0;
    if (groups < 1 || whole.cols % groups != 0)
      return Error::Corrupt(path(), ": tensor '", Printable(record.name),
                            "' is int8 and has no fitting '.scales'");
    from.format = {.kind = WeightKind::kInt8, .group = groups > 1 ? whole.cols / groups : 0};
  }
  if (!from.format.Fits(from.whole.cols))
    return Error::Corrupt(path(), ": tensor '", Printable(record.name), "' has rows of ", from.whole.cols,
                          " elements, which do not fill whole ", from.format.Name(), " blocks");
  if (!slice.columns && !coded && !from.scales && from.whole.count == 1)
    return CutRows(record, slice, from.whole.cols);
  if (slice.columns) {
    const int64_t step = from.format.ColumnStep(), end = slice.begin + slice.count;
    if (slice.begin % step != 0 || end % step != 0)
      return CannotCut(path(), record, slice, from.format.Name(), step);
  }
  auto part = std::make_unique<PartOfTensor>(from, slice);
  const Shape shape = rank == 3 ? Shape{part->count, part->rows, part->cols} : Shape{part->rows, part->cols};
  CELER_CHECK(table_.Add({record.name, record.dtype, shape, record.bytes}));
  coded_[record.name] = std::move(part);
  return {};
}

Status ShardSource::CutVector(const TensorRecord& record, const TensorSlice& slice) {
  const auto begin = BytesFor(record.dtype, slice.begin), size = BytesFor(record.dtype, slice.count);
  if (!begin || !size) return CannotCut(path(), record, slice, Name(record.dtype), Info(record.dtype).block);
  CELER_CHECK(table_.Add({record.name, record.dtype, Shape{slice.count},
                          record.bytes.subspan(static_cast<size_t>(*begin), static_cast<size_t>(*size))}));
  return {};
}

Status ShardSource::CutRows(const TensorRecord& record, const TensorSlice& slice, int64_t cols) {
  const auto row_bytes = static_cast<size_t>(WeightFormatSpec::Stored(record.dtype).RowBytes(cols));
  const auto begin = static_cast<size_t>(slice.begin), count = static_cast<size_t>(slice.count);
  CELER_CHECK(table_.Add({record.name, record.dtype, Shape{slice.count, cols},
                          record.bytes.subspan(begin * row_bytes, count * row_bytes)}));
  return {};
}

}  // namespace celer
