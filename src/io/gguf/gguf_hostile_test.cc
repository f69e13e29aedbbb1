// Files that lie: each gives one sentence with the file, the field and the value, before memory is touched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "io/file/test_folder.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_test_bytes.h"

namespace celer {
namespace {

using testing::HasSubstr;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

std::string GgufErrorOf(const std::string& bytes) {
  const auto file = GgufFile::FromBytes(std::as_bytes(std::span(bytes)), "m.gguf");
  return file ? "accepted" : file.error().message();
}

std::string GgufErrorOf(std::vector<std::string> tensors, size_t data_bytes) {
  GgufBytes raw;
  raw.tensors = std::move(tensors);
  raw.data_bytes = data_bytes;
  return GgufErrorOf(raw.Make());
}

std::string MetadataError(const std::string& entry) {
  GgufBytes raw;
  raw.metadata = {entry};
  raw.tensors = {RawTensor("a-tensor-so-that-some-bytes-follow", {4}, 0, 0)};
  raw.data_bytes = 16;
  return GgufErrorOf(raw.Make());
}

TEST(GgufHostile, HeaderAndVersion) {
  EXPECT_THAT(GgufErrorOf(""), HasSubstr("does not begin with 'GGUF'"));
  EXPECT_THAT(GgufErrorOf("GGML1234"), HasSubstr("does not begin with 'GGUF'"));
  EXPECT_THAT(GgufErrorOf("GGUF"), HasSubstr("ends inside the version"));
  GgufBytes raw;
  for (const uint32_t version : {0u, 1u, 4u, 99u}) {
    raw.version = version;
    EXPECT_THAT(GgufErrorOf(raw.Make()), HasSubstr("GGUF version " + std::to_string(version)));
  }
  raw.version = 0x03000000;
  EXPECT_THAT(GgufErrorOf(raw.Make()), HasSubstr("big-endian GGUF (version 3)"));
}

TEST(GgufHostile, CountsAreBoundedByTheBytesLeft) {
  GgufBytes raw;
  raw.extra_metadata = -1;  // 2^64 - 1 entries
  EXPECT_THAT(GgufErrorOf(raw.Make()),
              HasSubstr("claims 18446744073709551615 metadata entries, but only 0 bytes"));
  raw.extra_metadata = 0;
  raw.extra_tensors = int64_t{1} << 59;  // times 32 bytes each wraps to 0
  EXPECT_THAT(GgufErrorOf(raw.Make()), HasSubstr("claims 576460752303423488 tensors"));
  raw.extra_tensors = 1;
  EXPECT_NE(GgufErrorOf(raw.Make()), "accepted");
  // A count that fits before the metadata are read, but not after.
  raw.metadata = {RawKey("k", GgufType::kString) + RawString(std::string(64, 'x'))};
  EXPECT_THAT(GgufErrorOf(raw.Make()), HasSubstr("claims 1 tensors, but only 0 bytes follow"));
}

TEST(GgufHostile, StringLengths) {
  for (const uint64_t length :
       {kHuge, uint64_t{1} << 63, uint64_t{0xffffffff}, uint64_t{0x7fffffff}, uint64_t{100'000}}) {
    EXPECT_THAT(MetadataError(Raw(length) + "key"), HasSubstr("ends inside a metadata key")) << length;
    EXPECT_THAT(MetadataError(RawKey("k", GgufType::kString) + Raw(length) + "text"),
                HasSubstr("ends inside 'k'"))
        << length;
    EXPECT_THAT(MetadataError(RawKey("k", GgufType::kArray) + Raw<uint32_t>(8) + Raw<uint64_t>(2) +
                              RawString("a") + Raw(length) + "b"),
                HasSubstr("ends inside 'k'"))
        << length;
    GgufBytes raw;
    raw.tensors = {Raw(length) + std::string(64, 'n')};
    EXPECT_THAT(GgufErrorOf(raw.Make()), HasSubstr("ends inside a tensor's name")) << length;
  }
  EXPECT_THAT(MetadataError(RawKey("", GgufType::kUint8) + "x"), HasSubstr("has 0 bytes"));
}

TEST(GgufHostile, ArrayCounts) {
  for (const uint32_t type : {0u, 2u, 4u, 8u, 9u, 10u, 12u})
    for (const uint64_t count : {kHuge, uint64_t{1} << 62, (uint64_t{1} << 61) + 1, uint64_t{1000}})
      EXPECT_THAT(MetadataError(RawKey("k", GgufType::kArray) + Raw(type) + Raw(count) + "12345678"),
                  HasSubstr("'k' claims " + std::to_string(count) + " elements"))
          << type;
  EXPECT_THAT(MetadataError(RawKey("k", GgufType::kArray) + Raw<uint32_t>(13) + Raw<uint64_t>(1) + "x"),
              HasSubstr("array of the unknown type 13"));
  EXPECT_THAT(MetadataError(RawString("k") + Raw<uint32_t>(13) + "x"),
              HasSubstr("'k' has the unknown type 13"));
  EXPECT_THAT(MetadataError(RawKey("k", GgufType::kBool) + "\x02"), HasSubstr("a bool with the value 2"));
}

TEST(GgufHostile, NestingIsBounded) {
  std::string value = Raw<uint32_t>(0) + Raw<uint64_t>(1) + "x";
  for (int depth = 1; depth <= 100'000; ++depth) {
    if (depth == GgufFile::kMaxArrayDepth) {
      EXPECT_EQ(MetadataError(RawKey("k", GgufType::kArray) + value), "accepted");
    } else if (depth == GgufFile::kMaxArrayDepth + 1) {
      EXPECT_THAT(MetadataError(RawKey("k", GgufType::kArray) + value),
                  HasSubstr("nests arrays more than 4 deep"));
      break;
    }
    value = Raw<uint32_t>(9) + Raw<uint64_t>(1) + value;
  }
  std::string bomb = RawKey("k", GgufType::kArray);
  for (int i = 0; i < 100'000; ++i) bomb += Raw<uint32_t>(9) + Raw<uint64_t>(1);
  EXPECT_THAT(MetadataError(bomb), HasSubstr("nests arrays"));
}

TEST(GgufHostile, Twins) {
  GgufBytes raw;
  raw.metadata = {RawKey("k", GgufType::kUint8) + "x", RawKey("k", GgufType::kUint8) + "y"};
  EXPECT_THAT(GgufErrorOf(raw.Make()), HasSubstr("metadata key 'k' comes twice"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {4}, 0, 0), RawTensor("t", {4}, 0, 32)}, 64),
              HasSubstr("tensor 't' comes twice"));
}

TEST(GgufHostile, Alignment) {
  for (const uint32_t bad : {0u, 3u, 33u, 0x80000000u, 0xffffffffu})
    EXPECT_THAT(MetadataError(RawKey("general.alignment", GgufType::kUint32) + Raw(bad)),
                HasSubstr("'general.alignment' is " + std::to_string(bad)));
  EXPECT_THAT(MetadataError(RawKey("general.alignment", GgufType::kString) + RawString("32")),
              HasSubstr("power of two"));
  // Larger than the file: the data would begin behind its end.
  EXPECT_THAT(MetadataError(RawKey("general.alignment", GgufType::kUint32) + Raw<uint32_t>(1 << 29)),
              HasSubstr("the data has 0 bytes"));
}

TEST(GgufHostile, Dimensions) {
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {}, 0, 0) + std::string(64, '\0')}, 64),
              HasSubstr("has 0 dimensions, expected 1 to 4"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {1, 1, 1, 1, 1}, 0, 0)}, 64), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(GgufErrorOf({RawString("t") + Raw<uint32_t>(0xffffffff) + std::string(64, 'x')}, 64),
              HasSubstr("has 4294967295 dimensions"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {0}, 0, 0)}, 64), HasSubstr("has a dimension of 0"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {4, 0}, 0, 0)}, 64), HasSubstr("has a dimension of 0"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {kHuge}, 0, 0)}, 64),
              HasSubstr("has a dimension of 18446744073709551615"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {uint64_t{1} << 63}, 0, 0)}, 64), HasSubstr("has a dimension of"));
  // Products that wrap around, of elements and of bytes.
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0)}, 64),
              HasSubstr("too large"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {uint64_t{1} << 31, uint64_t{1} << 31, 4, 1}, 0, 0)}, 64),
              HasSubstr("too large"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {(uint64_t{1} << 62) + 1}, 0, 0)}, 64),
              HasSubstr("too large"));  // x4 wraps to 4
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {(uint64_t{1} << 63) - (uint64_t{1} << 58)}, 8, 0)}, 64),
              HasSubstr("too large"));
}

TEST(GgufHostile, Types) {
  EXPECT_THAT(GgufErrorOf({RawTensor("blk.0.w", {256}, 4, 0)}, 512),
              HasSubstr("tensor 'blk.0.w' has the type Q4_2, which is not supported"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {256}, 1234, 0)}, 512), HasSubstr("has the type type 1234"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {256}, 0xffffffff, 0)}, 512), HasSubstr("4294967295"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {33}, 2, 0)}, 512),
              HasSubstr("rows of 33 elements, but Q4_0 needs a multiple of 32"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {128, 2}, 12, 0)}, 512), HasSubstr("Q4_K needs a multiple of 256"));
}

TEST(GgufHostile, Offsets) {
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {4}, 0, 8)}, 64),
              HasSubstr("offset 8, which is no multiple of the alignment 32"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {4}, 0, 64)}, 64),
              HasSubstr("takes 16 bytes at offset 64, but the data has 64"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {4}, 0, kHuge - 31)}, 64), HasSubstr("but the data has 64"));
  EXPECT_THAT(GgufErrorOf({RawTensor("t", {17}, 0, 0)}, 64), HasSubstr("takes 68 bytes at offset 0"));
  EXPECT_EQ(GgufErrorOf({RawTensor("t", {16}, 0, 0)}, 64), "accepted");
  EXPECT_THAT(GgufErrorOf({RawTensor("a", {16}, 0, 0), RawTensor("b", {4}, 0, 32)}, 64),
              HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(GgufErrorOf({RawTensor("a", {4}, 0, 0), RawTensor("b", {4}, 0, 0)}, 64), HasSubstr("overlap"));
  EXPECT_THAT(
      GgufErrorOf({RawTensor("b", {4}, 0, 32), RawTensor("c", {4}, 0, 96), RawTensor("a", {16}, 0, 0)}, 256),
      HasSubstr("'a' and 'b' overlap at offset 32"));
}

TEST(GgufHostile, EveryTruncationIsRefused) {
  GgufBytes raw;
  raw.metadata = {RawKey("s", GgufType::kString) + RawString("text"),
                  RawKey("a", GgufType::kArray) + Raw<uint32_t>(8) + Raw<uint64_t>(1) + RawString("x"),
                  RawKey("n", GgufType::kUint64) + Raw<uint64_t>(5)};
  raw.tensors = {RawTensor("a", {4}, 0, 0), RawTensor("b", {32}, 8, 32)};
  raw.data_bytes = 32 + 34;
  const std::string bytes = raw.Make();
  ASSERT_EQ(GgufErrorOf(bytes), "accepted");
  for (size_t length = 0; length < bytes.size(); ++length)
    ASSERT_NE(GgufErrorOf(bytes.substr(0, length)), "accepted") << length;
}

TEST(GgufHostile, NamesAreMadePrintable) {
  const std::string error = GgufErrorOf({RawTensor("\x1b[2J\n" + std::string(3000, 'x'), {4}, 16, 0)}, 64);
  EXPECT_THAT(error, HasSubstr("\\x1b[2J\\nxxx"));
  EXPECT_LT(error.size(), 400u);
}

TEST(GgufHostile, VocabularyOnlyFilesAreFine) {
  GgufBytes raw;
  raw.metadata = {RawKey("k", GgufType::kUint8) + "x"};
  EXPECT_EQ(GgufErrorOf(raw.Make()), "accepted");
}

}  // namespace
}  // namespace celer
