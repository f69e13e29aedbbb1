// A small SVG chart: axes with ticks, curves, markers and labels. No scripts and no external files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace celer::cli {

// Colours of words, and of those that matter less.
inline constexpr const char* kInk = "#1f2933";
inline constexpr const char* kMuted = "#52606d";

std::string XmlEscape(std::string_view text);

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  std::string label{};
};

struct Stroke {
  const char* color;
  double width = 2;
  const char* dash = "";  // "6 4"; empty is solid
};

enum class Marker { kDot, kRing, kSquare };
enum class Anchor { kStart, kMiddle, kEnd };

// A rectangle of the page, in pixels.
struct Box {
  double left, top, right, bottom;

  bool Overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// About as wide as a text of this size is in the usual fonts.
double TextWidth(std::string_view text, double size);

// Collects the elements of one chart in a rectangle of the page. Data coordinates unless a name says pixels.
class Chart {
 public:
  // `id` must be unique on the page.
  Chart(std::string id, double left, double top, double width, double height, Axis x, Axis y,
        const std::string& title);

  void Curve(const std::vector<std::pair<double, double>>& points, const Stroke& stroke);
  void Band(double from_x, double to_x, const char* color);
  void VerticalLine(double x, const Stroke& stroke);
  void Mark(double x, double y, Marker marker, const char* color, double radius = 4.5);
  void Label(double x, double y, double dx_pixels, double dy_pixels, const std::string& text, Anchor anchor,
             const char* color);
  // Labels a point: as near to it as possible without covering a mark or another label, first on the side
  // that is asked for. A thin line leads to the point if the label is not right beside it. Marks come before
  // the labels that must not cover them.
  enum class Side { kAbove, kBelow };
  void PointLabel(double x, double y, const std::string& text, Side side, const char* color);
  // Text anywhere on the page, in pixels.
  void PageText(double px, double py, const std::string& text, Anchor anchor, const char* color,
                double size = 12, bool bold = false);
  void PageLine(double px1, double py1, double px2, double py2, const Stroke& stroke);
  void PageMark(double px, double py, Marker marker, const char* color, double radius = 4.5);

  double PixelX(double x) const;
  double PixelY(double y) const;
  double left() const { return left_; }
  double right() const { return left_ + width_; }
  double top() const { return top_; }
  double bottom() const { return top_ + height_; }

  std::string Finish();  // the chart's elements

 private:
  void DrawFrame(const std::string& title);
  void Text(const Box& box, const std::string& text, const char* color);

  std::string id_;
  double left_, top_, width_, height_;
  Axis x_, y_;
  std::string back_, clipped_, front_;
  std::vector<Box> taken_;  // by marks and labels
};

// Tick values inside [low, high]: 1-2-5 steps, or powers of ten (with 2 and 5 between when there are few).
std::vector<double> Ticks(const Axis& axis);
// "10k", "0.5", "2M".
std::string TickText(double value);

}  // namespace celer::cli
