#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace celer::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The JSON in the script with this id.
nlohmann::json ScriptIn(const std::string& html, const std::string& id) {
  const std::string begin = "<script type=\"application/json\" id=\"" + id + "\">";
  const size_t from = html.find(begin) + begin.size();
  return nlohmann::json::parse(html.substr(from, html.find("</script>", from) - from));
}

TEST(Page, HoldsTheDescriptionAndTheData) {
  const std::string hostile = "</script><script>alert(1)</script><!--<script>\x01 \xff & \"'";
  Page page(hostile, hostile, {{"name", hostile}});
  page.Section("First");
  page.Add(Table{.title = hostile,
                 .header = {"a", "b", "c"},
                 .rows = {{hostile, "1", "x"}},
                 .notes = {hostile},
                 .last_is_words = true},
           "row");
  page.Add(std::vector<PageBar>{{.name = hostile, .text = "half", .track = 1, .bar = 0.5}});
  page.Add(Draw({.title = hostile, .x = {}, .y = {}, .lines = {{hostile, {{0, 0}, {1, 1}}, {kInk}}}}),
           hostile);
  const std::string html = page.Html({{"key", hostile}});

  const auto description = ScriptIn(html, "page"), data = ScriptIn(html, "data");
  const std::string same = "</script><script>alert(1)</script><!--<script>\x01 \xef\xbf\xbd & \"'";
  EXPECT_EQ(data["key"], same);
  EXPECT_EQ(description["heading"], same);
  const auto& parts = description["sections"][0]["parts"];
  EXPECT_EQ(parts[0]["table"]["rows"][0][0], same);
  EXPECT_EQ(parts[0]["table"]["words"], nlohmann::json({true, false, true}));
  EXPECT_EQ(parts[1]["bars"][0]["bar"], 0.5);
  EXPECT_THAT(parts[2]["picture"].get<std::string>(), Not(HasSubstr("<script")));
  // The viewer's own script and the two of the page: nothing ends one of them early or begins another.
  size_t scripts = 0;
  for (size_t at = 0; (at = html.find("<script", at)) != std::string::npos; ++at) ++scripts;
  EXPECT_EQ(scripts, 3u);
  EXPECT_THAT(html, HasSubstr("<title>&lt;/script&gt;&lt;script&gt;alert(1)"));
  for (const char* outside : {"https:", "src=", "@import", "url("})
    EXPECT_THAT(html, Not(HasSubstr(outside)));
}

}  // namespace
}  // namespace celer::cli
