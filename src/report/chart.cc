#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/html.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr const char* kGrid = "#e4e8ec";
constexpr const char* kFrame = "#9aa5b1";
constexpr double kLabelSize = 12;

std::string StrokeAttributes(const Stroke& stroke) {
  std::string text = fmt::format("stroke=\"{}\" stroke-width=\"{}\"", stroke.color, stroke.width);
  if (stroke.dash[0] != '\0') text += fmt::format(" stroke-dasharray=\"{}\"", stroke.dash);
  return text;
}

const char* AnchorName(Anchor anchor) {
  switch (anchor) {
    case Anchor::kStart:
      return "start";
    case Anchor::kMiddle:
      return "middle";
    case Anchor::kEnd:
      return "end";
  }
  return "start";
}

std::string MarkAt(double px, double py, Marker marker, const char* color, double radius) {
  switch (marker) {
    case Marker::kDot:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"#fff\"/>\n", px,
                         py, radius, color);
    case Marker::kRing:
      return fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"#fff\" stroke=\"{}\" stroke-width=\"2\"/>\n",
          px, py, radius, color);
    case Marker::kSquare:
      return fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\"/>\n",
          px - radius, py - radius, 2 * radius, 2 * radius, color);
  }
  return "";
}

}  // namespace

std::string XmlEscape(std::string_view text) {
  std::string shown;
  for (const char c : text)  // control characters are not XML at all
    if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') shown += c;
  return EscapeHtml(shown);
}

double TextWidth(std::string_view text, double size) {
  return 0.56 * size * static_cast<double>(Columns(text));
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

Chart::Chart(std::string id, double left, double top, double width, double height, Axis x, Axis y,
             const std::string& title)
    : id_(std::move(id)),
      left_(left),
      top_(top),
      width_(width),
      height_(height),
      x_(std::move(x)),
      y_(std::move(y)) {
  DrawFrame(title);
}

double Chart::PixelX(double x) const {
  const double part =
      x_.log ? std::log(x / x_.low) / std::log(x_.high / x_.low) : (x - x_.low) / (x_.high - x_.low);
  return left_ + width_ * part;
}

double Chart::PixelY(double y) const {
  const double part =
      y_.log ? std::log(y / y_.low) / std::log(y_.high / y_.low) : (y - y_.low) / (y_.high - y_.low);
  return top_ + height_ * (1 - part);
}

void Chart::DrawFrame(const std::string& title) {
  back_ +=
      fmt::format("<clipPath id=\"{}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n",
                  id_, left_, top_, width_, height_);
  back_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#fff\" stroke=\"{}\"/>\n",
                       left_, top_, width_, height_, kFrame);
  // Every tick has its line; its number is left out where it would touch the one before.
  double free_x = -1e9, free_y = 1e9;
  for (const double tick : Ticks(x_)) {
    const double px = PixelX(tick), half = TextWidth(TickText(tick), 11) / 2;
    back_ += fmt::format("<path d=\"M{:.1f} {}V{}\" stroke=\"{}\"/>\n", px, top_, bottom(), kGrid);
    if (px - half < free_x) continue;
    free_x = px + half + 4;
    PageText(px, bottom() + 16, TickText(tick), Anchor::kMiddle, kMuted, 11);
  }
  for (const double tick : Ticks(y_)) {
    const double py = PixelY(tick);
    back_ += fmt::format("<path d=\"M{} {:.1f}H{}\" stroke=\"{}\"/>\n", left_, py, right(), kGrid);
    if (py + 6 > free_y) continue;
    free_y = py - 6;
    PageText(left_ - 6, py + 4, TickText(tick), Anchor::kEnd, kMuted, 11);
  }
  PageText(left_, top_ - 10, title, Anchor::kStart, kInk, 14, true);
  PageText(left_ + width_ / 2, bottom() + 34, x_.label, Anchor::kMiddle, kMuted, 12);
  front_ += fmt::format(
      "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"middle\" fill=\"{}\" "
      "font-size=\"12\">{}</text>\n",
      left_ - 44, top_ + height_ / 2, kMuted, XmlEscape(y_.label));
}

void Chart::Curve(const std::vector<std::pair<double, double>>& points, const Stroke& stroke) {
  if (points.size() < 2) return;
  std::string d;
  for (const auto& [x, y] : points)
    d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", PixelX(x), PixelY(y));
  clipped_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n", d,
                          StrokeAttributes(stroke));
}

void Chart::Band(double from_x, double to_x, const char* color) {
  const double from = std::clamp(PixelX(from_x), left_, right()),
               to = std::clamp(PixelX(to_x), left_, right());
  back_ += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n", from,
                       top_, std::max(0.0, to - from), height_, color);
}

void Chart::VerticalLine(double x, const Stroke& stroke) {
  clipped_ +=
      fmt::format("<path d=\"M{:.1f} {}V{}\" {}/>\n", PixelX(x), top_, bottom(), StrokeAttributes(stroke));
}

void Chart::Mark(double x, double y, Marker marker, const char* color, double radius) {
  const double px = PixelX(x), py = PixelY(y);
  front_ += MarkAt(px, py, marker, color, radius);
  taken_.push_back({px - radius, py - radius, px + radius, py + radius});
}

void Chart::Label(double x, double y, double dx, double dy, const std::string& text, Anchor anchor,
                  const char* color) {
  const double width = TextWidth(text, kLabelSize), base = PixelY(y) + dy;
  double from = PixelX(x) + dx;
  if (anchor == Anchor::kMiddle) from -= width / 2;
  if (anchor == Anchor::kEnd) from -= width;
  from = std::clamp(from, left_ + 4, std::max(left_ + 4, right() - 4 - width));  // inside the frame
  Text({from, base - kLabelSize, from + width, base + 3}, text, color);
}

void Chart::PointLabel(double x, double y, const std::string& text, Side side, const char* color) {
  const double px = PixelX(x), py = PixelY(y), width = TextWidth(text, kLabelSize), height = kLabelSize + 3;
  // Not on the point's own height: that is where the curves run.
  constexpr double kStep = kLabelSize + 4, kNear = 15;
  const double wanted = side == Side::kAbove ? -1 : 1;
  Box box{};
  for (int away = 0; away < 30; ++away)
    for (const double direction : {wanted, -wanted})
      for (const double from : {px + 6, px - 6 - width, px - width / 2}) {
        const double middle = py + direction * (kNear + away * kStep);
        box = {from, middle - height / 2, from + width, middle + height / 2};
        const bool inside = box.left >= left_ + 2 && box.right <= right() - 2 && box.top >= top_ + 2 &&
                            box.bottom <= bottom() - 2;
        const auto covers = [&](const Box& other) { return box.Overlaps(other); };
        if (!inside || std::any_of(taken_.begin(), taken_.end(), covers)) continue;
        if (away > 0)
          clipped_ += fmt::format(
              "<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\" stroke-width=\"0.8\"/>\n", px, py,
              std::clamp(px, box.left, box.right), direction > 0 ? box.top : box.bottom, kFrame);
        Text(box, text, color);
        return;
      }
  Text(box, text, color);  // more labels than fit anywhere
}

void Chart::Text(const Box& box, const std::string& text, const char* color) {
  taken_.push_back(box);
  // A white halo keeps text readable across lines.
  front_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"start\" fill=\"{}\" font-size=\"{}\" stroke=\"#fff\" "
      "stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\">{}</text>\n",
      box.left, box.bottom - 3, color, kLabelSize, XmlEscape(text));
}

void Chart::PageText(double px, double py, const std::string& text, Anchor anchor, const char* color,
                     double size, bool bold) {
  front_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\" font-size=\"{}\"{}>{}</text>\n", px, py,
      AnchorName(anchor), color, size, bold ? " font-weight=\"600\"" : "", XmlEscape(text));
}

void Chart::PageLine(double px1, double py1, double px2, double py2, const Stroke& stroke) {
  front_ += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" {}/>\n", px1, py1, px2, py2,
                        StrokeAttributes(stroke));
}

void Chart::PageMark(double px, double py, Marker marker, const char* color, double radius) {
  front_ += MarkAt(px, py, marker, color, radius);
}

std::string Chart::Finish() {
  return back_ + fmt::format("<g clip-path=\"url(#{})\">\n{}</g>\n", id_, clipped_) + front_;
}

}  // namespace celer::cli
