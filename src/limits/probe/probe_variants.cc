#include "limits/probe/probe_variants.h"

#include "limits/probe/probe.h"

namespace celer {
namespace probe {
namespace {

// Best first; the first that can run here wins. Several of one instruction set are ways to read, and the
// fastest of those counts.
constexpr Variant<ReadFn> kRead[] = {
#if defined(__aarch64__)
    {"arm_neon", Isa::kNeon, ReadNeon},
    {"arm_neon_one", Isa::kNeon, ReadNeonOne},  // one stream
#elif defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, ReadAvx512},
    {"x86_avx2", Isa::kAvx2, ReadAvx2},
#endif
    {"portable", Isa::kBaseline, ReadPortable},
};

constexpr Variant<CopyFn> kCopy[] = {
#if defined(__aarch64__)
    {"arm_neon", Isa::kNeon, CopyNeon},
#elif defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, CopyAvx512},
    {"x86_avx2", Isa::kAvx2, CopyAvx2},
#endif
    {"portable", Isa::kBaseline, CopyPortable},
};

constexpr Variant<PeakFn> kPeakF32[] = {
#if defined(__aarch64__)
    {"arm_neon", Isa::kNeon, PeakF32Neon},
#elif defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, PeakF32Avx512},
    {"x86_avx2", Isa::kAvx2, PeakF32Avx2},
#endif
    {"portable", Isa::kBaseline, PeakF32Portable},
};

#if defined(__aarch64__)
constexpr Variant<PeakFn> kPeakF16[] = {{"arm_fp16", Isa::kArmFp16, PeakF16Neon}};
constexpr Variant<PeakFn> kPeakBf16[] = {{"arm_bf16", Isa::kArmBf16, PeakBf16Bfmmla}};
constexpr Variant<PeakFn> kPeakInt8[] = {
    {"arm_i8mm", Isa::kArmI8mm, PeakInt8Smmla},
    {"arm_dotprod", Isa::kArmDotprod, PeakInt8Sdot},
};
#elif defined(__x86_64__)
constexpr Variant<PeakFn> kPeakF16[] = {{"x86_avx512fp16", Isa::kAvx512Fp16, PeakF16Avx512}};
constexpr Variant<PeakFn> kPeakBf16[] = {
    {"x86_amx", Isa::kAmx, PeakBf16Amx},
    {"x86_bf16", Isa::kAvx512Bf16, PeakBf16Avx512},
};
constexpr Variant<PeakFn> kPeakInt8[] = {
    {"x86_amx", Isa::kAmx, PeakInt8Amx},
    {"x86_vnni", Isa::kVnni, PeakInt8Vnni},
    {"x86_avxvnni", Isa::kAvxVnni, PeakInt8AvxVnni},
    {"x86_avx2", Isa::kAvx2, PeakInt8Avx2},
};
#endif

constexpr PeakTable kPeakTables[] = {
    {"f32", "probe_f32", kPeakF32},
#if defined(__aarch64__) || defined(__x86_64__)
    {"f16", "probe_f16", kPeakF16},
    {"bf16", "probe_bf16", kPeakBf16},
    {"int8", "probe_int8", kPeakInt8},
#endif
};

}  // namespace

std::span<const Variant<ReadFn>> ReadVariants() {
  return kRead;
}
std::span<const Variant<CopyFn>> CopyVariants() {
  return kCopy;
}
std::span<const PeakTable> PeakTables() {
  return kPeakTables;
}

}  // namespace probe

std::vector<OperatorInfo> ProbeOperators() {
  std::vector<OperatorInfo> all = {Describe<probe::ReadFn>("probe_read", probe::kRead),
                                   Describe<probe::CopyFn>("probe_copy", probe::kCopy)};
  for (const probe::PeakTable& table : probe::kPeakTables)
    all.push_back(Describe<probe::PeakFn>(table.operator_name, table.variants));
  return all;
}

}  // namespace celer
