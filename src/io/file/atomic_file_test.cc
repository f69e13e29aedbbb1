#include "io/file/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "io/json/json.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() : folder_(fs::path(::testing::TempDir()) / ("atomic_file_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  void Write(const char* name) const { std::ofstream(folder_ / name) << "half"; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path folder_;
};

TEST_F(AtomicFileTest, WholeOrNotAtAll) {
  {
    auto file = AtomicFile::Create(folder_ / "a");
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->Write("text"));
    EXPECT_FALSE(fs::exists(folder_ / "a"));
  }
  EXPECT_EQ(Names(), std::vector<std::string>{});
  auto file = AtomicFile::Create(folder_ / "a");
  ASSERT_TRUE(file && file->Write("text") && file->Commit());
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
  EXPECT_EQ(*ReadTextFile(folder_ / "a", 100), "text");
}

TEST_F(AtomicFileTest, LeftoversOfTheDeadAreRemovedAndTheLivingSpared) {
  Write("a.partial-999999999-0");
  Write("a.partial-1-7");  // a number that another process has by now
  Write("b.partial-999999999-0");
  Write("a.partial-mine");  // not one of ours
  auto living = AtomicFile::Create(folder_ / "a");
  ASSERT_TRUE(living);
  auto second = AtomicFile::Create(folder_ / "a");
  ASSERT_TRUE(second && living->Write("first") && second->Write("second"));
  EXPECT_EQ(Names().size(), 4u);  // two that are written now, b's, and the user's
  ASSERT_TRUE(living->Commit());
  ASSERT_TRUE(second->Commit());
  EXPECT_EQ(Names(), (std::vector<std::string>{"a", "a.partial-mine", "b.partial-999999999-0"}));
  RemoveLeftovers(folder_);
  EXPECT_EQ(Names(), (std::vector<std::string>{"a", "a.partial-mine"}));
}

TEST_F(AtomicFileTest, AnotherProcessThatWritesIsSpared) {
  int ready[2], go[2];
  ASSERT_TRUE(::pipe(ready) == 0 && ::pipe(go) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto file = AtomicFile::Create(folder_ / "a");
    char byte = 0;
    const bool ok = file && ::write(ready[1], "x", 1) == 1 && ::read(go[0], &byte, 1) == 1 && file->Commit();
    ::_exit(ok ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  RemoveLeftovers(folder_);
  EXPECT_EQ(Names().size(), 1u);
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
}

// Of a character device made in the test's own folder; skips where that is not permitted.
#define MAKE_DEVICE(path, minor)                                         \
  if (::mknod((path).c_str(), S_IFCHR | 0666, makedev(1, minor)) != 0 || \
      ::close(::open((path).c_str(), O_WRONLY | O_CLOEXEC)) != 0)        \
  GTEST_SKIP() << "a device cannot be made or opened in " << folder_

TEST_F(AtomicFileTest, ADeviceIsWrittenThroughAndStays) {
  const fs::path null = folder_ / "null", link = folder_ / "link";
  MAKE_DEVICE(null, 3);
  fs::create_symlink("null", link);
  for (const fs::path& path : {null, link}) {
    auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file && !file->whole() && file->Write("text") && file->Commit());
    EXPECT_TRUE(CheckWritable(path));
    EXPECT_FALSE(ReplaceFile(folder_ / "new", path));
    EXPECT_FALSE(OpenToAppend(path));
    EXPECT_FALSE(AtomicFolder::Create(path));
  }
  EXPECT_TRUE(fs::is_character_file(null));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(Names(), (std::vector<std::string>{"link", "null"}));
}

TEST_F(AtomicFileTest, AFullDeviceIsReportedAndStays) {
  const fs::path full = folder_ / "full";
  MAKE_DEVICE(full, 7);
  const Status written = WriteWholeFile(full, "text");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message(), full.string() + ": cannot be written: No space left on device");
  EXPECT_TRUE(fs::is_character_file(full));
}

TEST_F(AtomicFileTest, APipeIsWrittenThrough) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  std::string got;
  std::thread reader([&] {
    std::ifstream in(pipe, std::ios::binary);
    got.assign(std::istreambuf_iterator<char>(in), {});
  });
  EXPECT_TRUE(WriteWholeFile(pipe, std::string(100'000, 'x')));
  reader.join();
  EXPECT_EQ(got, std::string(100'000, 'x'));
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(CheckWritable(pipe));  // without a reader it would wait for one
  EXPECT_EQ(Names(), std::vector<std::string>{"pipe"});
}

TEST_F(AtomicFileTest, LinksAreFollowed) {
  fs::create_directories(folder_ / "far");
  Write("far/old");
  fs::create_symlink("far/old", folder_ / "link");
  fs::create_symlink("link", folder_ / "second");
  fs::create_symlink(folder_ / "far" / "new", folder_ / "dangling");
  fs::create_symlink("circle", folder_ / "circle");
  EXPECT_TRUE(WriteWholeFile(folder_ / "second", "whole"));
  EXPECT_EQ(*ReadTextFile(folder_ / "far" / "old", 100), "whole");
  EXPECT_TRUE(WriteWholeFile(folder_ / "dangling", "made"));
  EXPECT_EQ(*ReadTextFile(folder_ / "far" / "new", 100), "made");
  EXPECT_FALSE(WriteWholeFile(folder_ / "circle", "x"));
  EXPECT_EQ(Names(), (std::vector<std::string>{"circle", "dangling", "far", "link", "second"}));
  for (const char* link : {"link", "second", "dangling", "circle"})
    EXPECT_TRUE(fs::is_symlink(folder_ / link)) << link;

  Write("part");
  EXPECT_TRUE(ReplaceFile(folder_ / "part", folder_ / "link"));
  EXPECT_EQ(*ReadTextFile(folder_ / "far" / "old", 100), "half");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
}

TEST_F(AtomicFileTest, FoldersAndSocketsAreRefused) {
  fs::create_directories(folder_ / "sub");
  for (const fs::path& path : {folder_ / "sub", folder_ / "sub/", folder_ / "new/"}) {
    const auto file = AtomicFile::Create(path);
    ASSERT_FALSE(file) << path;
    EXPECT_NE(file.error().message().find("expected the name of a file"), std::string::npos)
        << file.error().message();
    EXPECT_FALSE(CheckWritable(path));
  }
  EXPECT_FALSE(OpenToAppend(folder_ / "sub"));
  EXPECT_FALSE(AtomicFile::Create(folder_ / "none" / "a"));
  ASSERT_EQ(::mknod((folder_ / "socket").c_str(), S_IFSOCK | 0666, 0), 0);
  EXPECT_FALSE(AtomicFile::Create(folder_ / "socket"));
}

TEST_F(AtomicFileTest, PermissionsOfTheFileBeforeStay) {
  Write("a");
  fs::permissions(folder_ / "a", fs::perms(0600));
  ASSERT_TRUE(WriteWholeFile(folder_ / "a", "secret"));
  EXPECT_EQ(fs::status(folder_ / "a").permissions(), fs::perms(0600));
}

TEST_F(AtomicFileTest, ALongNameHasRoomForItsPartial) {
  const std::string name(255, 'n');
  EXPECT_TRUE(WriteWholeFile(folder_ / name, "text"));
  EXPECT_EQ(Names(), std::vector<std::string>{name});
}

// In a child, whose limit stands for a full disk.
TEST_F(AtomicFileTest, WhatWasThereSurvivesAFullDisk) {
  Write("a");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Status small = WriteWholeFile(folder_ / "small", std::string(900, 'x'));
    const Status large = WriteWholeFile(folder_ / "a", std::string(1100, 'x'));
    const Status fresh = WriteWholeFile(folder_ / "new", std::string(100'000, 'x'));
    ::_exit(small && !large && !fresh ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Names(), (std::vector<std::string>{"a", "small"}));
  EXPECT_EQ(*ReadTextFile(folder_ / "a", 100), "half");
}

TEST_F(AtomicFileTest, StandardOutputIsNotReplaced) {
  const fs::path out = folder_ / "out";
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto fd = OpenToAppend(out);
    const bool ok = fd && ::dup2(*fd, STDOUT_FILENO) == STDOUT_FILENO &&
                    ::write(STDOUT_FILENO, "a", 1) == 1 && WriteWholeFile(out, "b") &&
                    ::write(STDOUT_FILENO, "c", 1) == 1;
    ::_exit(ok ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*ReadTextFile(out, 100), "abc");
}

TEST_F(AtomicFileTest, CheckingLeavesNothing) {
  EXPECT_TRUE(CheckWritable(folder_ / "a"));
  EXPECT_EQ(Names(), std::vector<std::string>{});
}

TEST_F(AtomicFileTest, AFolderAppearsWhole) {
  {
    auto folder = AtomicFolder::Create(folder_ / "out/");
    ASSERT_TRUE(folder && WriteWholeFile(folder->path() / "a", "text"));
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
  EXPECT_EQ(Names(), std::vector<std::string>{});
  auto folder = AtomicFolder::Create(folder_ / "out");
  ASSERT_TRUE(folder && WriteWholeFile(folder->path() / "a", "text") && folder->Commit());
  EXPECT_EQ(Names(), std::vector<std::string>{"out"});
  EXPECT_EQ(*ReadTextFile(folder_ / "out" / "a", 100), "text");
}

TEST_F(AtomicFileTest, PartialsOfAProcessThatASignalEndsAreRemoved) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto file = AtomicFile::Create(folder_ / "a");
    auto folder = AtomicFolder::Create(folder_ / "b");
    const bool ok = file && folder && file->Write("text") && WriteWholeFile(folder->path() / "c", "text") &&
                    WriteWholeFile(folder_ / "done", "text");
    RemovePartials();
    ::_exit(ok ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Names(), std::vector<std::string>{"done"});
}

}  // namespace
}  // namespace celer
