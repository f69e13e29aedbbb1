// The tensors that make up one quantized matrix, found by name and checked before anything is read from them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/file/printable.h"
#include "io/file/tensor_record.h"
#include "io/json/json.h"
#include "weights/published/matrix.h"
#include "weights/tensor_source.h"

namespace celer::published {

// Records are not aligned.
template <class T>
T At(const TensorRecord& record, int64_t i) {
  T value;
  std::memcpy(&value, record.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
// Of f32, f16, bf16, fp8 E4M3 or E8M0.
float ScaleAt(const TensorRecord& record, int64_t i);
// E8M0, a power of two: 2^(bits - 127), and 255 is NaN.
float PowerOfTwo(uint8_t bits);

// `bits` bits of a little-endian stream of 32-bit words, element i; `word(n)` is the nth.
template <class Word>
uint32_t BitsAt(const Word& word, int64_t i, int bits) {
  const int64_t at = i * bits;
  const int shift = static_cast<int>(at % 32);
  uint32_t value = word(at / 32) >> shift;
  if (shift + bits > 32) value |= word(at / 32 + 1) << (32 - shift);
  return value & ((1u << bits) - 1);
}

class Parts {
 public:
  // `first` has the values; its name without `suffix` begins the names of the others.
  Parts(const TensorSource& file, const TensorRecord& first, std::string_view suffix);

  const std::string& prefix() const { return prefix_; }  // "model.layers.0.mlp.up_proj"
  const TensorRecord& first() const { return first_; }
  const std::string& path() const { return file_.path(); }

  const TensorRecord* Find(std::string_view suffix) const;  // nullptr when there is none
  // One of these types and exactly that shape; `because` tells where the shape comes from.
  Result<const TensorRecord*> Need(std::string_view suffix, std::initializer_list<DType> types,
                                   const Shape& shape, std::string_view because) const;
  // The same of any shape.
  Result<const TensorRecord*> Need(std::string_view suffix, std::initializer_list<DType> types) const;
  Status CheckFirst(std::initializer_list<DType> types, int rank) const;
  // An error that names the first tensor.
  template <class... T>
  Error Wrong(const T&... text) const {
    return Error::Corrupt(path(), ": tensor '", Printable(first_.name), "': ", text...);
  }

 private:
  Status CheckType(const TensorRecord& record, std::initializer_list<DType> types) const;

  const TensorSource& file_;
  const TensorRecord& first_;
  std::string prefix_;
};

inline constexpr std::initializer_list<DType> kScaleTypes = {DType::kF32, DType::kF16, DType::kBf16};

// 'group_size' of a config: -1 and null mean that a row has one scale, which is 0 here.
Result<int64_t> GroupSize(const JsonFields& config, std::string_view key);

// Act-order: `suffix` names the tensor with the group of each column, if there is one. Groups that follow one
// another are no order.
Status ReadOrder(const Parts& parts, std::string_view suffix, bool expected, Matrix* out);

}  // namespace celer::published
