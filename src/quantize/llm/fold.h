// Scales that are folded from the producer of an input into the matrices that read it. The product stays the
// same: columns of the matrices are multiplied, and the producer is divided.
//
// The producer: a norm's weight (of q, k, v and of gate, up), the rows of v (of o), those of up (of down).
// Rows of v serve all query heads of their group, so these share a scale: "channels" are what can be scaled
// separately, "columns" those of the matrix.
#pragma once

#include <array>
#include <vector>

#include "models/config/decoder_config.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/matrix.h"
#include "quantize/llm/target.h"

namespace celer {

using LayerStatistics = std::array<InputStatistics, kLayerInputs>;

std::vector<float> ChannelMean(const DecoderConfig& config, LayerInput input,
                               const std::vector<float>& columns);
std::vector<float> ChannelMax(const DecoderConfig& config, LayerInput input,
                              const std::vector<float>& columns);
// The other way: one number for each column.
std::vector<float> BroadcastToColumns(const DecoderConfig& config, LayerInput input,
                                      const std::vector<float>& channels);

void Fold(LayerInput input, const std::vector<float>& channels, const std::vector<float>& columns,
          LayerFloats* layer);

// A strided sample of the rows of a matrix, about `most` of them.
AlignedVector<float> SampleRows(const LayerFloats::Matrix& m, int64_t most, int64_t* rows);

// One matrix quantized and dequantized, [rows, cols]: what searches compare.
void FakeQuantize(const float* w, int64_t rows, int64_t cols, const Target& target, const float* importance,
                  int candidates, float* out, ThreadPool& pool);

}  // namespace celer
