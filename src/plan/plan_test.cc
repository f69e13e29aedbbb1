// Loads, steps and the search. Properties that any plan must have are held over many random queries.
#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace celer::cli {
namespace {

using ::testing::HasSubstr;

std::string Message(const auto& result) {
  return result ? "no error" : result.error().message();
}

PlanQuery Query(const std::vector<std::string>& machines, double rate = 10) {
  PlanQuery query;
  query.model = "llama-3.1-8b";
  query.load = RandomLoad(rate, 1155, 211);
  query.target = {.ttft_s = 2, .tpot_s = 0.05};
  for (const std::string& name : machines) query.machines.push_back(*PlanMachines::BuiltIn().Find(name));
  query.weights = {{.weights = *WeightOptions::Parse("bf16")}, {.weights = *WeightOptions::Parse("int8")}};
  query.kv = {KvType::kF16};
  query.chunks = {512, 2048};
  query.simulate = false;
  return query;
}

Plan Make(const PlanQuery& query) {
  auto plan = MakePlan(query, [](const std::string&) {});
  EXPECT_TRUE(plan) << Message(plan);
  return plan ? *plan : Plan{};
}

// Infinite if nothing holds.
double CostOf(const PlanQuery& query, const Plan& plan) {
  if (!plan.winner) return INFINITY;
  const PlanRow& row = plan.rows[*plan.winner];
  return query.prices ? *row.cost : static_cast<double>(row.replicas);
}

Prices PricesOf(std::map<std::string, double> hourly) {
  return {.date = "2026-11-01", .currency = "USD", .source = "", .hourly = std::move(hourly)};
}

// --- loads -------------------------------------------------------------------------------------------------

Trace SomeTrace(int64_t requests, bool hashes) {
  Trace trace{.name = "t", .block_tokens = 512};
  for (int64_t i = 0; i < requests; ++i) {
    TraceRequest request{.arrival_s = 0.1 * static_cast<double>(i), .prompt = 1024, .output = 10};
    if (hashes) request.hashes = {0, i % 7};
    trace.requests.push_back(request);
  }
  return trace;
}

TEST(PlanLoad, MeansOfATrace) {
  const auto load = TraceLoad(SomeTrace(101, false));
  ASSERT_TRUE(load) << Message(load);
  EXPECT_NEAR(load->rate, 10, 1e-9);
  EXPECT_EQ(load->prompt, 1024);
  EXPECT_EQ(load->longest, 1034);
  EXPECT_EQ(load->shared, 0);
  EXPECT_NEAR(TraceLoad(SomeTrace(101, true))->shared, 0.96, 0.03);
  Trace at_once = SomeTrace(3, false);
  for (TraceRequest& request : at_once.requests) request.arrival_s = 0;
  EXPECT_THAT(Message(TraceLoad(at_once)), HasSubstr("all requests come at once"));
  EXPECT_THAT(Message(TraceLoad(SomeTrace(1, false))), HasSubstr("all requests come at once"));
}

TEST(PlanLoad, AMachineGetsItsShare) {
  const PlanLoad load = *TraceLoad(SomeTrace(4000, false));
  const MachineShare all = ShareOf(load, load.rate, 100000);
  ASSERT_EQ(all.traces.size(), 1u);
  EXPECT_EQ(all.traces[0].requests.size(), 4000u);
  EXPECT_EQ(all.from, 0);
  const MachineShare tenth = ShareOf(load, load.rate / 10, 100000);
  size_t sum = 0;
  for (const Trace& trace : tenth.traces) {
    EXPECT_NEAR(static_cast<double>(trace.requests.size()), 400, 80);
    sum += trace.requests.size();
  }
  EXPECT_EQ(sum, 4000u);  // the machines together see every request once
  const MachineShare some = ShareOf(load, load.rate / 10, 100);
  ASSERT_EQ(some.traces.size(), 1u);
  EXPECT_NEAR(static_cast<double>(some.traces[0].requests.size()), 100, 40);
}

TEST(PlanLoad, ConversationsStayWhereTheyAre) {
  const PlanLoad load = *TraceLoad(SomeTrace(700, true));
  std::map<int64_t, size_t> machine_of;
  const MachineShare share = ShareOf(load, load.rate / 4, 100000);
  for (size_t i = 0; i < share.traces.size(); ++i)
    for (const TraceRequest& request : share.traces[i].requests)
      EXPECT_EQ(machine_of.emplace(request.hashes[1], i).first->second, i);
}

// --- steps -------------------------------------------------------------------------------------------------

Replica ReplicaOf(const std::string& model, const std::string& machine, int64_t devices,
                  const DraftAcceptance& draft) {
  const auto sizes = LoadModelSizes(model, *WeightOptions::Parse("bf16"));
  EXPECT_TRUE(sizes) << Message(sizes);
  return {*sizes, KvType::kF16, *PlanMachines::BuiltIn().Find(machine), devices, {}, draft, 0};
}

TEST(Replica, DraftsShareAStep) {
  const Replica plain = ReplicaOf("llama-3.1-8b", "h200", 1, {});
  const Replica drafts = ReplicaOf("llama-3.1-8b", "h200", 1, {.depth = 4, .acceptance = 0.7});
  const std::vector<SliceShape> one = {{.position = 1000}};
  EXPECT_LT(drafts.Seconds(one), 0.5 * plain.Seconds(one));
  EXPECT_GT(drafts.Seconds(one), plain.Seconds(one) / 2.7731);
  const std::vector<SliceShape> prompt = {{.position = 0, .tokens = 512}};
  EXPECT_DOUBLE_EQ(drafts.Seconds(prompt), plain.Seconds(prompt));
  const Replica hopeless = ReplicaOf("llama-3.1-8b", "h200", 1, {.depth = 4, .acceptance = 0});
  EXPECT_GT(hopeless.Seconds(one), plain.Seconds(one));
}

TEST(Replica, DevicesShareLayersAndPayForIt) {
  const Replica one = ReplicaOf("llama-3.1-8b", "h200", 1, {}),
                eight = ReplicaOf("llama-3.1-8b", "h200", 8, {});
  const std::vector<SliceShape> step = {{.position = 1000}};
  EXPECT_LT(eight.Seconds(step), 0.5 * one.Seconds(step));
  EXPECT_GT(eight.Seconds(step), one.Seconds(step) / 8 + 64 * 3e-6);
  EXPECT_GT(eight.kv_tokens(), 8 * one.kv_tokens());
}

TEST(Replica, CountsBetweenWholeNumbersOfSequences) {
  const Replica replica = ReplicaOf("llama-3.1-8b", "h200", 1, {});
  double before = 0;
  for (double sequences = 0.5; sequences < 600; sequences *= 1.1) {
    const double now = replica.Seconds(sequences, 1000, 0, 0);
    EXPECT_GE(now, before) << sequences;
    before = now;
  }
  const std::vector<SliceShape> many(100, {.position = 1000});
  EXPECT_NEAR(replica.Seconds(100, 1000, 0, 0), replica.Seconds(many), 0.01 * before);
}

TEST(SteadyAt, GrowsWithTheLoadUntilItNoLongerHolds) {
  const Replica replica = ReplicaOf("llama-3.1-8b", "h200", 1, {});
  const PlanLoad load = RandomLoad(0, 1155, 211);
  const double most = SaturationRate(replica, load, 512);
  EXPECT_GT(most, 5);
  EXPECT_LT(most, 60);
  double before = 0;
  for (int i = 1; i <= 20; ++i) {
    const SteadyLoad steady = SteadyAt(replica, load, 512, most * i / 20);
    ASSERT_TRUE(steady.holds) << i << steady.why;
    EXPECT_GT(steady.tpot.p50, before);
    EXPECT_LE(steady.ttft.p50, steady.ttft.p90);
    EXPECT_LE(steady.tpot.p90, steady.tpot.p99);
    before = steady.tpot.p50;
  }
  EXPECT_FALSE(SteadyAt(replica, load, 512, 1.01 * most).holds);
  EXPECT_FALSE(SteadyAt(replica, load, 512, 1e9).holds);
}

// What is estimated is near what the engine does on the simulated machine.
TEST(SteadyAt, IsNearTheSimulation) {
  const Replica replica = ReplicaOf("llama-3.1-8b", "h200", 1, {});
  const PlanLoad load = RandomLoad(0, 1155, 211);
  const double most = SaturationRate(replica, load, 512);
  for (const double share : {0.3, 0.6}) {
    const SteadyLoad steady = SteadyAt(replica, load, 512, share * most);
    const auto checked = CheckLoad(replica, load, KvType::kF16, 512, share * most, steady);
    ASSERT_TRUE(checked) << Message(checked);
    EXPECT_EQ(checked->failed, 0);
    EXPECT_NEAR(steady.tpot.p50 / checked->tpot.p50, 1, 0.15) << share;
    EXPECT_NEAR(steady.ttft.p50 / checked->ttft.p50, 1, 0.5) << share;
    EXPECT_NEAR(steady.sequences / checked->sequences, 1, 0.25) << share;
  }
}

// --- plans -------------------------------------------------------------------------------------------------

TEST(Plan, FindsTheCheapest) {
  PlanQuery query = Query({"h200", "rtx4090"}, 40);
  query.prices = PricesOf({{"h200", 4}, {"rtx4090-tensor", 0.4}});
  const Plan plan = Make(query);
  ASSERT_TRUE(plan.winner);
  const PlanRow& row = plan.rows[*plan.winner];
  EXPECT_EQ(*plan.winner, 0u);
  EXPECT_GE(row.choice.rate() * static_cast<double>(row.replicas), 40);
  EXPECT_NEAR(*row.cost, static_cast<double>(row.replicas) * *query.prices->Of(row.machine), 1e-9);
  EXPECT_TRUE(query.target.Met(row.ttft(), row.tpot()));
  EXPECT_EQ(plan.fewer.empty(), row.replicas == 1);
}

TEST(Plan, SimulatesWhatWins) {
  PlanQuery query = Query({"h200"}, 30);
  query.simulate = true;
  const Plan plan = Make(query);
  ASSERT_TRUE(plan.winner);
  const PlanRow& row = plan.rows[*plan.winner];
  ASSERT_TRUE(row.checked);
  EXPECT_TRUE(query.target.Met(row.checked->ttft, row.checked->tpot));
  EXPECT_EQ(row.checked->failed, 0);
  EXPECT_GT(plan.simulations, 0);
}

TEST(Plan, SimulatesWhatOneMachineHolds) {
  PlanQuery query = Query({"rtx4090"}, 0);
  query.simulate = true;
  const Plan plan = Make(query);
  ASSERT_TRUE(plan.winner);
  const PlanRow& row = plan.rows[*plan.winner];
  ASSERT_TRUE(row.checked);
  EXPECT_TRUE(query.target.Met(row.checked->ttft, row.checked->tpot));
}

TEST(Plan, SaysWhyNothingHolds) {
  PlanQuery query = Query({"rtx4090"});
  query.model = "llama-3.1-70b";
  const Plan plan = Make(query);
  EXPECT_FALSE(plan.winner);
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_THAT(plan.rows[0].why, HasSubstr("the weights do not fit"));
  query = Query({"h200"});
  query.target.tpot_s = 1e-6;
  EXPECT_THAT(Make(query).rows[0].why, HasSubstr("TPOT p90"));
}

TEST(Plan, SeveralDevicesAreShownAndNeverWin) {
  PlanQuery query = Query({"rtx4090"});
  query.model = "llama-3.1-70b";
  query.devices = {1, 8};
  const Plan plan = Make(query);
  EXPECT_FALSE(plan.winner);
  ASSERT_EQ(plan.rows.size(), 2u);
  const PlanRow& eight = plan.rows[0].choice.devices == 8 ? plan.rows[0] : plan.rows[1];
  EXPECT_FALSE(eight.can_run);
  EXPECT_GT(eight.replicas, 0);
  EXPECT_EQ(eight.why, "needs tensor parallelism, which was not measured on several devices");
}

TEST(Plan, AMachineWithoutAPriceDoesNotWin) {
  PlanQuery query = Query({"h200", "a100"});
  query.prices = PricesOf({{"a100-80g", 100}});
  const Plan plan = Make(query);
  ASSERT_TRUE(plan.winner);
  EXPECT_EQ(plan.rows[*plan.winner].machine, "a100-80g");
  EXPECT_EQ(plan.rows[1].why, "the prices do not name it");
}

TEST(Plan, HoldsWithSoManyReplicasOrSaysThatItDoesNot) {
  PlanQuery query = Query({"h200"}, 100);
  query.count = 1;
  EXPECT_FALSE(Make(query).winner);
  EXPECT_FALSE(Make(query).rows[0].why.empty());
  query.count = 100;
  const Plan plan = Make(query);
  ASSERT_TRUE(plan.winner);
  EXPECT_EQ(plan.rows[0].replicas, 100);
  EXPECT_NEAR(plan.rows[0].load_each, 1, 1e-9);
}

TEST(Plan, WithoutALoadSaysWhatAMachineHolds) {
  const PlanQuery query = Query({"h200", "l4"}, 0);
  const Plan plan = Make(query);
  ASSERT_TRUE(plan.winner);
  EXPECT_EQ(plan.rows[*plan.winner].machine, "h200");
  EXPECT_GT(plan.rows[0].load_each, plan.rows[1].load_each);
}

TEST(Plan, RefusesRequestsThatAreLongerThanTheModel) {
  PlanQuery query = Query({"h200"});
  query.load = RandomLoad(1, 200'000, 100);
  EXPECT_THAT(Message(MakePlan(query, [](const std::string&) {})), HasSubstr("200100 tokens"));
}

TEST(Plan, TakesAbsurdLoads) {
  const Plan plan = Make(Query({"h200"}, 1e9));
  ASSERT_TRUE(plan.winner);
  EXPECT_GT(plan.rows[0].replicas, 10'000'000);
  EXPECT_EQ(ReplicasFor(1e300, 1e-300), 0);
  EXPECT_EQ(ReplicasFor(1, 0), 0);
  EXPECT_EQ(ReplicasFor(0.1, 5), 1);
}

// --- properties --------------------------------------------------------------------------------------------

// Random queries; a seed that fails is printed.
class PlanProperty : public testing::TestWithParam<int> {
 protected:
  PlanProperty() : random_(static_cast<unsigned>(GetParam())) {
    SCOPED_TRACE(GetParam());
    query_ = Query({"h200", "a100", "rtx4090", "l4", "xeon"}, Between(0.5, 60));
    query_.load = RandomLoad(query_.load.rate, static_cast<int64_t>(Between(50, 3000)),
                             static_cast<int64_t>(Between(10, 600)));
    query_.target = {.ttft_s = Between(0.3, 4), .tpot_s = Between(0.01, 0.1), .percentile = 90};
    query_.prices = PricesOf({{"h200", Between(1, 5)},
                              {"a100-80g", Between(0.5, 3)},
                              {"rtx4090-tensor", Between(0.2, 1)},
                              {"l4", Between(0.2, 1)},
                              {"xeon-8480+", Between(0.5, 3)}});
  }
  double Between(double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>(0, 1)(random_));
  }

  std::mt19937 random_;
  PlanQuery query_;
};

TEST_P(PlanProperty, MoreRequestsNeverCostLessNorNeedFewer) {
  const double before = CostOf(query_, Make(query_));
  std::map<std::string, int64_t> replicas;
  for (const PlanRow& row : Make(query_).rows) replicas[row.machine] = row.replicas;
  query_.load.rate *= Between(1.01, 4);
  const Plan more = Make(query_);
  EXPECT_GE(CostOf(query_, more), before - 1e-9);
  for (const PlanRow& row : more.rows) EXPECT_GE(row.replicas, replicas[row.machine]) << row.machine;
}

TEST_P(PlanProperty, ACheaperPriceNeverRaisesTheCost) {
  const double before = CostOf(query_, Make(query_));
  for (auto& [machine, price] : query_.prices->hourly) {
    const double old = price;
    price *= Between(0.2, 0.95);
    EXPECT_LE(CostOf(query_, Make(query_)), before + 1e-9) << machine;
    price = old;
  }
}

TEST_P(PlanProperty, ALooserTargetNeverCostsMore) {
  const double before = CostOf(query_, Make(query_));
  PlanQuery looser = query_;
  looser.target.ttft_s *= Between(1.05, 3);
  EXPECT_LE(CostOf(looser, Make(looser)), before + 1e-9);
  looser = query_;
  looser.target.tpot_s *= Between(1.05, 3);
  EXPECT_LE(CostOf(looser, Make(looser)), before + 1e-9);
  looser = query_;
  looser.target.percentile = 50;
  EXPECT_LE(CostOf(looser, Make(looser)), before + 1e-9);
}

TEST_P(PlanProperty, AnotherMachineToChooseFromNeverCostsMore) {
  const double all = CostOf(query_, Make(query_));
  query_.machines.pop_back();
  EXPECT_GE(CostOf(query_, Make(query_)), all - 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PlanProperty, testing::Range(0, 3));

// The same with the engine's simulation, which decides as soon as it says less than the estimate.
TEST(PlanProperty, HoldWithSimulationToo) {
  PlanQuery query = Query({"a100"}, 12);
  query.weights.resize(1);
  query.chunks = {1024};
  query.simulate = true;
  query.load = RandomLoad(12, 600, 60);
  query.target = {.ttft_s = 0.5, .tpot_s = 0.03};
  const double cost = CostOf(query, Make(query));
  PlanQuery more = query, looser = query;
  more.load.rate *= 2;
  EXPECT_GE(CostOf(more, Make(more)), cost);
  looser.target = {.ttft_s = 1, .tpot_s = 0.06};
  EXPECT_LE(CostOf(looser, Make(looser)), cost);
}

}  // namespace
}  // namespace celer::cli
