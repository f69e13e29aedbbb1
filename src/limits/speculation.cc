#include "limits/speculation.h"

#include <cmath>

#include "base/check.h"
#include "base/result.h"
#include "limits/quantity.h"

namespace celer {
namespace {

constexpr int64_t kMostDrafts = 64;

}  // namespace

Result<DraftAcceptance> DraftAcceptance::Parse(std::string_view text, std::string_view what) {
  const size_t comma = text.find(',');
  if (comma == text.npos)
    return Error::Invalid(what, " '", std::string(text),
                          "': expected drafted tokens and the share that is accepted, as in 4,0.7");
  DraftAcceptance draft;
  CELER_ASSIGN(draft.depth, ParseCount(text.substr(0, comma), kMostDrafts, what));
  const std::string_view share = text.substr(comma + 1);
  if (share == "0") return draft;
  CELER_ASSIGN(draft.acceptance, ParsePositive(share, 1, what));
  return draft;
}

double DraftAcceptance::TokensPerStep() const {
  double sum = 1, power = 1;
  for (int64_t i = 0; i < depth; ++i) sum += power *= acceptance;
  return sum;
}

PhaseLimit VerifyLimit(const LlmShape& shape, const Machine& machine, const LlmSetup& setup, int64_t context,
                       const DraftAcceptance& draft) {
  CELER_CHECK_GE(draft.depth, 0);
  LlmSetup tokens = setup;
  tokens.batch = setup.batch * (draft.depth + 1);
  PhaseLimit limit = DecodeLimit(shape, machine, tokens, context);
  limit.kv_s = DecodeLimit(shape, machine, setup, context).kv_s;
  return limit;
}

Machine Together(Machine machine, int64_t devices) {
  CELER_CHECK_GE(devices, 1);
  if (devices == 1) return machine;
  const auto n = static_cast<double>(devices);
  machine.memory_bytes *= n;
  machine.read_bytes_per_s *= n;
  machine.copy_bytes_per_s *= n;
  for (auto& [type, peak] : machine.flops) peak *= n;
  machine.name = std::to_string(devices) + " x " + machine.name;
  return machine;
}

Machine InStages(Machine machine, int64_t stages) {
  CELER_CHECK_GE(stages, 1);
  if (stages == 1) return machine;
  const auto n = static_cast<double>(stages);
  machine.memory_bytes *= n;
  for (auto& [type, peak] : machine.flops) peak *= n;
  machine.name = std::to_string(stages) + " stages of " + machine.name;
  return machine;
}

}  // namespace celer
