// The roofline: an operator takes at least as long as its bytes at full bandwidth, and at least as long as
// its arithmetic at full rate. Every benchmark prints its time as a ratio to this.
#pragma once

#include <string>
#include <string_view>

#include "limits/work.h"

namespace celer {

// The two peaks that bound an operator, with the words to name them.
struct Roof {
  double bytes_per_s = 0;
  double flops_per_s = 0;
  std::string dtype;   // of the arithmetic: "bf16"
  std::string source;  // "data sheet", "measured 2026-11-15"
};

// The roof of `machine` for arithmetic in `dtype`; NotFound names the peaks that are known.
Result<Roof> RoofOf(const Machine& machine, std::string_view dtype);

struct RooflineLimit {
  double memory_s = 0;
  double compute_s = 0;

  double seconds() const { return memory_s > compute_s ? memory_s : compute_s; }
  bool memory_bound() const { return memory_s > compute_s; }
};

RooflineLimit LimitOf(const Work& work, const Roof& roof);

// Reading at the machine's bandwidth; each type's arithmetic at its own peak, one after the other. A type
// without a peak is computed as f32: the machine widens it.
RooflineLimit LimitOf(const OperatorWork& work, const Machine& machine);
OperatorWork Sum(const std::vector<OperatorWork>& operators);  // of a whole step
// The type whose arithmetic takes longest, as computed: "int8"; "" if there is none.
std::string MainArithmetic(const OperatorWork& work, const Machine& machine);

// FLOP per byte from which on arithmetic binds.
double RidgeIntensity(const Roof& roof);

// FLOP/s that work of this intensity can reach.
double AttainableFlops(double intensity, const Roof& roof);

// limit / measured: 1 is perfect. Above 1 something was miscounted or came from a cache.
double RatioToLimit(const RooflineLimit& limit, double measured_s);

// "memory, 4390 GB/s measured 2026-11-15" or "bf16 arithmetic, 781 TFLOP/s data sheet".
std::string BoundBy(const RooflineLimit& limit, const Roof& roof);

}  // namespace celer
