#include "cli/graph/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "io/file/mapped_file.h"
#include "io/file/printable.h"

namespace celer::cli {
namespace {

constexpr size_t kMostBoxes = 300;
// A palette that is safe for colour blindness (Okabe and Ito).
constexpr Color kBoxColors[] = {{0, 114, 178}, {213, 94, 0},   {0, 158, 115}, {204, 121, 167},
                                {230, 159, 0}, {86, 180, 233}, {240, 228, 66}};

float Area(const Detection& box) {
  return std::max(0.0f, box.right - box.left) * std::max(0.0f, box.bottom - box.top);
}

float Overlap(const Detection& a, const Detection& b) {
  const Detection both{std::max(a.left, b.left), std::max(a.top, b.top), std::min(a.right, b.right),
                       std::min(a.bottom, b.bottom)};
  const float common = Area(both), all = Area(a) + Area(b) - common;
  return all > 0 ? common / all : 0;
}

std::vector<Detection> NonMaximumSuppression(std::vector<Detection> boxes, double overlap) {
  std::stable_sort(boxes.begin(), boxes.end(),
                   [](const Detection& a, const Detection& b) { return a.score > b.score; });
  std::vector<Detection> kept;
  for (const Detection& box : boxes) {
    const auto covered = [&](const Detection& better) {
      return better.label == box.label && Overlap(better, box) > static_cast<float>(overlap);
    };
    if (kept.size() < kMostBoxes && std::none_of(kept.begin(), kept.end(), covered)) kept.push_back(box);
  }
  return kept;
}

}  // namespace

Result<std::vector<std::string>> ReadLabels(const std::string& path) {
  std::vector<std::string> out;
  if (path.empty()) return out;
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line(text.substr(at, end - at));
    if (line.ends_with('\r')) line.pop_back();
    out.push_back(Printable(line));
    at = end + 1;
  }
  if (out.empty()) return Error::Invalid("--labels ", path, ": the file is empty; one name per line");
  return out;
}

std::string LabelOf(const std::vector<std::string>& labels, int64_t index) {
  return index >= 0 && static_cast<size_t>(index) < labels.size() ? labels[index] : std::to_string(index);
}

Result<std::vector<float>> FloatsOf(const GraphTensor& tensor, const std::string& name) {
  std::vector<float> out;
  const auto read = [&]<class T>(auto convert) {
    out.resize(tensor.bytes.size() / sizeof(T));
    for (size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, &tensor.bytes[i * sizeof(T)], sizeof(T));
      out[i] = convert(value);
    }
  };
  if (tensor.dtype == "f32")
    read.template operator()<float>([](float v) { return v; });
  else if (tensor.dtype == "f64")
    read.template operator()<double>([](double v) { return static_cast<float>(v); });
  else if (tensor.dtype == "f16")
    read.template operator()<uint16_t>([](uint16_t v) { return F16ToFloat(v); });
  else if (tensor.dtype == "bf16")
    read.template operator()<uint16_t>([](uint16_t v) { return Bf16ToFloat(v); });
  else
    return Error::Invalid("the output '", Printable(name), "' is ", tensor.dtype, ", not a score");
  return out;
}

std::vector<std::string> TextsOf(const GraphTensor& tensor, const GraphPort& port) {
  std::vector<std::string> out;
  for (size_t at = 0; at + sizeof(int64_t) <= tensor.bytes.size(); at += sizeof(int64_t)) {
    int64_t place = 0;
    std::memcpy(&place, tensor.bytes.data() + at, sizeof(place));
    const bool known = place >= 0 && place < static_cast<int64_t>(port.texts->size());
    out.push_back(known ? (*port.texts)[place] : "?");
  }
  return out;
}

bool IsOneRow(const GraphTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t dim : tensor.shape) elements *= dim;
  return !tensor.shape.empty() && elements >= 2 && tensor.shape.back() == elements;
}

std::vector<Class> BestClasses(const std::vector<float>& scores, int count) {
  std::vector<double> p(scores.begin(), scores.end());
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  const bool inside = std::all_of(p.begin(), p.end(), [](double v) { return v >= 0 && v <= 1; });
  if (!(inside && std::abs(sum - 1) < 1e-2)) {
    const double most = *std::max_element(p.begin(), p.end());
    double total = 0;
    for (double& v : p) total += v = std::exp(v - most);
    for (double& v : p) v /= total;
  }
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int64_t a, int64_t b) {
    const float x = scores[a], y = scores[b];
    return x != y ? x > y : a < b;
  };
  const auto n = std::min<size_t>(static_cast<size_t>(count), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(n), order.end(), better);
  std::vector<Class> out;
  for (size_t i = 0; i < n; ++i) out.push_back({order[i], static_cast<float>(p[order[i]])});
  return out;
}

Result<std::vector<Detection>> FindBoxes(const GraphTensor& tensor, const std::string& name,
                                         const DetectFlags& flags) {
  const std::vector<int64_t>& shape = tensor.shape;
  if (shape.size() != 3 || shape[0] != 1 || std::min(shape[1], shape[2]) < 5)
    return Error::Invalid("--boxes: the output '", Printable(name), "' is [",
                          fmt::format("{}", fmt::join(shape, ", ")),
                          "], and a YOLO head gives [1, boxes, 5 + classes] or [1, 4 + classes, boxes]");
  // Boxes are many, what is said of each is little.
  const bool columns = flags.head == "yolov8"   ? shape[1] < shape[2] || shape[2] < 5
                       : flags.head == "yolov5" ? false
                                                : shape[1] < shape[2];
  const bool sure = flags.head == "yolov5" || (flags.head == "auto" && !columns);
  const int64_t boxes = columns ? shape[2] : shape[1], fields = columns ? shape[1] : shape[2];
  const int64_t first = sure ? 5 : 4;
  if (fields <= first)
    return Error::Invalid("--boxes: the output '", Printable(name), "' says ", fields,
                          " numbers of each box, and a ", sure ? "yolov5" : "yolov8", " head at least ",
                          first + 1);
  CELER_ASSIGN(const std::vector<float> values, FloatsOf(tensor, name));
  const auto at = [&](int64_t box, int64_t field) {
    return values[static_cast<size_t>(columns ? field * boxes + box : box * fields + field)];
  };
  std::vector<Detection> found;
  for (int64_t b = 0; b < boxes; ++b) {
    int64_t best = first;
    for (int64_t f = first + 1; f < fields; ++f)
      if (at(b, f) > at(b, best)) best = f;
    const float score = at(b, best) * (sure ? at(b, 4) : 1);
    if (!(score >= static_cast<float>(flags.score))) continue;
    const float x = at(b, 0), y = at(b, 1), w = at(b, 2) / 2, h = at(b, 3) / 2;
    if (!std::isfinite(x) || !std::isfinite(y) || !std::isfinite(w) || !std::isfinite(h)) continue;
    found.push_back({x - w, y - h, x + w, y + h, score, best - first});
  }
  return NonMaximumSuppression(std::move(found), flags.overlap);
}

Status DrawBoxes(const Placed& placed, std::vector<Detection>* boxes, const std::vector<std::string>& labels,
                 const std::string& path) {
  Picture picture = placed.picture;
  const auto across = [&](float v) { return static_cast<float>((v - placed.left) / placed.scale_x); };
  const auto down = [&](float v) { return static_cast<float>((v - placed.top) / placed.scale_y); };
  for (Detection& box : *boxes)
    box = {across(box.left), down(box.top), across(box.right), down(box.bottom), box.score, box.label};
  // The best one last, on top.
  for (size_t i = boxes->size(); i-- > 0;) {
    const Detection& box = (*boxes)[i];
    DrawBox(&picture, box.left, box.top, box.right, box.bottom,
            kBoxColors[static_cast<size_t>(box.label) % std::size(kBoxColors)],
            fmt::format("{} {:.2f}", LabelOf(labels, box.label), box.score));
  }
  return WritePicture(picture, path);
}

}  // namespace celer::cli
