// What a step of any slices must read and compute, and how long a machine takes over it: the limits model for
// a batch of prompts and answers together. docs/serving_bench.md explains it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "celer/limits.h"
#include "models/config/decoder_config.h"
#include "models/step_work.h"
#include "weights/weight_plan.h"

namespace celer {

// A slice as far as its cost goes.
struct SliceShape {
  int64_t position = 0, tokens = 1;
  int64_t rows = 1;  // of logits
};

class StepCost {
 public:
  // Runner::Work or Engine::Work, which count one shape for all sequences.
  using Count = std::function<std::vector<OperatorWork>(const StepShape&)>;
  StepCost(const DecoderConfig& config, Count count);

  // As it was given.
  std::vector<OperatorWork> OfShape(const StepShape& shape) const { return count_(shape); }
  // The operators of a mixed step. Weights are read once.
  std::vector<OperatorWork> Work(std::span<const SliceShape> slices) const;

  // The parts that add up. Not for several threads at once: what was counted is kept.
  //
  // Everything but attention and logits, for so many tokens.
  const std::vector<OperatorWork>& Dense(int64_t tokens) const;
  OperatorWork Logits(int64_t rows) const;
  OperatorWork Attention(std::span<const SliceShape> slices) const;
  // Of a sequence whose tokens come one in a step: each step reads all the keys again.
  OperatorWork DecodeAttention(const SliceShape& tokens) const;

 private:
  Count count_;
  std::map<int64_t, int64_t> layers_by_window_;  // of those with attention; 0: all before
  int64_t layers_ = 0;
  OperatorWork logits_, attention_;  // of one row, and of one query that sees one key in every layer
  mutable std::unordered_map<int64_t, std::vector<OperatorWork>> dense_;
};

// Query-key pairs of a slice in a layer with this window (0: all before), and the keys that it reads.
struct AttendedKeys {
  double pairs = 0, keys = 0;
};
AttendedKeys CountAttendedKeys(const SliceShape& slice, int64_t window);

// The matrices of a model that is no more than a shape, in the formats that `weights` asks for; what a file
// would store is bf16.
StepMatrices MatricesOf(const DecoderConfig& config, const WeightOptions& weights);
StepMatrices MatricesOf(const LlmShape& shape, const WeightOptions& weights);
int64_t BytesOf(const StepMatrices& matrices);  // with all experts, without an embedding that is only read

// The efficiency of a machine relative to its peaks. The defaults are those of a good GPU engine:
// docs/serving_bench.md compares them with measurements.
struct Efficiency {
  double read = 0.8;        // of the bandwidth
  double arithmetic = 0.6;  // of the peak
  double overlap = 0.5;     // of the shorter of the two times, how much is hidden behind the longer one
  double step_s = 100e-6;   // of a step, whatever it does
  double row_s = 0;         // of each row of logits: choosing a token, and what the host does for it

  // "read=0.8,arithmetic=0.6,overlap=0.5,step=100us,row=0us"; what is not named keeps its value.
  static Result<Efficiency> Parse(std::string_view text);
  std::string ToString() const;
};

// A step that was measured.
struct MeasuredStep {
  std::vector<SliceShape> slices;
  double seconds = 0;
};

// How long steps take on a machine: its operators one after the other.
class StepTime {
 public:
  StepTime(StepCost cost, Machine machine, Efficiency efficiency);
  double Seconds(std::span<const SliceShape> slices) const;

  // From now on by so much more or less as steps like it were measured to take: exactly those themselves, in between the
  // nearest count most. Five numbers do not know where a kernel changes its tiles.
  void Correct(std::span<const MeasuredStep> steps);

  const StepCost& cost() const { return cost_; }
  const Machine& machine() const { return machine_; }
  const Efficiency& efficiency() const { return efficiency_; }

 private:
  // What makes steps alike: tokens of prompts, sequences that decode, and what they attend to, as logarithms.
  using Likeness = std::array<double, 3>;
  struct Correction {
    Likeness where = {};
    double log_factor = 0;
  };
  static Likeness LikenessOf(std::span<const SliceShape> slices);
  double Plain(std::span<const SliceShape> slices) const;
  double Operator(const OperatorWork& work) const;

  StepCost cost_;
  Machine machine_;
  Efficiency efficiency_;
  std::vector<Correction> corrections_;
  mutable std::unordered_map<int64_t, double> dense_s_;
};

// The efficiency with which StepTime is nearest to the measured steps: the least sum of squared relative
// errors.
Efficiency FitEfficiency(const StepCost& cost, const Machine& machine, std::span<const MeasuredStep> steps);

// A step that was measured, as what it had to do: steps of several models can be fitted together.
struct MeasuredWork {
  std::vector<OperatorWork> work;
  double rows = 0, seconds = 0;
};
MeasuredWork WorkOf(const StepCost& cost, const MeasuredStep& step);
Efficiency FitEfficiency(const Machine& machine, std::span<const MeasuredWork> steps);

}  // namespace celer
