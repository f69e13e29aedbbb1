#include "formats/decode.h"

#include <cstring>

#include "base/check.h"
#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "formats/float8.h"
#include "formats/iq4_nl.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace celer {
namespace {

template <class T, float (*ToFloat)(T)>
void DecodePlain(const std::byte* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, in + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = ToFloat(value);
  }
}

template <class T, T (*FromFloat)(float)>
void EncodePlain(const float* in, int64_t n, std::byte* out, const float* /*importance*/) {
  for (int64_t i = 0; i < n; ++i) {
    const T value = FromFloat(in[i]);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

template <class T>
float Cast(T value) {
  return static_cast<float>(value);
}
float FromBool(uint8_t value) {
  return value ? 1.0f : 0.0f;
}
float Same(float value) {
  return value;
}

struct Codec {
  DType dtype;
  void (*decode)(const std::byte* in, int64_t blocks, float* out);
  // nullptr: only read
  void (*encode)(const float* in, int64_t blocks, std::byte* out, const float* importance);
  // nullptr: its levels are not evenly spaced
  void (*set_codes)(const uint8_t* codes, int64_t blocks, std::byte* out) = nullptr;
  BlockGrid grid = {};
};

constexpr Codec kCodecs[] = {
    {DType::kF32, DecodePlain<float, Same>, EncodePlain<float, Same>},
    {DType::kF16, DecodePlain<uint16_t, F16ToFloat>, EncodePlain<uint16_t, FloatToF16>},
    {DType::kBf16, DecodePlain<uint16_t, Bf16ToFloat>, EncodePlain<uint16_t, FloatToBf16>},
    {DType::kFp8E4M3, DecodePlain<uint8_t, Fp8E4M3ToFloat>, EncodePlain<uint8_t, FloatToFp8E4M3>},
    {DType::kF64, DecodePlain<double, Cast<double>>, nullptr},
    {DType::kI8, DecodePlain<int8_t, Cast<int8_t>>, nullptr},
    {DType::kU8, DecodePlain<uint8_t, Cast<uint8_t>>, nullptr},
    {DType::kI16, DecodePlain<int16_t, Cast<int16_t>>, nullptr},
    {DType::kI32, DecodePlain<int32_t, Cast<int32_t>>, nullptr},
    {DType::kI64, DecodePlain<int64_t, Cast<int64_t>>, nullptr},
    {DType::kBool, DecodePlain<uint8_t, FromBool>, nullptr},
    {DType::kQ4_0, DecodeQ4_0, EncodeQ4_0, SetCodesQ4_0, {32, 15}},
    {DType::kQ4_1, DecodeQ4_1, EncodeQ4_1, SetCodesQ4_1, {32, 15}},
    {DType::kQ5_0, DecodeQ5_0, EncodeQ5_0, SetCodesQ5_0, {32, 31}},
    {DType::kQ5_1, DecodeQ5_1, EncodeQ5_1, SetCodesQ5_1, {32, 31}},
    {DType::kQ8_0, DecodeQ8_0, EncodeQ8_0, SetCodesQ8_0, {32, 254}},
    {DType::kIq4Nl, DecodeIq4Nl, EncodeIq4Nl},
    {DType::kQ2_K, DecodeQ2_K, EncodeQ2_K, SetCodesQ2_K, {16, 3}},
    {DType::kQ3_K, DecodeQ3_K, EncodeQ3_K, SetCodesQ3_K, {16, 7}},
    {DType::kQ4_K, DecodeQ4_K, EncodeQ4_K, SetCodesQ4_K, {32, 15}},
    {DType::kQ5_K, DecodeQ5_K, EncodeQ5_K, SetCodesQ5_K, {32, 31}},
    {DType::kQ6_K, DecodeQ6_K, EncodeQ6_K, SetCodesQ6_K, {16, 63}},
};

const Codec* FindCodec(DType dtype) {
  for (const Codec& codec : kCodecs)
    if (codec.dtype == dtype) return &codec;
  return nullptr;
}

}  // namespace

bool CanDecode(DType dtype) {
  return FindCodec(dtype) != nullptr;
}

bool CanEncode(DType dtype) {
  const Codec* codec = FindCodec(dtype);
  return codec && codec->encode;
}

void DecodeRow(DType dtype, const std::byte* row, int64_t cols, float* out) {
  const Codec* codec = FindCodec(dtype);
  CELER_CHECK(codec != nullptr);
  CELER_CHECK_EQ(cols % Info(dtype).block, 0);
  codec->decode(row, cols / Info(dtype).block, out);
}

void EncodeRow(DType dtype, const float* row, int64_t cols, std::byte* out, const float* importance) {
  const Codec* codec = FindCodec(dtype);
  CELER_CHECK(codec != nullptr && codec->encode != nullptr);
  CELER_CHECK_EQ(cols % Info(dtype).block, 0);
  codec->encode(row, cols / Info(dtype).block, out, importance);
}

BlockGrid GridOf(DType dtype) {
  const Codec* codec = FindCodec(dtype);
  return codec ? codec->grid : BlockGrid{};
}

void SetCodes(DType dtype, const uint8_t* codes, int64_t cols, std::byte* row) {
  const Codec* codec = FindCodec(dtype);
  CELER_CHECK(codec != nullptr && codec->set_codes != nullptr);
  CELER_CHECK_EQ(cols % Info(dtype).block, 0);
  codec->set_codes(codes, cols / Info(dtype).block, row);
}

}  // namespace celer
