#include "device/variant.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "device/cpu_features.h"

namespace celer {
namespace {

using internal::Candidate;
using internal::ForceList;
using internal::ParseForce;
using internal::PickIndex;
constexpr Device::Kind kCpu = Device::Kind::kCpu;
constexpr Device::Kind kCuda = Device::Kind::kCuda;

// An ISA of the other architecture: never runs here.
#if defined(__aarch64__)
constexpr Isa kForeign = Isa::kAvx2;
#else
constexpr Isa kForeign = Isa::kNeon;
#endif

using Fn = int (*)(int);
int Fast(int x) {
  return x + 1;
}
int Plain(int x) {
  return x + 2;
}
int Slow(int x) {
  return x + 3;
}

constexpr Variant<Fn> kTable[] = {
    {"foreign", kForeign, Fast},
    {"plain", Isa::kBaseline, Plain},
    {"slow", Isa::kBaseline, Slow},
};
constexpr Variant<Fn> kHopeless[] = {{"foreign", kForeign, Fast}};

std::string ForceError(std::string_view text) {
  const OperatorInfo operators[] = {Describe<Fn>("add", kTable), Describe<Fn>("rms_norm", kTable)};
  const Status status = internal::ValidateForce(text, operators);
  return status ? "" : status.error().message();
}

TEST(Variant, FirstThatRunsWins) {
  const Variant<Fn>* chosen = Pick<Fn>("add", kTable);
  ASSERT_NE(chosen, nullptr);
  EXPECT_STREQ(chosen->name, "plain");
  EXPECT_EQ(chosen->run(1), 3);
  EXPECT_EQ(Pick<Fn>("add", kHopeless), nullptr);
  EXPECT_EQ(Pick<Fn>("add", std::span<const Variant<Fn>>{}), nullptr);
}

TEST(Variant, DescribeMarksChosenAndSaysWhyNot) {
  const OperatorInfo info = Describe<Fn>("add", kTable);
  ASSERT_EQ(info.variants.size(), 3u);
  EXPECT_FALSE(info.variants[0].runs_here);
  EXPECT_NE(info.variants[0].why_not.find("the CPU lacks "), std::string::npos);
  EXPECT_TRUE(info.variants[1].chosen);
  EXPECT_TRUE(info.variants[2].runs_here);
  EXPECT_FALSE(info.variants[2].chosen);
}

TEST(Variant, ForceOverrides) {
  const Candidate table[] = {{"plain", Isa::kBaseline}, {"slow", Isa::kBaseline}, {"foreign", kForeign}};
  EXPECT_EQ(PickIndex("add", table, kCpu, {}), 0);
  EXPECT_EQ(PickIndex("add", table, kCpu, {{"add", "slow"}}), 1);
  EXPECT_EQ(PickIndex("add", table, kCpu, {{"mul", "slow"}}), 0);
  EXPECT_EQ(PickIndex("add", table, kCpu, {{"add", "foreign"}}), 0);  // cannot run: warned and passed over
  EXPECT_EQ(PickIndex("add", table, kCuda, {{"add", "slow"}}), -1);   // no row serves that device
  EXPECT_TRUE(internal::Describe("add", table, {{"add", "slow"}}).variants[1].chosen);
}

TEST(Variant, ParsesForce) {
  EXPECT_EQ(*ParseForce(""), ForceList{});
  EXPECT_EQ(*ParseForce("a:b,c:d"), (ForceList{{"a", "b"}, {"c", "d"}}));
  EXPECT_EQ(*ParseForce("a:b,"), (ForceList{{"a", "b"}}));
  for (const char* bad : {"a", "a:", ":b", ",", "a:b,,c:d", "a:b,c", ":"})
    EXPECT_FALSE(ParseForce(bad)) << bad;
}

TEST(Variant, ValidateForceNamesWhatIsWrong) {
  EXPECT_EQ(ForceError(""), "");
  EXPECT_EQ(ForceError("add:slow,rms_norm:plain"), "");
  EXPECT_NE(ForceError("rms_nrm:plain").find("did you mean 'rms_norm'?"), std::string::npos);
  EXPECT_NE(ForceError("zzzzzzzzzzz:plain").find("celer kernels"), std::string::npos);
  EXPECT_NE(ForceError("add:fastest").find("this build has foreign, plain, slow"), std::string::npos);
  EXPECT_NE(ForceError("add:foreign").find("cannot run here: the CPU lacks"), std::string::npos);
  EXPECT_NE(ForceError("add:slow,add:plain").find("forced twice"), std::string::npos);
  EXPECT_NE(ForceError("add").find("operator:variant"), std::string::npos);
}

TEST(Variant, EveryIsaHasANameAndAnAnswer) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Isa::kSm100); ++i) {
    const Isa isa = static_cast<Isa>(i);
    EXPECT_TRUE(names.insert(Name(isa)).second) << Name(isa);
    EXPECT_EQ(RunsHere(isa), WhyNotHere(isa).empty());
  }
  EXPECT_TRUE(RunsHere(Isa::kBaseline));
  EXPECT_FALSE(RunsHere(kForeign));
  EXPECT_EQ(DeviceKind(Isa::kAmx), kCpu);
  EXPECT_EQ(DeviceKind(Isa::kCuda), kCuda);
  EXPECT_EQ(RunsHere(Isa::kCuda), CudaDeviceCount() > 0);
  // A suffix's flags include its predecessors', so the answer must, too.
  EXPECT_LE(RunsHere(Isa::kArmI8mm), HostCpu().dotprod && HostCpu().fp16);
  EXPECT_LE(RunsHere(Isa::kAvxVnni), RunsHere(Isa::kAvx2));
  EXPECT_LE(RunsHere(Isa::kAmx), RunsHere(Isa::kVnni) && RunsHere(Isa::kAvx512Bf16));
}

}  // namespace
}  // namespace celer
