#include "weights/published/parts.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "formats/decode.h"
#include "formats/float16.h"
#include "io/file/printable.h"

namespace celer::published {

float PowerOfTwo(uint8_t bits) {
  return bits == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, bits - 127);
}

float ScaleAt(const TensorRecord& record, int64_t i) {
  if (record.dtype == DType::kF16) return F16ToFloat(At<uint16_t>(record, i));
  if (record.dtype == DType::kFp8E8M0) return PowerOfTwo(At<uint8_t>(record, i));
  float value;
  DecodeRow(record.dtype, record.bytes.data() + i * Info(record.dtype).block_bytes, 1, &value);
  return value;
}

Parts::Parts(const TensorSource& file, const TensorRecord& first, std::string_view suffix)
    : file_(file), first_(first), prefix_(first.name.substr(0, first.name.size() - suffix.size())) {
  CELER_CHECK(first.name.ends_with(suffix));
}

const TensorRecord* Parts::Find(std::string_view suffix) const {
  return file_.Find(prefix_ + std::string(suffix));
}

Status Parts::CheckType(const TensorRecord& record, std::initializer_list<DType> types) const {
  std::string names;
  for (const DType type : types) {
    if (record.dtype == type) return {};
    names += (names.empty() ? "" : " or ") + std::string(Name(type));
  }
  return Error::Corrupt(path(), ": tensor '", Printable(record.name), "' has type ", Name(record.dtype),
                        ", expected ", names);
}

Result<const TensorRecord*> Parts::Need(std::string_view suffix, std::initializer_list<DType> types) const {
  const TensorRecord* record = Find(suffix);
  if (!record)
    return Error::Corrupt(path(), ": tensor '", Printable(prefix_ + std::string(suffix)),
                          "' is missing beside '", Printable(first_.name),
                          "'; the model is not whole: fetch or write it again");
  CELER_RETURN_IF_ERROR(CheckType(*record, types));
  return record;
}

Result<const TensorRecord*> Parts::Need(std::string_view suffix, std::initializer_list<DType> types,
                                        const Shape& shape, std::string_view because) const {
  CELER_ASSIGN(const TensorRecord* record, Need(suffix, types));
  if (record->shape != shape)
    return Error::Corrupt(path(), ": tensor '", Printable(record->name), "' has shape ",
                          record->shape.ToString(), ", expected ", shape.ToString(), ": ", because);
  return record;
}

Status Parts::CheckFirst(std::initializer_list<DType> types, int rank) const {
  CELER_RETURN_IF_ERROR(CheckType(first_, types));
  if (first_.shape.rank() != rank || first_.bytes.empty())
    return Wrong("has shape ", first_.shape.ToString(), ", expected ", rank, " dimensions that are not 0");
  return {};
}

Result<int64_t> GroupSize(const JsonFields& config, std::string_view key) {
  CELER_ASSIGN(const int64_t size, config.GetInt(key, -1, int64_t{1} << 24, -1));
  if (size == 0)
    return Error::Corrupt(config.where(), ": '", key,
                          "' is 0; it is a number of columns, or -1 for a whole row");
  return size < 0 ? 0 : size;
}

Status ReadOrder(const Parts& parts, std::string_view suffix, bool expected, Matrix* out) {
  if (!parts.Find(suffix)) return {};
  CELER_ASSIGN(const TensorRecord* record,
               parts.Need(suffix, {DType::kI32}, {out->cols}, "one group for each column"));
  out->parts.push_back(record);
  bool in_order = true, all_zero = true;
  std::vector<int32_t> order(out->cols);
  for (int64_t k = 0; k < out->cols; ++k) {
    const auto g = At<int32_t>(*record, k);
    if (g < 0 || g >= out->groups())
      return Error::Corrupt(parts.path(), ": tensor '", Printable(record->name), "': column ", k,
                            " is in group ", g, ", and there are ", out->groups(),
                            " groups; the file is damaged: fetch or write it again");
    in_order &= g == k / out->group;
    all_zero &= g == 0;
    order[k] = g;
  }
  // Zeros are a placeholder of writers that do not reorder.
  if (in_order || (all_zero && !expected)) return {};
  out->order = std::move(order);
  out->scheme += " act-order";
  return {};
}

}  // namespace celer::published
