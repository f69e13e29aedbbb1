#include "convert/model_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/decode.h"
#include "io/file/printable.h"
#include "models/config/part_names.h"
#include "models/load/open_model.h"
#include "models/load/tensor_names.h"

namespace celer {
namespace {

std::string WithNumber(std::string key, int64_t number) {
  if (const size_t at = key.find('#'); at != std::string::npos) key.replace(at, 1, std::to_string(number));
  return key;
}

constexpr std::string_view kKeysOfHeads = "attn_k_b.weight", kValuesOfHeads = "attn_v_b.weight",
                           kBothOfHeads = "attn_kv_b.weight";

}  // namespace

float FewestBits(float value, float stored, float (*forward)(float)) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::byte bytes[2];
    float rounded = 0;
    EncodeRow(dtype, &value, 1, bytes);
    DecodeRow(dtype, bytes, 1, &rounded);
    if (forward(rounded) == stored) return rounded;
  }
  return value;
}

Result<ModelParts> ModelParts::Make(const DecoderConfig& config, std::unique_ptr<TensorSource> source,
                                    bool gguf) {
  ModelParts parts;
  parts.config_ = config;
  parts.source_ = std::move(source);
  parts.gguf_ = gguf;
  parts.embedding_ = kHfNames.embedding;
  if (gguf)
    CELER_RETURN_IF_ERROR(parts.MapGguf());
  else
    parts.embedding_ = ResolveTiedHead(*parts.source_, &parts.config_);
  return parts;
}

// Stacks of experts are listed as their matrices.
Status ModelParts::MapGguf() {
  CELER_ASSIGN(const std::vector<FileTensor> tensors, FileTensors(config_, ModelContainer::kGguf));
  for (const FileTensor& tensor : tensors)
    for (const ModelPart& part : tensor.parts) {
      const bool vector = tensor.role == WeightRole::kVector;
      const auto add = [&](std::string key, int64_t first, Shape shape) {
        gguf_places_[std::move(key)] = {.name = part.name,
                                        .first = first,
                                        .part = {part.name, part.key, std::move(shape)},
                                        .vector = vector};
      };
      if (part.name.ends_with(kValuesOfHeads)) continue;  // found beside the keys
      if (part.key.find('#') == std::string::npos) {
        add(part.key, 0, part.shape);
        continue;
      }
      const Shape& shape = part.shape;
      const int64_t rows = vector ? 1 : shape[1];
      for (int64_t e = 0; e < shape[0]; ++e)
        add(WithNumber(part.key, e), e * rows, vector ? Shape{shape[1]} : Shape{shape[1], shape[2]});
    }
  return {};
}

bool ModelParts::Has(const std::string& key) const {
  if (!gguf_) return source_->Find(key == kHfNames.embedding ? embedding_ : key) != nullptr;
  const auto found = gguf_places_.find(key);
  return found != gguf_places_.end() && source_->Find(found->second.name);
}

bool ModelParts::IsMxfp4(const std::string& key) const {
  const CodedTensor* const coded = gguf_ ? nullptr : source_->Coded(key);
  return coded && coded->format == WeightFormatSpec::Stored(DType::kMxfp4);
}

Result<const TensorRecord*> ModelParts::Record(const std::string& key, const Place& place) const {
  if (const TensorRecord* const record = source_->Find(place.name)) return record;
  return Error::Corrupt(source_->path(), ": tensor '", Printable(place.name.empty() ? key : place.name),
                        "' is missing");
}

Result<ModelParts::Part> ModelParts::Matrix(const std::string& key, int64_t rows, int64_t cols) const {
  Place place{.name = key == kHfNames.embedding ? embedding_ : key, .part = {key, key, {rows, cols}}};
  if (gguf_) {
    const auto found = gguf_places_.find(key);
    if (found == gguf_places_.end())
      return Error::Corrupt(source_->path(), ": has no tensor for '", Printable(key), "'");
    place = found->second;
    if (place.name.ends_with(kKeysOfHeads)) return Latent(key, rows, cols);
  }
  CELER_ASSIGN(const TensorRecord* const record, Record(key, place));
  const Shape& shape = record->shape;
  Part part{.record = record,
            .coded = source_->Coded(place.name),
            .first = place.first,
            .rows = rows,
            .cols = cols};
  const int64_t elements = shape.elements().value_or(0), width = shape[shape.rank() - 1];
  if (width != cols || part.first + rows > elements / cols || (!gguf_ && elements != rows * cols))
    return Error::Corrupt(source_->path(), ": tensor '", Printable(record->name), "' has shape ",
                          shape.ToString(), ", expected ", rows, " rows of ", cols);
  if (!part.coded && !CanDecode(record->dtype))
    return Error::Unsupported(source_->path(), ": tensor '", Printable(record->name), "' of type ",
                              Name(record->dtype), " cannot be converted");
  if (!gguf_) return part;
  const PartOrder order = OrderInGguf(config_, place.part, place.vector);
  part.rows_in_file = Inverted(order.rows);
  part.cols_in_file = Inverted(order.cols);
  return part;
}

// Keys and values of all heads as one matrix.
Result<ModelParts::Part> ModelParts::Latent(const std::string& key, int64_t rows, int64_t cols) const {
  const LatentConfig& l = config_.latent;
  const Place& keys = gguf_places_.at(key);
  const std::string layer = keys.name.substr(0, keys.name.size() - kKeysOfHeads.size());
  if (const TensorRecord* const both = source_->Find(layer + std::string(kBothOfHeads)))  // of older files
    return Part{.record = both, .coded = source_->Coded(both->name), .rows = rows, .cols = cols};
  CELER_ASSIGN(const TensorRecord* const k, Record(key, keys));
  CELER_ASSIGN(const TensorRecord* const v, Record(key, {.name = layer + std::string(kValuesOfHeads)}));
  const int64_t heads = config_.heads, each = l.nope_dim + l.value_dim;
  if (k->shape.elements() != heads * l.kv_rank * l.nope_dim ||
      v->shape.elements() != heads * l.value_dim * cols || k->shape[k->shape.rank() - 1] != l.nope_dim ||
      v->shape[v->shape.rank() - 1] != cols)
    return Error::Corrupt(source_->path(), ": tensors '", Printable(k->name), "' and '", Printable(v->name),
                          "' have shapes ", k->shape.ToString(), " and ", v->shape.ToString(),
                          ", which are not those of ", heads, " heads");
  const Part of_keys{
      .record = k, .coded = source_->Coded(k->name), .rows = heads * l.kv_rank, .cols = l.nope_dim};
  const Part of_values{
      .record = v, .coded = source_->Coded(v->name), .rows = heads * l.value_dim, .cols = cols};
  CELER_ASSIGN(const std::vector<float> key_values, Values(of_keys));
  CELER_ASSIGN(const std::vector<float> value_values, Values(of_values));
  Part part{.record = k, .rows = rows, .cols = cols};
  part.values.resize(static_cast<size_t>(rows * cols));
  for (int64_t h = 0; h < heads; ++h) {
    float* const out = part.values.data() + h * each * cols;
    for (int64_t i = 0; i < l.nope_dim; ++i)
      for (int64_t c = 0; c < cols; ++c) out[i * cols + c] = key_values[(h * cols + c) * l.nope_dim + i];
    std::copy_n(value_values.data() + h * l.value_dim * cols, l.value_dim * cols, out + l.nope_dim * cols);
  }
  return part;
}

Result<std::vector<float>> ModelParts::Vector(const std::string& key, int64_t elements) const {
  Place place{.name = key, .part = {key, key, {elements}}, .vector = true};
  if (gguf_) {
    const auto found = gguf_places_.find(key);
    if (found == gguf_places_.end())
      return Error::Corrupt(source_->path(), ": has no tensor for '", Printable(key), "'");
    place = found->second;
  }
  CELER_ASSIGN(const TensorRecord* const record, Record(key, place));
  const int64_t all = record->shape.elements().value_or(0), begin = place.first * elements;
  if (source_->Coded(record->name) || !CanDecode(record->dtype) || Info(record->dtype).block != 1)
    return Error::Unsupported(source_->path(), ": tensor '", Printable(record->name), "' of type ",
                              Name(record->dtype), " cannot be read as numbers of its own");
  if (begin + elements > all ||
      (place.part.shape.elements() == elements && begin == 0 && !gguf_ && all != elements))
    return Error::Corrupt(source_->path(), ": tensor '", Printable(record->name), "' has shape ",
                          record->shape.ToString(), ", expected ", elements, " elements");
  std::vector<float> values(static_cast<size_t>(elements)), moved;
  const int64_t size = *BytesFor(record->dtype, 1);
  DecodeRow(record->dtype, record->bytes.data() + begin * size, elements, values.data());
  if (!gguf_) return values;
  const PartOrder order = OrderInGguf(config_, place.part, true);
  if (!order.cols.empty()) {
    moved.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) moved[order.cols[i]] = values[i];
    values.swap(moved);
  }
  if (order.decay)
    for (float& value : values)
      value = FewestBits(static_cast<float>(std::log(-static_cast<double>(value))), value, Decay);
  return values;
}

bool ModelParts::Row(const Part& part, int64_t row, float* out) const {
  const int64_t cols = part.cols;
  if (!part.values.empty()) {
    std::copy_n(part.values.data() + row * cols, cols, out);
    return true;
  }
  const int64_t at = part.first + (part.rows_in_file.empty() ? row : part.rows_in_file[row]);
  thread_local std::vector<float> moved;
  thread_local std::vector<std::byte> values, scales;
  float* into = out;
  if (!part.cols_in_file.empty()) {
    moved.resize(static_cast<size_t>(cols));
    into = moved.data();
  }
  if (part.coded) {
    values.resize(static_cast<size_t>(part.coded->format.RowBytes(cols)));
    scales.resize(static_cast<size_t>(part.coded->format.ScaleBytes(cols)));
    part.coded->Row(at, values.data(), scales.data());
    part.coded->format.Decode(values.data(), scales.data(), cols, into);
  } else {
    const int64_t bytes = *BytesFor(part.record->dtype, cols);
    DecodeRow(part.record->dtype, part.record->bytes.data() + at * bytes, cols, into);
  }
  if (into != out)
    for (int64_t c = 0; c < cols; ++c) out[c] = moved[part.cols_in_file[c]];
  float sum = 0;  // NaN if one of them is infinite or NaN
  for (int64_t c = 0; c < cols; ++c) sum += out[c] * 0.0f;
  return sum == 0;
}

Result<std::vector<float>> ModelParts::Values(const Part& part) const {
  std::vector<float> values(static_cast<size_t>(part.rows * part.cols));
  for (int64_t r = 0; r < part.rows; ++r)
    if (!Row(part, r, values.data() + r * part.cols)) return NotFinite(part);
  return values;
}

Error ModelParts::NotFinite(const Part& part) const {
  return Error::Corrupt(source_->path(), ": tensor '", Printable(part.record->name),
                        "' has values that are NaN or infinite; the file is damaged");
}

void ModelParts::Done(const Part& part) const {
  source_->DropPages(*part.record);
}

}  // namespace celer
