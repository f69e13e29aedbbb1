// What is physically possible: a model's shape, a machine's peaks, and the formulas that join them.
// docs/limits.md explains the model in words. Everything here is a pure function over plain structs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "celer/error.h"
#include "celer/model_shape.h"

namespace celer {

// What a machine can do at best. Data-sheet presets and measured machines have the same form.
struct Machine {
  std::string name;                     // "rtx4090", or the name of this machine
  std::string source;                   // "data sheet", "measured 2026-11-15", "flags"
  double memory_bytes = 0;              // memory that holds weights and KV
  double read_bytes_per_s = 0;          // all cores / the whole GPU
  double read_bytes_per_s_one = 0;      // one core; 0 if unknown or meaningless
  double copy_bytes_per_s = 0;          // bytes read plus bytes written; 0 if unknown
  std::map<std::string, double> flops;  // dense peak per dtype: "f32", "f16", "bf16", "int8", "fp8"
  // Of a GPU, 0 if unknown: reading host memory, and handing a few KB of activations to the host and having them back.
  double host_bytes_per_s = 0, crossing_s = 0;
};

// Layers that cost the same. All are counts: of parameters, of the numbers that a token or a sequence keeps, of
// multiply-adds.
struct LayerKind {
  int64_t count = 0;        // of such layers
  double qkv = 0, o = 0;    // parameters before and behind attention or a recurrent state
  double up = 0, down = 0;  // of the feed-forward block that every token passes, with the router
  double expert_up = 0, expert_down = 0;  // of each of ExpertShape::experts; 0: a layer without
  double norms = 0;                       // and other vectors; in none of the sums, as LlmParams::norms
  double query = 0;             // numbers of a token that attention reads, and as many that it writes
  double kv = 0;                // that a token leaves in the cache
  double borrowed_kv = 0;       // of a token that attention reads where another layer has left them
  double pair_macs = 0;         // for one query and one token that it sees
  double prompt_pair_macs = 0;  // the same in a prompt, where it is less; 0: it is not
  int64_t window = 0;           // tokens that a query sees at most; 0: all
  double state = 0;             // of a sequence, in f32: a step reads and writes them
  double state_macs = 0;        // of a token with them

  bool operator==(const LayerKind&) const = default;
  double always() const { return qkv + o + up + down; }
  double expert() const { return expert_up + expert_down; }
};

// The shape of a decoder, as far as its cost goes. Of a mixture of experts, each expert has `intermediate` columns.
struct LlmShape : ModelShape, ExpertShape {
  std::string name;
  // Of a model whose layers are not all attention and a feed-forward block or experts as the fields above say; empty
  // otherwise. Their counts add up to `layers`.
  std::vector<LayerKind> kinds = {};
};

// `kinds`, or the one kind of layer that the other fields describe.
std::vector<LayerKind> KindsOf(const LlmShape& shape);

// One sentence about the first impossible field: zero, negative, not finite, heads that KV heads do not
// divide, or more parameters than 2^53 (beyond which a double no longer counts exactly).
// The functions below take shapes and machines that passed.
Result<void> Validate(const LlmShape& shape);
Result<void> Validate(const Machine& machine);

// --- presets ---------------------------------------------------------------------------------------------

// An unknown name is NotFound, with the nearest known name suggested.
Result<LlmShape> FindModelPreset(std::string_view name);
Result<Machine> FindMachinePreset(std::string_view name);
std::vector<std::string> ModelPresetNames();
std::vector<std::string> MachinePresetNames();

// --- units -----------------------------------------------------------------------------------------------

// kSi: GB/s = 1e9 byte/s, TFLOPS = 1e12. kBinary: the same data-sheet numbers read as 2^30 byte/s and 2^40
// FLOP/s, which is how the tables that celer's tests reproduce were computed. Memory is 2^30-based in both:
// a 24 GB card has 24 GiB.
enum class Units { kSi, kBinary };
Machine InUnits(Machine machine, Units units);

// --- parameters and memory -------------------------------------------------------------------------------

struct LlmParams {
  int64_t layers = 0;         // all decoder layers with all experts; norm weights are not counted
  int64_t layers_active = 0;  // of those, what one token is multiplied with; equal to `layers` when dense
  int64_t lm_head = 0;
  int64_t embedding = 0;  // 0 when tied: the table is then counted as lm_head
  int64_t norms = 0;      // for comparison with a checkpoint's count; in none of the sums
  int64_t active = 0;     // layers_active + lm_head: an embedding row is looked up, not multiplied
  int64_t resident = 0;   // layers + lm_head: what must lie in fast memory
  int64_t total = 0;      // resident + embedding
};

LlmParams CountParams(const LlmShape& shape);
// What a token leaves in the cache, in all layers: windows bound what is read, not what is kept.
int64_t KvParamsPerToken(const LlmShape& shape);
// What a sequence keeps however long it is.
int64_t StateParams(const LlmShape& shape);

// How the model is run. Bits may be fractional: 4.5 for q4_0, 8.5 for q8_0.
struct LlmSetup {
  double weight_bits = 16;
  double kv_bits = 16;
  int64_t batch = 1;             // sequences that advance together
  std::string compute = "auto";  // dtype of the arithmetic, a key of Machine::flops; see PeakFlops
};

// "w16kv16", "w4.5kv8": the key under which results are reported.
std::string SetupName(const LlmSetup& setup);

double WeightBytes(const LlmShape& shape, const LlmSetup& setup);  // resident, all experts, no embedding
double KvBytesPerToken(const LlmShape& shape, const LlmSetup& setup);
double StateBytes(const LlmShape& shape);  // of one sequence; f32 whatever the setup

// Tokens of KV (over all sequences) that fit beside the weights and the states of setup.batch sequences; nullopt when the weights alone do not fit.
// Without the embedding, which may stay in host memory because only one row per token is read.
std::optional<int64_t> KvCapacityTokens(const LlmShape& shape, const Machine& machine, const LlmSetup& setup,
                                        bool count_embedding = false);

// FLOP/s that bound the arithmetic. "auto": the best of f32, f16 and bf16 for weights of up to 16 bits
// (narrow weights are widened in registers), f32 alone for wider ones. nullopt if the machine has no such
// peak.
std::optional<double> PeakFlops(const Machine& machine, const LlmSetup& setup);

// --- latency ---------------------------------------------------------------------------------------------

enum class Bound { kWeightRead, kKvRead, kCompute };
std::string_view BoundText(Bound bound);  // "reading weights", "reading KV", "arithmetic"

// Reading and computing overlap perfectly: the slower of the two is the limit.
struct PhaseLimit {
  double weight_s = 0;  // reading weights
  double kv_s = 0;      // reading KV
  double compute_s = 0;

  double read_s() const { return weight_s + kv_s; }
  double seconds() const { return read_s() > compute_s ? read_s() : compute_s; }
  Bound bound() const {
    if (compute_s >= read_s()) return Bound::kCompute;
    return weight_s >= kv_s ? Bound::kWeightRead : Bound::kKvRead;
  }
};

// kRough runs lm_head for every prompt token, kExact only for the last one.
enum class HeadRows { kRough, kExact };
// kEveryToken: each prompt token reads the KV of all tokens before it, n(n+1)/2 in all. kOnce: attention is
// tiled so well that each KV value is read once, n in all; no kernel can read less.
enum class KvReads { kEveryToken, kOnce };

// From an empty cache to the first token, for `batch` prompts of `prompt` tokens each.
PhaseLimit PrefillLimit(const LlmShape& shape, const Machine& machine, const LlmSetup& setup, int64_t prompt,
                        HeadRows head = HeadRows::kExact, KvReads kv = KvReads::kEveryToken);

// Prefill is bound by arithmetic for prompts between `first` and `second` (real numbers, as the curves
// cross): below the first by reading weights, above the second by reading KV. first is 0 when arithmetic
// binds from the start; second is infinity when it binds forever.
struct TurningPoints {
  double first = 0;
  double second = 0;
};
std::optional<TurningPoints> PrefillTurningPoints(const LlmShape& shape, const Machine& machine,
                                                  const LlmSetup& setup, HeadRows head = HeadRows::kExact,
                                                  KvReads kv = KvReads::kEveryToken);

// One decode step with `context` tokens of KV per sequence, the new one included.
PhaseLimit DecodeLimit(const LlmShape& shape, const Machine& machine, const LlmSetup& setup, int64_t context);

// Read latency of one step as (context - 1) / W + B: W tokens of context cost one more millisecond, B is the
// step with a context of one token, whose KV it includes. With windows, while the context is shorter than they are.
struct DecodeForm {
  double w_tokens_per_ms = 0;
  double b_ms = 0;
};
DecodeForm DecodeWB(const LlmShape& shape, const Machine& machine, const LlmSetup& setup);

// All sequences together.
inline double TokensPerSecond(const PhaseLimit& step, const LlmSetup& setup) {
  return static_cast<double>(setup.batch) / step.seconds();
}

// The smallest number of sequences (a real number) whose decode step is bound by arithmetic; nullopt when
// reading KV grows faster than the arithmetic, so that no batch gets there. setup.batch is ignored.
std::optional<double> DecodeTurningBatch(const LlmShape& shape, const Machine& machine, const LlmSetup& setup,
                                         int64_t context);

// --- a step of a loaded model ----------------------------------------------------------------------------

// Each of `sequences` computes `tokens` tokens from `position` on and asks for the logits of the last.
struct StepShape {
  int64_t sequences = 1;
  int64_t tokens = 1;
  int64_t position = 0;
};

// What an operator cannot avoid: weights and KV read once each, and the arithmetic by the type it runs in.
struct OperatorWork {
  std::string name;  // embed, qkv, attention, output, gate_up, down, moe, logits, sampling
  double bytes = 0;
  // A multiply-add is two. Keys as in Machine::flops, or "auto" as in LlmSetup::compute with 16 bits.
  std::map<std::string, double> flops = {};

  OperatorWork& operator+=(const OperatorWork& other);  // keeps its own name
};

// Distinct experts that `tokens` tokens are expected to need in one layer, each choosing k of E uniformly:
// E (1 - (1 - k/E)^tokens). 0 for a dense model.
double ExpectedExperts(const LlmShape& shape, double tokens);

}  // namespace celer
