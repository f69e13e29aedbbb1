#include "weights/weight_store.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/safe_math.h"
#include "device/cpu_features.h"
#include "formats/decode.h"
#include "io/file/printable.h"
#include "kernels/llm/matmul/cpu/packed.h"
#include "kernels/llm/matmul/matmul.h"
#include "weights/squeezed.h"
#include "weights/value_check.h"

namespace celer {
namespace {

// Rows that are decoded to float before they are encoded again; bounds the memory of a conversion.
constexpr int64_t kRowsAtOnce = 16;

// What files carry and no forward pass needs.
bool IsIgnorable(const TensorRecord& record) {
  const std::string_view name = record.name;
  const bool causal_mask =
      record.shape.rank() == 4 && (name.ends_with(".attn.bias") || name.ends_with(".attention.bias"));
  return causal_mask || name.ends_with("rotary_emb.inv_freq") || name.ends_with("attn.masked_bias") ||
         name.ends_with("attention.masked_bias") || name.ends_with("attn.bias_mask");
}

// A bias that adds nothing: some quantizers write one for every layer.
bool IsZeroBias(const TensorRecord& record) {
  return record.name.ends_with(".bias") &&
         std::all_of(record.bytes.begin(), record.bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// A matrix of a format, without memory.
WeightView Shaped(const WeightFormatSpec& format, int64_t rows, int64_t cols, std::string_view name) {
  return {.kind = format.kind,
          .dtype = format.dtype,
          .rows = rows,
          .cols = cols,
          .row_bytes = format.RowBytes(cols),
          .group = format.stored()    ? 0
                   : format.group > 0 ? format.group
                                      : cols,
          .name = name};
}

}  // namespace

Result<const TensorRecord*> WeightStore::Take(const std::string& name, const Shape& expected) {
  const TensorRecord* record = source_.Find(name);
  if (!record)
    return Error::Corrupt(source_.path(), ": tensor '", name, "' is missing among ", source_.tensors().size(),
                          " tensors");
  if (Squeezed(record->shape) != Squeezed(expected))
    return Error::Corrupt(source_.path(), ": tensor '", name, "' has shape ", record->shape.ToString(),
                          ", expected ", expected.ToString());
  if (!CanDecode(record->dtype) || record->dtype == DType::kI64 || record->dtype == DType::kBool)
    return Error::Unsupported(source_.path(), ": tensor '", name, "' has type ", Name(record->dtype),
                              ", which weights cannot have");
  taken_.insert(name);
  return record;
}

Result<std::byte*> WeightStore::Own(int64_t bytes) {
  CELER_ASSIGN(Buffer buffer, Buffer::Allocate(CpuAllocator(), static_cast<size_t>(bytes)));
  owned_bytes_ += bytes;
  buffers_.push_back(std::move(buffer));
  return buffers_.back().bytes().data();
}

WeightStore::WeightStore(const TensorSource& source, WeightPlan plan, ThreadPool& pool,
                         const MatmulKernels* prepare_for, const std::filesystem::path& pack_cache)
    : source_(source), plan_(std::move(plan)), pool_(pool), prepare_for_(prepare_for) {
  if (pack_cache.empty() || !prepare_for_ || !prepare_for_->packed_bytes) return;
  std::string formats;  // by name: a tensor's role is part of it
  for (const PlannedWeight& weight : plan_.weights())
    if (weight.role != Role::kVector) {
      const CodedTensor* coded = source.Coded(weight.name);
      formats += weight.name + " " + weight.format.Name() + (coded ? " of " + coded->scheme : "") + "\n";
    }
  cache_.emplace(
      pack_cache,
      PackKey(source, fmt::format("layout {}, {} of {}, weights {}\n{}", kPackedLayout, prepare_for_->name,
                                  HostCpu().FlagList(), plan_.options().ToString(), formats)),
      pool);
}

Result<WeightView> WeightStore::Stored(const TensorRecord& record, int64_t index, int64_t rows,
                                       int64_t cols) {
  if (const CodedTensor* coded = source_.Coded(record.name))
    return Shaped(coded->format, rows, cols, record.name);
  const auto row_bytes = BytesFor(record.dtype, cols);
  if (!row_bytes)
    return Error::Corrupt(source_.path(), ": tensor '", record.name, "' has rows of ", cols,
                          " elements, which do not fill whole ", Name(record.dtype), " blocks");
  WeightView stored{.dtype = record.dtype,
                    .rows = rows,
                    .cols = cols,
                    .data = record.bytes.data() + index * rows * *row_bytes,
                    .row_bytes = *row_bytes,
                    .name = record.name};
  if (record.dtype == DType::kI8) {  // llama2.c version 2: the scales stand beside it
    const TensorRecord* scales = source_.Find(record.name + ".scales");
    if (!scales || scales->dtype != DType::kF32 || scales->shape.rank() != 2 || scales->shape[0] != rows ||
        scales->shape[1] < 1 || cols % scales->shape[1] != 0)
      return Error::Corrupt(source_.path(), ": tensor '", record.name,
                            "' is int8 and has no fitting '.scales'");
    taken_.insert(scales->name);
    CELER_ASSIGN(std::byte * copy,
                 Own(static_cast<int64_t>(scales->bytes.size())));  // the mapping may be unaligned
    std::copy(scales->bytes.begin(), scales->bytes.end(), copy);
    stored.kind = WeightView::Kind::kInt8;
    stored.scales = copy;
    stored.group = cols / scales->shape[1];
  }
  return stored;
}

WeightView WeightStore::Target(const WeightView& stored) const {
  const WeightFormatSpec format = plan_.FormatFor(stored.name, stored.format(), stored.cols);
  if (!prepare_for_ || format == stored.format()) return stored;
  return Shaped(format, stored.rows, stored.cols, stored.name);
}

Status WeightStore::Decode(const CodedTensor& coded, int64_t index, WeightView* view) {
  const int64_t scale_bytes = view->format().ScaleBytes(view->cols);
  CELER_ASSIGN(std::byte * values, Own(view->rows * view->row_bytes));
  std::byte* scales = nullptr;
  if (scale_bytes > 0) {
    CELER_ASSIGN(scales, Own(view->rows * scale_bytes));
  }
  pool_.ParallelFor(view->rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      coded.Row(index * view->rows + r, values + r * view->row_bytes,
                scales ? scales + r * scale_bytes : nullptr);
  });
  view->data = values;
  view->scales = scales;
  return {};
}

Result<WeightView> WeightStore::Convert(const WeightView& stored, WeightView out) {
  const int64_t rows = out.rows, cols = out.cols;
  const WeightFormatSpec format = out.format();
  const int64_t scale_bytes = format.ScaleBytes(cols);
  CELER_ASSIGN(std::byte * values, Own(rows * out.row_bytes));
  std::byte* scales = nullptr;
  if (scale_bytes > 0) {
    CELER_ASSIGN(scales, Own(rows * scale_bytes));
  }
  out.data = values;
  out.scales = scales;
  const ValueRange range = format.range();
  std::atomic<int64_t> bad = rows;  // a row that cannot be held
  pool_.ParallelFor(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    std::vector<float> row(cols);
    for (int64_t r = begin; r < end; ++r) {
      DecodeWeightRow(stored, r, row.data());
      if (!InRange(row.data(), cols, range)) {
        bad = r;
        return;
      }
      format.Encode(row.data(), cols, values + r * out.row_bytes,
                    scales ? scales + r * scale_bytes : nullptr);
    }
  });
  if (bad < rows) CELER_RETURN_IF_ERROR(InFile(CheckRows(stored, bad, bad + 1, range)));
  return out;
}

Result<WeightView> WeightStore::Make(const TensorRecord& record, int64_t index, int64_t rows, int64_t cols,
                                     const std::string& cache_name) {
  const Role role = plan_.RoleOf(record.name);
  const CodedTensor* coded = source_.Coded(record.name);
  CELER_ASSIGN(WeightView stored, Stored(record, index, rows, cols));
  WeightView view = Target(stored);
  // The cache serves what is needed in packed form alone, or lies unpacked in the file.
  const bool own_kind = view.kind != WeightView::Kind::kStored;
  const bool cacheable = cache_ && role != Role::kTable && (coded || record.dtype != DType::kI8) &&
                         (view.data || own_kind || role == Role::kProjection) && PackedBytes(view) > 0;
  const int64_t packed_bytes = PackedBytes(view);
  if (cacheable)
    if (const std::byte* found = cache_->Find(cache_name, packed_bytes))
      view = PackedView(view, *prepare_for_, found);
  if (!view.packed) {
    if (coded) {
      CELER_RETURN_IF_ERROR(Decode(*coded, index, &stored));
      if (view.format() == stored.format()) view = stored;
    }
    if (!view.data) {
      CELER_ASSIGN(view, Convert(stored, view));
      if (coded) {
        Disown(stored.data);
        Disown(stored.scales);
      }
    } else if (prepare_for_ && !(cache_ && cache_->mapped())) {
      CELER_RETURN_IF_ERROR(InFile(CheckValues(view, kAnyFinite, pool_)));
    }
    if (role != Role::kTable) CELER_RETURN_IF_ERROR(Pack(role, &view));
    cache_lacks_ |= cacheable;
  }
  if (cacheable) packed_[cache_name] = {view.packed, static_cast<size_t>(packed_bytes)};
  return view;
}

Status WeightStore::InFile(const Status& status) const {
  return status ? status : Status(status.error().WithContext(source_.path()));
}

void WeightStore::WritePackCache() {
  if (!cache_ || !cache_lacks_) return;
  if (const Status status = cache_->Write(packed_); !status)
    log::WarningOnce("{}; packed weights are not kept", status.error().message());
  else
    log::Info("{}: written for the next start", cache_->path().string());
}

Result<std::byte*> WeightStore::OwnPacked(int64_t bytes) {
  constexpr int64_t kPiece = int64_t{32} << 20, kLine = 64;
  const auto rounded = static_cast<size_t>((bytes + kLine - 1) / kLine * kLine);
  if (rounded > packed_room_.size()) {
    const int64_t piece = std::max(kPiece, static_cast<int64_t>(rounded));
    CELER_ASSIGN(std::byte * memory, Own(piece));
    owned_bytes_ -= piece;  // counted as it is used: what is never touched takes no memory
    packed_room_ = {memory, static_cast<size_t>(piece)};
  }
  owned_bytes_ += static_cast<int64_t>(rounded);
  std::byte* const out = packed_room_.data();
  packed_room_ = packed_room_.subspan(rounded);
  return out;
}

int64_t WeightStore::PackedBytes(const WeightView& view) const {
  return prepare_for_ && prepare_for_->packed_bytes ? prepare_for_->packed_bytes(view) : 0;
}

Status WeightStore::Pack(Role role, WeightView* view) {
  const int64_t bytes = PackedBytes(*view);
  if (bytes == 0) return {};
  CELER_ASSIGN(std::byte * packed, OwnPacked(bytes));
  prepare_for_->pack(*view, pool_, packed);
  *view = PackedView(*view, *prepare_for_, packed);
  // What was converted on the way is not needed beside its packed form, unless rows will be looked up in it.
  // (Of celer's own kinds they can be taken from the packed form.)
  if (view->kind == WeightView::Kind::kStored && (role != Role::kProjection || !Owns(view->data))) return {};
  Disown(view->data);
  Disown(view->scales);
  view->data = nullptr;
  view->scales = nullptr;
  return {};
}

bool WeightStore::Owns(const void* data) const {
  return std::any_of(buffers_.begin(), buffers_.end(),
                     [&](const Buffer& buffer) { return static_cast<const void*>(buffer.data()) == data; });
}

void WeightStore::Disown(const void* data) {
  const auto it = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) {
    return data && static_cast<const void*>(buffer.data()) == data;
  });
  if (it == buffers_.end()) return;
  owned_bytes_ -= static_cast<int64_t>(it->size());
  buffers_.erase(it);
}

Result<WeightView> WeightStore::Matrix(const std::string& name, int64_t rows, int64_t cols) {
  CELER_ASSIGN(const TensorRecord* record, Take(name, {rows, cols}));
  CELER_ASSIGN(WeightView view, Make(*record, 0, rows, cols, name));
  if (view.data != record->bytes.data() || view.packed) source_.DropPages(*record);
  bytes_by_format_[view.FormatName()] += view.bytes();
  return view;
}

Result<std::vector<WeightView>> WeightStore::Stack(const std::string& name, int64_t count, int64_t rows,
                                                   int64_t cols) {
  CELER_ASSIGN(const TensorRecord* record, Take(name, {count, rows, cols}));
  std::vector<WeightView> views;
  for (int64_t i = 0; i < count; ++i) {
    CELER_ASSIGN(WeightView view, Make(*record, i, rows, cols, fmt::format("{}#{}", name, i)));
    bytes_by_format_[view.FormatName()] += view.bytes();
    views.push_back(view);
  }
  if (!views.empty() && (views[0].data != record->bytes.data() || views[0].packed))
    source_.DropPages(*record);
  return views;
}

Status WeightStore::EncodeHead(const WeightView& stored, int64_t first_row, const HeadPart& part,
                               const WeightFormatSpec& format, std::byte* out) const {
  std::vector<float> rows(static_cast<size_t>(part.count * stored.cols));
  for (int64_t r = 0; r < part.count; ++r) {
    float* const row = rows.data() + r * stored.cols;
    DecodeWeightRow(stored, first_row + r, row);
    if (!InRange(row, stored.cols, format.range()))
      return InFile(CheckRows(stored, first_row + r, first_row + r + 1, format.range()));
  }
  if (!part.turned) {
    for (int64_t r = 0; r < part.count; ++r)
      format.Encode(rows.data() + r * stored.cols, stored.cols, out + r * format.RowBytes(stored.cols),
                    nullptr);
    return {};
  }
  std::vector<float> column(static_cast<size_t>(part.count));
  for (int64_t c = 0; c < stored.cols; ++c) {
    for (int64_t r = 0; r < part.count; ++r) column[r] = rows[r * stored.cols + c];
    format.Encode(column.data(), part.count, out + c * format.RowBytes(part.count), nullptr);
  }
  return {};
}

Result<WeightView> WeightStore::Heads(const std::string& name, int64_t heads, int64_t rows, int64_t cols,
                                      const HeadPart& part) {
  const TensorRecord* found = source_.Find(name);
  const bool stack = found && found->shape.rank() == 3;
  CELER_ASSIGN(const TensorRecord* record,
               Take(name, stack ? Shape{heads, rows, cols} : Shape{heads * rows, cols}));
  CELER_ASSIGN(WeightView stored, Stored(*record, 0, heads * rows, cols));
  const CodedTensor* coded = source_.Coded(name);
  if (coded) CELER_RETURN_IF_ERROR(Decode(*coded, 0, &stored));
  const WeightFormatSpec format = PlanFormat(plan_.options(), stored.format(), cols, Role::kHeads);
  WeightView view = part.turned ? Shaped(format, heads * cols, part.count, record->name)
                                : Shaped(format, heads * part.count, cols, record->name);
  CELER_ASSIGN(std::byte * memory, Own(view.rows * view.row_bytes));
  view.data = memory;
  const int64_t head_bytes = view.rows / heads * view.row_bytes;
  std::atomic<int64_t> bad = heads;  // a head with a value that cannot be held
  pool_.ParallelFor(heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      if (!EncodeHead(stored, h * rows + part.begin, part, format, memory + h * head_bytes)) bad = h;
  });
  if (bad < heads)
    CELER_RETURN_IF_ERROR(
        EncodeHead(stored, bad * rows + part.begin, part, format, memory + bad * head_bytes));
  if (coded) {
    Disown(stored.data);
    Disown(stored.scales);
  }
  source_.DropPages(*record);
  bytes_by_format_[view.FormatName()] += view.bytes();
  return view;
}

Result<const float*> WeightStore::Vector(const std::string& name, int64_t n, bool required) {
  if (!required && !source_.Find(name)) return static_cast<const float*>(nullptr);
  CELER_ASSIGN(std::byte * memory, Own(n * static_cast<int64_t>(sizeof(float))));
  auto* out = reinterpret_cast<float*>(memory);
  CELER_RETURN_IF_ERROR(DecodeFloats(name, {n}, out));
  return static_cast<const float*>(out);
}

Result<const float*> WeightStore::Table(const std::string& name, int64_t rows, int64_t cols) {
  CELER_ASSIGN(std::byte * memory, Own(rows * cols * static_cast<int64_t>(sizeof(float))));
  auto* out = reinterpret_cast<float*>(memory);
  if (source_.Find(name)) {
    CELER_RETURN_IF_ERROR(DecodeFloats(name, {rows, cols}, out));
    return static_cast<const float*>(out);
  }
  const size_t dot = std::min(name.rfind('.'), name.size());
  for (int64_t r = 0; r < rows; ++r) {
    const std::string row = name.substr(0, dot) + "." + std::to_string(r) + name.substr(dot);
    CELER_RETURN_IF_ERROR(DecodeFloats(row, {cols}, out + r * cols));
  }
  return static_cast<const float*>(out);
}

Status WeightStore::DecodeFloats(const std::string& name, const Shape& shape, float* out) {
  CELER_ASSIGN(const TensorRecord* record, Take(name, shape));
  const int64_t n = *shape.elements();
  if (!BytesFor(record->dtype, n))
    return Error::Corrupt(source_.path(), ": tensor '", name, "' of ", n, " elements does not fill whole ",
                          Name(record->dtype), " blocks");
  DecodeRow(record->dtype, record->bytes.data(), n, out);
  return InFile(CheckVector(name, out, n));
}

Result<const float*> WeightStore::ScaledVector(const std::string& name, int64_t n, float scale) {
  CELER_ASSIGN(const float* values, Vector(name, n));
  if (scale == 1) return values;
  CELER_ASSIGN(std::byte * memory, Own(n * static_cast<int64_t>(sizeof(float))));
  auto* out = reinterpret_cast<float*>(memory);
  std::transform(values, values + n, out, [&](float value) { return value * scale; });
  Disown(values);
  return static_cast<const float*>(out);
}

Status WeightStore::CheckNoUnusedTensors(std::string_view architecture) const {
  std::vector<std::string> extra;
  for (const TensorRecord& record : source_.tensors())
    if (!taken_.contains(record.name) && !IsIgnorable(record) && !IsZeroBias(record))
      extra.push_back(record.name);
  if (extra.empty()) return {};
  return Error::Unsupported(source_.path(), ": ", extra.size(), " tensors are not part of the architecture '",
                            Printable(architecture), "' as its configuration describes it, the first is '",
                            Printable(extra[0]), "'");
}

}  // namespace celer
