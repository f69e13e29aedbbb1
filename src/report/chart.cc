#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/html.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr const char* kChartFont = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
constexpr const char* kGrid = "#e4e8ec";
constexpr const char* kFrame = "#9aa5b1";
constexpr const char* kBand = "#fdf3e7";
constexpr double kLabelSize = 12, kLegendRow = 18;

// A rectangle of the page, in pixels.
struct Box {
  double left, top, right, bottom;

  bool Overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

std::string StrokeAttributes(const Stroke& stroke) {
  std::string text = fmt::format("stroke=\"{}\" stroke-width=\"{}\"", stroke.color, stroke.width);
  if (stroke.dash[0] != '\0') text += fmt::format(" stroke-dasharray=\"{}\"", stroke.dash);
  return text;
}

std::string MarkAt(double px, double py, Marker marker, const char* color, double radius,
                   const std::string& tip = "") {
  const bool ring = marker == Marker::kRing;
  const std::string style =
      fmt::format("fill=\"{}\" stroke=\"{}\" stroke-width=\"{}\"><title>{}</title>", ring ? "#fff" : color,
                  ring ? color : "#fff", ring ? 2 : 1, XmlEscape(tip));
  if (marker == Marker::kSquare)
    return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" {}</rect>\n", px - radius,
                       py - radius, 2 * radius, 2 * radius, style);
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" {}</circle>\n", px, py, radius, style);
}

// Where a value lies between two pixels.
double PixelOf(const Axis& axis, double value, double from, double to) {
  const double part = axis.log ? std::log(value / axis.low) / std::log(axis.high / axis.low)
                               : (value - axis.low) / (axis.high - axis.low);
  return from + (to - from) * part;
}

class ChartWriter {
 public:
  explicit ChartWriter(const Chart& chart)
      : chart_(chart),
        plot_{chart.left + 70, chart.top + 34, chart.left + chart.width - 20, chart.top + chart.height - 50} {
  }

  std::string Write() {
    Frame();
    for (const ChartLine& line : chart_.lines) Line(line);
    for (const ChartMark& mark : chart_.marks) {
      if (mark.radius <= 0) continue;
      const double px = X(mark.x), py = Y(mark.y), r = mark.radius;
      front_ += MarkAt(px, py, mark.marker, mark.color, r, mark.tip);
      taken_.push_back({px - r, py - r, px + r, py + r});
    }
    if (chart_.ridge) Ridge(*chart_.ridge);
    for (const ChartMark& mark : chart_.marks)
      if (!mark.label.empty()) Label(mark);
    const auto axis = [](const Axis& a, double from, double to) {
      return fmt::format("{} {} {} {} {:d}", from, to, a.low, a.high, a.log);
    };
    // The viewer turns places back into values with these. A picture inside the picture cuts off what
    // leaves the frame.
    return fmt::format(
        "<g class=\"chart\" data-x=\"{}\" data-y=\"{}\" data-units=\"{}|{}\">\n{}<svg x=\"{:.1f}\" "
        "y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" viewBox=\"{:.1f} {:.1f} {:.1f} "
        "{:.1f}\">\n{}</svg>\n{}</g>\n",
        axis(chart_.x, plot_.left, plot_.right), axis(chart_.y, plot_.bottom, plot_.top),
        XmlEscape(chart_.x.label), XmlEscape(chart_.y.label), back_, plot_.left, plot_.top, Width(), Height(),
        plot_.left, plot_.top, Width(), Height(), clipped_, front_);
  }

 private:
  double Width() const { return plot_.right - plot_.left; }
  double Height() const { return plot_.bottom - plot_.top; }
  double X(double x) const { return PixelOf(chart_.x, x, plot_.left, plot_.right); }
  double Y(double y) const { return PixelOf(chart_.y, y, plot_.bottom, plot_.top); }

  void Frame() {
    const auto fill = [&](double left, double width, const char* color, const char* stroke) {
      back_ += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"{}\"/>\n",
          left, plot_.top, width, Height(), color, stroke);
    };
    fill(plot_.left, Width(), "#fff", kFrame);
    if (chart_.band) {
      const double from = std::clamp(X(chart_.band->first), plot_.left, plot_.right),
                   to = std::clamp(X(chart_.band->second), plot_.left, plot_.right);
      fill(from, std::max(0.0, to - from), kBand, "none");
    }
    // Every tick has its line; its number is left out where it would touch the one before.
    double free_x = -1e9, free_y = 1e9;
    for (const double tick : Ticks(chart_.x)) {
      const double px = X(tick), half = TextWidth(TickText(tick), 11) / 2;
      back_ += fmt::format("<path d=\"M{:.1f} {}V{}\" stroke=\"{}\"/>\n", px, plot_.top, plot_.bottom, kGrid);
      if (px - half < free_x) continue;
      free_x = px + half + 4;
      front_ += SvgText(px, plot_.bottom + 16, TickText(tick), "middle", kMuted, 11);
    }
    for (const double tick : Ticks(chart_.y)) {
      const double py = Y(tick);
      back_ += fmt::format("<path d=\"M{} {:.1f}H{}\" stroke=\"{}\"/>\n", plot_.left, py, plot_.right, kGrid);
      if (py + 6 > free_y) continue;
      free_y = py - 6;
      front_ += SvgText(plot_.left - 6, py + 4, TickText(tick), "end", kMuted, 11);
    }
    front_ += SvgText(plot_.left, plot_.top - 10, chart_.title, "start", kInk, 14, kBold);
    front_ += SvgText(plot_.right, plot_.top - 10, chart_.note, "end", kMuted, kLabelSize);
    front_ += SvgText((plot_.left + plot_.right) / 2, plot_.bottom + 34, chart_.x.label, "middle", kMuted,
                      kLabelSize);
    front_ += fmt::format(
        "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"middle\" fill=\"{}\" "
        "font-size=\"12\">{}</text>\n",
        plot_.left - 44, (plot_.top + plot_.bottom) / 2, kMuted, XmlEscape(chart_.y.label));
  }

  void Line(const ChartLine& line) {
    std::string d;
    for (const auto& [x, y] : line.points) {
      d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", X(x), Y(y));
      if (line.dots) front_ += MarkAt(X(x), Y(y), Marker::kDot, line.stroke.color, 4.5);
    }
    if (line.points.size() > 1)
      clipped_ +=
          fmt::format("<path d=\"{}\" data-name=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n", d,
                      XmlEscape(line.name), StrokeAttributes(line.stroke));
  }

  void Ridge(double x) {
    clipped_ += fmt::format("<path d=\"M{:.1f} {}V{}\" {}/>\n", X(x), plot_.top, plot_.bottom,
                            StrokeAttributes({kFrame, 1, "3 4"}));
    const std::string text = "ridge " + TickText(x);
    const double width = TextWidth(text, kLabelSize),
                 from = std::min(X(x) + 6, plot_.right - 4 - width);  // inside the frame
    Text({from, plot_.bottom - 8 - kLabelSize, from + width, plot_.bottom - 5}, text, kMuted);
  }

  void Label(const ChartMark& mark) {
    const double px = X(mark.x), py = Y(mark.y), width = TextWidth(mark.label, kLabelSize),
                 height = kLabelSize + 3;
    // Not on the point's own height: that is where the curves run.
    constexpr double kStep = kLabelSize + 4, kNear = 15;
    const double wanted = mark.below ? 1 : -1;
    Box box{};
    for (int away = 0; away < 30; ++away)
      for (const double direction : {wanted, -wanted})
        for (const double from : {px + 6, px - 6 - width, px - width / 2}) {
          const double middle = py + direction * (kNear + away * kStep);
          box = {from, middle - height / 2, from + width, middle + height / 2};
          const bool inside = box.left >= plot_.left + 2 && box.right <= plot_.right - 2 &&
                              box.top >= plot_.top + 2 && box.bottom <= plot_.bottom - 2;
          const auto covers = [&](const Box& other) { return box.Overlaps(other); };
          if (!inside || std::any_of(taken_.begin(), taken_.end(), covers)) continue;
          if (away > 0)
            clipped_ += fmt::format(
                "<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\" stroke-width=\"0.8\"/>\n", px, py,
                std::clamp(px, box.left, box.right), direction > 0 ? box.top : box.bottom, kFrame);
          return Text(box, mark.label, mark.label_color);
        }
    Text(box, mark.label, mark.label_color);  // more labels than fit anywhere
  }

  void Text(const Box& box, const std::string& text, const char* color) {
    taken_.push_back(box);
    // A white halo keeps text readable across lines.
    front_ += SvgText(box.left, box.bottom - 3, text, "start", color, kLabelSize,
                      " stroke=\"#fff\" stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\"");
  }

  const Chart& chart_;
  const Box plot_;
  std::string back_, clipped_, front_;
  std::vector<Box> taken_;  // by marks and labels
};

}  // namespace

std::string XmlEscape(std::string_view text) {
  std::string shown;
  for (const char c : text)  // control characters are not XML at all
    if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') shown += c;
  return EscapeHtml(shown);
}

std::string SvgText(double x, double y, const std::string& text, const char* anchor, const char* color,
                    double size, const char* more) {
  if (text.empty()) return "";
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\" font-size=\"{}\"{}>{}</text>\n", x, y,
      anchor, color, size, more, XmlEscape(text));
}

double TextWidth(std::string_view text, double size) {
  return 0.56 * size * static_cast<double>(Columns(text));
}

double HighestOf(const std::vector<ChartLine>& lines) {
  double highest = 0;
  for (const ChartLine& line : lines)
    for (const auto& [x, y] : line.points) highest = std::max(highest, y);
  return highest;
}

std::vector<double> Ticks(const Axis& axis) {
  std::vector<double> ticks;
  if (axis.log) {
    const int from = int(std::floor(std::log10(axis.low))), to = int(std::ceil(std::log10(axis.high)));
    const bool few = to - from <= 3;
    for (int power = from; power <= to; ++power)
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double value = digit * std::pow(10, power);
        if ((digit == 1 || few) && value >= axis.low * 0.999999 && value <= axis.high * 1.000001)
          ticks.push_back(value);
      }
    return ticks;
  }
  const double raw = (axis.high - axis.low) / 6;
  const double magnitude = std::pow(10, std::floor(std::log10(raw)));
  double step = magnitude;
  for (const double digit : {1.0, 2.0, 5.0, 10.0}) {
    step = digit * magnitude;
    if (step >= raw) break;
  }
  for (double k = std::ceil(axis.low / step - 1e-9); k * step <= axis.high * (1 + 1e-9); ++k)
    ticks.push_back(k * step + 0.0);
  return ticks;
}

std::string TickText(double value) {
  const std::pair<double, const char*> scales[] = {
      {1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [factor, letter] : scales)
    if (std::abs(value) >= factor) return fmt::format("{:.4g}{}", value / factor, letter);
  return fmt::format("{:.4g}", value);
}

Drawing& Drawing::operator+=(const Drawing& other) {
  width = std::max(width, other.width);
  height = std::max(height, other.height);
  body += other.body;
  return *this;
}

Drawing Draw(const Chart& chart) {
  Drawing out{chart.left + chart.width, chart.top + chart.height, ChartWriter(chart).Write()};
  if (chart.legend) out += DrawLegend(chart.lines, chart.left + 70, out.height + 4, chart.width - 90);
  return out;
}

Drawing DrawLegend(const std::vector<ChartLine>& lines, double left, double top, double width) {
  Drawing out;
  double x = left, y = top;
  for (const ChartLine& line : lines) {
    if (line.name.empty()) continue;
    const double needed = 32 + TextWidth(line.name, kLabelSize);
    if (x > left && x + needed > left + width) x = left, y += kLegendRow;
    if (line.stroke.width > 0)
      out.body +=
          fmt::format("<path d=\"M{:.1f} {:.1f}h26\" {}/>\n", x, y + 8, StrokeAttributes(line.stroke));
    if (line.dots) out.body += MarkAt(x + 13, y + 8, Marker::kDot, line.stroke.color, 4.5);
    out += {x + needed, y + kLegendRow, SvgText(x + 32, y + 12, line.name, "start", kInk, kLabelSize)};
    x += needed + 20;
  }
  return out;
}

Drawing DrawTable(const Table& table, double left, double top) {
  constexpr double kRow = 20, kGap = 22;
  Drawing out;
  double x = left;
  for (size_t c = 0; c < table.header.size(); ++c) {
    const bool words = c == 0 || (table.last_is_words && c + 1 == table.header.size());
    double wide = TextWidth(table.header[c], kLabelSize);
    for (const auto& row : table.rows) wide = std::max(wide, TextWidth(row[c], kLabelSize));
    const auto cell = [&](const std::string& text, double y, const char* color) {
      out.body += SvgText(words ? x : x + wide, y, text, words ? "start" : "end", color, kLabelSize);
    };
    cell(table.header[c], top + kRow, kMuted);
    for (size_t r = 0; r < table.rows.size(); ++r)
      cell(table.rows[r][c], top + kRow * static_cast<double>(r + 2), kInk);
    x += wide + kGap;
  }
  return out += {x, top + kRow * static_cast<double>(table.rows.size() + 2), ""};
}

std::string DrawingSvg(const Drawing& drawing, const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" role=\"img\" aria-label=\"{2}\" font-family=\"{3}\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n{4}</svg>\n",
      drawing.width, drawing.height, XmlEscape(title), kChartFont, drawing.body);
}

}  // namespace celer::cli
