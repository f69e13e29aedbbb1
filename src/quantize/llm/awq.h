// AWQ: the columns of a matrix whose inputs are large (salient channels) are multiplied by s > 1 before
// quantization, and the producer of the input is divided by s. The product stays the same, and those columns
// lose less.
//
//   s = (mean |x|) ^ alpha, with the alpha of 0 .. 1 for which the squared error of the product is least:
//   |(W - Q(W s) / s) x|^2 = trace(D H D^T),  H = mean of x^T x
#pragma once

#include <array>

#include "models/config/decoder_config.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/fold.h"
#include "quantize/llm/target.h"

namespace celer {

// Folds the scales into the layer and its statistics. `targets` are those of the seven matrices; an input
// whose matrices are all kept is left alone. Gives the chosen alphas, 0 where nothing was gained.
std::array<float, kLayerInputs> FoldAwqScales(const DecoderConfig& config,
                                              const std::array<Target, kProjections>& targets,
                                              LayerFloats* layer, LayerStatistics* statistics,
                                              ThreadPool& pool);

}  // namespace celer
