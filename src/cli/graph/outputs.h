// What the output of a network says: the best classes, or boxes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/graph.h"
#include "cli/graph/inputs.h"

namespace celer::cli {

// One name per line; empty without a file.
Result<std::vector<std::string>> ReadLabels(const std::string& path);

// The numbers of an output of floats (f32, f16, bf16, f64).
Result<std::vector<float>> FloatsOf(const GraphTensor& tensor, const std::string& name);

// The strings of an output of them. One that the network does not name is "?".
std::vector<std::string> TextsOf(const GraphTensor& tensor, const GraphPort& port);

struct Class {
  int64_t index = 0;
  float probability = 0;
};
// The top `count` of a list of scores. Scores that are not probabilities (in 0 to 1, with a sum of 1) go
// through a softmax first.
std::vector<Class> BestClasses(const std::vector<float>& scores, int count);

// True for one row of at least two scores: [N] or [1, ..., 1, N].
bool IsOneRow(const GraphTensor& tensor);

// In pixels of the network's input.
struct Detection {
  float left = 0, top = 0, right = 0, bottom = 0, score = 0;
  int64_t label = 0;
};
struct DetectFlags {
  std::string head = "auto";  // "yolov5": rows of center, size, how sure, classes; "yolov8": columns without
  double score = 0.25, overlap = 0.45;
};
// From the output of a YOLO head, after non-maximum suppression per class.
Result<std::vector<Detection>> FindBoxes(const GraphTensor& tensor, const std::string& name,
                                         const DetectFlags& flags);
// The picture with the boxes on it, at its own size. The boxes are moved into its pixels.
Status DrawBoxes(const Placed& placed, std::vector<Detection>* boxes, const std::vector<std::string>& labels,
                 const std::string& path);

std::string LabelOf(const std::vector<std::string>& labels, int64_t index);

}  // namespace celer::cli
