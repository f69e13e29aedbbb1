#include "base/html.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(Html, EscapesWhatHasAMeaning) {
  EXPECT_EQ(EscapeHtml(""), "");
  EXPECT_EQ(EscapeHtml("<a href=\"x\">Q & A's é</a>"),
            "&lt;a href=&#34;x&#34;&gt;Q &amp; A&#39;s é&lt;/a&gt;");
  EXPECT_EQ(EscapeHtml("&amp;"), "&amp;amp;");
}

}  // namespace
}  // namespace celer
