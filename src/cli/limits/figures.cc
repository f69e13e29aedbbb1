#include "cli/limits/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "limits/quantity.h"
#include "limits/roofline.h"
#include "limits/work.h"
#include "report/chart.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr const char* kRead = "#1f6fb2";
constexpr const char* kReadOnce = "#7fb3dc";
constexpr const char* kExact = "#c8442b";
constexpr const char* kRough = "#e39a3b";
constexpr const char* kBand = "#fdf3e7";
// A palette that is safe for colour blindness (Okabe and Ito).
constexpr const char* kLineColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                       "#b8860b", "#56b4e9", "#5b4b8a", "#444444"};

constexpr double kFigureWidth =
    700;  // drawn as it is on a narrow page, so that every letter can be read there
constexpr size_t kMaxLines = std::size(kLineColors);

using Points = std::vector<std::pair<double, double>>;

// Values spread evenly on a log axis.
std::vector<int64_t> LogSteps(double low, double high, int count) {
  std::vector<int64_t> steps;
  for (int i = 0; i < count; ++i) {
    const auto n = static_cast<int64_t>(std::llround(low * std::pow(high / low, double(i) / (count - 1))));
    if (steps.empty() || n > steps.back()) steps.push_back(n);
  }
  return steps;
}

// One panel per weight width: the first setup of each.
std::vector<LlmSetup> Widths(const LimitsRequest& r) {
  std::vector<LlmSetup> widths;
  for (const LlmSetup& setup : r.setups) {
    const bool seen = std::any_of(widths.begin(), widths.end(),
                                  [&](const LlmSetup& w) { return w.weight_bits == setup.weight_bits; });
    if (!seen && widths.size() < 6) widths.push_back(setup);
  }
  std::stable_sort(widths.begin(), widths.end(),
                   [](const LlmSetup& a, const LlmSetup& b) { return a.weight_bits > b.weight_bits; });
  return widths;
}

// The longest prompt drawn: well past the last turning point, if there is one.
double LongestPrompt(const LimitsRequest& r, const std::vector<LlmSetup>& widths) {
  double longest = 2.0 * double(r.prompts.back());
  for (const LlmSetup& setup : widths)
    for (const HeadRows head : {HeadRows::kRough, HeadRows::kExact})
      if (const auto points = PrefillTurningPoints(r.shape, r.machine, setup, head)) {
        longest = std::max(longest, 20 * points->first);
        if (std::isfinite(points->second)) longest = std::max(longest, 5 * points->second);
      }
  return std::clamp(longest, 100.0, 1e7);
}

struct PointName {
  double x, y;
  std::string text;
  Chart::Side side;
  const char* color;
};

void MarkTurningPoints(Chart& chart, const LimitsRequest& r, const LlmSetup& setup, HeadRows head,
                       std::vector<PointName>* labels) {
  const auto points = PrefillTurningPoints(r.shape, r.machine, setup, head);
  if (!points) return;
  const bool exact = head == HeadRows::kExact;
  const char* color = exact ? kExact : "#b8741a";
  const auto mark = [&](double n, bool first) {
    if (!std::isfinite(n) || n < 1) return;
    // Between whole numbers the curves are read where the real crossing lies.
    const auto low = Floor(n);
    const double part = n - double(low);
    const double y = 1e3 * ((1 - part) * PrefillLimit(r.shape, r.machine, setup, low, head).read_s() +
                            part * PrefillLimit(r.shape, r.machine, setup, low + 1, head).read_s());
    chart.Mark(n, y, exact ? Marker::kDot : Marker::kRing, color);
    labels->push_back({n, y, fmt::format("{} {}", exact ? "exact" : "rough", FormatCount(low)),
                       first && exact ? Chart::Side::kBelow : Chart::Side::kAbove, color});
  };
  mark(points->first, true);
  mark(points->second, false);
}

std::string LegendEntry(double x, double y, const Stroke& stroke, const std::string& text) {
  return fmt::format(
      "<path d=\"M{} {}h26\" stroke=\"{}\" stroke-width=\"{}\" stroke-dasharray=\"{}\"/>\n"
      "<text x=\"{}\" y=\"{}\" fill=\"{}\" font-size=\"12\">{}</text>\n",
      x, y - 4, stroke.color, stroke.width, stroke.dash[0] ? stroke.dash : "none", x + 32, y, kInk,
      XmlEscape(text));
}

// Two to a line.
constexpr double kLegendRow = 18;
double LegendHeight(size_t entries) {
  return kLegendRow * static_cast<double>((entries + 1) / 2);
}
std::string Legend(double x, double y, const std::vector<std::pair<Stroke, std::string>>& entries) {
  std::string out;
  for (size_t i = 0; i < entries.size(); ++i)
    out += LegendEntry(x + (i % 2 == 0 ? 0 : (kFigureWidth - x) / 2),
                       y + kLegendRow * static_cast<double>(i / 2), entries[i].first, entries[i].second);
  return out;
}

// Its second part may take two lines; what follows begins at kHeading.
constexpr double kHeading = 82;
std::string Heading(const std::string& text, const std::string& sub) {
  std::string out =
      fmt::format("<text x=\"20\" y=\"30\" fill=\"{}\" font-size=\"18\" font-weight=\"600\">{}</text>\n",
                  kInk, XmlEscape(text));
  const std::string wrapped = Wrap(sub, 100, 0);
  double y = 50;
  for (size_t from = 0; from < wrapped.size(); y += 16) {
    const size_t end = std::min(wrapped.find('\n', from), wrapped.size());
    out += fmt::format("<text x=\"20\" y=\"{}\" fill=\"{}\" font-size=\"12\">{}</text>\n", y, kMuted,
                       XmlEscape(wrapped.substr(from, end - from)));
    from = end + 1;
  }
  return out;
}

std::string Where(const LimitsRequest& r) {
  return r.shape.name + " on " + r.machine.name + (r.batch() > 1 ? fmt::format(", batch {}", r.batch()) : "");
}

// Pushes labels apart so that none is closer than `gap` to the next; the order stays.
void Spread(std::vector<double>& positions, double gap, double low, double high) {
  for (size_t i = 1; i < positions.size(); ++i) positions[i] = std::max(positions[i], positions[i - 1] + gap);
  if (!positions.empty() && positions.back() > high) {
    positions.back() = high;
    for (size_t i = positions.size() - 1; i-- > 0;)
      positions[i] = std::min(positions[i], positions[i + 1] - gap);
  }
  if (!positions.empty() && positions.front() < low)
    for (double& position : positions) position += low - positions.front();
}

}  // namespace

Figure PrefillFigure(const LimitsRequest& r) {
  const std::vector<LlmSetup> widths = Widths(r);
  const double longest = LongestPrompt(r, widths);
  const std::vector<int64_t> steps = LogSteps(1, longest, 160);

  // One scale for all panels, so that they compare.
  double low = 1e300, high = 0;
  for (const LlmSetup& setup : widths)
    for (const int64_t n : {steps.front(), steps.back()}) {
      const PhaseLimit rough = PrefillLimit(r.shape, r.machine, setup, n, HeadRows::kRough);
      low = std::min(low, 1e3 * std::min(rough.read_s(), rough.compute_s));
      high = std::max(high, 1e3 * rough.seconds());
    }

  const int columns = int(std::min<size_t>(2, widths.size()));
  const int rows = int((widths.size() + size_t(columns) - 1) / size_t(columns));
  const double cell = (kFigureWidth - 20) / columns, plot_height = 230, cell_height = plot_height + 84;
  const std::vector<std::pair<Stroke, std::string>> legend = {
      {{kRead, 2.5, ""}, "read weights and KV"},
      {{kReadOnce, 2, "2 4"}, "read, KV once (tiled attention)"},
      {{kExact, 2.5, ""}, "compute exact"},
      {{kRough, 2, "7 4"}, "compute rough"}};
  const double above = kHeading + LegendHeight(legend.size());
  Figure figure;
  figure.title = "Prefill: reading against computing";
  figure.caption =
      "Where the blue curve is on top, memory binds; where the red one is, arithmetic does (shaded). Below "
      "the first turning "
      "point a longer prompt is free; above it, splitting the prompt into chunks of that length costs "
      "nothing.";
  figure.width = kFigureWidth;
  figure.height = above + rows * cell_height + 10;
  figure.body =
      Heading(figure.title,
              Where(r) + ": time to the first token over the length of the prompt, for each weight width");
  figure.body += Legend(20, kHeading + 10, legend);
  for (size_t i = 0; i < widths.size(); ++i) {
    const LlmSetup& setup = widths[i];
    const double left = 20 + double(i % size_t(columns)) * cell + 54,
                 top = above + double(i / size_t(columns)) * cell_height + 34;
    Chart chart(
        fmt::format("prefill{}", i), left, top, cell - 78, plot_height,
        {.low = 1, .high = double(steps.back()), .log = true, .label = "prompt tokens"},
        {.low = low * 0.7, .high = high * 1.6, .log = true, .label = i % size_t(columns) == 0 ? "ms" : ""},
        SetupName(setup));
    if (const auto points = PrefillTurningPoints(r.shape, r.machine, setup)) {
      chart.Band(std::max(1.0, points->first), std::min(points->second, double(steps.back())), kBand);
    }
    Points read, once, exact, rough;
    for (const int64_t n : steps) {
      const PhaseLimit e = PrefillLimit(r.shape, r.machine, setup, n);
      const PhaseLimit tiled = PrefillLimit(r.shape, r.machine, setup, n, HeadRows::kExact, KvReads::kOnce);
      read.emplace_back(n, 1e3 * e.read_s());
      once.emplace_back(n, 1e3 * tiled.read_s());
      exact.emplace_back(n, 1e3 * e.compute_s);
      rough.emplace_back(n, 1e3 * PrefillLimit(r.shape, r.machine, setup, n, HeadRows::kRough).compute_s);
    }
    chart.Curve(once, {kReadOnce, 2, "2 4"});
    chart.Curve(read, {kRead, 2.5});
    chart.Curve(rough, {kRough, 2, "7 4"});
    chart.Curve(exact, {kExact, 2.5});
    const auto rough_points = PrefillTurningPoints(r.shape, r.machine, setup, HeadRows::kRough);
    const auto exact_points = PrefillTurningPoints(r.shape, r.machine, setup, HeadRows::kExact);
    const char* missing = !rough_points   ? "reading always binds"
                          : !exact_points ? "exact: reading always binds"
                                          : nullptr;
    if (missing) chart.Label(1, high * 1.6, 10, 18, missing, Anchor::kStart, kMuted);
    std::vector<PointName> labels;
    MarkTurningPoints(chart, r, setup, HeadRows::kRough, &labels);
    MarkTurningPoints(chart, r, setup, HeadRows::kExact, &labels);
    for (const PointName& label : labels)
      chart.PointLabel(label.x, label.y, label.text, label.side, label.color);
    figure.body += chart.Finish();
  }
  return figure;
}

Figure DecodeFigure(const LimitsRequest& r) {
  std::vector<LlmSetup> setups = r.setups;
  if (setups.size() > kMaxLines) setups.resize(kMaxLines);
  const double longest = std::max(1024.0, double(r.contexts.back()));
  double high = 0;
  for (const LlmSetup& setup : setups)
    high = std::max(high, 1e3 * DecodeLimit(r.shape, r.machine, setup, int64_t(longest)).seconds());

  Figure figure;
  figure.title = "Decode: time per token over the context";
  figure.caption =
      "A line starts at B, the time to read the weights, and rises by one millisecond every W tokens of "
      "context. It is dotted "
      "where the KV cache no longer fits into memory.";
  figure.width = kFigureWidth;
  const double plot = 320;
  figure.height = kHeading + plot + 60 + LegendHeight(setups.size()) + 10;
  figure.body =
      Heading(figure.title, Where(r) + ": the least time of one step; dotted where the cache no longer fits");
  Chart chart("decode", 74, kHeading, kFigureWidth - 74 - 96, plot,
              {.low = 0, .high = longest, .label = "tokens of context per sequence"},
              {.low = 0, .high = 1.08 * high, .label = "ms per step"}, "");
  struct End {
    double y;
    size_t index;
  };
  std::vector<End> ends;
  for (size_t i = 0; i < setups.size(); ++i) {
    const LlmSetup& setup = setups[i];
    const auto capacity = KvCapacityTokens(r.shape, r.machine, setup);
    const double fits = capacity ? double(*capacity / setup.batch) : 0;
    Points inside, outside;
    for (int k = 0; k <= 200; ++k) {
      const double n = std::max(1.0, longest * k / 200);
      const double ms = 1e3 * DecodeLimit(r.shape, r.machine, setup, int64_t(n)).seconds();
      // The dotted part starts where the solid one ends.
      if (n <= fits) {
        inside.emplace_back(n, ms);
        outside.assign(1, {n, ms});
      } else {
        outside.emplace_back(n, ms);
      }
    }
    chart.Curve(inside, {kLineColors[i], 2.5});
    chart.Curve(outside, {kLineColors[i], 2, "1.5 5"});
    ends.push_back(
        {chart.PixelY(1e3 * DecodeLimit(r.shape, r.machine, setup, int64_t(longest)).seconds()), i});
  }
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.y < b.y; });
  std::vector<double> labels;
  for (const End& end : ends) labels.push_back(end.y);
  Spread(labels, 17, chart.top() + 6, chart.bottom());
  std::vector<std::pair<Stroke, std::string>> legend;
  for (size_t i = 0; i < ends.size(); ++i) {
    const LlmSetup& setup = setups[ends[i].index];
    const DecodeForm form = DecodeWB(r.shape, r.machine, setup);
    const auto capacity = KvCapacityTokens(r.shape, r.machine, setup);
    const char* color = kLineColors[ends[i].index];
    chart.PageLine(chart.right() + 2, ends[i].y, chart.right() + 18, labels[i], {color, 1});
    chart.PageText(chart.right() + 22, labels[i] + 4, SetupName(setup), Anchor::kStart, color, 12);
    legend.push_back(
        {{color, 2.5, ""},
         fmt::format("{}: B {}, W {}{}", SetupName(setup), FormatSeconds(form.b_ms / 1e3),
                     FormatCount(Floor(form.w_tokens_per_ms + 0.5)), capacity ? "" : ", too big")});
  }
  figure.body += chart.Finish() + Legend(74, chart.bottom() + 60, legend);
  return figure;
}

namespace {

// What the roofline shows of one token in decode and of a whole prompt; operator by operator the same.
struct TwoPasses {
  std::vector<NamedWork> decode, prefill;
};

// Operators that lie on one spot get one label that names them all.
struct Spot {
  double px, x, y;
  std::string names;
};

std::vector<Spot> SpotsOf(const std::vector<NamedWork>& ops, const Chart& chart, const Roof& roof) {
  std::vector<Spot> spots;
  for (const NamedWork& op : ops) {
    const double x = op.work.intensity();
    const double px = chart.PixelX(x);
    const auto near = std::find_if(spots.begin(), spots.end(),
                                   [&](const Spot& spot) { return std::abs(spot.px - px) < 22; });
    if (near != spots.end())
      near->names += ", " + op.name;
    else
      spots.push_back({px, x, AttainableFlops(x, roof), op.name});
  }
  return spots;
}

void DrawOperators(Chart& chart, const TwoPasses& passes, const Roof& roof) {
  const auto mark = [&](const std::vector<NamedWork>& ops, Marker marker, double size, double larger) {
    // Where several coincide, the earlier ones are drawn smaller and on top, so that every colour shows.
    for (size_t i = ops.size(); i-- > 0;) {
      const double x = ops[i].work.intensity();
      chart.Mark(x, AttainableFlops(x, roof), marker, kLineColors[i], size + larger * double(i));
    }
  };
  mark(passes.prefill, Marker::kSquare, 5, 1.2);  // its larger markers below
  mark(passes.decode, Marker::kDot, 4, 0.7);
  for (const Spot& spot : SpotsOf(passes.prefill, chart, roof))
    chart.PointLabel(spot.x, spot.y, spot.names, Chart::Side::kAbove, kInk);
  for (const Spot& spot : SpotsOf(passes.decode, chart, roof))
    chart.PointLabel(spot.x, spot.y, spot.names, Chart::Side::kBelow, kInk);
}

// The numbers behind the points.
void DrawOperatorTable(Chart& chart, double top, const TwoPasses& passes, const Roof& roof) {
  const double x0 = 74;
  double y = top;
  const double columns[] = {x0 + 16, x0 + 240, x0 + 330, x0 + 470, x0 + 560};
  chart.PageText(columns[2], y, "decode", Anchor::kEnd, kMuted, 12, true);
  chart.PageText(columns[4], y, "prefill", Anchor::kEnd, kMuted, 12, true);
  y += 20;
  chart.PageText(columns[0], y, "operator", Anchor::kStart, kMuted, 12);
  for (const int c : {1, 3}) chart.PageText(columns[c], y, "FLOP/byte", Anchor::kEnd, kMuted, 12);
  for (const int c : {2, 4}) chart.PageText(columns[c], y, "time", Anchor::kEnd, kMuted, 12);
  y += 8;
  chart.PageLine(x0, y, columns[4] + 4, y, {"#cbd2d9", 1});
  double totals[2] = {0, 0};
  for (size_t i = 0; i < passes.decode.size(); ++i) {
    y += 22;
    chart.PageMark(x0 + 4, y - 4, Marker::kDot, kLineColors[i], 5);
    chart.PageText(columns[0], y, passes.decode[i].name, Anchor::kStart, kInk, 13);
    const NamedWork* ops[] = {&passes.decode[i], &passes.prefill[i]};
    for (int phase = 0; phase < 2; ++phase) {
      const RooflineLimit limit = LimitOf(ops[phase]->work, roof);
      totals[phase] += limit.seconds();
      chart.PageText(columns[1 + 2 * phase], y, FormatNumber(ops[phase]->work.intensity()), Anchor::kEnd,
                     kInk, 13);
      chart.PageText(columns[2 + 2 * phase], y, FormatSeconds(limit.seconds()), Anchor::kEnd,
                     limit.memory_bound() ? kRead : kExact, 13);
    }
  }
  y += 10;
  chart.PageLine(x0, y, columns[4] + 4, y, {"#cbd2d9", 1});
  y += 20;
  chart.PageText(columns[0], y, "all", Anchor::kStart, kInk, 13, true);
  chart.PageText(columns[2], y, FormatSeconds(totals[0]), Anchor::kEnd, kInk, 13, true);
  chart.PageText(columns[4], y, FormatSeconds(totals[1]), Anchor::kEnd, kInk, 13, true);
  y += 32;
  chart.PageText(columns[0], y, "blue: memory binds", Anchor::kStart, kRead, 12);
  chart.PageText(columns[0] + 130, y, "red: arithmetic binds", Anchor::kStart, kExact, 12);
  y += 20;
  chart.PageText(columns[0], y, "Activations count here too; one operator after", Anchor::kStart, kMuted, 12);
  y += 16;
  chart.PageText(columns[0], y, "the other, so the sum is above the whole model's limit.", Anchor::kStart,
                 kMuted, 12);
}

}  // namespace

Figure RooflineFigure(const LimitsRequest& r) {
  const LlmSetup& setup = r.setups.front();
  const int64_t prompt = r.prompts.back(), context = r.contexts[r.contexts.size() / 2];
  Roof roof;
  roof.bytes_per_s = r.machine.read_bytes_per_s;
  roof.flops_per_s = *PeakFlops(r.machine, setup);
  const TwoPasses passes{.decode = PassOperators(r.shape, setup, {.tokens = 1, .context = context}),
                         .prefill = PassOperators(r.shape, setup, {.tokens = prompt, .context = prompt})};

  double low = RidgeIntensity(roof), high = low;
  for (const auto* ops : {&passes.decode, &passes.prefill})
    for (const NamedWork& op : *ops)
      low = std::min(low, op.work.intensity()), high = std::max(high, op.work.intensity());
  low /= 3, high *= 6;

  Figure figure;
  figure.title = "Roofline: what binds each operator";
  figure.caption =
      "An operator left of the ridge waits for memory, right of it for arithmetic. Points lie on the roof: "
      "this is the best that "
      "is possible, before any kernel is written.";
  figure.width = kFigureWidth;
  const double plot = 360, table_top = kHeading + 20 + plot + 66;
  figure.height = table_top + 130 + 22 * double(passes.decode.size());
  figure.body = Heading(
      figure.title, fmt::format("{}, {}: round in decode at a context of {}, square in prefill of {} tokens",
                                Where(r), SetupName(setup), FormatCount(context), FormatCount(prompt)));
  Chart chart(
      "roofline", 74, kHeading + 20, kFigureWidth - 74 - 24, plot,
      {.low = low, .high = high, .log = true, .label = "FLOP per byte moved"},
      {.low = AttainableFlops(low, roof) / 2, .high = roof.flops_per_s * 8, .log = true, .label = "FLOP/s"},
      "");
  const double ridge = RidgeIntensity(roof);
  chart.VerticalLine(ridge, {"#9aa5b1", 1, "3 4"});
  chart.Curve({{low, AttainableFlops(low, roof)}, {ridge, roof.flops_per_s}, {high, roof.flops_per_s}},
              {kInk, 2.5});
  chart.Label(ridge, AttainableFlops(low, roof) / 2, 6, -8, "ridge " + FormatNumber(ridge), Anchor::kStart,
              kMuted);
  chart.PageText(chart.left() + 10, chart.top() - 12,
                 fmt::format("{}, {}", FormatBandwidth(roof.bytes_per_s, r.units),
                             FormatFlops(roof.flops_per_s, r.units)),
                 Anchor::kStart, kMuted, 12);

  DrawOperators(chart, passes, roof);
  DrawOperatorTable(chart, table_top, passes, roof);
  figure.body += chart.Finish();
  return figure;
}

}  // namespace celer::cli
