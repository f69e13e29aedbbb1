#include "plan/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/prices.h"

namespace celer::cli {
namespace {

using ::testing::HasSubstr;

std::string Said(const auto& result) {
  return result ? "no error" : result.error().message();
}

// --- measured_speeds.json ----------------------------------------------------------------------------------

TEST(PlanMachines, KnowEveryPreset) {
  const PlanMachines& known = PlanMachines::BuiltIn();
  for (const std::string& name : MachinePresetNames()) {
    const auto found = known.Find(name);
    EXPECT_TRUE(found || known.refused().contains(name)) << name << ": " << Said(found);
  }
  for (const PlanMachine& machine : known.machines()) {
    EXPECT_TRUE(Validate(machine.machine)) << machine.machine.name;
    EXPECT_TRUE(known.Find(machine.like)) << machine.machine.name;
    EXPECT_EQ(machine.cuda, machine.link_bytes_per_s > 0) << machine.machine.name;
  }
}

TEST(PlanMachines, NamesAndAliases) {
  const PlanMachines& known = PlanMachines::BuiltIn();
  EXPECT_EQ(known.Find("a100")->machine.name, "a100-80g");
  EXPECT_EQ(known.Find("rtx4090")->machine.name, "rtx4090-tensor");
  EXPECT_THAT(Said(known.Find("h20")), HasSubstr("did you mean 'h200'?"));
  EXPECT_THAT(Said(known.Find("t4")), HasSubstr("compute capability 8.0"));
  EXPECT_THAT(Said(known.Find("")), HasSubstr("unknown machine ''"));
}

TEST(PlanMachines, RefuseADamagedFile) {
  EXPECT_FALSE(PlanMachines::Parse(""));
  EXPECT_FALSE(PlanMachines::Parse("{}"));
  EXPECT_FALSE(PlanMachines::Parse(
      R"({"machines": [], "runs": [{"machine": "none", "device": "cpu", "like": "none"}]})"));
}

// The model of time, fitted to what was measured, gives back what was measured.
TEST(PlanMachines, FitsAreNearTheMeasuredSpeeds) {
  const PlanMachines& known = PlanMachines::BuiltIn();
  for (const MeasuredSpeed& speed : known.speeds()) {
    const PlanMachine machine = *known.Find(speed.machine);
    const auto fitted = known.EfficiencyOf(machine, speed.kind);
    ASSERT_TRUE(fitted) << Said(fitted);
    for (const double error : fitted->errors) EXPECT_LT(error, 0.35) << fitted->basis;
    std::vector<double> errors = fitted->errors;
    std::nth_element(errors.begin(), errors.begin() + static_cast<int64_t>(errors.size() / 2), errors.end());
    EXPECT_LT(errors[errors.size() / 2], 0.15) << fitted->basis;
  }
}

TEST(PlanMachines, AKindThatWasNotMeasuredGetsTheNearest) {
  const PlanMachines& known = PlanMachines::BuiltIn();
  const PlanMachine h200 = *known.Find("h200");
  const auto fp8 =
      known.EfficiencyOf(h200, {.width = WeightKind::Width::k4, .activations = Activations::kFp8});
  ASSERT_TRUE(fp8) << Said(fp8);
  EXPECT_THAT(fp8->basis, HasSubstr("8-bit weights, fp8 activations"));
  const auto xeon = known.EfficiencyOf(*known.Find("xeon"), {.width = WeightKind::Width::k16});
  ASSERT_TRUE(xeon) << Said(xeon);
  EXPECT_THAT(xeon->basis, HasSubstr("xeon-spr-16c, 8-bit weights"));
}

// --- prices ------------------------------------------------------------------------------------------------

TEST(Prices, ReadsAndKnowsAliases) {
  const auto prices = Prices::Parse(
      R"({"date": "2026-11-01", "currency": "EUR", "per_hour": {"a100": 1.5, "h200": 3, "this": 0.1}})", "p");
  ASSERT_TRUE(prices) << Said(prices);
  EXPECT_EQ(prices->currency, "EUR");
  EXPECT_EQ(prices->Of("a100-80g"), 1.5);
  EXPECT_EQ(prices->Of("this"), 0.1);
  EXPECT_EQ(prices->Of("l4"), std::nullopt);
}

TEST(Prices, RefusesWhatIsNoPrice) {
  const auto with = [](const std::string& hourly) {
    return Said(Prices::Parse(R"({"date": "2026-11-01", "per_hour": )" + hourly + "}", "p.json"));
  };
  EXPECT_THAT(with(R"({"h200": -1})"), HasSubstr("p.json: the price of 'h200' is -1"));
  EXPECT_THAT(with(R"({"h200": 0})"), HasSubstr("expected a number above 0"));
  EXPECT_THAT(with(R"({"h200": "3"})"), HasSubstr("the price of 'h200' is \"3\""));
  EXPECT_THAT(with(R"({"h200": null})"), HasSubstr("the price of 'h200' is null"));
  EXPECT_THAT(with(R"({"h200": NaN})"), HasSubstr("p.json"));
  EXPECT_THAT(with(R"({"h200": 1e400})"), HasSubstr("p.json"));
  EXPECT_THAT(with(R"({"h2000": 3})"), HasSubstr("did you mean 'h200'?"));
  EXPECT_THAT(with(R"({"mi300x": 3})"), HasSubstr("no kernels for AMD"));
  EXPECT_THAT(with(R"({"a100": 3, "a100-80g": 4})"), HasSubstr("two prices of 'a100-80g'"));
  EXPECT_THAT(with("{}"), HasSubstr("names no machine"));
  EXPECT_THAT(with("[]"), HasSubstr("per_hour"));
  EXPECT_THAT(Said(Prices::Parse(R"({"per_hour": {"h200": 3}})", "p")), HasSubstr("date"));
  EXPECT_THAT(Said(Prices::Parse("", "p")), HasSubstr("p"));
  EXPECT_FALSE(Prices::Read("/nonexistent"));
}

}  // namespace
}  // namespace celer::cli
