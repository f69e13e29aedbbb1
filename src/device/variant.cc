#include "device/variant.h"

#include <array>
#include <cstdlib>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "base/suggest.h"
#include "device/cpu_features.h"
#include "device/gpu/gpu_code.h"

#if CELER_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace celer {
namespace {

struct IsaRow {
  std::string_view name;
  Device::Kind kind;
};

// In the order of the enum.
constexpr std::array<IsaRow, 19> kIsaRows = {{
    {"baseline", Device::Kind::kCpu},   {"neon", Device::Kind::kCpu},
    {"fp16", Device::Kind::kCpu},       {"fhm", Device::Kind::kCpu},
    {"dotprod", Device::Kind::kCpu},    {"i8mm", Device::Kind::kCpu},
    {"bf16", Device::Kind::kCpu},       {"avx2", Device::Kind::kCpu},
    {"avxvnni", Device::Kind::kCpu},    {"avx512", Device::Kind::kCpu},
    {"avx512fp16", Device::Kind::kCpu}, {"avx512bf16", Device::Kind::kCpu},
    {"avx512vnni", Device::Kind::kCpu}, {"amx", Device::Kind::kCpu},
    {"cuda", Device::Kind::kCuda},      {"sm80", Device::Kind::kCuda},
    {"sm90", Device::Kind::kCuda},      {"sm90a", Device::Kind::kCuda},
    {"sm100", Device::Kind::kCuda},
}};
static_assert(kIsaRows.size() == static_cast<size_t>(Isa::kSm100) + 1);

struct Need {
  const char* flag;
  bool present;
};

std::vector<Need> CpuNeeds(Isa isa) {
  const CpuFeatures& c = HostCpu();
  std::vector<Need> needs;
  const auto add = [&needs](std::initializer_list<Need> more) {
    for (const Need& need : more) needs.push_back(need);  // insert() makes g++ 12 warn of an overflow
  };
  switch (isa) {
    case Isa::kNeon:
      add({{"neon", c.neon}});
      break;
    case Isa::kArmFp16:
      add({{"fp16", c.fp16}});
      break;
    case Isa::kArmFhm:
      add({{"fp16", c.fp16}, {"fhm", c.fhm}});
      break;
    case Isa::kArmDotprod:
      add({{"fp16", c.fp16}, {"dotprod", c.dotprod}});
      break;
    case Isa::kArmI8mm:
      add({{"fp16", c.fp16}, {"dotprod", c.dotprod}, {"i8mm", c.i8mm}});
      break;
    case Isa::kArmBf16:
      add({{"fp16", c.fp16}, {"dotprod", c.dotprod}, {"bf16", c.bf16}});
      break;
    case Isa::kAvx2:
    case Isa::kAvxVnni:
    case Isa::kAvx512:
    case Isa::kAvx512Fp16:
    case Isa::kAvx512Bf16:
    case Isa::kVnni:
    case Isa::kAmx:
      add({{"avx2", c.avx2}, {"fma", c.fma}, {"f16c", c.f16c}});
      if (isa == Isa::kAvxVnni) add({{"avxvnni", c.avxvnni}});
      if (isa == Isa::kAvx2 || isa == Isa::kAvxVnni) break;
      add({{"avx512f", c.avx512f},
           {"avx512bw", c.avx512bw},
           {"avx512vl", c.avx512vl},
           {"avx512dq", c.avx512dq}});
      if (isa == Isa::kAvx512Fp16) add({{"avx512fp16", c.avx512fp16}});
      if (isa == Isa::kAvx512Bf16 || isa == Isa::kAmx) add({{"avx512bf16", c.avx512bf16}});
      if (isa == Isa::kVnni || isa == Isa::kAmx) add({{"avx512vnni", c.avx512vnni}});
      if (isa == Isa::kAmx)
        add({{"amx_tile", c.amx_tile}, {"amx_int8", c.amx_int8}, {"amx_bf16", c.amx_bf16}});
      break;
    default:
      break;
  }
  return needs;
}

#if CELER_WITH_CUDA
// Compute capability of each visible GPU as 10 * major + minor: 90 for an H200, or CELER_CUDA_ARCH. Asking does not create a
// context, but it does load the driver, so only a table with CUDA rows pays for it.
const std::vector<int>& GpuCapabilities() {
  static const std::vector<int> capabilities = [] {
    std::vector<int> found;
    const int count = CudaDeviceCount();
    for (int i = 0; i < count; ++i) {
      int major = 0, minor = 0;
      if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess) continue;
      if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i) != cudaSuccess) continue;
      const Result<int> forced = ForcedGpuArch();
      found.push_back(forced && *forced > 0 ? *forced : 10 * major + minor);
    }
    return found;
  }();
  return capabilities;
}
#endif

std::string WhyNotOnGpu(Isa isa) {
#if !CELER_WITH_CUDA
  (void)isa;
  return "this build has no CUDA";
#else
  const std::vector<int>& gpus = GpuCapabilities();
  if (gpus.empty()) return "there is no usable CUDA device";
  const int least = isa == Isa::kSm80 ? 80 : isa == Isa::kSm100 ? 100 : isa == Isa::kCuda ? 0 : 90;
  const int most = isa == Isa::kSm90a ? 90 : 1 << 20;
  for (const int capability : gpus)
    if (capability < least || capability > most) return "a GPU here is sm_" + std::to_string(capability);
  return "";
#endif
}

std::string Quoted(const std::string& op, const std::string& variant) {
  return "'" + op + ":" + variant + "'";
}

}  // namespace

std::string_view Name(Isa isa) {
  return kIsaRows[static_cast<size_t>(isa)].name;
}

Device::Kind DeviceKind(Isa isa) {
  return kIsaRows[static_cast<size_t>(isa)].kind;
}

std::string WhyNotHere(Isa isa) {
  if (DeviceKind(isa) == Device::Kind::kCuda) return WhyNotOnGpu(isa);
  std::string missing;
  for (const Need& need : CpuNeeds(isa))
    if (!need.present) missing += (missing.empty() ? "" : ", ") + std::string(need.flag);
  return missing.empty() ? "" : "the CPU lacks " + missing;
}

bool RunsHere(Isa isa) {
  return WhyNotHere(isa).empty();
}

namespace internal {

Result<ForceList> ParseForce(std::string_view text) {
  ForceList list;
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(entry.size() + 1, text.size()));
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == entry.size())
      return Error::Invalid("CELER_FORCE: '", entry,
                            "' is not operator:variant; for example CELER_FORCE=probe_read:portable");
    list.emplace_back(entry.substr(0, colon), entry.substr(colon + 1));
  }
  return list;
}

Status ValidateForce(std::string_view text, std::span<const OperatorInfo> operators) {
  CELER_ASSIGN(const ForceList list, ParseForce(text));
  std::vector<std::pair<std::string, Device::Kind>> seen;
  for (const auto& [op_name, variant_name] : list) {
    const OperatorInfo* op = nullptr;
    std::vector<std::string> op_names;
    for (const OperatorInfo& candidate : operators) {
      op_names.push_back(candidate.name);
      if (candidate.name == op_name) op = &candidate;
    }
    if (op == nullptr) {
      const std::string hint = DidYouMean(op_name, op_names);
      return Error::Invalid("CELER_FORCE: there is no operator '", op_name, "'",
                            hint.empty() ? "; celer kernels lists them all" : hint);
    }
    const VariantInfo* variant = nullptr;
    std::string known;
    for (const VariantInfo& candidate : op->variants) {
      known += (known.empty() ? "" : ", ") + candidate.name;
      if (candidate.name == variant_name) variant = &candidate;
    }
    if (variant == nullptr)
      return Error::Invalid("CELER_FORCE: operator '", op_name, "' has no variant '", variant_name,
                            "'; this build has ", known);
    if (!variant->runs_here)
      return Error::Invalid("CELER_FORCE: ", Quoted(op_name, variant_name),
                            " cannot run here: ", variant->why_not);
    const std::pair key{op_name, DeviceKind(variant->isa)};
    for (const auto& earlier : seen)
      if (earlier == key)
        return Error::Invalid("CELER_FORCE: operator '", op_name, "' is forced twice; keep one of them");
    seen.push_back(key);
  }
  return {};
}

int PickIndex(std::string_view op, std::span<const Candidate> table, Device::Kind kind,
              const ForceList& force, bool warn) {
  for (const auto& [op_name, variant_name] : force) {
    if (op_name != op) continue;
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].name != variant_name || DeviceKind(table[i].isa) != kind) continue;
      if (RunsHere(table[i].isa)) return static_cast<int>(i);
      if (warn)
        log::WarningOnce("CELER_FORCE: {} cannot run here: {}; the best that can is used",
                         Quoted(op_name, variant_name), WhyNotHere(table[i].isa));
    }
  }
  for (size_t i = 0; i < table.size(); ++i)
    if (DeviceKind(table[i].isa) == kind && RunsHere(table[i].isa)) return static_cast<int>(i);
  return -1;
}

namespace {

ForceList& CurrentForce() {
  static ForceList list = [] {
    const char* text = std::getenv("CELER_FORCE");
    Result<ForceList> parsed = ParseForce(text == nullptr ? "" : text);
    if (parsed) return *std::move(parsed);
    log::WarningOnce("{}; it is ignored", parsed.error().message());
    return ForceList{};
  }();
  return list;
}

}  // namespace

const ForceList& ForceFromEnvironment() {
  return CurrentForce();
}

OperatorInfo Describe(std::string_view op, std::span<const Candidate> table, const ForceList& force) {
  OperatorInfo info;
  info.name = op;
  for (const Candidate& candidate : table) {
    std::string why_not = WhyNotHere(candidate.isa);
    const bool runs = why_not.empty();
    info.variants.push_back({std::string(candidate.name), candidate.isa, runs, false, std::move(why_not)});
  }
  for (const Device::Kind kind : {Device::Kind::kCpu, Device::Kind::kCuda})
    if (const int index = PickIndex(op, table, kind, force, /*warn=*/false); index >= 0)
      info.variants[index].chosen = true;
  return info;
}

}  // namespace internal

bool ForceRequested() {
  const char* text = std::getenv("CELER_FORCE");
  return text != nullptr && *text != '\0';
}

void ForceVariants(std::string_view text) {
  Result<internal::ForceList> parsed = internal::ParseForce(text);
  CELER_CHECK(parsed);
  internal::CurrentForce() = *std::move(parsed);
}

Status ValidateForce(std::span<const OperatorInfo> operators) {
  const char* text = std::getenv("CELER_FORCE");
  return internal::ValidateForce(text == nullptr ? "" : text, operators);
}

}  // namespace celer
