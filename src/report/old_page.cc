#include "report/old_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/chart.h"

namespace celer::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1f2933; --muted: #52606d; --page: #f5f7fa; --card: #fff; --line: #e4e8ec;
  --rule: #cbd2d9; --even: #f8fafc; --track: #e4e8ec; --bar: #0f7b8a; --floor: #0f7b8a; --over: #d9a441; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --muted: #9aa5b1; --page: #14181d; --card: #1d232a; --line: #323b45; --rule: #465261;
    --even: #222a32; --track: #323b45; --bar: #3db2c1; --floor: #3db2c1; --over: #b98a35; }
}
body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; color: var(--ink);
  background: var(--page); margin: 0; }
main { max-width: 1100px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 8px 0 16px; }
h2 { font-size: 18px; margin: 0 0 10px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 18px 0; overflow-x: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; }
dt { color: var(--muted); } dd { margin: 0; }
.bars { display: grid; grid-template-columns: minmax(7em, max-content) minmax(160px, 1fr) minmax(6em, max-content); gap: 8px 14px;
  align-items: center; font-variant-numeric: tabular-nums; }
.track { position: relative; height: 18px; background: var(--track); border-radius: 3px; overflow: hidden; }
.track.open { background: none; }
.track i { position: absolute; top: 0; bottom: 0; left: 0; background: var(--bar); }
.track i.over { background: var(--over); }
.track i.floor { background: var(--floor); }
.track b { position: absolute; top: 5px; height: 8px; min-width: 2px; background: var(--ink); opacity: .55; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th { color: var(--muted); font-weight: 600; border-bottom: 2px solid var(--rule); }
th, td { text-align: right; padding: 4px 14px 4px 0; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-right: 24px; }
th.words, td.words { text-align: left; padding-left: 14px; }
tbody tr:nth-child(even) { background: var(--even); }
p { color: var(--muted); margin: 10px 0 0; max-width: 100ch; }
p + table { margin-top: 14px; }
)";

}  // namespace

double BarLength(double share) {
  return 100 * std::clamp(share, 0.0, 1.0);
}

std::string SpeedBar(const std::string& name, double track, double low, double median, double high,
                     const std::string& text) {
  return fmt::format(
      "<div>{}</div><div><div class=\"track\" style=\"width:{:.2f}%\"><i style=\"width:{:.2f}%\"></i><b "
      "style=\"left:{:.2f}%;width:{:.2f}%\"></b></div></div><div>{}</div>\n",
      XmlEscape(name), BarLength(track), BarLength(median), BarLength(low), BarLength(high) - BarLength(low),
      XmlEscape(text));
}

std::string BenchPage(const std::string& title, const std::string& heading,
                      const std::vector<std::pair<std::string, std::string>>& facts,
                      const std::string& body) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{}</title>\n<style>{}</style></head>\n<body><main>\n"
      "<h1>{}</h1>\n<section><dl>\n",
      XmlEscape(title), kStyle, XmlEscape(heading));
  for (const auto& [name, value] : facts)
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", XmlEscape(name), XmlEscape(value));
  return out + "</dl></section>\n" + body + "</main></body></html>\n";
}

}  // namespace celer::cli
