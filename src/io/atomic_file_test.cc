#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "io/json.h"

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

}  // namespace
}  // namespace celer
