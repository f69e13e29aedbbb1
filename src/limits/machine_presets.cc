// Data-sheet machines. Arithmetic peaks are dense (never "with sparsity"), accumulate in f32 where the sheet
// tells the two apart, and are per device. Memory of GPUs is in GiB whatever the sheet calls it: drivers
// report it so.
#include "base/suggest.h"
#include "celer/limits.h"

namespace celer {
namespace {

struct Row {
  const char* name;
  const char* source;  // what the figures mean; printed
  double memory_gib, gb_per_s;
  double f32, f16, bf16, int8, fp8;  // TFLOP/s or TOP/s; 0 = no such instruction
};

// clang-format off
constexpr Row kMachines[] = {
    // name           source                                         GiB   GB/s     f32    f16     bf16    int8    fp8
    // NVIDIA Ada GPU architecture white paper, appendix A. The plain name has the shader peak, which the
    // tables in docs/limits.md are computed with; "-tensor" has the tensor cores.
    {"rtx4090",        "data sheet, without tensor cores",             24,  1008,  82.58,  82.58,  82.58,   0,      0},
    {"rtx4090-tensor", "data sheet, tensor cores",                     24,  1008,  82.58, 165.2,  165.2,  660.6,  330.3},
    // NVIDIA RTX Blackwell GPU architecture white paper.
    {"rtx5090",        "data sheet, tensor cores",                     32,  1792, 104.8,  209.5,  209.5,  838,    419},
    // NVIDIA Ampere GA102 white paper, appendix A.
    {"rtx3090",        "data sheet, tensor cores",                     24,   936,  35.58,  71,     71,    284,      0},
    // NVIDIA A100 data sheet (SXM4 bandwidths: 1555 and 2039 GB/s).
    {"a100-40g",       "data sheet, tensor cores",                     40,  1555,  19.5,  312,    312,    624,      0},
    {"a100-80g",       "data sheet, tensor cores",                     80,  2039,  19.5,  312,    312,    624,      0},
    // NVIDIA H100 data sheet; its 1979 TFLOPS of f16 are sparse, dense is half.
    {"h100-sxm",       "data sheet, tensor cores",                     80,  3350,  67,    989.4,  989.4, 1978.9, 1978.9},
    {"h100-pcie",      "data sheet, tensor cores",                     80,  2039,  51.2,  756.4,  756.4, 1512.9, 1512.9},
    // NVIDIA H200 data sheet: the arithmetic of an H100 SXM.
    {"h200",           "data sheet, tensor cores",                    141,  4800,  67,    989.4,  989.4, 1978.9, 1978.9},
    // NVIDIA DGX B200 data sheet, one of its eight GPUs.
    {"b200",           "data sheet, tensor cores",                    180,  8000,  75,   2250,   2250,   4500,   4500},
    // NVIDIA L40S, L4, A10, T4 and V100 data sheets.
    {"l40s",           "data sheet, tensor cores",                     48,   864,  91.6,  362.05, 362.05, 733,    733},
    {"l4",             "data sheet, tensor cores",                     24,   300,  30.3,  121,    121,    242.5,  242.5},
    {"a10",            "data sheet, tensor cores",                     24,   600,  31.2,  125,    125,    250,      0},
    {"t4",             "data sheet, tensor cores",                     16,   300,   8.1,   65,      0,    130,      0},
    {"v100-32g",       "data sheet, tensor cores",                     32,   900,  15.7,  125,      0,      0,      0},
    // AMD Instinct MI300X data sheet.
    {"mi300x",         "data sheet, matrix cores",                    192,  5300, 163.4, 1307.4, 1307.4, 2614.9, 2614.9},
    // AMD: 16 Zen 4 cores, two 256-bit FMAs per cycle each, at about 5.34 GHz; DDR5-5200 on two channels, of
    // which about 67 GB/s are reached in practice; 128 GB at most.
    {"ryzen-7950x",    "data sheet, 16 cores x 5.34 GHz",             128,  83.2,   2.735,  0,      5.47,  10.94,    0},
    // AMD EPYC 9654: 96 Zen 4 cores at the 2.4 GHz base clock, twelve channels of DDR5-4800, 768 GiB fitted.
    {"epyc-9654",      "data sheet, 96 cores x 2.4 GHz",              768, 460.8,   7.373,  0,     14.75,  29.49,    0},
    // Intel Xeon Platinum 8480+: 56 cores at the 2.0 GHz base clock, AVX-512 (64 f32 flops per cycle), AMX
    // (2048 bf16, 4096 int8), eight channels of DDR5-4800, 512 GiB fitted.
    {"xeon-8480+",     "data sheet, 56 cores x 2.0 GHz, AMX",         512, 307.2,   7.168, 14.34, 229.4,  458.8,     0},
    // AWS Graviton3: 64 Neoverse V1 cores at 2.6 GHz, 32 f32 flops per cycle (f16 x2, bfmmla x4, smmla x8), eight
    // channels of DDR5-4800. Two of its cores alone cannot draw the whole bandwidth: 55 GB/s measured.
    {"graviton3",      "data sheet, 64 cores x 2.6 GHz",              512, 307.2,   5.325, 10.65,  21.3,   42.6,     0},
    {"graviton3-2c",   "2 cores x 2.6 GHz; bandwidth as measured",     16,    55,   0.1664, 0.3328, 0.6656, 1.331,   0},
    // Apple publishes memory and bandwidth; the GPU's arithmetic is ALUs x clock (76 and 40 cores of 128 ALUs at about
    // 1.4 GHz), f16 at the rate of f32.
    {"m2-ultra",       "data sheet; arithmetic from ALUs x clock",    192,   800,  27.2,   27.2,    0,      0,      0},
    {"m3-max",         "data sheet; arithmetic from ALUs x clock",    128,   400,  14.3,   14.3,    0,      0,      0},
};
// clang-format on

Machine ToMachine(const Row& row) {
  Machine m;
  m.name = row.name;
  m.source = row.source;
  m.memory_bytes = row.memory_gib * 1073741824.0;
  m.read_bytes_per_s = row.gb_per_s * 1e9;
  const std::pair<const char*, double> peaks[] = {
      {"f32", row.f32}, {"f16", row.f16}, {"bf16", row.bf16}, {"int8", row.int8}, {"fp8", row.fp8}};
  for (const auto& [dtype, tera] : peaks)
    if (tera > 0) m.flops[dtype] = tera * 1e12;
  return m;
}

}  // namespace

Result<Machine> FindMachinePreset(std::string_view name) {
  for (const Row& row : kMachines)
    if (name == row.name) return ToMachine(row);
  const std::string hint = DidYouMean(name, MachinePresetNames());
  return Error::NotFound("unknown machine '", name, "'", hint.empty() ? "; see celer limits --list" : hint);
}

std::vector<std::string> MachinePresetNames() {
  std::vector<std::string> names;
  for (const Row& row : kMachines) names.emplace_back(row.name);
  return names;
}

}  // namespace celer
