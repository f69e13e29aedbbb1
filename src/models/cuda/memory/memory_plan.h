// The memory budget of a model on a GPU, before anything is allocated.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "celer/options.h"

namespace celer {

// Bytes.
struct CudaMemoryPlan {
  int64_t weights = 0, workspace = 0, staging = 0, free = 0;  // staging: while weights are loaded
  int64_t rows = 0;                           // weights a second time, in the order of cuBLASLt
  int64_t fed = 0;                            // places for weights that are sent for every prompt
  int64_t lora = 0;                           // adapters, and what they need beside them
  int64_t margin = 0;                         // for the driver and for other programs
  int64_t held = 0;                           // of the GPU, by whomever
  int64_t kv_blocks = 0, kv_block_bytes = 0;  // of the pool
  int64_t state_slots = 0, state_bytes = 0;   // of recurrent layers; bytes of one slot
  int64_t kv() const { return kv_blocks * kv_block_bytes; }
  int64_t states() const { return state_slots * state_bytes; }
  int64_t total() const {
    return weights + rows + kv() + states() + workspace + fed + lora + staging + margin;
  }
  int64_t room() const {
    return free - weights - rows - workspace - fed - lora - staging - margin;
  }  // for keys and values, and for states
  std::string ToString() const;
  // The nearest setting that fits, for a plan that does not: a shorter context, or smaller weights, in that
  // order.
  std::string Remedy(std::span<const std::pair<std::string, int64_t>> lighter_weights,
                     int64_t narrow_kv_block_bytes) const;
};

// Of activations with 8 bits.
inline const char* CodeName(Activations activations) {
  return activations == Activations::kInt8 ? "int8" : "fp8";
}

// What decides whether weights are kept a second time as rows, which cuBLASLt reads.
struct CudaRowFacts {
  RowCopies copies = RowCopies::kAuto;
  Activations activations = Activations::k16Bit;
  bool wgmma = false;            // products of tiles run
  bool fp8 = true;               // cuBLASLt has products of fp8: compute capability 8.9
  bool deterministic = false;    //
  bool keepable = false;         // a dense model with weights of 16 bits
  std::string no_cublaslt = {};  // why cuBLASLt does not run; "": it does
};
// An error where they were requested explicitly and are not possible.
Result<bool> WantsRows(const CudaRowFacts& facts);

}  // namespace celer
