#include "io/npy/store_zip.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "io/file/test_folder.h"

namespace celer {
namespace {

using Entry = std::pair<std::string, std::span<const std::byte>>;

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
Result<StoreZip> ParseZip(const std::string& text) {
  return StoreZip::Parse(std::as_bytes(std::span(text)), "weights.bin");
}

class StoreZipTest : public testing::Test {
 protected:
  std::string Write() {
    const std::string a = "first", b(1000, 'x'), empty;
    const Entry entries[] = {{"conv.weight", std::as_bytes(std::span(a))},
                             {"conv.bias", std::as_bytes(std::span(b))},
                             {"none", std::as_bytes(std::span(empty))}};
    const auto path = folder_.path() / "weights.bin";
    EXPECT_TRUE(WriteStoreZip(path, entries));
    return ReadFile(path);
  }
  TestFolder folder_;
};

TEST_F(StoreZipTest, ReadsWhatItWrites) {
  Write();
  auto zip = StoreZip::Open(folder_.path() / "weights.bin");
  ASSERT_TRUE(zip) << zip.error().message();
  ASSERT_EQ(zip->entries().size(), 3u);
  ASSERT_TRUE(zip->Find("conv.weight"));
  EXPECT_EQ(Text(zip->Find("conv.weight")->bytes), "first");
  EXPECT_EQ(Text(zip->Find("conv.bias")->bytes), std::string(1000, 'x'));
  EXPECT_TRUE(zip->Find("none")->bytes.empty());
  EXPECT_EQ(zip->Find("other"), nullptr);
}

TEST_F(StoreZipTest, EveryTruncationIsRefused) {
  const std::string whole = Write();
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(ParseZip(whole.substr(0, size))) << size;
}

TEST_F(StoreZipTest, EveryChangedByteIsReadOrRefused) {
  const std::string whole = Write();
  for (size_t i = 0; i < whole.size(); ++i)
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string changed = whole;
      changed[i] = value;
      const auto zip = ParseZip(changed);
      if (!zip) continue;
      for (const auto& entry : zip->entries())
        for (const std::byte b : entry.bytes) EXPECT_GE(static_cast<int>(b), 0);
    }
}

TEST_F(StoreZipTest, CompressedAndEncryptedAreRefusedByName) {
  const std::string whole = Write();
  const size_t central = whole.find("PK\1\2");
  std::string changed = whole;
  changed[central + 10] = 8;
  auto zip = ParseZip(changed);
  ASSERT_FALSE(zip);
  EXPECT_EQ(zip.error().message(),
            "weights.bin: 'conv.weight' is compressed; write the archive without compression or encryption");
  changed = whole;
  changed[central + 8] = 1;
  zip = ParseZip(changed);
  ASSERT_FALSE(zip);
  EXPECT_NE(zip.error().message().find("encrypted"), std::string::npos);
}

TEST(ZipCrc32, GoesOnWhereItStopped) {
  const std::string text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(ZipCrc32(0, bytes), 0xCBF43926u);
  EXPECT_EQ(ZipCrc32(ZipCrc32(0, bytes.first(4)), bytes.subspan(4)), 0xCBF43926u);
  EXPECT_EQ(ZipCrc32(ZipCrc32(0, bytes), {}), 0xCBF43926u);
}

}  // namespace
}  // namespace celer
