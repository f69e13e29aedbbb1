#include <cmath>

#include "cli/limits/report.h"
#include "limits/quantity.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::optional<int64_t>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Two whole numbers, rounded down, or null when reading always binds. When arithmetic binds forever there is
// no second number but null.
Json PointsJson(const std::optional<TurningPoints>& points) {
  if (!points) return nullptr;
  Json both = Json::array({Floor(points->first), nullptr});
  if (std::isfinite(points->second)) both[1] = Floor(points->second);
  return both;
}

Json KindsJson(const LlmShape& s) {
  Json kinds = Json::array();
  for (const LayerKind& k : KindsOf(s))
    kinds.push_back({{"layers", k.count},
                     {"params", k.always()},
                     {"params_of_expert", k.expert()},
                     {"kv_params_per_token", k.kv},
                     {"window", k.window},
                     {"state_params", k.state}});
  return kinds;
}

Json ShapeJson(const LlmShape& s) {
  return {{"name", s.name},
          {"layers", s.layers},
          {"hidden", s.hidden},
          {"intermediate", s.intermediate},
          {"vocab", s.vocab},
          {"heads", s.heads},
          {"kv_heads", s.kv_heads},
          {"head_dim", s.head_dim},
          {"qkv_bias", s.qkv_bias},
          {"qk_norm", s.qk_norm},
          {"tied_embeddings", s.tied_embeddings},
          {"experts", s.experts},
          {"experts_per_token", s.experts_per_token},
          {"shared_intermediate", s.shared_intermediate},
          {"kinds", KindsJson(s)}};
}

Json PrefillJson(const LimitsRequest& r) {
  Json turning = Json::object(), latency = Json::object();
  for (const LlmSetup& setup : r.setups) {
    turning[SetupName(setup)] = {
        {"rough", PointsJson(PrefillTurningPoints(r.shape, r.machine, setup, HeadRows::kRough))},
        {"exact", PointsJson(PrefillTurningPoints(r.shape, r.machine, setup, HeadRows::kExact))}};
    Json rows = Json::array();
    for (const int64_t prompt : r.prompts) {
      const PhaseLimit rough = PrefillLimit(r.shape, r.machine, setup, prompt, HeadRows::kRough);
      const PhaseLimit exact = PrefillLimit(r.shape, r.machine, setup, prompt);
      const PhaseLimit floor =
          PrefillLimit(r.shape, r.machine, setup, prompt, HeadRows::kExact, KvReads::kOnce);
      rows.push_back({{"prompt", prompt},
                      {"read_weights_ms", 1e3 * exact.weight_s},
                      {"read_kv_ms", 1e3 * exact.kv_s},
                      {"read_kv_once_ms", 1e3 * floor.kv_s},
                      {"read_ms", 1e3 * exact.read_s()},
                      {"compute_rough_ms", 1e3 * rough.compute_s},
                      {"compute_exact_ms", 1e3 * exact.compute_s},
                      {"first_token_rough_ms", 1e3 * rough.seconds()},
                      {"first_token_ms", 1e3 * exact.seconds()},
                      {"bound_by", BoundText(exact.bound())},
                      {"floor_ms", 1e3 * floor.seconds()},
                      {"floor_bound_by", BoundText(floor.bound())},
                      {"floor_tokens_per_s", double(r.batch()) * double(prompt) / floor.seconds()},
                      {"fits", Fits(r, r.shape, setup, prompt)}});
    }
    latency[SetupName(setup)] = rows;
  }
  return {{"turning_points", turning}, {"latency", latency}};
}

Json DecodeJson(const LimitsRequest& r, const LlmShape& shape) {
  Json decode = Json::object();
  for (const LlmSetup& setup : r.setups) {
    const DecodeForm form = DecodeWB(shape, r.machine, setup);
    Json steps = Json::array();
    for (const int64_t context : r.contexts) {
      const PhaseLimit step = DecodeLimit(shape, r.machine, setup, context);
      const auto batch = DecodeTurningBatch(shape, r.machine, setup, context);
      steps.push_back({{"context", context},
                       {"read_weights_ms", 1e3 * step.weight_s},
                       {"read_kv_ms", 1e3 * step.kv_s},
                       {"compute_ms", 1e3 * step.compute_s},
                       {"latency_ms", 1e3 * step.seconds()},
                       {"tokens_per_s", TokensPerSecond(step, setup)},
                       {"bound_by", BoundText(step.bound())},
                       {"compute_bound_from_batch", batch ? Json(Floor(std::ceil(*batch))) : Json(nullptr)},
                       {"fits", Fits(r, shape, setup, context)}});
    }
    decode[SetupName(setup)] = {{"W", form.w_tokens_per_ms}, {"B_ms", form.b_ms}, {"steps", steps}};
  }
  return decode;
}

Json SpeculationJson(const LimitsRequest& r) {
  Json setups = Json::object();
  for (const LlmSetup& setup : r.setups) {
    Json steps = Json::array();
    for (const int64_t context : r.contexts) {
      const PhaseLimit verify = VerifyLimit(r.shape, r.machine, setup, context, r.draft);
      steps.push_back({{"context", context},
                       {"verify_ms", 1e3 * verify.seconds()},
                       {"tokens_per_s", r.draft.TokensPerStep() * TokensPerSecond(verify, setup)},
                       {"bound_by", BoundText(verify.bound())}});
    }
    setups[SetupName(setup)] = steps;
  }
  return {{"depth", r.draft.depth},
          {"acceptance", r.draft.acceptance},
          {"tokens_per_step", r.draft.TokensPerStep()},
          {"steps", setups}};
}

Json SplitJson(const LimitsRequest& r) {
  const LimitsRequest::Split& split = *r.split;
  Json setups = Json::object();
  for (const LlmSetup& setup : r.setups) {
    Json steps = Json::array();
    for (const int64_t context : r.contexts) {
      const auto limit =
          SplitDecode(r.shape, split.gpu, split.host, setup,
                      {.context = context, .gpu_layers = split.gpu_layers, .cpu_experts = split.cpu_experts});
      if (!limit) {
        steps.push_back({{"context", context}, {"fits", false}});
        continue;
      }
      steps.push_back({{"context", context},
                       {"fits", true},
                       {"gpu_layers", limit->gpu_layers},
                       {"gpu_memory_bytes", limit->resident},
                       {"gpu_bytes", limit->gpu_bytes},
                       {"gpu_ms", 1e3 * limit->gpu_s},
                       {"cpu_bytes", limit->cpu_bytes},
                       {"cpu_ms", 1e3 * limit->cpu_s},
                       {"crossing_ms", 1e3 * limit->crossing_s},
                       {"tokens_per_s", static_cast<double>(setup.batch) / limit->seconds()}});
    }
    setups[SetupName(setup)] = steps;
  }
  return {{"gpu_memory_bytes", split.gpu.memory_bytes},
          {"host", {{"name", split.host.name}, {"read_bytes_per_s", split.host.read_bytes_per_s}}},
          {"steps", setups}};
}

}  // namespace

Json LimitsJson(const LimitsRequest& r) {
  const LlmParams p = CountParams(r.shape);
  Json out;
  out["units"] = r.units == Units::kSi ? "si" : "binary";
  out["batch"] = r.batch();
  out["devices"] = r.devices;
  out["stages"] = r.stages;
  out["model"] = ShapeJson(r.shape);
  out["machine"] = {{"name", r.machine.name},
                    {"source", r.machine.source},
                    {"memory_bytes", r.machine.memory_bytes},
                    {"read_bytes_per_s", r.machine.read_bytes_per_s},
                    {"flops", r.machine.flops}};
  out["params"] = {{"layers", p.layers},
                   {"lm_head", p.lm_head},
                   {"active", p.active},
                   {"total", p.total},
                   {"layers_active", p.layers_active},
                   {"embedding", p.embedding},
                   {"resident", p.resident},
                   {"norms", p.norms}};
  Json capacity = Json::object(), with_embedding = Json::object(), kv_bytes = Json::object(),
       peak = Json::object();
  for (const LlmSetup& setup : r.setups) {
    const std::string name = SetupName(setup);
    capacity[name] = OrNull(KvCapacityTokens(r.shape, r.machine, setup));
    with_embedding[name] = OrNull(KvCapacityTokens(r.shape, r.machine, setup, true));
    kv_bytes[name] = KvBytesPerToken(r.shape, setup);
    peak[name] = *PeakFlops(r.machine, setup);
  }
  out["compute_flops_per_s"] = peak;
  out["kv"] = {{"params_per_token", KvParamsPerToken(r.shape)},
               {"bytes_per_token", kv_bytes},
               {"capacity_tokens", capacity},
               {"capacity_tokens_with_embedding", with_embedding}};
  out["prefill"] = PrefillJson(r);
  out["decode"] = DecodeJson(r, r.shape);
  if (r.draft.depth > 0) out["speculation"] = SpeculationJson(r);
  if (r.split) out["split"] = SplitJson(r);
  if (const auto other = OtherGrouping(r.shape)) {
    Json other_capacity = Json::object();
    for (const LlmSetup& setup : r.setups)
      other_capacity[SetupName(setup)] = OrNull(KvCapacityTokens(*other, r.machine, setup));
    out["other_grouping"] = {{"kv_heads", other->kv_heads},
                             {"params_active", CountParams(*other).active},
                             {"kv_params_per_token", KvParamsPerToken(*other)},
                             {"capacity_tokens", other_capacity},
                             {"decode", DecodeJson(r, *other)}};
  }
  return out;
}

}  // namespace celer::cli
