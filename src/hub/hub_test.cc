#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "hub/catalog.h"
#include "hub/hf.h"
#include "hub/model_path.h"
#include "hub/store.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class PullStore : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("pull_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

  fs::path folder_;
};

TEST_F(PullStore, GoodFileIsStampedAndTrusted) {
  const ExpectedFile expected{folder_ / "f", 3, kAbc};
  EXPECT_EQ(VerifyFile(expected, Check::kQuick).value().why, "is missing");
  Write(folder_ / "f", "abc");
  EXPECT_TRUE(VerifyFile(expected, Check::kQuick).value().good);
  ASSERT_TRUE(fs::exists(folder_ / "f.sha256"));
  // Same size, other content, and a stamp that claims it was checked later: the quick look believes it, the
  // full not.
  Write(folder_ / "f", "abd");
  fs::last_write_time(folder_ / "f.sha256", fs::last_write_time(folder_ / "f") + std::chrono::seconds(1));
  EXPECT_TRUE(VerifyFile(expected, Check::kQuick).value().good);
  EXPECT_FALSE(VerifyFile(expected, Check::kFull).value().good);
  // A file newer than its stamp is hashed.
  fs::last_write_time(folder_ / "f.sha256", fs::last_write_time(folder_ / "f") - std::chrono::seconds(1));
  const Verdict verdict = VerifyFile(expected, Check::kQuick).value();
  EXPECT_FALSE(verdict.good);
  EXPECT_NE(verdict.why.find("has sha256"), std::string::npos);
}

TEST_F(PullStore, CorruptStampIsNotTrusted) {
  const ExpectedFile expected{folder_ / "f", 3, kAbc};
  for (const std::string& stamp : {std::string(), std::string("x"), std::string(64, '0') + "  f\n"}) {
    Write(folder_ / "f", "abc");
    Write(folder_ / "f.sha256", stamp);
    EXPECT_TRUE(VerifyFile(expected, Check::kQuick).value().good);  // hashed, found right, stamped again
    std::ifstream in(folder_ / "f.sha256");
    std::string first;
    in >> first;
    EXPECT_EQ(first, kAbc);
  }
  Write(folder_ / "f", "abcd");
  EXPECT_EQ(VerifyFile(expected, Check::kQuick).value().why, "has 4 bytes, expected 3");
}

TEST_F(PullStore, PartIsRenamedOrDeleted) {
  const ExpectedFile expected{folder_ / "f", 3, kAbc};
  Write(folder_ / "f.part", "abd");
  const Status wrong = AcceptPart(expected);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Error::Code::kCorrupt);
  EXPECT_NE(wrong.error().message().find("deleted"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_));
  Write(folder_ / "f.part", "abc");
  EXPECT_TRUE(AcceptPart(expected));
  EXPECT_TRUE(fs::exists(folder_ / "f"));
  EXPECT_FALSE(fs::exists(folder_ / "f.part"));
  EXPECT_TRUE(VerifyFile(expected, Check::kQuick).value().good);
}

TEST(PullNames, HubNames) {
  const auto plain = HubName::Parse("hf:org/name");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->repository, "org/name");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->Folder("m"), fs::path("m/org--name"));
  const auto file = HubName::Parse("hf:org/na.me/sub/x-Q4.gguf@v1.0");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->file, "sub/x-Q4.gguf");
  EXPECT_EQ(file->revision, "v1.0");
  EXPECT_EQ(file->Folder("m"), fs::path("m/org--na.me@v1.0"));
  EXPECT_EQ(file->Text(), "hf:org/na.me/sub/x-Q4.gguf@v1.0");
  for (const char* bad : {"hf:", "hf:org", "hf:/name", "hf:org/", "hf:org/..", "hf:../name",
                          "hf:org/name/../../x", "hf:org/name@", "hf:org/name@../x", "hf:org/name?x",
                          "hf:-org/name", "hf:org/name//x", "hf:org/name/-x", "hf:o rg/name"})
    EXPECT_FALSE(HubName::Parse(bad)) << bad;
}

TEST(PullNames, PathsThatWouldLeaveTheFolder) {
  for (const char* good : {"a", "a/b.gguf", "model-00001-of-00002.safetensors", "..a", "a..b/c", "\xc3\xa9"})
    EXPECT_TRUE(IsSafeRelativePath(good)) << good;
  for (const char* bad :
       {"", "/a", "..", "../a", "a/..", "a/../b", "./a", "a//b", "a/", "a\\b", "a\nb", "-o", "a/-o"})
    EXPECT_FALSE(IsSafeRelativePath(bad)) << bad;
}

HubName Hub(const std::string& text) {
  return HubName::Parse(text).value();
}

std::vector<std::string> Chosen(const std::vector<std::string>& paths, const std::string& name = "hf:o/n") {
  std::vector<HubFile> files;
  for (const std::string& path : paths) files.push_back({path, 1, ""});
  const auto chosen = ChooseModelFiles(files, Hub(name));
  if (!chosen) return {"error", chosen.error().message()};
  std::vector<std::string> out;
  for (const HubFile& file : *chosen) out.push_back(file.path);
  return out;
}

TEST(PullCatalog, WhatIsCompiledInIsWhole) {
  const auto entries = ParseCatalog(CatalogFiles().front().body);
  ASSERT_TRUE(entries) << entries.error().message();
  ASSERT_EQ(entries->size(), 38u);
  EXPECT_EQ(entries->front().name, "smollm2");
  std::set<std::string> names, files;
  for (const CatalogEntry& entry : *entries) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_TRUE(files.insert(entry.file).second) << entry.file;
    EXPECT_TRUE(IsSafeRelativePath(entry.file) && IsSafeRelativePath(entry.member)) << entry.name;
    EXPECT_EQ(entry.sha256.size(), 64u) << entry.name;
    EXPECT_EQ(entry.sha256.find_first_not_of("0123456789abcdef"), std::string::npos) << entry.name;
    EXPECT_TRUE(entry.wheel.ends_with(".whl")) << entry.name;
    EXPECT_EQ(FindInCatalog(entry.name)->member, entry.member);
  }
}

TEST(PullCatalog, SaysWhatIsWrong) {
  EXPECT_EQ(ParseCatalog("{}").error().message(), "catalog.json: must hold an array of wheels");
  EXPECT_FALSE(ParseCatalog("[1]"));
  EXPECT_NE(ParseCatalog(R"([{"package":"p"}])").error().message().find("'version' is missing"),
            std::string::npos);
  EXPECT_EQ(
      ParseCatalog(
          R"([{"package":"p","version":"1","wheel":"p.whl","wheel_bytes":1,"licence":"MIT","files":1}])")
          .error()
          .message(),
      "p.whl: 'files' must be an array");
}

TEST(PullHub, ChoosesTheModel) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(Chosen({"README.md", "config.json", "tokenizer.json", "model.safetensors",
                    "consolidated.safetensors", "pytorch_model.bin", "onnx/model.safetensors", "n.gguf"}),
            (Names{"config.json", "tokenizer.json", "model.safetensors"}));
  EXPECT_EQ(Chosen({"README.md", "config.json", "n.gguf"}), (Names{"n.gguf"}));
  EXPECT_EQ(Chosen({"a.gguf", "b.gguf"}, "hf:o/n/b.gguf"), (Names{"b.gguf"}));
  EXPECT_NE(Chosen({"a.gguf", "b.gguf"})[1].find("hf:o/n/b.gguf"), std::string::npos);
  EXPECT_NE(Chosen({"a.gguf"}, "hf:o/n/c.gguf")[1].find("no file 'c.gguf'"), std::string::npos);
  EXPECT_NE(Chosen({"README.md", "pytorch_model.bin"})[1].find("neither safetensors nor GGUF"),
            std::string::npos);
}

TEST(PullHub, ListsAreChecked) {
  const std::string hash(64, 'a');
  const auto good =
      ParseHubList(R"([{"type":"directory","path":"x","size":0},{"type":"file","path":"a.gguf","size":5,
      "lfs":{"oid":")" +
                       hash + R"(","size":7}},{"type":"file","path":"b.json","size":2}])",
                   "api");
  ASSERT_TRUE(good) << good.error().message();
  ASSERT_EQ(good->size(), 2u);
  EXPECT_EQ((*good)[0].bytes, 7);
  EXPECT_EQ((*good)[0].sha256, hash);
  EXPECT_EQ((*good)[1].sha256, "");
  for (const char* bad :
       {"", "{}", "[1]", R"([{"path":"a"}])", R"([{"type":"file","path":"../a","size":1}])",
        R"([{"type":"file","path":"/etc/passwd","size":1}])", R"([{"type":"file","path":"a","size":-1}])",
        R"([{"type":"file","path":"a","size":1e300}])", R"([{"type":"file","path":7,"size":1}])",
        R"([{"type":"file","path":"a","size":1,"lfs":{"oid":"zz","size":1}}])",
        R"([{"type":"file","path":"a","size":1,"lfs":7}])"}) {
    const auto result = ParseHubList(bad, "api");
    ASSERT_FALSE(result) << bad;
    EXPECT_TRUE(result.error().message().starts_with("api")) << result.error().message();
  }
}

TEST_F(PullStore, ModelPath) {
  ::setenv("CELER_CACHE", folder_.c_str(), 1);
  EXPECT_EQ(ResolveModelPath(folder_.string()).value(), folder_);
  EXPECT_EQ(ResolveModelPath("smollm2").error().message(),
            "'smollm2' is not here yet; run celer pull smollm2");
  EXPECT_NE(ResolveModelPath("smolm2").error().message().find("did you mean 'smollm2'?"), std::string::npos);
  EXPECT_NE(ResolveModelPath("hf:o/n").error().message().find("run celer pull hf:o/n"), std::string::npos);
  EXPECT_FALSE(ResolveModelPath(""));
  fs::create_directories(folder_ / "models" / "o--n");
  Write(folder_ / "models" / "o--n" / ".pulled", ".\n");
  EXPECT_EQ(ResolveModelPath("hf:o/n").value(), folder_ / "models" / "o--n");
  Write(folder_ / "models" / "o--n" / ".pulled", "../../x\n");
  EXPECT_FALSE(ResolveModelPath("hf:o/n"));
  // Half a file under the right name is not taken.
  const CatalogEntry& entry = Catalog()[0];
  Write(folder_ / "models" / entry.file, "half");
  EXPECT_FALSE(ResolveModelPath(entry.name));
  fs::resize_file(folder_ / "models" / entry.file, static_cast<uintmax_t>(entry.bytes));
  EXPECT_EQ(ResolveModelPath(entry.name).value(), folder_ / "models" / entry.file);
  ::unsetenv("CELER_CACHE");
}

}  // namespace
}  // namespace celer::cli
