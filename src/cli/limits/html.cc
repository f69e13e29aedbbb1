#include <fmt/format.h>

#include "cli/limits/figures.h"
#include "report/chart.h"

namespace celer::cli {
namespace {

constexpr const char* kReportFont = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

// Light on purpose, also in a dark browser: the figures are drawn on white.
constexpr const char* kReportStyle = R"(
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; color: #1f2933;
  background: #f5f7fa; margin: 0; }
main { max-width: 1200px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 8px 0 16px; }
h2 { font-size: 18px; margin: 0 0 10px; }
section { background: #fff; border: 1px solid #e4e8ec; border-radius: 10px; padding: 18px 20px; margin: 18px 0;
  overflow-x: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; }
dt { color: #52606d; } dd { margin: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th { color: #52606d; font-weight: 600; border-bottom: 2px solid #cbd2d9; }
th, td { text-align: right; padding: 4px 14px 4px 0; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-right: 24px; }
th.words, td.words { text-align: left; padding-left: 14px; }
tbody tr:nth-child(even) { background: #f8fafc; }
p { color: #52606d; margin: 10px 0 0; max-width: 100ch; }
svg { display: block; width: 100%; max-width: 900px; height: auto; margin: 0 auto; }
@media (max-width: 760px) { main { padding: 12px 8px 40px; } section { padding: 12px 6px; } }
)";

std::string SvgOpen(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"{2}\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      width, height, kReportFont);
}

}  // namespace

std::string FigureSvg(const Figure& figure) {
  return SvgOpen(figure.width, figure.height) + figure.body + "</svg>\n";
}

std::string LimitsSvg(const LimitsRequest& request) {
  double height = 0, width = 0;
  std::string body;
  for (const Figure& figure : {PrefillFigure(request), DecodeFigure(request), RooflineFigure(request)}) {
    body += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", height, figure.body);
    height += figure.height;
    width = std::max(width, figure.width);
  }
  return SvgOpen(width, height) + body + "</svg>\n";
}

std::string LimitsHtml(const LimitsRequest& request) {
  const std::string title = request.shape.name + " on " + request.machine.name;
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n"
      "<title>Limits of {0}</title>\n<style>{1}</style></head>\n<body><main>\n<h1>The limits of "
      "{0}</h1>\n<section><dl>\n",
      XmlEscape(title), kReportStyle);
  for (const auto& [name, value] : LimitsFacts(request))
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", XmlEscape(name), XmlEscape(value));
  out += "</dl></section>\n";
  for (const Figure& figure : {PrefillFigure(request), DecodeFigure(request), RooflineFigure(request)})
    out += "<section>" + FigureSvg(figure) + "<p>" + XmlEscape(figure.caption) + "</p></section>\n";
  for (const Table& table : LimitsTables(request))
    out += fmt::format("<section><h2>{}</h2>\n{}</section>\n", XmlEscape(table.title), TableHtml(table));
  return out + "</main></body></html>\n";
}

}  // namespace celer::cli
