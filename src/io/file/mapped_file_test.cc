#include "io/file/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "io/file/test_folder.h"

namespace celer {
namespace {

using testing::HasSubstr;

TEST(MappedFile, ReadsAndMoves) {
  const TestFolder folder;
  auto opened = MappedFile::Open(folder.Write("a", "hello"));
  ASSERT_TRUE(opened);
  MappedFile file = std::move(*opened);
  MappedFile other = std::move(file);
  EXPECT_TRUE(file.bytes().empty());  // NOLINT: a moved-from file is empty
  ASSERT_EQ(other.bytes().size(), 5u);
  EXPECT_EQ(other.bytes()[4], std::byte{'o'});
  EXPECT_EQ(other.path(), folder / "a");
  auto second = MappedFile::Open(folder.Write("b", "other"));
  ASSERT_TRUE(second);
  other = std::move(*second);
  EXPECT_EQ(other.bytes()[0], std::byte{'o'});
}

TEST(MappedFile, SaysWhatIsWrong) {
  const TestFolder folder;
  const auto missing = MappedFile::Open(folder / "none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Error::Code::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("none: no such file"));

  const auto directory = MappedFile::Open(folder.path());
  ASSERT_FALSE(directory);
  EXPECT_THAT(directory.error().message(), HasSubstr("folder"));

  const auto empty = MappedFile::Open(folder.Write("empty", ""));
  ASSERT_FALSE(empty);
  EXPECT_THAT(empty.error().message(), HasSubstr("empty"));

  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);  // must not hang
  const auto pipe = MappedFile::Open(folder / "pipe");
  ASSERT_FALSE(pipe);
  EXPECT_THAT(pipe.error().message(), HasSubstr("not a regular file"));
}

TEST(MappedFile, UnreadableIsAnError) {
  const TestFolder folder;
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every file: the unreadable case cannot be made";
  const auto path = folder.Write("secret", "x");
  ::chmod(path.c_str(), 0);
  const auto unreadable = MappedFile::Open(path);
  ASSERT_FALSE(unreadable);
  EXPECT_THAT(unreadable.error().message(), HasSubstr("Permission denied"));
}

TEST(MappedFile, DroppedPagesComeBack) {
  const TestFolder folder;
  std::string content(1 << 20, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 >> 3);
  const auto file = MappedFile::Open(folder.Write("big", content));
  ASSERT_TRUE(file);
  const auto part = file->bytes().subspan(1000, 500'000);
  file->DropPages(part);
  file->DropPages(file->bytes());
  const std::byte elsewhere[64] = {};
  file->DropPages(elsewhere);  // not ours: ignored
  file->DropPages({});
  for (size_t i = 0; i < content.size(); i += 97)
    ASSERT_EQ(file->bytes()[i], static_cast<std::byte>(content[i])) << i;
}

}  // namespace
}  // namespace celer
