// Kernel variants: a table per operator, best first, that a person can read; the first row that can run here
// wins. CELER_FORCE=operator:variant[,operator:variant...] overrides, and `celer kernels` prints the outcome.
//
//   constexpr Variant<RmsNormFn> kRmsNorm[] = {
//   #if defined(__aarch64__)
//       {"arm_neon", Isa::kNeon, arm::RmsNormNeon},
//   #endif
//       {"reference", Isa::kBaseline, reference::RmsNorm},
//   };
//   RmsNormFn run = Pick<RmsNormFn>("rms_norm", kRmsNorm)->run;   // once, e.g. into a static
//   OperatorInfo info = Describe<RmsNormFn>("rms_norm", kRmsNorm);  // for `celer kernels`
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/result.h"

namespace celer {

// What a variant needs in order to run. The CPU rows mirror the file suffixes of cmake/CelerModule.cmake:
// each stands for all the instructions that the suffix's flags let the compiler use, not only the newest of
// them.
enum class Isa : uint8_t {
  kBaseline,    // any CPU this binary starts on
  kNeon,        // _arm_neon
  kArmFp16,     // _arm_fp16
  kArmFhm,      // _arm_fhm: products of f16 added up in f32; and fp16
  kArmDotprod,  // _arm_dotprod: and fp16
  kArmI8mm,     // _arm_i8mm: and dotprod, fp16
  kArmBf16,     // _arm_bf16: and dotprod, fp16
  kAvx2,        // _x86_avx2: and fma, f16c
  kAvxVnni,     // _x86_avxvnni: and avx2's
  kAvx512,      // _x86_avx512: f, bw, vl, dq, and avx2's
  kAvx512Fp16,  // _x86_avx512fp16
  kAvx512Bf16,  // _x86_bf16
  kVnni,        // _x86_vnni: avx512's
  kAmx,         // _x86_amx: tile, int8, bf16, and vnni's and bf16's
  kCuda,        // any CUDA device
  kSm80,        // compute capability 8.0 or later
  kSm90,        // 9.0 or later
  kSm90a,       // exactly 9.0: wgmma is in no other
  kSm100,       // 10.0 or later
};

std::string_view Name(Isa isa);    // "i8mm", "avx512", "sm90"
Device::Kind DeviceKind(Isa isa);  // the device whose memory such a variant works on
std::string WhyNotHere(Isa isa);   // "" if it runs here, else e.g. "the CPU lacks i8mm"
bool RunsHere(Isa isa);            // with several GPUs: on all of them

template <class Fn>
struct Variant {
  const char* name;
  Isa isa;
  Fn run;
  bool RunsHere() const { return celer::RunsHere(isa); }
};

// A table without its function type.
struct VariantInfo {
  std::string name;
  Isa isa = Isa::kBaseline;
  bool runs_here = false;
  bool chosen = false;
  std::string why_not;    // empty if it runs here
  std::string when = {};  // what it needs of its input, where that decides; else empty
};
struct OperatorInfo {
  std::string name;
  std::vector<VariantInfo> variants;  // best first
};

// True if CELER_FORCE is set and not empty; only then is it worth gathering every table to validate it.
bool ForceRequested();

// One sentence if CELER_FORCE names an operator or a variant that does not exist or cannot run here. Programs
// call it at start-up with all their tables; Pick() itself passes over such an entry with a warning.
Status ValidateForce(std::span<const OperatorInfo> operators);

// From now on as if CELER_FORCE were this. Before the first Pick(): what was picked stays.
void ForceVariants(std::string_view text);
// f32 arithmetic on the values as they are stored: what `celer ppl --exact` and `celer eval` mean by exact,
// with a KV of f32.
constexpr const char* kExactVariants = "matmul:portable,attention:portable";

namespace internal {

struct Candidate {
  std::string_view name;
  Isa isa;
};
using ForceList = std::vector<std::pair<std::string, std::string>>;  // operator, variant

Result<ForceList> ParseForce(std::string_view text);
Status ValidateForce(std::string_view text, std::span<const OperatorInfo> operators);
// The row to use for `kind`: the forced one if it can run here, else the first that can; -1 if none can.
// `warn` if the forced one cannot.
int PickIndex(std::string_view op, std::span<const Candidate> table, Device::Kind kind,
              const ForceList& force, bool warn = true);
const ForceList& ForceFromEnvironment();  // read once
OperatorInfo Describe(std::string_view op, std::span<const Candidate> table, const ForceList& force);

template <class Fn>
std::vector<Candidate> Erase(std::span<const Variant<Fn>> table) {
  std::vector<Candidate> out;
  out.reserve(table.size());
  for (const Variant<Fn>& variant : table) out.push_back({variant.name, variant.isa});
  return out;
}

}  // namespace internal

// The variant to use for data on that kind of device; nullptr if none can run here, which a table with a
// kBaseline row rules out for the CPU. Call it once per operator and keep the answer.
template <class Fn>
const Variant<Fn>* Pick(std::string_view op, std::span<const Variant<Fn>> table,
                        Device::Kind kind = Device::Kind::kCpu) {
  const int index =
      internal::PickIndex(op, internal::Erase<Fn>(table), kind, internal::ForceFromEnvironment());
  return index < 0 ? nullptr : &table[index];
}

// What Pick() chooses among, and chooses: one row is marked for each kind of device the table serves.
template <class Fn>
OperatorInfo Describe(std::string_view op, std::span<const Variant<Fn>> table) {
  return internal::Describe(op, internal::Erase<Fn>(table), internal::ForceFromEnvironment());
}

}  // namespace celer
