#include "cli/limits/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "limits/quantity.h"
#include "limits/roofline.h"
#include "limits/work.h"
#include "report/output.h"
#include "report/page.h"

namespace celer::cli {
namespace {

constexpr const char* kRead = "#1f6fb2";
constexpr const char* kReadOnce = "#7fb3dc";
constexpr const char* kExact = "#c8442b";
constexpr const char* kRough = "#e39a3b";

// Drawn as it is on a narrow page, so that every letter can be read there.
constexpr double kFigureWidth = 700;
constexpr size_t kMaxLines = std::size(kLineColors);

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

void MarkTurningPoints(const LimitsRequest& r, const LlmSetup& setup, HeadRows head, Chart* chart) {
  const auto points = PrefillTurningPoints(r.shape, r.machine, setup, head);
  if (!points) return;
  const bool exact = head == HeadRows::kExact;
  const char* color = exact ? kExact : "#b8741a";
  for (const double n : {points->first, points->second}) {
    if (!std::isfinite(n) || n < 1) continue;
    // Between whole numbers the curves are read where the real crossing lies.
    const auto low = Floor(n);
    const double part = n - double(low);
    const double y = 1e3 * ((1 - part) * PrefillLimit(r.shape, r.machine, setup, low, head).read_s() +
                            part * PrefillLimit(r.shape, r.machine, setup, low + 1, head).read_s());
    chart->marks.push_back({.x = n,
                            .y = y,
                            .color = color,
                            .marker = exact ? Marker::kDot : Marker::kRing,
                            .label = fmt::format("{} {}", exact ? "exact" : "rough", FormatCount(low)),
                            .label_color = color,
                            .below = exact && n == points->first});
  }
}

std::string Where(const LimitsRequest& r) {
  return r.shape.name + " on " + r.machine.name + (r.batch() > 1 ? fmt::format(", batch {}", r.batch()) : "");
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

  Figure figure{
      .title = "Prefill: reading against computing",
      .about = Where(r) + ": time to the first token over the length of the prompt, for each weight width",
      .caption =
          "Where the blue curve is on top, memory binds; where the red one is, arithmetic does (shaded). "
          "Below the first turning point a longer prompt is free; above it, splitting the prompt into chunks "
          "of that length costs nothing."};
  const std::vector<ChartLine> lines = {{"read, KV once (tiled attention)", {}, {kReadOnce, 2, "2 4"}},
                                        {"read weights and KV", {}, {kRead, 2.5}},
                                        {"compute rough", {}, {kRough, 2, "7 4"}},
                                        {"compute exact", {}, {kExact, 2.5}}};
  figure.drawing = DrawLegend(lines, 20, 0, kFigureWidth - 40);
  const size_t columns = std::min<size_t>(2, widths.size());
  const double above = figure.drawing.height + 4, cell = kFigureWidth / double(columns), cell_height = 314;
  for (size_t i = 0; i < widths.size(); ++i) {
    const LlmSetup& setup = widths[i];
    Chart chart{.title = SetupName(setup),
                .x = {.low = 1, .high = double(steps.back()), .log = true, .label = "prompt tokens"},
                .y = {.low = low * 0.7, .high = high * 1.6, .log = true, .label = "ms"},
                .lines = lines,
                .legend = false,
                .left = double(i % columns) * cell,
                .top = above + double(i / columns) * cell_height,
                .width = cell,
                .height = cell_height};
    for (const int64_t n : steps) {
      const PhaseLimit e = PrefillLimit(r.shape, r.machine, setup, n);
      const PhaseLimit tiled = PrefillLimit(r.shape, r.machine, setup, n, HeadRows::kExact, KvReads::kOnce);
      const PhaseLimit rough = PrefillLimit(r.shape, r.machine, setup, n, HeadRows::kRough);
      const double seconds[] = {tiled.read_s(), e.read_s(), rough.compute_s, e.compute_s};
      for (size_t k = 0; k < lines.size(); ++k) chart.lines[k].points.emplace_back(n, 1e3 * seconds[k]);
    }
    const auto exact_points = PrefillTurningPoints(r.shape, r.machine, setup);
    if (exact_points)
      chart.band = {std::max(1.0, exact_points->first), std::min(exact_points->second, double(steps.back()))};
    if (!PrefillTurningPoints(r.shape, r.machine, setup, HeadRows::kRough))
      chart.note = "reading always binds";
    else if (!exact_points)
      chart.note = "exact: reading always binds";
    MarkTurningPoints(r, setup, HeadRows::kRough, &chart);
    MarkTurningPoints(r, setup, HeadRows::kExact, &chart);
    figure.drawing += Draw(chart);
  }
  return figure;
}

Figure DecodeFigure(const LimitsRequest& r) {
  std::vector<LlmSetup> setups = r.setups;
  if (setups.size() > kMaxLines) setups.resize(kMaxLines);
  const double longest = std::max(1024.0, double(r.contexts.back()));
  const auto ms_at = [&](const LlmSetup& setup, double n) {
    return 1e3 * DecodeLimit(r.shape, r.machine, setup, int64_t(n)).seconds();
  };
  double high = 0;
  for (const LlmSetup& setup : setups) high = std::max(high, ms_at(setup, longest));

  Figure figure{.title = "Decode: time per token over the context",
                .about = Where(r) + ": the least time of one step; dotted where the KV no longer fits",
                .caption =
                    "A line starts at B, the time to read the weights, and rises by one millisecond "
                    "every W tokens of context. It is dotted where the KV cache no longer fits into "
                    "memory."};
  Chart chart{.x = {.low = 0, .high = longest, .label = "tokens of context per sequence"},
              .y = {.low = 0, .high = 1.08 * high, .label = "ms per step"},
              .width = kFigureWidth,
              .height = 404};
  for (size_t i = 0; i < setups.size(); ++i) {
    const LlmSetup& setup = setups[i];
    const DecodeForm form = DecodeWB(r.shape, r.machine, setup);
    const auto capacity = KvCapacityTokens(r.shape, r.machine, setup);
    const double fits = capacity ? double(*capacity / setup.batch) : 0;
    Points inside, outside;
    for (int k = 0; k <= 200; ++k) {
      const double n = std::max(1.0, longest * k / 200), ms = ms_at(setup, n);
      // The dotted part starts where the solid one ends.
      if (n <= fits) {
        inside.emplace_back(n, ms);
        outside.assign(1, {n, ms});
      } else {
        outside.emplace_back(n, ms);
      }
    }
    chart.lines.push_back(
        {fmt::format("{}: B {}, W {}{}", SetupName(setup), FormatSeconds(form.b_ms / 1e3),
                     FormatCount(Floor(form.w_tokens_per_ms + 0.5)), capacity ? "" : ", too big"),
         inside,
         {kLineColors[i], 2.5}});
    chart.lines.push_back({"", outside, {kLineColors[i], 2, "1.5 5"}});
    chart.marks.push_back({.x = longest,
                           .y = ms_at(setup, longest),
                           .radius = 0,
                           .label = SetupName(setup),
                           .label_color = kLineColors[i]});
  }
  figure.drawing = Draw(chart);
  return figure;
}

namespace {

// What the roofline shows of one token in decode and of a whole prompt; operator by operator the same.
struct TwoPasses {
  std::vector<NamedWork> decode, prefill;
};

void MarkOperators(const TwoPasses& passes, const Roof& roof, Chart* chart) {
  const auto mark = [&](const std::vector<NamedWork>& ops, Marker marker, double size, double larger) {
    // Where several coincide, the earlier ones are drawn smaller and on top, so that every colour shows.
    for (size_t i = ops.size(); i-- > 0;) {
      const double x = ops[i].work.intensity();
      chart->marks.push_back({.x = x,
                              .y = AttainableFlops(x, roof),
                              .color = kLineColors[i],
                              .marker = marker,
                              .radius = size + larger * double(i),
                              .tip = fmt::format("{}: {} FLOP/byte, {}", ops[i].name, FormatNumber(x),
                                                 FormatSeconds(LimitOf(ops[i].work, roof).seconds()))});
    }
  };
  for (size_t i = 0; i < passes.decode.size(); ++i)
    chart->lines.push_back({passes.decode[i].name, {}, {kLineColors[i], 0}, true});
  mark(passes.prefill, Marker::kSquare, 5, 1.2);  // its larger markers below
  mark(passes.decode, Marker::kDot, 4, 0.7);
  // Operators that lie on one spot get one label that names them all.
  const double near = std::pow(chart->x.high / chart->x.low, 22 / kFigureWidth);
  for (const auto* ops : {&passes.prefill, &passes.decode}) {
    std::vector<ChartMark> spots;
    for (const NamedWork& op : *ops) {
      const double x = op.work.intensity();
      const auto spot = std::find_if(spots.begin(), spots.end(), [&](const ChartMark& other) {
        return other.x < x * near && x < other.x * near;
      });
      if (spot != spots.end())
        spot->label += ", " + op.name;
      else
        spots.push_back({.x = x,
                         .y = AttainableFlops(x, roof),
                         .radius = 0,
                         .label = op.name,
                         .below = ops == &passes.decode});
    }
    chart->marks.insert(chart->marks.end(), spots.begin(), spots.end());
  }
}

// The numbers behind the points.
Table OperatorsTable(const TwoPasses& passes, const Roof& roof) {
  Table table{
      .title = "The operators one by one",
      .header = {"operator", "decode FLOP/byte", "time", "bound by", "prefill FLOP/byte", "time", "bound by"},
      .last_is_words = true};
  double totals[2] = {0, 0};
  for (size_t i = 0; i < passes.decode.size(); ++i) {
    std::vector<std::string> row = {passes.decode[i].name};
    for (int phase = 0; phase < 2; ++phase) {
      const Work& work = (phase == 0 ? passes.decode : passes.prefill)[i].work;
      const RooflineLimit limit = LimitOf(work, roof);
      totals[phase] += limit.seconds();
      row.insert(row.end(), {FormatNumber(work.intensity()), FormatSeconds(limit.seconds()),
                             limit.memory_bound() ? "memory" : "arithmetic"});
    }
    table.rows.push_back(row);
  }
  table.rows.push_back({"all", "", FormatSeconds(totals[0]), "", "", FormatSeconds(totals[1]), ""});
  table.notes = {
      "Activations count here too; one operator after the other, so the sum is above the whole model's "
      "limit."};
  return table;
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

  const double ridge = RidgeIntensity(roof);
  double low = ridge, high = ridge;
  for (const auto* ops : {&passes.decode, &passes.prefill})
    for (const NamedWork& op : *ops)
      low = std::min(low, op.work.intensity()), high = std::max(high, op.work.intensity());
  low /= 3, high *= 6;

  Figure figure{
      .title = "Roofline: what binds each operator",
      .about = fmt::format("{}, {}: round in decode at a context of {}, square in prefill of {} tokens",
                           Where(r), SetupName(setup), FormatCount(context), FormatCount(prompt)),
      .caption =
          "An operator left of the ridge waits for memory, right of it for arithmetic. Points lie on "
          "the roof: this is the best that is possible, before any kernel is written.",
      .table = OperatorsTable(passes, roof)};
  Chart chart{
      .title = "",
      .x = {.low = low, .high = high, .log = true, .label = "FLOP per byte moved"},
      .y = {.low = AttainableFlops(low, roof) / 2,
            .high = roof.flops_per_s * 8,
            .log = true,
            .label = "FLOP/s"},
      .lines = {{"",
                 {{low, AttainableFlops(low, roof)}, {ridge, roof.flops_per_s}, {high, roof.flops_per_s}},
                 {kInk, 2.5}}},
      .ridge = ridge,
      .note = fmt::format("{}, {}", FormatBandwidth(roof.bytes_per_s, r.units),
                          FormatFlops(roof.flops_per_s, r.units)),
      .width = kFigureWidth,
      .height = 444};
  MarkOperators(passes, roof, &chart);
  figure.drawing = Draw(chart);
  return figure;
}

// With its words, below what is there already.
void AddFigure(const Figure& figure, Drawing* out) {
  double y = out->height + 30;
  out->body += SvgText(20, y, figure.title, "start", kInk, 18, kBold);
  const std::string about = Wrap(figure.about, 100, 0);
  for (size_t from = 0; from < about.size();) {
    const size_t end = std::min(about.find('\n', from), about.size());
    out->body += SvgText(20, y += 18, about.substr(from, end - from), "start", kMuted, 12);
    from = end + 1;
  }
  *out += {figure.drawing.width, y + 12 + figure.drawing.height,
           fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", y + 12, figure.drawing.body)};
  if (!figure.table.rows.empty()) *out += DrawTable(figure.table, 70, out->height);
}

std::string LimitsSvg(const LimitsRequest& request) {
  Drawing all;
  for (const Figure& figure : LimitsFigures(request)) AddFigure(figure, &all);
  return DrawingSvg(all, "The limits of " + Where(request));
}

std::string LimitsHtml(const LimitsRequest& request) {
  const std::string name = request.shape.name + " on " + request.machine.name;
  Page page("Limits of " + name, "The limits of " + name, LimitsFacts(request));
  for (const Figure& figure : LimitsFigures(request)) {
    page.Section(figure.title);
    page.Add(figure.about + ".");
    page.Add(figure.drawing, figure.title);
    page.Add(figure.caption);
    if (!figure.table.rows.empty()) page.Add(figure.table);
  }
  for (const Table& table : LimitsTables(request)) {
    page.Section(table.title);
    page.Add(table);
  }
  return page.Html(LimitsJson(request));
}

}  // namespace celer::cli
