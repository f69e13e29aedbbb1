#include "cli/graph/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>

namespace celer::cli {
namespace {

constexpr double kGapX = 26, kGapY = 30, kLane = 9, kMargin = 24, kColumnGap = 46, kWire = 10;

// A box, or a place where a line passes a layer.
struct Item {
  int box = -1;  // -1: a line passes
  size_t layer = 0;
  double width = 0, height = 0, x = 0;
  std::vector<size_t> up = {}, down = {};  // items of the layers next to it
};

class Arranger {
 public:
  explicit Arranger(Layout* layout) : layout_(*layout) {}

  void Run(double aspect) {
    if (layout_.boxes.empty()) return;
    FindLayers();
    MakeItems();
    Order();
    PlaceAcross();
    PlaceColumns(aspect);
    DrawEdges();
  }

 private:
  // Each box one layer below the lowest box it hangs on. What hangs on nothing goes right above its user.
  void FindLayers() {
    const size_t n = layout_.boxes.size();
    layer_.assign(n, 0);
    std::vector<bool> hangs(n, false);
    for (const LayoutEdge& edge : Sorted()) {
      layer_[edge.to] = std::max(layer_[edge.to], layer_[edge.from] + 1);
      hangs[edge.to] = true;
    }
    std::vector<size_t> nearest(n, std::numeric_limits<size_t>::max());
    for (const LayoutEdge& edge : layout_.edges)
      nearest[edge.from] = std::min(nearest[edge.from], layer_[edge.to]);
    for (size_t b = 0; b < n; ++b)
      if (!hangs[b] && nearest[b] != std::numeric_limits<size_t>::max() && nearest[b] > 0)
        layer_[b] = nearest[b] - 1;
  }

  // By the box they come from, so that a box is final before it is used.
  std::vector<LayoutEdge> Sorted() const {
    std::vector<LayoutEdge> out = layout_.edges;
    std::stable_sort(out.begin(), out.end(),
                     [](const LayoutEdge& a, const LayoutEdge& b) { return a.from < b.from; });
    return out;
  }

  void MakeItems() {
    for (size_t b = 0; b < layout_.boxes.size(); ++b) {
      items_.push_back({static_cast<int>(b), layer_[b], layout_.boxes[b].width, layout_.boxes[b].height});
      layers_.resize(std::max(layers_.size(), layer_[b] + 1));
    }
    // All lines of a box share one wire as long as they can.
    std::map<std::pair<size_t, size_t>, size_t> wires;  // box and layer
    for (const LayoutEdge& edge : Sorted()) {
      size_t at = edge.from;
      for (size_t layer = layer_[edge.from] + 1; layer < layer_[edge.to]; ++layer) {
        const auto [found, first] = wires.try_emplace({edge.from, layer}, items_.size());
        if (first) {
          items_.push_back({-1, layer, kWire, 0});
          Join(at, found->second);
        }
        at = found->second;
      }
      Join(at, edge.to);
    }
    for (size_t i = 0; i < items_.size(); ++i) layers_[items_[i].layer].push_back(i);
  }

  void Join(size_t above, size_t below) {
    items_[above].down.push_back(below);
    items_[below].up.push_back(above);
  }

  // Lines cross less when each item stands near the middle of those it is joined with.
  void Order() {
    std::vector<double> place(items_.size());
    const auto number = [&] {
      for (const auto& layer : layers_)
        for (size_t i = 0; i < layer.size(); ++i) place[layer[i]] = static_cast<double>(i);
    };
    number();
    auto best = layers_;
    int64_t fewest = Crossings(place);
    for (int sweep = 0; sweep < 12 && fewest > 0; ++sweep) {
      const bool down = sweep % 2 == 0;
      for (size_t k = 0; k < layers_.size(); ++k) {
        auto& layer = layers_[down ? k : layers_.size() - 1 - k];
        std::map<size_t, double> middle;
        for (const size_t i : layer) {
          const auto& joined = down ? items_[i].up : items_[i].down;
          double sum = 0;
          for (const size_t j : joined) sum += place[j];
          middle[i] = joined.empty() ? place[i] : sum / static_cast<double>(joined.size());
        }
        std::stable_sort(layer.begin(), layer.end(),
                         [&](size_t a, size_t b) { return middle[a] < middle[b]; });
        for (size_t i = 0; i < layer.size(); ++i) place[layer[i]] = static_cast<double>(i);
      }
      if (const int64_t crossings = Crossings(place); crossings < fewest) {
        fewest = crossings;
        best = layers_;
      }
    }
    layers_ = best;
  }

  int64_t Crossings(const std::vector<double>& place) const {
    int64_t count = 0;
    for (const auto& layer : layers_) {
      std::vector<std::pair<double, double>> lines;
      for (const size_t i : layer)
        for (const size_t j : items_[i].down) lines.emplace_back(place[i], place[j]);
      for (size_t a = 0; a < lines.size(); ++a)
        for (size_t b = a + 1; b < lines.size(); ++b)
          count += (lines[a].first - lines[b].first) * (lines[a].second - lines[b].second) < 0;
    }
    return count;
  }

  // Up and down again and again: each layer as near as it can be to what it is joined with, in its order and
  // without overlaps. That is a least-squares problem with ordered answers: neighbours that would overlap are
  // pooled and share their mean.
  void PlaceAcross() {
    for (const auto& layer : layers_) {
      double x = 0;
      for (const size_t i : layer) {
        items_[i].x = x + items_[i].width / 2;
        x += items_[i].width + kGapX;
      }
    }
    for (int sweep = 0; sweep < 24; ++sweep) {
      const bool down = sweep % 2 == 0;
      for (size_t k = 0; k < layers_.size(); ++k)
        Fit(layers_[down ? k : layers_.size() - 1 - k], sweep < 22, down);
    }
  }

  void Fit(const std::vector<size_t>& layer, bool one_side, bool down) {
    struct Pool {
      double sum, weight;
      size_t first, count;
    };
    std::vector<double> offset(layer.size());  // of item i from the first one when all touch
    for (size_t i = 1; i < layer.size(); ++i)
      offset[i] = offset[i - 1] + (items_[layer[i - 1]].width + items_[layer[i]].width) / 2 + kGapX;
    std::vector<Pool> pools;
    for (size_t i = 0; i < layer.size(); ++i) {
      const auto [wanted, weight] = Wanted(items_[layer[i]], one_side, down);
      pools.push_back({(wanted - offset[i]) * weight, weight, i, 1});
      while (pools.size() > 1) {
        Pool& last = pools[pools.size() - 1];
        Pool& before = pools[pools.size() - 2];
        if (before.sum / before.weight <= last.sum / last.weight) break;
        before.sum += last.sum, before.weight += last.weight, before.count += last.count;
        pools.pop_back();
      }
    }
    for (const Pool& pool : pools)
      for (size_t i = pool.first; i < pool.first + pool.count; ++i)
        items_[layer[i]].x = pool.sum / pool.weight + offset[i];
  }

  // Wires pull harder than boxes, so that long lines are straight.
  std::pair<double, double> Wanted(const Item& item, bool one_side, bool down) const {
    double sum = 0, weight = 0;
    const auto pull = [&](const std::vector<size_t>& joined) {
      for (const size_t j : joined) {
        const double w = item.box < 0 && items_[j].box < 0 ? 8 : item.box < 0 || items_[j].box < 0 ? 2 : 4;
        sum += w * items_[j].x;
        weight += w;
      }
    };
    if (!one_side || down) pull(item.up);
    if (!one_side || !down) pull(item.down);
    if (weight == 0) return {item.x, 0.05};
    return {sum / weight, weight};
  }

  // --- columns ---

  struct Column {
    size_t begin = 0, end = 0;  // layers
    double left = 0, right = 0, height = 0, shift = 0;
    size_t lanes_in = 0, lanes_out = 0;  // lines that come from the column before, or go to the next
  };

  size_t LinesBelow(size_t layer) const {
    size_t count = 0;
    for (const size_t i : layers_[layer]) count += !items_[i].down.empty();
    return count;
  }

  std::vector<Column> Cut(size_t count) const {
    std::vector<double> bottom(layers_.size());
    double y = 0;
    for (size_t k = 0; k < layers_.size(); ++k) bottom[k] = y += heights_[k] + kGapY;
    std::vector<Column> out;
    size_t begin = 0;
    for (size_t c = 0; c < count; ++c) {
      size_t end = layers_.size();
      if (c + 1 < count) {
        // Near the even cut, where the fewest lines are cut.
        const double ideal = y * static_cast<double>(c + 1) / static_cast<double>(count),
                     slack = y / static_cast<double>(count) * 0.2;
        double best = std::numeric_limits<double>::max();
        for (size_t k = begin; k + 1 < layers_.size(); ++k) {
          if (std::abs(bottom[k] - ideal) > slack && best < 1e300) continue;
          const double cost = static_cast<double>(LinesBelow(k)) + 1.5 * std::abs(bottom[k] - ideal) / slack;
          if (cost < best) best = cost, end = k + 1;
        }
      }
      if (end <= begin) break;
      out.push_back({begin, end});
      begin = end;
    }
    for (Column& column : out) {
      column.left = 1e300, column.right = -1e300;
      for (size_t k = column.begin; k < column.end; ++k) {
        column.height += heights_[k] + kGapY;
        for (const size_t i : layers_[k]) {
          column.left = std::min(column.left, items_[i].x - items_[i].width / 2);
          column.right = std::max(column.right, items_[i].x + items_[i].width / 2);
        }
      }
    }
    for (size_t c = 0; c + 1 < out.size(); ++c)
      out[c].lanes_out = out[c + 1].lanes_in = LinesBelow(out[c].end - 1);
    return out;
  }

  static std::pair<double, double> PageSize(const std::vector<Column>& columns) {
    double width = 2 * kMargin, height = 0;
    size_t lanes = 0;
    for (const Column& column : columns) {
      width += column.right - column.left + kColumnGap + kLane * static_cast<double>(column.lanes_out);
      height = std::max(height, column.height);
      lanes = std::max(lanes, column.lanes_in + column.lanes_out);
    }
    return {width - kColumnGap, height + 2 * kMargin + kLane * static_cast<double>(lanes)};
  }

  void PlaceColumns(double aspect) {
    heights_.assign(layers_.size(), 0);
    for (const Item& item : items_) heights_[item.layer] = std::max(heights_[item.layer], item.height);
    double best = std::numeric_limits<double>::max();
    for (size_t count = 1; count <= std::min<size_t>(12, layers_.size()); ++count) {
      std::vector<Column> columns = Cut(count);
      const auto [width, height] = PageSize(columns);
      const double off = std::abs(std::log(width / height / aspect));
      if (off < best) best = off, columns_ = std::move(columns);
    }
    std::tie(layout_.width, layout_.height) = PageSize(columns_);
    column_of_.resize(layers_.size());
    top_.resize(layers_.size());
    double x = kMargin;
    for (size_t c = 0; c < columns_.size(); ++c) {
      Column& column = columns_[c];
      column.shift = x - column.left;
      double y = kMargin + kLane * static_cast<double>(column.lanes_in);
      for (size_t k = column.begin; k < column.end; ++k) {
        column_of_[k] = c;
        top_[k] = y;
        y += heights_[k] + kGapY;
        for (const size_t i : layers_[k]) items_[i].x += column.shift;
      }
      x += column.right - column.left + kColumnGap + kLane * static_cast<double>(column.lanes_out);
    }
    for (size_t i = 0; i < items_.size(); ++i)
      if (items_[i].box >= 0) {
        LayoutBox& box = layout_.boxes[items_[i].box];
        box.x = items_[i].x;
        box.y = top_[items_[i].layer] + (heights_[items_[i].layer] - box.height) / 2;
      }
  }

  double TopOf(const Item& item) const {
    return item.box >= 0 ? layout_.boxes[item.box].y : top_[item.layer];
  }
  double BottomOf(const Item& item) const {
    return item.box >= 0 ? layout_.boxes[item.box].y + item.height : top_[item.layer] + heights_[item.layer];
  }

  // --- lines ---

  // The lane of a line that leaves its column: by where it stands.
  size_t LaneOf(size_t item) const {
    size_t lane = 0;
    for (const size_t i : layers_[items_[item].layer]) {
      if (i == item) return lane;
      lane += !items_[i].down.empty();
    }
    return lane;
  }

  std::string Segment(size_t above, size_t below) const {
    const Item &a = items_[above], &b = items_[below];
    const double y1 = BottomOf(a), y2 = TopOf(b);
    if (column_of_[a.layer] == column_of_[b.layer]) {
      if (std::abs(a.x - b.x) < 0.5) return fmt::format("L{:.1f} {:.1f}", b.x, y2);
      const double bend = std::max((y2 - y1) * 0.55, 8.0);
      return fmt::format("C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", a.x, y1 + bend, b.x, y2 - bend, b.x,
                         y2);
    }
    // Below the column, up between the columns, and into the next one from above.
    const Column& from = columns_[column_of_[a.layer]];
    const auto lane = static_cast<double>(LaneOf(above)), lanes = static_cast<double>(from.lanes_out);
    const double floor = top_[from.end - 1] + heights_[from.end - 1] + kGapY / 2 + kLane * (lanes - 1 - lane);
    const double x = from.right + from.shift + kColumnGap / 2 + kLane * (lanes - 1 - lane);
    const double ceiling = kMargin + kLane * (lanes - 1 - lane) - 4;
    constexpr double kR = 6;
    const double turn = b.x > x ? kR : -kR, out = x > a.x ? kR : -kR;
    return fmt::format(
        "L{0:.1f} {1:.1f}Q{0:.1f} {2:.1f} {3:.1f} {2:.1f}L{4:.1f} {2:.1f}Q{5:.1f} {2:.1f} {5:.1f} {6:.1f}"
        "L{5:.1f} {7:.1f}Q{5:.1f} {8:.1f} {9:.1f} {8:.1f}L{10:.1f} {8:.1f}Q{11:.1f} {8:.1f} {11:.1f} {12:.1f}"
        "L{11:.1f} {13:.1f}",
        a.x, floor - kR, floor, a.x + out, x - out, x, floor - kR, ceiling + kR, ceiling, x + turn,
        b.x - turn, b.x, ceiling + kR, y2);
  }

  void DrawEdges() {
    for (LayoutEdge& edge : layout_.edges) {
      // The wire of the box, layer by layer.
      size_t at = edge.from;
      edge.path = fmt::format("M{:.1f} {:.1f}", items_[at].x, BottomOf(items_[at]));
      while (at != edge.to) {
        size_t next = edge.to;
        if (items_[at].layer + 1 < layer_[edge.to])
          for (const size_t i : items_[at].down)
            if (items_[i].box < 0) next = i;
        edge.path += Segment(at, next);
        if (items_[next].box < 0)
          edge.path += fmt::format("L{:.1f} {:.1f}", items_[next].x, BottomOf(items_[next]));
        at = next;
      }
    }
  }

  Layout& layout_;
  std::vector<size_t> layer_;  // by box
  std::vector<Item> items_;    // the boxes first
  std::vector<std::vector<size_t>> layers_;
  std::vector<double> heights_, top_;  // by layer
  std::vector<size_t> column_of_;      // by layer
  std::vector<Column> columns_;
};

}  // namespace

void Arrange(Layout* layout, double aspect) {
  // Two lines between the same boxes are one.
  std::sort(layout->edges.begin(), layout->edges.end(), [](const LayoutEdge& a, const LayoutEdge& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  layout->edges.erase(
      std::unique(layout->edges.begin(), layout->edges.end(),
                  [](const LayoutEdge& a, const LayoutEdge& b) { return a.from == b.from && a.to == b.to; }),
      layout->edges.end());
  Arranger(layout).Run(aspect);
}

}  // namespace celer::cli
