// How a batch runs on a GPU. For each choice there is a table of strategies, best first; the first one that
// fits the batch and the model is taken. CELER_FORCE=table:strategy takes another one, and `celer kernels`
// lists them all. Plain C++, so that every choice can be tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/variant.h"

namespace celer {

// The inputs of the dispatch.
struct CudaFacts {
  // The batch.
  int64_t tokens = 0;
  bool decode = false;         // a decode step: one token of each sequence, all of which get logits
  int64_t longest = 1;         // tokens of one sequence in the batch, at most
  int64_t most_keys = 0;       // of one sequence, at the end of the step
  int64_t logit_rows = 0;      //
  bool profiled = false;       // operators are timed one by one
  bool deterministic = false;  // batch-invariant: a token does not depend on the rest of the batch
  // What runs the model on this GPU.
  int64_t step_tokens = 0;  // at once in the kernel of kernels/llm/decode_step; 0: it does not run the model
  int64_t step_keys = 0;    // of one sequence up to which it is the faster one
  int64_t batch_tokens = 0, batch_keys = 0;  // so too for the kernel of decode_batch there
  bool wgmma = false;                        // warpgroup products
  bool gemm = false;                         // cuBLASLt
  bool rows = false;                         // with weights that are kept in its order
  bool flash = false;                        // flash attention
  bool codes = false;                        // cuBLASLt with weights and activations of 8 bits
  bool general =
      false;  // its layers have more than Llama's (HasPlainLayers): wgmma, gemm and so on are false
  bool adapted = false;  // some of its tokens have LoRA adapters
  // A layer with experts.
  bool moe_step = false, moe_grouped = false;  // whether these kernels run its matrices
  bool shared_grouped = false;                 // and those of its shared expert
};

struct CudaStrategy {
  const char* name;
  const char* when;  // completes "it is for ..."
  Isa isa;
  bool (*fits)(const CudaFacts&);
  // CELER_FORCE applies to these batches only: else a strategy for prompts could not be forced without
  // breaking decode, and the other way round. Null: it applies to all.
  bool (*applies_to)(const CudaFacts&) = nullptr;
};

struct CudaStrategyTable {
  const char* name;
  std::span<const CudaStrategy> rows;  // best first; one of them always fits
};

// The rows of each table, in its order.
enum class ForwardStrategy : uint8_t {
  kDecodeStep,
  kDecodeBatch,
  kCodes,
  kRows,
  kJoined,
  kWgmma,
  kGemm,
  kMatvec,
  kGeneral
};
inline constexpr size_t kForwardStrategies = 9;
enum class HeadStrategy : uint8_t { kWgmma, kMatvec };
enum class AttentionStrategy : uint8_t { kFlash, kSplit };
enum class MoeStrategy : uint8_t { kStep, kGrouped, kJobs };
enum class SharedExpertStrategy : uint8_t { kGrouped, kDense };

const CudaStrategyTable& ForwardStrategies();
const CudaStrategyTable& HeadStrategies();
const CudaStrategyTable& AttentionStrategies();
const CudaStrategyTable& MoeStrategies();
const CudaStrategyTable& SharedExpertStrategies();

// An error if CELER_FORCE names a row that does not fit.
Result<ForwardStrategy> ChooseForward(const CudaFacts& facts);
Result<HeadStrategy> ChooseHead(const CudaFacts& facts);
Result<AttentionStrategy> ChooseAttention(const CudaFacts& facts);
Result<MoeStrategy> ChooseMoe(const CudaFacts& facts);
Result<SharedExpertStrategy> ChooseSharedExpert(const CudaFacts& facts);

// Whether warpgroup products may be used at all: not where CELER_FORCE takes one of the other products.
bool ForceAllowsWgmma();

// For `celer kernels` and for checking CELER_FORCE; nothing in a build without CUDA.
std::vector<OperatorInfo> CudaStrategyOperators();

namespace internal {

// Row of the table, as ChooseForward() and the others do it; `force` as in device/variant.h.
Result<size_t> ChooseRow(const CudaStrategyTable& table, const CudaFacts& facts, const ForceList& force);
std::vector<OperatorInfo> DescribeCudaStrategies(const ForceList& force);

}  // namespace internal
}  // namespace celer
