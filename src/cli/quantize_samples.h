// Samples for calibrating and evaluating networks: pictures, .npy and .npz arrays, folders of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/graph_inputs.h"
#include "quantize/network/run.h"

namespace celer::cli {

struct SampleFlags {
  std::vector<std::string> paths = {};
  int64_t every = 1;  // the first, and then one of so many
  int64_t most = 0;   // 0: all
};

struct SampleSet {
  ptq::Samples samples;
  // The number that its file's name begins with: 0042.jpg is of class 42.
  std::function<std::optional<int64_t>(int64_t index)> class_by_name;
};

// Arrays hold samples along their first dimension. Files are mapped, pictures are read when their turn comes.
Result<SampleSet> OpenSamples(const std::vector<GraphPort>& ports, const SampleFlags& flags,
                              const PictureFlags& picture, const std::string& flag);

}  // namespace celer::cli
