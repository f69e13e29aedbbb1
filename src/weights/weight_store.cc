#include "weights/weight_store.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "core/cpu_features.h"
#include "core/log.h"
#include "core/safe_math.h"
#include "formats/decode.h"
#include "formats/int8.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/packed.h"

namespace celer {
namespace {

// Rows that are decoded to float before they are encoded again; bounds the memory of a conversion.
constexpr int64_t kRowsAtOnce = 16;

// Names that files carry and no forward pass needs.
bool IsIgnorable(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with("attn.masked_bias") ||
         name.ends_with("attn.bias_mask");
}

std::string_view PlainName(WeightFormat format) {
  return format == WeightFormat::kF16 ? "f16" : format == WeightFormat::kBf16 ? "bf16" : "f32";
}

}  // namespace

Result<WeightOptions> WeightOptions::Parse(std::string_view text) {
  const size_t dash = text.find("-g");
  const std::string_view base = text.substr(0, dash);
  WeightOptions options;
  if (base == "stored")
    options.format = WeightFormat::kAsStored;
  else if (base == "f32")
    options.format = WeightFormat::kF32;
  else if (base == "f16")
    options.format = WeightFormat::kF16;
  else if (base == "bf16")
    options.format = WeightFormat::kBf16;
  else if (base == "int8")
    options.format = WeightFormat::kInt8;
  else if (base == "int4")
    options.format = WeightFormat::kInt4;
  else
    return Error::Invalid("--weights '", text,
                          "' is not one of stored, f32, f16, bf16, int8, int8-gN, int4, int4-gN");

  if (dash != std::string_view::npos) {
    const std::string_view digits = text.substr(dash + 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), options.group);
    const bool number = error == std::errc() && end == digits.data() + digits.size();
    const bool grouped = options.format == WeightFormat::kInt8 || options.format == WeightFormat::kInt4;
    if (!number || !grouped || (options.group != 32 && options.group != 64 && options.group != 128))
      return Error::Invalid("--weights '", text, "': groups are -g32, -g64 or -g128, of int8 and int4");
  } else if (options.format == WeightFormat::kInt4) {
    options.group = 32;
  }
  return options;
}

Result<const TensorRecord*> WeightStore::Take(const std::string& name, int64_t elements,
                                              std::string_view expected) {
  const TensorRecord* record = source_.Find(name);
  if (!record)
    return Error::Corrupt(source_.path(), ": tensor '", name, "' is missing among ", source_.tensors().size(),
                          " tensors");
  if (record->shape.elements() != elements)
    return Error::Corrupt(source_.path(), ": tensor '", name, "' has shape ", record->shape.ToString(),
                          ", expected ", expected);
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

WeightStore::WeightStore(const TensorSource& source, WeightOptions options, ThreadPool& pool, bool pack,
                         const std::filesystem::path& pack_cache)
    : source_(source), options_(options), pool_(pool), pack_(pack) {
  if (pack_cache.empty() || !pack || !ChosenMatmul().packed_bytes) return;
  std::string_view variant;
  for (const MatmulVariant& each : MatmulVariants())
    if (each.run == &ChosenMatmul()) variant = each.name;
  cache_.emplace(pack_cache, PackKey(source, fmt::format("layout {}, {} of {}, weights {} in groups of {}",
                                                         kPackedLayout, variant, HostCpu().FlagList(),
                                                         static_cast<int>(options.format), options.group)));
}

Result<WeightView> WeightStore::Stored(const TensorRecord& record, const std::byte* data, int64_t rows,
                                       int64_t cols) {
  const auto row_bytes = BytesFor(record.dtype, cols);
  if (!row_bytes)
    return Error::Corrupt(source_.path(), ": tensor '", record.name, "' has rows of ", cols,
                          " elements, which do not fill whole ", Name(record.dtype), " blocks");
  WeightView stored{.dtype = record.dtype, .rows = rows, .cols = cols, .data = data, .row_bytes = *row_bytes};
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
    stored.scales = reinterpret_cast<const float*>(copy);
    stored.group = cols / scales->shape[1];
  }
  return stored;
}

WeightView WeightStore::Target(const TensorRecord& record, const WeightView& stored, Role role) const {
  const int64_t cols = stored.cols;
  WeightFormat format = options_.format;
  int64_t group = options_.group;
  if (format == WeightFormat::kInt4 && role != Role::kProjection) format = WeightFormat::kInt8;
  if ((format == WeightFormat::kInt8 || format == WeightFormat::kInt4) && group > 0 && cols % group != 0) {
    log::Info("{}: {} columns are no multiple of {}; kept as int8 with one scale per row", record.name, cols,
              group);
    format = WeightFormat::kInt8;
    group = 0;
  }
  if (format == WeightFormat::kAsStored) return stored;
  if (format == WeightFormat::kF32 && stored.kind == WeightView::Kind::kStored && stored.dtype == DType::kF32)
    return stored;

  WeightView out{.rows = stored.rows, .cols = cols};
  if (format == WeightFormat::kInt8) {
    out.kind = WeightView::Kind::kInt8;
    out.group = group > 0 ? group : cols;
    out.row_bytes = cols;
  } else if (format == WeightFormat::kInt4) {
    out.kind = WeightView::Kind::kInt4;
    out.group = group;
    out.row_bytes = cols / 2;
  } else {
    out.dtype = *ParseDType(PlainName(format));
    out.row_bytes = *BytesFor(out.dtype, cols);
  }
  return out;
}

Result<WeightView> WeightStore::Convert(const WeightView& stored, WeightView out) {
  const int64_t rows = out.rows, cols = out.cols;
  CELER_ASSIGN(std::byte * values, Own(rows * out.row_bytes));
  out.data = values;
  float* scales = nullptr;
  Int4Group* params = nullptr;
  if (out.kind == WeightView::Kind::kInt8) {
    CELER_ASSIGN(std::byte * memory, Own(rows * out.groups_per_row() * static_cast<int64_t>(sizeof(float))));
    out.scales = scales = reinterpret_cast<float*>(memory);
  } else if (out.kind == WeightView::Kind::kInt4) {
    CELER_ASSIGN(std::byte * memory,
                 Own(rows * out.groups_per_row() * static_cast<int64_t>(sizeof(Int4Group))));
    out.params = params = reinterpret_cast<Int4Group*>(memory);
  }
  pool_.ParallelFor(rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      DecodeWeightRow(stored, r, row.data());
      std::byte* target = values + r * out.row_bytes;
      if (scales)
        EncodeInt8Row({rows, cols, out.group}, row.data(), reinterpret_cast<int8_t*>(target),
                      scales + r * out.groups_per_row());
      else if (params)
        EncodeInt4Row({rows, cols, out.group}, row.data(), reinterpret_cast<uint8_t*>(target),
                      params + r * out.groups_per_row());
      else
        EncodeRow(out.dtype, row.data(), cols, target);
    }
  });
  return out;
}

Result<WeightView> WeightStore::Make(const TensorRecord& record, const std::byte* data, int64_t rows,
                                     int64_t cols, Role role, const std::string& cache_name) {
  CELER_ASSIGN(const WeightView stored, Stored(record, data, rows, cols));
  WeightView view = Target(record, stored, role);
  // The cache serves what is needed in packed form alone, or lies unpacked in the file.
  const bool own_kind = view.kind != WeightView::Kind::kStored;
  const bool cacheable = cache_ && role != Role::kTable && record.dtype != DType::kI8 &&
                         (view.data || own_kind || role == Role::kProjection) && PackedBytes(view) > 0;
  if (cacheable) view.packed = cache_->Find(cache_name, PackedBytes(view));
  if (!view.packed) {
    if (!view.data) {
      CELER_ASSIGN(view, Convert(stored, view));
    }
    if (role != Role::kTable) CELER_RETURN_IF_ERROR(Pack(role, &view));
    cache_lacks_ |= cacheable;
  }
  if (cacheable) packed_[cache_name] = {view.packed, static_cast<size_t>(PackedBytes(view))};
  return view;
}

void WeightStore::KeepPacked() {
  if (!cache_ || !cache_lacks_) return;
  if (const Status status = cache_->Write(packed_); !status)
    log::Warning("{}; packed weights are not kept", status.error().message());
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
  const MatmulKernels& kernels = ChosenMatmul();
  return pack_ && kernels.packed_bytes ? kernels.packed_bytes(view) : 0;
}

Status WeightStore::Pack(Role role, WeightView* view) {
  const int64_t bytes = PackedBytes(*view);
  if (bytes == 0) return {};
  CELER_ASSIGN(std::byte * packed, OwnPacked(bytes));
  ChosenMatmul().pack(*view, pool_, packed);
  view->packed = packed;
  // What was converted on the way is not needed beside its packed form, unless rows will be looked up in it.
  // (Of celer's own kinds they can be taken from the packed form.)
  if (view->kind == WeightView::Kind::kStored && (role != Role::kProjection || !Owns(view->data))) return {};
  for (const void* part : {static_cast<const void*>(view->data), static_cast<const void*>(view->scales),
                           static_cast<const void*>(view->params)})
    Disown(part);
  view->data = nullptr;
  view->scales = nullptr;
  view->params = nullptr;
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

Result<WeightView> WeightStore::Matrix(const std::string& name, int64_t rows, int64_t cols, Role role) {
  CELER_ASSIGN(const TensorRecord* record, Take(name, rows * cols, Shape({rows, cols}).ToString()));
  CELER_ASSIGN(WeightView view, Make(*record, record->bytes.data(), rows, cols, role, name));
  if (view.data != record->bytes.data() || view.packed) source_.DropPages(*record);
  bytes_by_format_[view.FormatName()] += view.bytes();
  return view;
}

Result<std::vector<WeightView>> WeightStore::Stack(const std::string& name, int64_t count, int64_t rows,
                                                   int64_t cols) {
  CELER_ASSIGN(const TensorRecord* record,
               Take(name, count * rows * cols, Shape({count, rows, cols}).ToString()));
  const auto bytes = static_cast<int64_t>(record->bytes.size()) / count;
  std::vector<WeightView> views;
  for (int64_t i = 0; i < count; ++i) {
    CELER_ASSIGN(WeightView view, Make(*record, record->bytes.data() + i * bytes, rows, cols,
                                       Role::kProjection, fmt::format("{}#{}", name, i)));
    bytes_by_format_[view.FormatName()] += view.bytes();
    views.push_back(view);
  }
  if (!views.empty() && (views[0].data != record->bytes.data() || views[0].packed))
    source_.DropPages(*record);
  return views;
}

Result<const float*> WeightStore::Vector(const std::string& name, int64_t n, bool required) {
  if (!required && !source_.Find(name)) return static_cast<const float*>(nullptr);
  CELER_ASSIGN(const TensorRecord* record, Take(name, n, Shape({n}).ToString()));
  CELER_ASSIGN(std::byte * memory, Own(n * static_cast<int64_t>(sizeof(float))));
  auto* out = reinterpret_cast<float*>(memory);
  if (!BytesFor(record->dtype, n))
    return Error::Corrupt(source_.path(), ": tensor '", name, "' of ", n, " elements does not fill whole ",
                          Name(record->dtype), " blocks");
  DecodeRow(record->dtype, record->bytes.data(), n, out);
  return static_cast<const float*>(out);
}

Status WeightStore::CheckNothingLeft(std::string_view architecture) const {
  std::vector<std::string> extra;
  for (const TensorRecord& record : source_.tensors())
    if (!taken_.contains(record.name) && !IsIgnorable(record.name)) extra.push_back(record.name);
  if (extra.empty()) return {};
  return Error::Unsupported(source_.path(), ": ", extra.size(), " tensors are not part of the architecture '",
                            architecture, "' as its configuration describes it, the first is '", extra[0],
                            "'");
}

}  // namespace celer
