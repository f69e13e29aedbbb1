#include "io/file/mapping_faults.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "io/file/mapped_file.h"
#include "io/file/test_folder.h"

namespace celer {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr int kExitCode = 7;

// Reads every page; volatile, so that nothing is left out.
void Touch(std::span<const std::byte> bytes) {
  const volatile std::byte* data = bytes.data();
  for (size_t i = 0; i < bytes.size(); i += 512) (void)data[i];
}

// Each test's fault happens in a child process: a death test.
class MappingFaultsDeathTest : public testing::Test {
 protected:
  // Forked, not started as a new program: a child that ends at once leaves the folder to its parent.
  MappingFaultsDeathTest() { GTEST_FLAG_SET(death_test_style, "fast"); }
  const TestFolder folder_;
};

TEST_F(MappingFaultsDeathTest, AFileCutShortIsNamedWithItsSizes) {
  EXPECT_EXIT(
      {
        ReportMappingFaults(kExitCode);
        const auto path = folder_.Write("model.gguf", std::string(kBytes, 'x'));
        const auto file = MappedFile::Open(path);
        Touch(file->bytes());
        if (::truncate(path.c_str(), 8192) != 0) ::_exit(99);
        Touch(file->bytes());
        ::_exit(0);
      },
      testing::ExitedWithCode(kExitCode),
      "^error: /.*/model.gguf: was cut short while it was in use: it has 8192 bytes and had 1048576; fetch "
      "it "
      "again, and let nothing write to it\n$");
}

TEST_F(MappingFaultsDeathTest, AnotherFileUnderTheNameIsNotTakenForIt) {
  EXPECT_EXIT(
      {
        ReportMappingFaults(kExitCode);
        const auto path = folder_.Write("model.gguf", std::string(kBytes, 'x'));
        const auto file = MappedFile::Open(path);
        if (::truncate(path.c_str(), 0) != 0 || ::rename(path.c_str(), (folder_ / "old").c_str()) != 0)
          ::_exit(99);
        folder_.Write("model.gguf", "short");
        Touch(file->bytes());
        ::_exit(0);
      },
      testing::ExitedWithCode(kExitCode), "^error: /.*/model.gguf: can no longer be read: [^\n]*\n$");
}

TEST_F(MappingFaultsDeathTest, ManyThreadsOneSentence) {
  EXPECT_EXIT(
      {
        ReportMappingFaults(kExitCode);
        const auto other = MappedFile::Open(folder_.Write("other", "whole"));
        const auto path = folder_.Write("model.gguf", std::string(kBytes, 'x'));
        const auto file = MappedFile::Open(path);
        if (::truncate(path.c_str(), 0) != 0) ::_exit(99);
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; ++i) threads.emplace_back([&] { Touch(file->bytes()); });
        for (std::thread& thread : threads) thread.join();
        ::_exit(0);
      },
      testing::ExitedWithCode(kExitCode), "^error: [^\n]*model.gguf[^\n]*\n$");
}

TEST_F(MappingFaultsDeathTest, AFaultOutsideOfMappedFilesGoesWhereItWent) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);  // sanitizers have their own
        ReportMappingFaults(kExitCode);
        const auto path = folder_.Write("gone", std::string(kBytes, 'x'));
        // Known once, and forgotten again: the same addresses mean something else now. Something else may
        // take them first (a sanitizer's own memory), hence several times.
        const int raw = ::open(path.c_str(), O_RDONLY);
        const std::byte* before = nullptr;
        void* data = nullptr;
        for (int i = 0; i < 100 && (i == 0 || data != before); ++i) {
          before = MappedFile::Open(path)->bytes().data();
          data = ::mmap(const_cast<std::byte*>(before), kBytes, PROT_READ, MAP_PRIVATE, raw, 0);
        }
        if (::truncate(path.c_str(), 0) != 0 || data != before) ::_exit(99);
        Touch({static_cast<const std::byte*>(data), kBytes});
        ::_exit(0);
      },
      testing::KilledBySignal(SIGBUS), "^$");
}

TEST_F(MappingFaultsDeathTest, ASignalFromOutsideStillEndsTheProcess) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        ReportMappingFaults(kExitCode);
        ::kill(::getpid(), SIGBUS);
        ::_exit(0);
      },
      testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace celer
