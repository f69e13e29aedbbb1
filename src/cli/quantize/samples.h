// Samples for calibrating and evaluating networks: pictures, .npy and .npz arrays, folders of them.
#pragma once

#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/graph/inputs.h"
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

// What range the arrays of each input have while samples are used: arrays of one value everywhere say nothing
// about a network.
class RangeWatch {
 public:
  explicit RangeWatch(std::vector<GraphPort> ports);

  // Wraps the samples and records the ranges of those that are read. This object outlives the result.
  ptq::Samples Watched(const ptq::Samples& samples);
  // A sentence for each input that is constant in all samples, or in half of them. Numbers that count or
  // choose (masks, token types) may be constant, unless they are all there is.
  std::vector<std::string> Warnings(const std::string& flag) const;

 private:
  struct Seen {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    int64_t samples = 0, constant = 0;
    bool whole_numbers = false;
  };
  void Add(const std::vector<NpyArray>& arrays);

  std::vector<GraphPort> ports_;
  std::vector<Seen> seen_;
  std::set<int64_t> done_;  // samples by number: some methods look twice
};

}  // namespace celer::cli
