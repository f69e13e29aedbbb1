#include "io/file/contained_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "io/file/test_folder.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(ContainedPath, StaysInside) {
  const TestFolder folder;
  folder.Write("model/a.safetensors", "x");
  folder.Write("model/sub/b", "x");
  folder.Write("outside", "x");
  const fs::path model = folder / "model";
  EXPECT_TRUE(ResolveInside(model, "a.safetensors", "index"));
  EXPECT_TRUE(ResolveInside(model, "sub/b", "index"));
  EXPECT_TRUE(ResolveInside(model, "./a.safetensors", "index"));
  const std::string absolute = (folder / "outside").string();
  const std::string absolute_inside = (model / "a.safetensors").string();
  for (const std::string& name : {std::string("../outside"), absolute, absolute_inside,
                                  std::string("sub/../../outside"), std::string("sub/../a.safetensors"),
                                  std::string(""), std::string(".."), std::string("a.safetensors\0/x", 15)}) {
    const auto resolved = ResolveInside(model, name, "index");
    ASSERT_FALSE(resolved) << name;
    EXPECT_THAT(resolved.error().message(), HasSubstr("index: names the file '"));
  }
  EXPECT_EQ(ResolveInside(model, "none", "index").error().code(), Error::Code::kNotFound);
  EXPECT_FALSE(ResolveInside(model, "sub", "index"));
  EXPECT_FALSE(ResolveInside(model, ".", "index"));
}

TEST(ContainedPath, LinksMayNotLeadOut) {
  const TestFolder folder;
  folder.Write("model/a", "x");
  folder.Write("outside", "x");
  folder.Write("model-evil/a", "x");  // shares a prefix with the folder's name
  const fs::path model = folder / "model";
  fs::create_symlink("a", model / "inner");
  fs::create_symlink("../outside", model / "outer");
  fs::create_symlink(folder / "model-evil", model / "dir");
  fs::create_symlink("loop", model / "loop");
  EXPECT_TRUE(ResolveInside(model, "inner", "index"));
  for (const char* name : {"outer", "dir/a"}) {
    const auto resolved = ResolveInside(model, name, "index");
    ASSERT_FALSE(resolved) << name;
    EXPECT_THAT(resolved.error().message(), HasSubstr("leads out of"));
  }
  EXPECT_FALSE(ResolveInside(model, "loop", "index"));
  // A link to the folder itself is the user's own choice.
  fs::create_symlink(model, folder / "alias");
  EXPECT_TRUE(ResolveInside(folder / "alias", "a", "index"));
}

TEST(ContainedPath, HuggingFaceCacheIsAllowed) {
  const TestFolder folder;
  folder.Write("models--x/blobs/123", "x");
  folder.Write("models--x/refs/main", "x");
  const fs::path snapshot = folder / "models--x/snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_symlink("../../blobs/123", snapshot / "model.safetensors");
  fs::create_symlink("../../refs/main", snapshot / "other");
  EXPECT_TRUE(ResolveInside(snapshot, "model.safetensors", "index"));
  EXPECT_FALSE(ResolveInside(snapshot, "other", "index"));
}

}  // namespace
}  // namespace celer
