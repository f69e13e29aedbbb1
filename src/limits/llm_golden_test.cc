// Golden tables: theoretical limits of the Qwen1.5 family on one RTX 4090, as published (in binary units: B =
// 2^30, GB/s = 2^30 byte/s, TFLOPS = 2^40; turning points rounded down, everything else rounded). Rows and
// columns as printed, sections 3.1 to 5.1.5. Where the printed table slips, the computed value stands here
// and a comment says what is printed:
//   A  KV per token of 110B is printed 0.125M; 80 layers x 2 x 8192/8 is 0.15625M, and the row's W = 3303
//      agrees.
//   B  "110B (no GQA)" is printed with intermediate size 24576, but every figure of it follows from 49152.
//   C  In both turning-point tables the first of the two columns headed "w4kv16 exact" is the rough one.
//   D  The memory tables print the active parameters loosely: 12.6B for 12.47B, 66B for 66.16B, 102B for
//      102.41B, and for the two rows without GQA those of the row with it (29.6B for 32.05B, 102B for
//      111.16B). The capacities beside them follow from the exact counts.
//   E  B is said to leave the first token's KV out, but its digits include it (72B: 131.28, not 131.27).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "celer/limits.h"
#include "limits/model_presets.h"

namespace celer {
namespace {

constexpr double kB = 1073741824.0, kM = 1048576.0;

LlmShape Model(const std::string& name) {
  const auto shape = FindPlainPreset("qwen1.5-" + name);
  EXPECT_TRUE(shape) << name;
  return *shape;
}

Machine Rtx4090() {
  const auto machine = FindMachinePreset("rtx4090");
  EXPECT_TRUE(machine);
  return InUnits(*machine, Units::kBinary);
}

LlmSetup Bits(double weights, double kv) {
  LlmSetup setup;
  setup.weight_bits = weights;
  setup.kv_bits = kv;
  return setup;
}

// The tables of section 3 and 4 are those of section 5.1 without the rows that concern GQA.
const std::vector<std::string> kFamily = {"0.5b",      "1.8b", "4b",  "7b",         "14b",
                                          "32b-nogqa", "32b",  "72b", "110b-nogqa", "110b"};

// --- 3.1 and 5.1.1: parameters -----------------------------------------------------------------------------

struct ParamsRow {
  const char* model;
  int64_t vocab, hidden, layers, intermediate, groups;
  const char *lp, *hp, *ap, *tp;
};
constexpr ParamsRow kParams[] = {
    {"0.5b", 151936, 1024, 24, 2816, 1, "0.29B", "0.14B", "0.43B", "0.58B"},
    {"1.8b", 151936, 2048, 24, 5504, 1, "1.13B", "0.29B", "1.42B", "1.71B"},
    {"4b", 151936, 2560, 40, 6912, 1, "2.95B", "0.36B", "3.32B", "3.68B"},
    {"7b", 151936, 4096, 32, 11008, 1, "6.03B", "0.58B", "6.61B", "7.19B"},
    {"14b", 152064, 5120, 40, 13696, 1, "11.74B", "0.73B", "12.47B", "13.19B"},
    {"32b-nogqa", 152064, 5120, 64, 27392, 1, "31.33B", "0.73B", "32.05B", "32.78B"},
    {"32b", 152064, 5120, 64, 27392, 5, "28.83B", "0.73B", "29.55B", "30.28B"},
    {"72b", 152064, 8192, 80, 24576, 1, "65.00B", "1.16B", "66.16B", "67.32B"},
    {"110b-nogqa", 152064, 8192, 80, 49152, 1, "110.00B", "1.16B", "111.16B",
     "112.32B"},  // slip B: 24576 printed
    {"110b", 152064, 8192, 80, 49152, 8, "101.25B", "1.16B", "102.41B", "103.57B"},
};

TEST(LimitsGolden, Parameters) {
  for (const ParamsRow& row : kParams) {
    SCOPED_TRACE(row.model);
    const LlmShape s = Model(row.model);
    ASSERT_TRUE(Validate(s));
    EXPECT_EQ(s.vocab, row.vocab);
    EXPECT_EQ(s.hidden, row.hidden);
    EXPECT_EQ(s.layers, row.layers);
    EXPECT_EQ(s.intermediate, row.intermediate);
    EXPECT_EQ(s.heads / s.kv_heads, row.groups);
    EXPECT_EQ(s.heads * s.head_dim, row.hidden);
    const LlmParams p = CountParams(s);
    EXPECT_EQ(fmt::format("{:.2f}B", p.layers / kB), row.lp);
    EXPECT_EQ(fmt::format("{:.2f}B", p.lm_head / kB), row.hp);
    EXPECT_EQ(fmt::format("{:.2f}B", p.active / kB), row.ap);
    EXPECT_EQ(fmt::format("{:.2f}B", p.total / kB), row.tp);
    EXPECT_EQ(p.layers, p.layers_active);
    // The published formula, word for word.
    const int64_t h = row.hidden, i = row.intermediate, g = row.groups;
    EXPECT_EQ(p.layers, row.layers * ((h + 1) * h + 2 * ((h + 1) * h / g) + h * h + 3 * h * i));
  }
}

// Section 3.1 works the 0.5B model out by hand; what it calls the total (442.375M = 0.432B) is the active
// count, and its 4M and 294M leave the biases out.
TEST(LimitsGolden, WorkedExample) {
  LlmShape s = Model("0.5b");
  EXPECT_EQ(fmt::format("{:.3f}", CountParams(s).lm_head / kM), "148.375");
  EXPECT_EQ(fmt::format("{:.3f}", CountParams(s).active / kB), "0.432");
  s.qkv_bias = false;
  EXPECT_EQ(CountParams(s).layers / kM, 294.0);
  EXPECT_EQ(CountParams(s).active / kM, 442.375);
}

// --- 3.2 and 5.1.2: KV per token ---------------------------------------------------------------------------

TEST(LimitsGolden, KvPerToken) {
  const std::pair<const char*, const char*> rows[] = {
      {"0.5b", "0.046875M"},   {"1.8b", "0.09375M"},    {"4b", "0.1953125M"}, {"7b", "0.25M"},
      {"14b", "0.390625M"},    {"32b-nogqa", "0.625M"}, {"32b", "0.125M"},    {"72b", "1.25M"},
      {"110b-nogqa", "1.25M"}, {"110b", "0.15625M"},  // slip A: 0.125M printed
  };
  for (const auto& [model, printed] : rows)
    EXPECT_EQ(fmt::format("{}M", KvParamsPerToken(Model(model)) / kM), printed) << model;
}

// --- 3.3 and 5.1.3: tokens of KV that fit into 24 GiB ------------------------------------------------------

struct CapacityRow {
  const char* model;
  std::array<const char*, 5> tokens;  // w16kv16 w8kv16 w4kv16 w6kv16 w4kv8
};
constexpr CapacityRow kCapacity[] = {
    {"0.5b", {"252705", "257424", "259784", "258604", "519568"}},
    {"1.8b", {"115553", "123312", "127192", "125252", "254384"}},
    {"4b", {"45525", "54220", "58567", "56393", "117134"}},
    {"7b", {"22072", "35612", "42382", "38997", "84764"}},
    {"14b", {"oom", "15114", "23285", "19199", "46571"}},
    {"32b-nogqa", {"oom", "oom", "6531", "oom", "13062"}},
    {"32b", {"oom", "oom", "37778", "7515", "75556"}},
    {"72b", {"oom", "oom", "oom", "oom", "oom"}},
    {"110b-nogqa", {"oom", "oom", "oom", "oom", "oom"}},
    {"110b", {"oom", "oom", "oom", "oom", "oom"}},
};

TEST(LimitsGolden, KvCapacity) {
  const LlmSetup setups[] = {Bits(16, 16), Bits(8, 16), Bits(4, 16), Bits(6, 16), Bits(4, 8)};
  for (const CapacityRow& row : kCapacity)
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const auto tokens = KvCapacityTokens(Model(row.model), Rtx4090(), setups[i]);
      EXPECT_EQ(tokens ? std::to_string(*tokens) : "oom", row.tokens[i])
          << row.model << " " << SetupName(setups[i]);
    }
}

// The second column of the memory tables, see slip D.
TEST(LimitsGolden, ActiveParametersOfTheMemoryTables) {
  const struct {
    const char* model;
    const char* printed;
    const char* exact;
  } rows[] = {{"0.5b", "0.43B", "0.43B"}, {"1.8b", "1.42B", "1.42B"}, {"4b", "3.32B", "3.32B"},
              {"7b", "6.61B", "6.61B"},   {"14b", "12.6B", "12.47B"}, {"32b-nogqa", "29.6B", "32.05B"},
              {"32b", "29.6B", "29.55B"}, {"72b", "66B", "66.16B"},   {"110b-nogqa", "102B", "111.16B"},
              {"110b", "102B", "102.41B"}};
  for (const auto& row : rows)
    EXPECT_EQ(fmt::format("{:.2f}B", CountParams(Model(row.model)).active / kB), row.exact)
        << row.model << ", printed " << row.printed;
}

// --- 4.3 and 5.1.4: turning points of prefill --------------------------------------------------------------

struct TurningRow {
  const char* model;
  // w16kv16 rough, exact; w8kv16 rough, exact; w4kv16 rough (slip C), exact
  std::array<const char*, 6> points;
};
constexpr TurningRow kTurning[] = {
    {"0.5b", {"none", "none", "55 170", "none", "23 203", "44 106"}},
    {"1.8b", {"127 245", "none", "48 325", "68 228", "22 351", "29 268"}},
    {"4b", {"116 302", "none", "47 371", "55 317", "22 396", "25 347"}},
    {"7b", {"99 553", "113 481", "45 607", "50 544", "21 630", "23 571"}},
    {"14b", {"95 692", "103 638", "44 743", "47 694", "21 766", "22 718"}},
    {"32b-nogqa", {"90 1175", "92 1144", "43 1222", "44 1192", "21 1244", "21 1215"}},
    {"32b", {"85 6051", "87 5898", "42 6094", "43 5942", "21 6115", "21 5964"}},
    {"72b", {"90 1216", "92 1191", "43 1263", "44 1239", "21 1285", "21 1262"}},
    {"110b-nogqa", {"87 2108", "88 2084", "42 2153", "43 2130", "21 2175", "21 2151"}},
    {"110b", {"84 17602", "85 17400", "42 17644", "42 17443", "20 17665", "21 17464"}},
};

TEST(LimitsGolden, TurningPoints) {
  for (const TurningRow& row : kTurning)
    for (size_t i = 0; i < row.points.size(); ++i) {
      const LlmSetup setup = Bits(std::array{16.0, 8.0, 4.0}[i / 2], 16);
      const HeadRows head = i % 2 == 0 ? HeadRows::kRough : HeadRows::kExact;
      const auto points = PrefillTurningPoints(Model(row.model), Rtx4090(), setup, head);
      const std::string got =
          points ? fmt::format("{} {}", std::floor(points->first), std::floor(points->second)) : "none";
      EXPECT_EQ(got, row.points[i]) << row.model << " " << SetupName(setup) << (i % 2 ? " exact" : " rough");
    }
}

// --- 4.4 and 5.1.5: decode as (n - 1) / W + B --------------------------------------------------------------

struct DecodeRow {
  const char* model;
  const char* w;                 // the same for the three, as only the KV width matters
  std::array<const char*, 3> b;  // w16kv16 w8kv16 w4kv16
};
constexpr DecodeRow kDecode[] = {
    {"0.5b", "11010", {"0.86ms", "0.43ms", "0.21ms"}},
    {"1.8b", "5505", {"2.82ms", "1.41ms", "0.70ms"}},
    {"4b", "2642", {"6.58ms", "3.29ms", "1.65ms"}},
    {"7b", "2064", {"13.12ms", "6.56ms", "3.28ms"}},
    {"14b", "1321", {"24.74ms", "12.37ms", "6.19ms"}},
    {"32b-nogqa", "826", {"63.60ms", "31.80ms", "15.90ms"}},
    {"32b", "4129", {"58.64ms", "29.32ms", "14.66ms"}},
    {"72b", "413", {"131.28ms", "65.64ms", "32.82ms"}},
    {"110b-nogqa", "413", {"220.56ms", "110.28ms", "55.14ms"}},
    {"110b", "3303", {"203.20ms", "101.60ms", "50.80ms"}},
};

TEST(LimitsGolden, DecodeForm) {
  for (const DecodeRow& row : kDecode)
    for (size_t i = 0; i < row.b.size(); ++i) {
      const LlmSetup setup = Bits(std::array{16.0, 8.0, 4.0}[i], 16);
      const DecodeForm form = DecodeWB(Model(row.model), Rtx4090(), setup);
      EXPECT_EQ(fmt::format("{:.0f}", form.w_tokens_per_ms), row.w) << row.model << " " << SetupName(setup);
      EXPECT_EQ(fmt::format("{:.2f}ms", form.b_ms), row.b[i]) << row.model << " " << SetupName(setup);
      // B is prefill of one token, as the text says.
      EXPECT_NEAR(1e3 * PrefillLimit(Model(row.model), Rtx4090(), setup, 1).read_s(), form.b_ms,
                  1e-9 * form.b_ms);
    }
}

// "7B w8kv16 at 10,000 tokens: about 11.56 ms", where the text rounds 4.84 ms up to 5 ms.
TEST(LimitsGolden, DecodeAtTenThousandTokens) {
  const PhaseLimit step = DecodeLimit(Model("7b"), Rtx4090(), Bits(8, 16), 10000);
  EXPECT_EQ(fmt::format("{:.2f}", 1e3 * step.seconds()), "11.40");
  EXPECT_EQ(step.bound(), Bound::kWeightRead);
}

// Every row of every table is there, and the tables of sections 3 and 4 are subsets of them.
TEST(LimitsGolden, TablesAreComplete) {
  const auto names = [](const auto& rows) {
    std::vector<std::string> out;
    for (const auto& row : rows) out.emplace_back(row.model);
    return out;
  };
  EXPECT_EQ(names(kParams), kFamily);
  EXPECT_EQ(names(kCapacity), kFamily);
  EXPECT_EQ(names(kTurning), kFamily);
  EXPECT_EQ(names(kDecode), kFamily);
}

// --- 6.1: the theoretical rows of the measurements ---------------------------------------------------------

TEST(LimitsGolden, PrefillComputeLatencyBesideTheMeasurements) {
  const int64_t prompts[] = {25, 100, 200, 300, 400, 500};
  const std::pair<const char*, std::array<const char*, 6>> rows[] = {
      {"0.5b", {"0.26", "1.03", "2.07", "3.11", "4.17", "5.25"}},
      {"1.8b", {"0.84", "3.37", "6.76", "10.18", "13.62", "17.07"}},
      {"4b", {"1.96", "7.87", "15.78", "23.74", "31.74", "39.79"}},
      {"7b", {"3.91", "15.67", "31.39", "47.17", "63.01", "78.91"}},
  };
  for (const auto& [model, printed] : rows)
    for (size_t i = 0; i < printed.size(); ++i) {
      const PhaseLimit limit =
          PrefillLimit(Model(model), Rtx4090(), Bits(16, 16), prompts[i], HeadRows::kRough);
      EXPECT_EQ(fmt::format("{:.2f}", 1e3 * limit.compute_s), printed[i]) << model << " " << prompts[i];
    }
}

TEST(LimitsGolden, ModelSizesBesideTheMeasurements) {
  const std::pair<const char*, const char*> rows[] = {
      {"0.5b", "1.15GB"}, {"1.8b", "3.42GB"}, {"4b", "7.36GB"},    {"7b", "14.38GB"},
      {"14b", "26.39GB"}, {"32b", "60.56GB"}, {"72b", "134.64GB"}, {"110b", "207.14GB"}};
  for (const auto& [model, printed] : rows)
    EXPECT_EQ(fmt::format("{:.2f}GB", 2 * CountParams(Model(model)).total / kB), printed) << model;
}

}  // namespace
}  // namespace celer
