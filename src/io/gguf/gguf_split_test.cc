#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/file/test_folder.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_test_bytes.h"

namespace celer {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Part `number`, from 0 on, with one tensor; the first has the metadata of the model.
GgufBytes Part(uint16_t number, uint16_t count, const std::string& tensor, int32_t tensors = 3) {
  GgufBytes raw;
  raw.metadata = {RawKey("split.no", GgufType::kUint16) + Raw(number),
                  RawKey("split.count", GgufType::kUint16) + Raw(count),
                  RawKey("split.tensors.count", GgufType::kInt32) + Raw(tensors)};
  if (number == 0)
    raw.metadata.push_back(RawKey("general.architecture", GgufType::kString) + RawString("llama"));
  raw.tensors = {RawTensor(tensor, {8}, 0, 0)};
  raw.data_bytes = 32;
  return raw;
}

class GgufSplit : public testing::Test {
 protected:
  void SetUp() override {
    for (uint16_t i = 0; i < 3; ++i) Write(i, Part(i, 3, std::string(1, static_cast<char>('a' + i))));
  }
  fs::path Path(int i) const { return folder_ / ("m-0000" + std::to_string(i + 1) + "-of-00003.gguf"); }
  void Write(int i, const GgufBytes& raw) const { folder_.Write(Path(i).filename().string(), raw.Make()); }
  std::string OpenError(const fs::path& path) const {
    const auto file = GgufFile::Open(path);
    EXPECT_FALSE(file);
    return file ? "" : file.error().message();
  }
  TestFolder folder_;
};

TEST_F(GgufSplit, AnyPartOpensTheWhole) {
  for (int i = 0; i < 3; ++i) {
    const auto file = GgufFile::Open(Path(i));
    ASSERT_TRUE(file) << file.error().message();
    ASSERT_EQ(file->tensors().size(), 3u);
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_TRUE(file->Find(name));
      EXPECT_EQ(file->Find(name)->bytes[5], std::byte{5});
      file->DropPages(*file->Find(name));
      EXPECT_EQ(file->Find(name)->bytes[5], std::byte{5});
    }
    EXPECT_EQ(file->GetString("general.architecture"), "llama");
    EXPECT_EQ(file->source(), Path(0).string());
    EXPECT_EQ(file->files().size(), 3u);
  }
}

TEST_F(GgufSplit, ALinkIsFoundAmongItsSiblings) {
  const TestFolder other;
  for (int i = 0; i < 3; ++i) fs::create_symlink(Path(i), other.path() / Path(i).filename());
  const auto file = GgufFile::Open(other.path() / Path(1).filename());
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->tensors().size(), 3u);
}

TEST_F(GgufSplit, MissingPartsAreNamed) {
  fs::remove(Path(2));
  for (const int i : {0, 1})
    EXPECT_EQ(OpenError(Path(i)),
              Path(i).string() + ": is part " + std::to_string(i + 1) +
                  " of 3 of a split GGUF, and m-00003-of-00003.gguf is not beside it; fetch all 3 parts into "
                  "one folder");
}

TEST_F(GgufSplit, NamesMustFit) {
  fs::rename(Path(1), folder_ / "second.gguf");
  EXPECT_THAT(OpenError(folder_ / "second.gguf"),
              HasSubstr("is part 2 of 3 of a split GGUF and is not named so; give it a name that ends with "
                        "-00002-of-00003.gguf"));
  fs::copy(Path(0), Path(1));
  EXPECT_THAT(OpenError(Path(0)), HasSubstr("are those of another; fetch all parts again"));
}

TEST_F(GgufSplit, PartsMustFitTogether) {
  Write(2, Part(2, 3, "a"));
  EXPECT_THAT(OpenError(Path(0)), HasSubstr("tensor 'a' is in another part of the model as well"));
  Write(2, Part(2, 4, "c"));
  EXPECT_THAT(OpenError(Path(0)), HasSubstr("are those of another"));
  Write(2, Part(2, 3, "c"));
  Write(0, Part(0, 3, "a", 7));
  EXPECT_THAT(OpenError(Path(0)), HasSubstr("'split.tensors.count' is 7, but the 3 parts have 3 tensors"));
  for (const auto& [number, count] : {std::pair<uint16_t, uint16_t>(3, 3), {0, 0}, {9, 2}}) {
    Write(0, Part(number, count, "a"));
    EXPECT_THAT(OpenError(Path(0)), HasSubstr("do not name a part of a split model"));
  }
}

TEST_F(GgufSplit, OnePartIsAFileAsAnyOther) {
  folder_.Write("alone.gguf", Part(0, 1, "a", 1).Make());
  const auto file = GgufFile::Open(folder_ / "alone.gguf");
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(file->tensors().size(), 1u);
}

}  // namespace
}  // namespace celer
