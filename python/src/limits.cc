// What is physically possible, as numbers; python/celer makes tables and pictures of them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "celer/limits.h"
#include "cli/shared/resolve_model.h"
#include "common.h"
#include "hub/model_path.h"
#include "limits/measured_machine.h"

namespace celer::python {
namespace {

// A built-in name, something that says a shape, or a model that was pulled.
Result<LlmShape> FindShape(const std::string& model) {
  auto shape = cli::ResolveModel(model);
  if (shape) return shape;
  if (const auto path = cli::ResolveModelPath(model)) return cli::ResolveModel(path->string());
  return shape.error();
}

Result<Machine> FindMachine(const std::string& machine) {
  if (machine == "this") {
    CELER_RETURN_IF_ERROR(NoteThreads());  // of the measurement
    return LoadOrMeasureThisMachine();
  }
  return FindMachinePreset(machine);
}

nb::dict Phase(const PhaseLimit& phase) {
  nb::dict out;
  out["seconds"] = phase.seconds();
  out["read_weights_seconds"] = phase.weight_s;
  out["read_kv_seconds"] = phase.kv_s;
  out["compute_seconds"] = phase.compute_s;
  out["bound_by"] = std::string(BoundText(phase.bound()));
  return out;
}

struct Question {
  std::string model, machine;
  double weight_bits, kv_bits;
  int64_t batch;
  std::vector<int64_t> prompts, contexts;
};

Status Check(const Question& q) {
  for (const auto& [name, value] : {std::pair{"weight_bits", q.weight_bits}, {"kv_bits", q.kv_bits}})
    if (!(value >= 0.5 && value <= 64)) return Error::Invalid(name, " is ", value, ", expected 0.5 to 64");
  const auto check = [](const char* name, int64_t value) -> Status {
    if (value >= 1 && value <= 1'000'000'000) return {};
    return Error::Invalid(name, " is ", value, ", expected 1 to 1000000000");
  };
  CELER_RETURN_IF_ERROR(check("batch", q.batch));
  for (const int64_t prompt : q.prompts) CELER_RETURN_IF_ERROR(check("prompt", prompt));
  for (const int64_t context : q.contexts) CELER_RETURN_IF_ERROR(check("context", context));
  return {};
}

nb::dict Limits(const Question& q) {
  OrRaise(Check(q));
  const auto [shape, machine] = [&] {
    const ReleaseGil release;  // a machine may be measured
    return std::pair(OrRaise(FindShape(q.model)), OrRaise(FindMachine(q.machine)));
  }();
  const LlmSetup setup{.weight_bits = q.weight_bits, .kv_bits = q.kv_bits, .batch = q.batch};
  if (!PeakFlops(machine, setup))
    throw Raised(Error::Unsupported("the machine '", machine.name, "' has no peak for ", q.weight_bits,
                                    "-bit weights"));
  const LlmParams params = CountParams(shape);
  nb::dict out;
  out["model"] = shape.name;
  out["machine"] = machine.name;
  out["machine_source"] = machine.source;
  out["read_bytes_per_s"] = machine.read_bytes_per_s;
  out["flops_per_s"] = *PeakFlops(machine, setup);
  out["parameters"] = params.total;
  out["active_parameters"] = params.active;
  out["weight_bytes"] = WeightBytes(shape, setup);
  out["kv_bytes_per_token"] = KvBytesPerToken(shape, setup);
  out["kv_capacity_tokens"] = nb::cast(KvCapacityTokens(shape, machine, setup));
  nb::list prefill, decode;
  for (const int64_t prompt : q.prompts) {
    nb::dict row = Phase(PrefillLimit(shape, machine, setup, prompt));
    row["tokens"] = prompt;
    prefill.append(row);
  }
  for (const int64_t context : q.contexts) {
    const PhaseLimit phase = DecodeLimit(shape, machine, setup, context);
    nb::dict row = Phase(phase);
    row["context"] = context;
    row["tokens_per_second"] = TokensPerSecond(phase, setup);
    decode.append(row);
  }
  out["prefill"] = prefill;
  out["decode"] = decode;
  return out;
}

}  // namespace

void BindLimits(nb::module_& module) {
  module.def(
      "limits",
      [](std::string model, std::string machine, double weight_bits, double kv_bits, int64_t batch,
         std::vector<int64_t> prompts, std::vector<int64_t> contexts) {
        return Limits({std::move(model), std::move(machine), weight_bits, kv_bits, batch, std::move(prompts),
                       std::move(contexts)});
      },
      nb::arg("model"), nb::arg("machine"), nb::kw_only(), nb::arg("weight_bits"), nb::arg("kv_bits"),
      nb::arg("batch"), nb::arg("prompts"), nb::arg("contexts"));
  module.def("model_names", &ModelPresetNames);
  module.def("machine_names", &MachinePresetNames);
  module.def("model_path",
             [](const std::string& name) { return OrRaise(cli::ResolveModelPath(name)).string(); });
}

}  // namespace celer::python
