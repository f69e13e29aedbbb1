// Bit for bit against the `gguf` Python package; tests/formats/make_block_golden.py makes the files.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/decode.h"

#include "base/source_dir.h"

namespace celer {
namespace {

std::vector<std::byte> ReadGolden(const std::string& name) {
  std::ifstream in(std::string(kSourceDir) + "/tests/formats/golden/" + name, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::byte> out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class Golden : public testing::TestWithParam<DType> {};

TEST_P(Golden, DecodesBitForBit) {
  const DTypeInfo& info = Info(GetParam());
  const auto file = ReadGolden("decode_" + std::string(info.name) + ".bin");
  ASSERT_GE(file.size(), 4u);
  uint32_t blocks = 0;
  std::memcpy(&blocks, file.data(), 4);
  ASSERT_GT(blocks, 0u);
  const size_t elements = blocks * static_cast<size_t>(info.block);
  const size_t bytes = blocks * static_cast<size_t>(info.block_bytes);
  ASSERT_EQ(file.size(), 4 + bytes + 4 * elements);

  // One byte off, so that a decoder that needs alignment fails under the sanitizers.
  std::vector<std::byte> row(bytes + 1);
  std::memcpy(row.data() + 1, file.data() + 4, bytes);
  std::vector<float> decoded(elements), expected(elements);
  std::memcpy(expected.data(), file.data() + 4 + bytes, 4 * elements);
  DecodeRow(GetParam(), row.data() + 1, static_cast<int64_t>(elements), decoded.data());
  for (size_t i = 0; i < elements; ++i) {
    if (std::isnan(expected[i])) {  // 0 * infinity: a NaN's bits differ between processors
      ASSERT_TRUE(std::isnan(decoded[i])) << "element " << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(expected[i]))
          << "element " << i << ": " << decoded[i] << " vs " << expected[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBlock, Golden, testing::ValuesIn(BlockTypes().begin(), BlockTypes().end()),
                         [](const auto& test) { return std::string(Name(test.param)); });
INSTANTIATE_TEST_SUITE_P(ReadOnly, Golden,
                         testing::ValuesIn(ReadOnlyBlockTypes().begin(), ReadOnlyBlockTypes().end()),
                         [](const auto& test) { return std::string(Name(test.param)); });

class GoldenEncode : public testing::TestWithParam<DType> {};

TEST_P(GoldenEncode, EncodesAsTheReferenceQuantizer) {
  const DTypeInfo& info = Info(GetParam());
  const auto file = ReadGolden("encode_" + std::string(info.name) + ".bin");
  ASSERT_GE(file.size(), 4u);
  uint32_t elements = 0;
  std::memcpy(&elements, file.data(), 4);
  ASSERT_GT(elements, 0u);
  const auto bytes = static_cast<size_t>(*BytesFor(GetParam(), elements));
  ASSERT_EQ(file.size(), 4 + 4 * static_cast<size_t>(elements) + bytes);

  std::vector<float> floats(elements);
  std::memcpy(floats.data(), file.data() + 4, 4 * static_cast<size_t>(elements));
  std::vector<std::byte> encoded(bytes + 1);
  EncodeRow(GetParam(), floats.data(), elements, encoded.data() + 1);
  for (size_t i = 0; i < bytes; ++i)
    ASSERT_EQ(encoded[i + 1], file[4 + 4 * static_cast<size_t>(elements) + i])
        << "byte " << i % static_cast<size_t>(info.block_bytes) << " of block "
        << i / static_cast<size_t>(info.block_bytes);
}

INSTANTIATE_TEST_SUITE_P(ReferenceQuantizer, GoldenEncode,
                         testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                         DType::kBf16, DType::kF16),
                         [](const auto& test) { return std::string(Name(test.param)); });

}  // namespace
}  // namespace celer
