#include "models/cuda/strategy.h"

#include <algorithm>
#include <iterator>

#include "base/device.h"

namespace celer {
namespace {

// Of the kernels; forward_cuda.cc checks that they are theirs.
constexpr int64_t kStepTokens = 4;     // kMaxStepTokens
constexpr int64_t kMatvecTokens = 8;   // kMaxMatvecTokens
constexpr int64_t kJoinedTokens = 64;  // kWgmmaJoined
// Up to here joined products are faster than cuBLASLt's, which come one by one.
constexpr int64_t kRowsTokens = 24;

using F = CudaFacts;

constexpr auto kAlways = [](const F&) { return true; };
constexpr auto kDecode = [](const F& f) { return f.decode; };
constexpr auto kMany = [](const F& f) { return f.tokens > kMatvecTokens; };

// Of the batch kernel; more than 8 are fp8's where there is such.
constexpr int64_t BatchTokens(const F& f) {
  return f.codes ? std::min(f.batch_tokens, kMatvecTokens) : f.batch_tokens;
}

constexpr CudaStrategy kForward[] = {
    // The whole step in one kernel, products in f32.
    {"decode_step", "decode steps of up to 4 sequences, not too long, of a dense model without q and k norms",
     Isa::kSm80,
     [](const F& f) {
       return f.decode && !f.adapted && !f.profiled && !f.deterministic && f.tokens <= f.step_tokens &&
              f.most_keys <= f.step_keys;
     },
     kDecode},
    // All layers in one kernel, products on the tensor cores.
    {"decode_batch",
     "up to 16 tokens (8 of a model with very many layers, or with activations in fp8) of such a model that "
     "are no decode step of decode_step, not too long",
     Isa::kSm80,
     [](const F& f) {
       return !f.adapted && !f.profiled && !f.deterministic && (!f.decode || f.tokens > f.step_tokens) &&
              f.tokens <= BatchTokens(f) && f.most_keys <= f.batch_keys;
     },
     [](const F& f) { return f.tokens <= std::max(BatchTokens(f), kMatvecTokens); }},
    // cuBLASLt with codes of 8 bits.
    {"codes", "more than 8 tokens, where activations may have 8 bits", Isa::kSm80,
     [](const F& f) { return !f.adapted && f.codes && f.tokens > kMatvecTokens; }, kMany},
    // cuBLASLt with weights as they are.
    {"rows", "more than 24 tokens, with cuBLASLt and weights that are also kept row by row", Isa::kSm80,
     [](const F& f) { return !f.adapted && f.gemm && f.rows && !f.deterministic && f.tokens > kRowsTokens; },
     kMany},
    // Warpgroup products that also do what lies between them.
    {"joined", "5 to 64 tokens, with products of tiles", Isa::kSm80,
     [](const F& f) {
       return !f.adapted && f.wgmma && !f.deterministic && f.tokens > kStepTokens &&
              f.tokens <= kJoinedTokens;
     }},
    {"wgmma", "more than 64 tokens, or deterministic results, with products of tiles", Isa::kSm80,
     [](const F& f) { return !f.adapted && f.wgmma && (f.deterministic || f.tokens > kJoinedTokens); },
     kMany},
    // Weights unpacked for cuBLASLt.
    {"gemm", "more than 8 tokens, with cuBLASLt", Isa::kSm80,
     [](const F& f) { return !f.adapted && f.gemm && !f.rows && f.tokens > kMatvecTokens; }, kMany},
    // A few tokens at a time.
    {"matvec", "any batch of a model whose layers are Llama's", Isa::kSm80,
     [](const F& f) { return !f.general && !f.adapted; }},
    // Layers with other norms, biases, scales, states or caches; and what adapters add to each product.
    {"general", "any batch of all other models, or with LoRA adapters", Isa::kSm80,
     [](const F& f) { return f.general || f.adapted; }, [](const F& f) { return f.general || f.adapted; }},
};
static_assert(std::size(kForward) == kForwardStrategies);

constexpr CudaStrategy kHead[] = {
    {"wgmma", "more than 4 rows of logits, or deterministic results, with products of tiles", Isa::kSm80,
     [](const F& f) { return f.wgmma && (f.deterministic || f.logit_rows > kStepTokens); },
     [](const F& f) { return f.logit_rows > kStepTokens; }},
    {"matvec", "any batch", Isa::kSm80, kAlways},
};

constexpr CudaStrategy kAttention[] = {
    // Tiles of queries and keys on the tensor cores.
    {"flash", "more than 8 tokens, several of one sequence, and heads of up to 128 (256 with 16 bits)",
     Isa::kSm80,
     [](const F& f) { return f.flash && !f.deterministic && f.tokens > kMatvecTokens && f.longest > 1; },
     [](const F& f) { return f.tokens > kMatvecTokens && f.longest > 1; }},
    // Each token loads its keys itself, those of a long sequence in pieces.
    {"split", "any batch", Isa::kSm80, kAlways},
};

constexpr CudaStrategy kMoe[] = {
    // Router, experts and their sum in one kernel.
    {"step", "up to 8 tokens, with weights of 16 bits or fewer", Isa::kSm80,
     [](const F& f) { return f.moe_step && !f.deterministic && f.tokens <= kMatvecTokens; },
     [](const F& f) { return f.tokens <= kMatvecTokens; }},
    // The tokens of an expert together on the tensor cores.
    {"grouped", "more than 8 tokens (any with `deterministic`), with weights of 16 bits or fewer", Isa::kSm80,
     [](const F& f) { return f.moe_grouped && (f.tokens > kMatvecTokens || f.deterministic); }, kMany},
    // A few tokens of an expert at a time.
    {"jobs", "any batch", Isa::kSm80, kAlways},
};

constexpr CudaStrategy kSharedExpert[] = {
    // As a mixture of one expert.
    {"grouped", "more than 8 tokens (any with `deterministic`), with weights of 16 bits or fewer", Isa::kSm80,
     [](const F& f) { return f.shared_grouped && (f.tokens > kMatvecTokens || f.deterministic); }, kMany},
    {"dense", "any batch", Isa::kSm80, kAlways},
};

template <class T>
Result<T> Choose(const CudaStrategyTable& table, const CudaFacts& facts) {
  CELER_ASSIGN(const size_t row, internal::ChooseRow(table, facts, internal::ForceFromEnvironment()));
  return static_cast<T>(row);
}

}  // namespace

const CudaStrategyTable& ForwardStrategies() {
  static constexpr CudaStrategyTable kTable = {"cuda_forward", kForward};
  return kTable;
}
const CudaStrategyTable& HeadStrategies() {
  static constexpr CudaStrategyTable kTable = {"cuda_head", kHead};
  return kTable;
}
const CudaStrategyTable& AttentionStrategies() {
  static constexpr CudaStrategyTable kTable = {"cuda_attention", kAttention};
  return kTable;
}
const CudaStrategyTable& MoeStrategies() {
  static constexpr CudaStrategyTable kTable = {"cuda_moe", kMoe};
  return kTable;
}
const CudaStrategyTable& SharedExpertStrategies() {
  static constexpr CudaStrategyTable kTable = {"cuda_shared_expert", kSharedExpert};
  return kTable;
}

Result<ForwardStrategy> ChooseForward(const CudaFacts& facts) {
  return Choose<ForwardStrategy>(ForwardStrategies(), facts);
}
Result<HeadStrategy> ChooseHead(const CudaFacts& facts) {
  return Choose<HeadStrategy>(HeadStrategies(), facts);
}
Result<AttentionStrategy> ChooseAttention(const CudaFacts& facts) {
  return Choose<AttentionStrategy>(AttentionStrategies(), facts);
}
Result<MoeStrategy> ChooseMoe(const CudaFacts& facts) {
  return Choose<MoeStrategy>(MoeStrategies(), facts);
}
Result<SharedExpertStrategy> ChooseSharedExpert(const CudaFacts& facts) {
  return Choose<SharedExpertStrategy>(SharedExpertStrategies(), facts);
}

bool ForceAllowsWgmma() {
  for (const auto& [table, row] : internal::ForceFromEnvironment())
    if (table == ForwardStrategies().name && (row == "gemm" || row == "matvec")) return false;
  return true;
}

std::vector<OperatorInfo> CudaStrategyOperators() {
  if (!BuiltWithCuda()) return {};
  return internal::DescribeCudaStrategies(internal::ForceFromEnvironment());
}

namespace internal {

Result<size_t> ChooseRow(const CudaStrategyTable& table, const CudaFacts& facts, const ForceList& force) {
  for (const auto& [op, name] : force) {
    if (op != table.name) continue;
    for (size_t i = 0; i < table.rows.size(); ++i) {
      const CudaStrategy& row = table.rows[i];
      if (row.name != name || (row.applies_to && !row.applies_to(facts))) continue;
      if (row.fits(facts)) return i;
      return Error::Invalid("CELER_FORCE: '", op, ":", name, "' does not fit a ",
                            facts.decode ? "decode step" : "batch", " of ", facts.tokens, " tokens and ",
                            facts.logit_rows, " rows of logits; it is for ", row.when);
    }
  }
  for (size_t i = 0; i < table.rows.size(); ++i)
    if (table.rows[i].fits(facts)) return i;
  return Error::Invalid(table.name, ": no strategy fits");  // one of the last rows always does
}

std::vector<OperatorInfo> DescribeCudaStrategies(const ForceList& force) {
  std::vector<OperatorInfo> all;
  for (const CudaStrategyTable* table : {&ForwardStrategies(), &HeadStrategies(), &AttentionStrategies(),
                                         &MoeStrategies(), &SharedExpertStrategies()}) {
    OperatorInfo& info = all.emplace_back();
    info.name = table->name;
    for (const CudaStrategy& row : table->rows) {
      VariantInfo& variant = info.variants.emplace_back();
      variant.name = row.name;
      variant.isa = row.isa;
      variant.why_not = WhyNotHere(row.isa);
      variant.runs_here = variant.why_not.empty();
      variant.when = row.when;
      for (const auto& [op, name] : force)
        variant.chosen = variant.chosen || (variant.runs_here && op == table->name && name == row.name);
    }
  }
  return all;
}

}  // namespace internal
}  // namespace celer
