#include "plan/machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/check.h"
#include "base/result.h"
#include "base/suggest.h"
#include "io/json/json.h"

namespace celer::cli {
namespace {

using Json = nlohmann::json;
using Width = WeightKind::Width;

constexpr double kGiB = 1073741824.0;

Result<Machine> ParseMachine(const Json& json) {
  Machine machine;
  machine.name = json.at("name");
  machine.source = json.at("about");
  machine.memory_bytes = json.at("memory_gib").get<double>() * kGiB;
  machine.read_bytes_per_s = json.at("read_gb_per_s").get<double>() * 1e9;
  machine.copy_bytes_per_s = json.at("copy_gb_per_s").get<double>() * 1e9;
  for (const auto& [type, tera] : json.at("tflops").items()) machine.flops[type] = tera.get<double>() * 1e12;
  CELER_RETURN_IF_ERROR(Validate(machine));
  return machine;
}

Width WidthOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8:
    case WeightFormat::kFp8:
      return Width::k8;
    case WeightFormat::kInt4:
      return Width::k4;
    case WeightFormat::kAsStored:
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      break;
  }
  return Width::k16;
}

Result<MeasuredSpeed> ParseSpeed(const Json& json) {
  MeasuredSpeed speed;
  speed.machine = json.at("machine");
  speed.model = json.at("model");
  CELER_ASSIGN(speed.weights, WeightOptions::Parse(json.at("weights").get<std::string>()));
  CELER_ASSIGN(speed.kind.activations, ParseActivations(json.value("activations", "16bit")));
  speed.kind.width = WidthOf(speed.weights.format);
  speed.kind.row_copies = speed.kind.width == Width::k16 && json.value("row_copies", true);
  const std::string phase = json.at("phase");
  speed.prefill = phase == "prefill";
  if (!speed.prefill && phase != "decode")
    return Error::Invalid("phase '", phase, "' is neither decode nor prefill");
  speed.context = json.value("context", int64_t{0});
  speed.tokens = json.at("tokens");
  speed.batch = json.value("batch", int64_t{1});
  speed.tokens_per_s = json.at("tokens_per_s");
  if (speed.context < 0 || speed.tokens < 1 || speed.batch < 1 || !(speed.tokens_per_s > 0))
    return Error::Invalid("a speed of ", speed.model, " with impossible numbers");
  return speed;
}

// Kinds in the order in which they stand in for one that was not measured.
std::vector<WeightKind> NearestKinds(const WeightKind& kind) {
  std::vector<WeightKind> kinds = {kind};
  const auto add = [&](Width width, Activations activations, bool row_copies) {
    kinds.push_back({.width = width, .activations = activations, .row_copies = row_copies});
  };
  add(kind.width, kind.activations, !kind.row_copies);
  if (kind.activations != Activations::k16Bit) {
    add(Width::k8, Activations::kFp8, false);
    add(kind.width, Activations::k16Bit, kind.row_copies);
  }
  for (const Width width : {Width::k8, Width::k16, Width::k4})
    for (const bool copies : {false, true}) add(width, Activations::k16Bit, copies);
  return kinds;
}

}  // namespace

bool WeightKind::operator<(const WeightKind& other) const {
  return std::tie(width, activations, row_copies) <
         std::tie(other.width, other.activations, other.row_copies);
}

std::string WeightKind::ToString() const {
  const char* bits = width == Width::k16 ? "16" : width == Width::k8 ? "8" : "4";
  std::string text = fmt::format("{}-bit weights", bits);
  if (row_copies) text += " with row copies";
  if (activations != Activations::k16Bit) text += fmt::format(", {} activations", Name(activations));
  return text;
}

MeasuredStep MeasuredSpeed::Step() const {
  MeasuredStep step;
  if (prefill) {
    step.slices = {{.position = 0, .tokens = tokens}};
    step.seconds = static_cast<double>(tokens) / tokens_per_s;
  } else {
    step.slices.assign(static_cast<size_t>(batch), {.position = context + tokens / 2});
    step.seconds = static_cast<double>(batch) / tokens_per_s;
  }
  return step;
}

Result<PlanMachines> PlanMachines::Parse(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    PlanMachines parsed;
    std::map<std::string, Machine> measured;
    for (const Json& row : json.at("machines")) {
      CELER_ASSIGN(Machine machine, ParseMachine(row));
      measured[machine.name] = machine;
    }
    for (const Json& row : json.at("runs")) {
      PlanMachine run;
      const std::string name = row.at("machine");
      if (const auto it = measured.find(name); it != measured.end()) {
        run.machine = it->second;
      } else {
        CELER_ASSIGN(run.machine, FindMachinePreset(name));
      }
      run.cuda = row.at("device") == "cuda";
      run.like = row.at("like");
      run.link_bytes_per_s = row.value("link_gb_per_s", 0.0) * 1e9;
      run.per_host = row.value("per_host", int64_t{1});
      parsed.machines_.push_back(std::move(run));
    }
    parsed.refused_ = json.at("cannot_run");
    parsed.aliases_ = json.at("aliases");
    for (const Json& row : json.at("speeds")) {
      CELER_ASSIGN(MeasuredSpeed speed, ParseSpeed(row));
      CELER_RETURN_IF_ERROR(FindModelPreset(speed.model));
      CELER_RETURN_IF_ERROR(parsed.Find(speed.machine));
      parsed.speeds_.push_back(std::move(speed));
    }
    return parsed;
  } catch (const Json::exception& problem) {
    return Error::Invalid("measured_speeds.json: ", problem.what());
  }
}

const PlanMachines& PlanMachines::BuiltIn() {
  static const PlanMachines machines = [] {
    auto parsed = Parse(PlanFiles().front().body);
    CELER_CHECK(parsed);  // machines_test.cc
    return *parsed;
  }();
  return machines;
}

Result<PlanMachine> PlanMachines::Find(std::string_view name) const {
  const auto alias = aliases_.find(std::string(name));
  const std::string_view wanted = alias == aliases_.end() ? name : std::string_view(alias->second);
  for (const PlanMachine& machine : machines_)
    if (machine.machine.name == wanted) return machine;
  if (const auto refused = refused_.find(std::string(name)); refused != refused_.end())
    return Error::Unsupported("machine '", std::string(name), "': ", refused->second);
  std::vector<std::string> known = names();
  for (const auto& [other, machine] : aliases_) known.push_back(other);
  const std::string hint = DidYouMean(name, known);
  return Error::NotFound("unknown machine '", std::string(name), "'",
                         hint.empty() ? "; see celer plan --list" : hint);
}

std::vector<std::string> PlanMachines::names() const {
  std::vector<std::string> names;
  for (const PlanMachine& machine : machines_) names.push_back(machine.machine.name);
  return names;
}

Result<FittedEfficiency> PlanMachines::EfficiencyOf(const PlanMachine& machine,
                                                    const WeightKind& kind) const {
  CELER_ASSIGN(const PlanMachine like, Find(machine.like));
  std::vector<const MeasuredSpeed*> speeds;
  WeightKind found = kind;
  for (const WeightKind& near : NearestKinds(kind)) {
    for (const MeasuredSpeed& speed : speeds_)
      if (speed.machine == machine.like && !(speed.kind < near) && !(near < speed.kind))
        speeds.push_back(&speed);
    found = near;
    if (!speeds.empty()) break;
  }
  if (speeds.empty()) return Error::NotFound("measured_speeds.json: no speeds of ", machine.like);
  std::vector<MeasuredWork> work;
  std::vector<StepCost> costs;
  std::vector<MeasuredStep> steps;
  for (const MeasuredSpeed* speed : speeds) {
    CELER_ASSIGN(ModelSizes sizes, LoadModelSizes(speed->model, speed->weights));
    SetArithmetic(like.cuda, speed->kind, &sizes.matrices);
    costs.push_back(CostModel(sizes, KvType::kF16).cost);
    steps.push_back(speed->Step());
    work.push_back(WorkOf(costs.back(), steps.back()));
  }
  FittedEfficiency fitted{
      .efficiency = FitEfficiency(like.machine, work),
      .basis = fmt::format("{} speeds of {}, {}", speeds.size(), like.machine.name, found.ToString()),
      .errors = {}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepTime time(costs[i], like.machine, fitted.efficiency);
    fitted.errors.push_back(std::abs(time.Seconds(steps[i].slices) / steps[i].seconds - 1));
  }
  return fitted;
}

void SetArithmetic(bool cuda, const WeightKind& kind, StepMatrices* matrices) {
  const char* type = !cuda && kind.width == Width::k16        ? "bf16"
                     : !cuda                                  ? "int8"
                     : kind.activations == Activations::kFp8  ? "fp8"
                     : kind.activations == Activations::kInt8 ? "int8"
                                                              : "auto";
  const auto set = [type](MatrixSize* matrix) { matrix->compute = type; };
  const auto expert = [&](StepMatrices::Expert* e) {
    for (MatrixSize* matrix : {&e->gate, &e->up, &e->down}) set(matrix);
  };
  set(&matrices->head);
  for (StepMatrices::Layer& layer : matrices->layers) {
    for (MatrixSize& matrix : layer.qkv) set(&matrix);
    for (MatrixSize& matrix : layer.beside) set(&matrix);
    for (MatrixSize* matrix : {&layer.output, &layer.router, &layer.shared_gate}) set(matrix);
    for (StepMatrices::Expert& e : layer.experts) expert(&e);
    expert(&layer.dense);
    expert(&layer.shared);
  }
}

}  // namespace celer::cli
