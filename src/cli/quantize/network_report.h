// What celer quantize says about a network: the plan, errors by layer, a page with a picture.
#pragma once

#include <string>
#include <vector>

#include "quantize/network/analyze.h"
#include "quantize/network/quantizer.h"
#include "report/table.h"

namespace celer::cli {

struct NetworkReport {
  std::string path;
  int64_t bytes_before = 0, bytes_after = 0;  // of constants
  std::vector<ptq::LayerError> layers = {};
  std::optional<ptq::Scores> scores = {};  // on the samples of the analysis
  std::optional<ptq::Scores> evaluated = {};
  int64_t samples = 0, evaluated_samples = 0;
  ptq::FloatLayers floats = {};
};

// The plan: layers, what is done in one kernel with them, what shares a grid, bytes, the least time before
// and after by the limits of this machine, and the error to expect.
std::string ExplainNetwork(const ptq::NetworkQuantizer& quantizer, const ptq::QuantizerPlan& plan,
                           const ptq::FloatLayers& floats);

Table LayerTable(const NetworkReport& report, size_t most);
std::string ScoresText(const ptq::Scores& scores, int64_t samples);
std::string NetworkReportHtml(const NetworkReport& report);

}  // namespace celer::cli
