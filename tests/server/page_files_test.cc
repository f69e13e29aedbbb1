// The files of the page are in the program byte for byte, and what they name is there too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "server/page/page.h"

#include "base/source_dir.h"

namespace celer::server {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

const PageFile* Find(std::string_view path) {
  for (const PageFile& file : PageFiles())
    if (file.path == path) return &file;
  return nullptr;
}

TEST(PageFiles, HoldTheBytesOfTheirSources) {
  const std::filesystem::path folder = std::filesystem::path(kSourceDir) / "src/server/page";
  for (const PageFile& file : PageFiles()) {
    const std::string name = file.path == "/" ? "index.html" : std::string(file.path.substr(1));
    EXPECT_EQ(file.body, ReadFile(folder / name)) << name;
  }
}

TEST(PageFiles, HaveTheTypeOfTheirName) {
  ASSERT_NE(Find("/"), nullptr);
  EXPECT_EQ(Find("/")->content_type, "text/html; charset=utf-8");
  for (const PageFile& file : PageFiles()) {
    if (file.path == "/") continue;
    EXPECT_EQ(file.content_type,
              file.path.ends_with(".css") ? "text/css; charset=utf-8" : "text/javascript; charset=utf-8")
        << file.path;
  }
}

TEST(PageFiles, EtagsAreQuotedAndDiffer) {
  std::set<std::string_view> etags;
  for (const PageFile& file : PageFiles()) {
    EXPECT_TRUE(std::regex_match(std::string(file.etag), std::regex("\"[0-9a-f]{16}\""))) << file.etag;
    EXPECT_TRUE(etags.insert(file.etag).second) << file.path;
  }
}

// Every script and style that the page loads is embedded, every embedded one is loaded, and nothing comes
// from elsewhere.
TEST(PageFiles, LoadEachOtherAndNothingElse) {
  const std::string html(Find("/")->body);
  std::set<std::string> loaded;
  const std::regex source("(?:<script src|<link rel=\"stylesheet\" href)=\"([^\"]*)\"");
  for (std::sregex_iterator it(html.begin(), html.end(), source), end; it != end; ++it)
    loaded.insert("/" + (*it)[1].str());
  std::set<std::string> embedded;
  for (const PageFile& file : PageFiles())
    if (file.path != "/") embedded.insert(std::string(file.path));
  EXPECT_EQ(loaded, embedded);
}

// The policy allows neither inline scripts nor inline styles, and takes no way from text to markup: neither
// may occur.
TEST(PageFiles, KeepToTheirPolicy) {
  EXPECT_THAT(kPageSecurityPolicy, HasSubstr("default-src 'none'"));
  EXPECT_EQ(kPageSecurityPolicy.find("unsafe"), std::string_view::npos);
  EXPECT_FALSE(
      std::regex_search(std::string(Find("/")->body), std::regex("\\s(style|on[a-z]+)=|<style|<script>")));
  for (const PageFile& file : PageFiles()) {
    if (!file.path.ends_with(".js")) continue;
    const std::string text(file.body);
    EXPECT_FALSE(std::regex_search(
        text,
        std::regex("innerHTML\\s*=|outerHTML|insertAdjacentHTML|document\\.write|\\beval\\(|new Function")))
        << file.path;
  }
}

}  // namespace
}  // namespace celer::server
