#include "quantize/network/fall_back.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/file/printable.h"

namespace celer::ptq {
namespace {

// The number of the largest element of each row.
std::vector<int64_t> TopClasses(const std::vector<graph::Data>& outputs) {
  std::vector<int64_t> out;
  if (outputs.empty()) return out;
  const std::span<const float> values = FloatsIn(&outputs[0]);
  const Shape& shape = outputs[0].tensor.shape;
  const int64_t columns = shape.rank() == 0 ? 0 : shape[shape.rank() - 1];
  if (columns < 2) return out;
  for (auto row = values.begin(); row + columns <= values.end(); row += columns)
    out.push_back(std::max_element(row, row + columns) - row);
  return out;
}

}  // namespace

Result<Answers> Answers::Make(const graph::Network& exact, Samples samples, Truth truth,
                              const Progress& progress) {
  Answers out;
  CELER_ASSIGN(Runner runner, Runner::Make(exact, true));
  for (int64_t s = 0; s < samples.count; ++s) {
    CELER_ASSIGN(const auto sample, samples.get(s));
    const auto ran = runner.Run(sample);
    if (!ran) return ran.error().WithContext(samples.name(s));
    const std::vector<int64_t>& best = out.best_.emplace_back(TopClasses(*ran));
    if (best.empty())
      return Error::Invalid(samples.name(s),
                            ": the first output has no rows of scores whose best could change; give "
                            "--max-error instead of --max-drop");
    out.rows_ += static_cast<int64_t>(best.size());
    if (const auto right = truth ? truth(s) : std::nullopt) {
      ++out.labelled_;
      out.right_ += best[0] == *right ? 1 : 0;
    }
    if (progress) CELER_RETURN_IF_ERROR(progress("asking the float network", s + 1, samples.count));
  }
  out.samples_ = std::move(samples);
  out.truth_ = std::move(truth);
  return out;
}

Result<Answers::Drop> Answers::MeasureDrop(graph::Network rounded, double most) const {
  CELER_ASSIGN(Runner runner, Runner::Make(std::move(rounded), true));
  int64_t changed = 0, right = 0, left = labelled_;
  const auto percent = [&] {
    // What is still to come may be right, all of it.
    return labelled() ? 100 * static_cast<double>(right_ - right - left) / static_cast<double>(labelled_)
                      : 100 * static_cast<double>(changed) / static_cast<double>(std::max<int64_t>(rows_, 1));
  };
  for (int64_t s = 0; s < samples_.count; ++s) {
    CELER_ASSIGN(const auto sample, samples_.get(s));
    const auto ran = runner.Run(sample);
    if (!ran) return ran.error().WithContext(samples_.name(s));
    const std::vector<int64_t> best = TopClasses(*ran);
    const std::vector<int64_t>& exact = best_[s];
    if (best.size() != exact.size())
      return Error::Invalid(samples_.name(s), ": the quantized network gives ", best.size(),
                            " rows of scores, the float one ", exact.size());
    for (size_t i = 0; i < best.size(); ++i) changed += best[i] != exact[i] ? 1 : 0;
    if (const auto truth = truth_ ? truth_(s) : std::nullopt) {
      --left;
      right += best[0] == *truth ? 1 : 0;
    }
    if (percent() > most) return Drop{percent(), s + 1 < samples_.count};
  }
  return Drop{percent(), false};
}

namespace {

// One search: how many of the worst layers must stay float.
class Search {
 public:
  Search(const NetworkQuantizer& quantizer, const std::vector<LayerError>& layers, FloatLayers floats,
         const Bounds& bounds, const Reference& reference, const Answers* answers, const Progress& progress)
      : quantizer_(quantizer),
        bounds_(bounds),
        reference_(reference),
        answers_(answers),
        progress_(progress),
        given_(std::move(floats)) {
    for (const LayerError& layer : layers) worst_.push_back(&layer);
    std::stable_sort(worst_.begin(), worst_.end(), [](const LayerError* a, const LayerError* b) {
      return a->layerwise.value_or(0) > b->layerwise.value_or(0);
    });
  }

  // Exponential search for the bounds, 0, 1, 2, 4 ... layers more, then bisection of the last step.
  Result<Dispatch> Run() {
    const int64_t total = static_cast<int64_t>(worst_.size()), first = std::min(bounds_.worst, total);
    int64_t fails = first - 1, holds = first;
    while (true) {
      CELER_ASSIGN(const std::string why, Try(holds));
      if (why.empty()) break;
      if (holds == total)
        return Error::Invalid("no bound holds: with every layer left that can be, ", why, "; allow more");
      fails = holds;
      holds = std::min(total, first + std::max<int64_t>(1, 2 * (holds - first)));
    }
    while (holds - fails > 1) {
      const int64_t middle = fails + (holds - fails) / 2;
      CELER_ASSIGN(const std::string why, Try(middle));
      (why.empty() ? holds : fails) = middle;
    }
    return Finish(holds);
  }

 private:
  FloatLayers Floats(int64_t count) const {
    FloatLayers out = given_;
    for (int64_t i = 0; i < count; ++i) {
      const LayerError& layer = *worst_[i];
      out[layer.name] =
          fmt::format("{}: alone it adds {:.2e} of noise to the outputs",
                      i < bounds_.worst ? fmt::format("one of the {} worst", bounds_.worst) : reason_,
                      layer.layerwise.value_or(0));
    }
    return out;
  }

  // Nothing if the bounds hold with so many layers left float; else what does not.
  Result<std::string> Try(int64_t count) {
    const QuantizerPlan plan = quantizer_.PlanWithout(Floats(count));
    if (plan.empty())
      return Error::Invalid("no bound holds: ", reason_, " until all ", worst_.size(),
                            " layers stay as they were; allow more");
    CELER_ASSIGN(Inserted inserted, quantizer_.Build(plan));
    CELER_ASSIGN(scores_[count], reference_.Compare(inserted.network));
    std::string why;
    if (bounds_.max_error && scores_[count].nsr() > *bounds_.max_error)
      why = fmt::format("the error was {:.2e}", scores_[count].nsr());
    if (why.empty() && bounds_.max_drop && answers_) {
      CELER_ASSIGN(const Answers::Drop drop,
                   answers_->MeasureDrop(std::move(inserted.network), *bounds_.max_drop));
      if (drop.percent > *bounds_.max_drop)
        why = fmt::format(
            "{}{:.2f} {}", drop.at_least ? "at least " : "", drop.percent,
            answers_->labelled() ? "points of right answers were lost" : "% of the answers changed");
    }
    if (!why.empty() || count > bounds_.worst)
      steps_.push_back(count == 0 ? fmt::format("with all layers as integers, {}", why)
                                  : fmt::format("with the {} worst of {} layers left float, {}", count,
                                                worst_.size(), why.empty() ? "the bound holds" : why));
    if (reason_.empty()) reason_ = why;
    if (progress_)
      CELER_RETURN_IF_ERROR(
          progress_("leaving layers float", count, static_cast<int64_t>(worst_.size()) + 1));
    return why;
  }

  Dispatch Finish(int64_t count) {
    Dispatch out{.floats = Floats(count), .steps = std::move(steps_), .scores = scores_[count]};
    for (int64_t i = 0; i < count; ++i) {
      const std::string& name = worst_[i]->name;
      out.steps.push_back(fmt::format("{} stays float, {}", Printable(name), out.floats[name]));
    }
    return out;
  }

  const NetworkQuantizer& quantizer_;
  const Bounds& bounds_;
  const Reference& reference_;
  const Answers* answers_;
  const Progress& progress_;
  FloatLayers given_;
  std::vector<const LayerError*> worst_;
  std::map<int64_t, Scores> scores_;  // by the number of layers left
  std::vector<std::string> steps_;
  std::string reason_;  // why any layer is left float
};

}  // namespace

Result<Dispatch> FallBack(const NetworkQuantizer& quantizer, const std::vector<LayerError>& layers,
                          FloatLayers floats, const Bounds& bounds, const Reference& reference,
                          const Answers* answers, const Progress& progress) {
  return Search(quantizer, layers, std::move(floats), bounds, reference, answers, progress).Run();
}

}  // namespace celer::ptq
