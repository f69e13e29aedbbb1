// The lower bound of a decoder's step, operator by operator: weights and KV read once each, and the
// arithmetic by the type it runs in. Activations are not counted: they stay in caches.
#pragma once

#include <cstdint>
#include <vector>

#include "celer/limits.h"
#include "models/load/model.h"

namespace celer {

// A matrix wherever it lies. No rows: the model has none.
struct MatrixSize {
  int64_t rows = 0, cols = 0;
  int64_t bytes = 0;
  const char* compute = "bf16";  // the arithmetic that the kernels use for it
};

// The matrices of a step, by the operator that reads them.
struct StepMatrices {
  struct Expert {
    MatrixSize gate, up, down;
  };
  struct Layer {
    std::vector<MatrixSize> qkv;  // all that comes before attention or a recurrent state
    MatrixSize output;
    Expert dense;  // of a layer without experts
    std::vector<Expert> experts;
    Expert shared;
    MatrixSize router, shared_gate;
    std::vector<MatrixSize> beside;  // of other branches: embeddings for each layer, Laurel, AltUp
  };
  int64_t embedding_row_bytes = 0;
  std::vector<Layer> layers;
  MatrixSize head;
};
StepMatrices MatricesOf(const DecoderWeights& weights);

// Only operators that the model has, in the order of the forward pass.
std::vector<OperatorWork> CountStep(const DecoderConfig& config, const StepMatrices& matrices,
                                    int64_t kv_bytes_per_token, const StepShape& shape);

// To those of the same name; others follow.
void AddWork(std::vector<OperatorWork>* all, const std::vector<OperatorWork>& some);

// The arithmetic that the kernels use for this matrix where the CPU has it: "int8", "bf16" or "f32".
const char* ComputeType(const WeightView& weight);

}  // namespace celer
