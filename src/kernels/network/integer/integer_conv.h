// Integer convolutions and products: NHWC images of u8 or i8, [batch, h, w, channels], times i8 weights,
// requantized to 8 bits (requantize.h) or as raw 32-bit accumulators. Two algorithms: a GEMM over im2col rows
// (1x1 without im2col), and direct depthwise rows.
//
//   const IntegerConvPlan plan = PlanIntegerConv(shape, false);
//   words.resize(PackedIntegerWords(plan));
//   PackIntegerConv(plan, {.weights = w, .bias = b, .x_zero = 128, .factors = f}, words.data());
//   const PackedIntegerConv packed = UnpackIntegerConv(plan, words.data(), 128, true);
//   workspace.resize(IntegerConvWorkspaceBytes(plan, pool.size()));
//   IntegerConv(plan, packed, {.x = x, .range = {...}, .out = y, .workspace = ..., .pool = &pool});
//
// A matrix [rows, k] times [k, n] is the convolution of an image of one row of pixels (ProductShape).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "device/aligned_vector.h"
#include "device/thread_pool.h"
#include "device/variant.h"
#include "kernels/network/conv/conv.h"
#include "kernels/network/integer/integer_kernels.h"

namespace celer {

using IntegerVariant = Variant<const IntegerKernels*>;
std::span<const IntegerVariant> IntegerVariants();
const IntegerKernels& ChosenInteger();

// The factor as a fixed-point multiplier; nothing if it is not finite, negative, or too large.
std::optional<Multiplier> MultiplierOf(double factor);
// y = zero + (a - a_zero) * a_factor + (b - b_zero) * b_factor, as integers; nothing if a factor is out of
// range.
std::optional<AddBytes> AddOf(double a_factor, int32_t a_zero, double b_factor, int32_t b_zero,
                              ByteRange range);

// What the kernels have: depthwise ones give as many channels as they take.
bool CanDoIntegerConv(const ConvShape& shape);

struct IntegerConvPlan {
  ConvShape shape = {};
  bool x_signed = false;
  const IntegerKernels* kernels = nullptr;

  bool depthwise() const { return shape.groups > 1 && shape.groups == shape.channels; }
};
IntegerConvPlan PlanIntegerConv(const ConvShape& shape, bool x_signed,
                                const IntegerKernels& kernels = ChosenInteger());
ConvShape ProductShape(int64_t rows, int64_t k, int64_t n);

// What is known before a run.
struct IntegerConvWeights {
  const int8_t* weights = nullptr;      // [out_channels, channels / groups, kernel_h, kernel_w]
  const int32_t* bias = nullptr;        // [out_channels], or none
  int32_t x_zero = 0;                   // the byte of a real zero in x
  std::span<const Multiplier> factors;  // one per output channel; none: sums are wanted
};
// All of it in one block of memory, 64-byte aligned, that the caller keeps: PackedIntegerWords() words.
struct PackedIntegerConv {
  const int8_t* weights = nullptr;
  // One per column, padded to whole panels; without factors the last three are null.
  const int32_t *bias = nullptr, *multiplier = nullptr, *left = nullptr, *right = nullptr;
  const int32_t* sums = nullptr;  // of the weights of each output channel
  uint8_t pad = 0;
};
int64_t PackedIntegerWords(const IntegerConvPlan& plan);
void PackIntegerConv(const IntegerConvPlan& plan, const IntegerConvWeights& w, int32_t* words);
// What PackIntegerConv wrote. `factors`: there were some.
PackedIntegerConv UnpackIntegerConv(const IntegerConvPlan& plan, const int32_t* words, int32_t x_zero,
                                    bool factors);
// Whether no accumulator can overflow 32 bits.
bool SumsFit(const ConvShape& shape, const IntegerConvWeights& w);

struct IntegerConvArgs {
  const uint8_t* x = nullptr;
  ByteRange range = {};
  uint8_t* out = nullptr;   // [batch, out_h, out_w, out_channels], or none:
  int32_t* sums = nullptr;  // likewise
  // Called for each block of accumulators of a product without groups when it is complete, while it is in the
  // cache, on the thread that made it.
  struct Block {
    int64_t row = 0, rows = 0, column = 0, columns = 0;
  };
  const std::function<void(const Block&)>* finish = nullptr;
  std::byte* workspace = nullptr;
  ThreadPool* pool = nullptr;
};
int64_t IntegerConvWorkspaceBytes(const IntegerConvPlan& plan, int threads);
void IntegerConv(const IntegerConvPlan& plan, const PackedIntegerConv& packed, const IntegerConvArgs& args);

}  // namespace celer
