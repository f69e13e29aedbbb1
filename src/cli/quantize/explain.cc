#include "cli/quantize/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "device/thread_pool.h"
#include "limits/measured_machine.h"
#include "limits/quantity.h"
#include "quantize/llm/fold.h"
#include "report/table.h"

namespace celer::cli {
namespace {

constexpr int64_t kSampledRows = 16;  // of each tensor

struct Sum {
  int64_t tensors = 0, weights = 0, before = 0, after = 0;
  double error = 0, power = 0;  // squares, of the sampled rows
};

// Rounds some rows of a tensor, spread over it, and adds up what is lost.
Status AddError(const PlannedTensor& tensor, const TensorRecord& record, const TensorSource& source,
                Sum* sum) {
  ThreadPool& pool = DefaultThreadPool();
  const int64_t cols = tensor.cols(), rows = std::min(kSampledRows, tensor.rows());
  std::vector<float> values(static_cast<size_t>(rows * cols)), rounded(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = r * tensor.rows() / rows;
    CELER_RETURN_IF_ERROR(ReadRows(source, record, from, from + 1, values.data() + r * cols, pool));
  }
  FakeQuantize(values.data(), rows, cols, tensor.target, nullptr, 0, rounded.data(), pool);
  double error = 0, power = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double miss = static_cast<double>(values[i]) - rounded[i];
    error += miss * miss;
    power += static_cast<double>(values[i]) * values[i];
  }
  const double stands_for = static_cast<double>(tensor.rows()) / static_cast<double>(rows);
  sum->error += stands_for * error;
  sum->power += stands_for * power;
  return {};
}

// "410 tokens/s" if this many bytes are read for each.
std::string SpeedText(const Machine& machine, int64_t bytes) {
  return fmt::format("{:.0f}", machine.read_bytes_per_s / static_cast<double>(std::max<int64_t>(bytes, 1)));
}

}  // namespace

Result<std::string> ExplainPlan(const QuantizePlan& plan, const TensorSource& source) {
  std::map<std::string, Sum> sums;
  int64_t read_before = 0, read_after = 0;  // an embedding that is only looked up is not read as a whole
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    const bool keep = tensor.target.kind == Target::Kind::kKeep;
    Sum& sum = sums[keep ? "as it is" : tensor.target.Name()];
    ++sum.tensors;
    sum.weights += tensor.rows() * tensor.cols();
    sum.before += tensor.bytes_before();
    sum.after += tensor.bytes_after();
    if (!keep && tensor.rows() > 0)
      CELER_RETURN_IF_ERROR(AddError(tensor, source.tensors()[i], source, &sum));
    if (tensor.place.part != Part::kEmbedding) {
      read_before += tensor.bytes_before();
      read_after += tensor.bytes_after();
    }
  }
  const auto bytes = [](int64_t n) { return FormatBytes(static_cast<double>(n)); };
  Table table{.header = {"becomes", "tensors", "before", "after", "bits", "error"}};
  for (const auto& [name, sum] : sums) {
    const double bits =
        sum.weights > 0 ? 8.0 * static_cast<double>(sum.after) / static_cast<double>(sum.weights) : 0;
    table.rows.push_back(
        {name, std::to_string(sum.tensors), bytes(sum.before), bytes(sum.after), fmt::format("{:.2f}", bits),
         sum.power > 0 ? fmt::format("{:.2f} %", 100 * std::sqrt(sum.error / sum.power)) : "none"});
  }
  table.rows.push_back({"all", std::to_string(plan.tensors.size()), bytes(plan.bytes_before()),
                        bytes(plan.bytes_after()), fmt::format("{:.2f}", plan.bits_per_weight()), ""});
  table.notes.push_back(
      "error: root mean square of what rounding to nearest changes, relative to the weights; of a sample of "
      "rows");
  table.notes.push_back(fmt::format(
      "decode, one sequence: reads {} of weights for a token, was {}: {:.2f} x as fast where memory is the "
      "limit",
      bytes(read_after), bytes(read_before),
      static_cast<double>(read_before) / static_cast<double>(std::max<int64_t>(read_after, 1))));
  if (const auto machine = LoadOrMeasureThisMachine(false))
    table.notes.push_back(fmt::format("decode limit here, one sequence: {} tokens/s, was {}; {}",
                                      SpeedText(*machine, read_after), SpeedText(*machine, read_before),
                                      machine->source));
  else
    table.notes.push_back("tokens per second are not predicted: run celer probe once");
  return TableText(table);
}

}  // namespace celer::cli
