// What is physically possible for a model on a machine: a preset's name, or two figures that `celer probe`
// prints for this one.
//   limits llama-3.1-8b rtx4090
//   limits llama-3.1-8b 89.3 665.6      # GB/s read, GFLOP/s
#include <celer/limits.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

celer::Result<celer::Machine> ThisMachine(const char* read_gb_per_s, const char* gflops) {
  celer::Machine machine;
  machine.name = "this machine";
  machine.source = "flags";
  machine.memory_bytes = 16.0 * (1 << 30);
  machine.read_bytes_per_s = std::atof(read_gb_per_s) * 1e9;
  machine.flops["f16"] = std::atof(gflops) * 1e9;
  if (const auto valid = celer::Validate(machine); !valid) return valid.error();
  return machine;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: limits MODEL MACHINE | limits MODEL GB_PER_S GFLOP_PER_S\n");
    return 2;
  }
  const auto model = celer::FindModelPreset(argv[1]);
  const auto machine = argc == 3 ? celer::FindMachinePreset(argv[2]) : ThisMachine(argv[2], argv[3]);
  if (!model || !machine) {
    std::fprintf(stderr, "error: %s\n", (!model ? model.error() : machine.error()).message().c_str());
    return 2;
  }
  std::printf("%s on %s\n", model->name.c_str(), machine->name.c_str());
  for (const double bits : {16.0, 8.0, 4.0}) {
    const celer::LlmSetup setup{.weight_bits = bits};
    const celer::PhaseLimit decode = celer::DecodeLimit(*model, *machine, setup, 1024);
    const celer::PhaseLimit prefill = celer::PrefillLimit(*model, *machine, setup, 1024);
    std::printf("%2.0f-bit weights: first token after %.1f ms, then %.1f tok/s (bound by %s)\n", bits,
                prefill.seconds() * 1e3, celer::TokensPerSecond(decode, setup),
                std::string(celer::BoundText(decode.bound())).c_str());
  }
  return 0;
}
