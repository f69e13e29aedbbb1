// The C interface to celer/limits.h.
#include "celer/limits.h"

#include "c_api/guard.h"

namespace celer::c_api {
namespace {

const celer_limits kDefaults = {.struct_size = sizeof(celer_limits),
                                .weight_bits = 16,
                                .kv_bits = 16,
                                .batch = 1,
                                .prompt = 1024,
                                .context = 1024,
                                .weight_bytes = 0,
                                .kv_bytes_per_token = 0,
                                .prefill_seconds = 0,
                                .decode_seconds = 0,
                                .tokens_per_second = 0,
                                .kv_capacity_tokens = 0,
                                .decode_bound_by = ""};

Status Check(const celer_limits& limits) {
  const auto bits = [](const char* name, double value) -> Status {
    if (value >= 0.5 && value <= 64) return {};
    return Error::Invalid(name, " is ", value, ", expected 0.5 to 64");
  };
  const auto count = [](const char* name, int64_t value) -> Status {
    if (value >= 1 && value <= 1'000'000'000) return {};
    return Error::Invalid(name, " is ", value, ", expected 1 to 1000000000");
  };
  CELER_RETURN_IF_ERROR(bits("weight_bits", limits.weight_bits));
  CELER_RETURN_IF_ERROR(bits("kv_bits", limits.kv_bits));
  CELER_RETURN_IF_ERROR(count("batch", limits.batch));
  CELER_RETURN_IF_ERROR(count("prompt", limits.prompt));
  return count("context", limits.context);
}

Status Compute(const char* model, const char* machine, celer_limits* out) {
  CELER_RETURN_IF_ERROR(Need(model, "model"));
  CELER_RETURN_IF_ERROR(Need(machine, "machine"));
  celer_limits limits = kDefaults;
  CELER_RETURN_IF_ERROR(Read(out, "celer_limits", &limits));
  CELER_RETURN_IF_ERROR(Check(limits));
  CELER_ASSIGN(const LlmShape shape, FindModelPreset(model));
  CELER_ASSIGN(const Machine peaks, FindMachinePreset(machine));
  const LlmSetup setup{.weight_bits = limits.weight_bits, .kv_bits = limits.kv_bits, .batch = limits.batch};
  if (!PeakFlops(peaks, setup))
    return Error::Unsupported("the machine '", peaks.name, "' has no peak for ", limits.weight_bits,
                              "-bit weights");
  const PhaseLimit decode = DecodeLimit(shape, peaks, setup, limits.context);
  limits.weight_bytes = WeightBytes(shape, setup);
  limits.kv_bytes_per_token = KvBytesPerToken(shape, setup);
  limits.prefill_seconds = PrefillLimit(shape, peaks, setup, limits.prompt).seconds();
  limits.decode_seconds = decode.seconds();
  limits.tokens_per_second = TokensPerSecond(decode, setup);
  limits.kv_capacity_tokens = KvCapacityTokens(shape, peaks, setup).value_or(-1);
  limits.decode_bound_by = BoundText(decode.bound()).data();
  return Write(limits, "celer_limits", out);
}

}  // namespace
}  // namespace celer::c_api

void celer_limits_init(celer_limits* limits, size_t struct_size) {
  celer::c_api::Init(celer::c_api::kDefaults, struct_size, limits);
}

celer_code celer_limits_compute(const char* model, const char* machine, celer_limits* limits) {
  return celer::c_api::Guard([&] { return celer::c_api::Compute(model, machine, limits); });
}
