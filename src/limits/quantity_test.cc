#include "limits/quantity.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(Quantity, ParsesBytesInBothUnitSystems) {
  EXPECT_EQ(*ParseBytes("24GiB", Units::kSi, "--memory"), 24.0 * (1 << 30));
  EXPECT_EQ(*ParseBytes("24 GB", Units::kSi, "--memory"), 24e9);
  EXPECT_EQ(*ParseBytes("24GB", Units::kBinary, "--memory"), 24.0 * (1 << 30));
  EXPECT_EQ(*ParseBytes("1.5MB", Units::kSi, "--memory"), 1.5e6);
  EXPECT_EQ(*ParseBytes("7B", Units::kSi, "--memory"), 7);
  EXPECT_EQ(*ParseBytesPerSecond("1008GB/s", Units::kSi, "--bandwidth"), 1008e9);
  EXPECT_EQ(*ParseBytesPerSecond("1.2TB/s", Units::kSi, "--bandwidth"), 1.2e12);
  EXPECT_EQ(*ParseBytesPerSecond("1GiB/s", Units::kSi, "--bandwidth"), double(1 << 30));
}

TEST(Quantity, RefusesImpossibleBytesWithOneSentence) {
  const std::pair<const char*, const char*> cases[] = {
      {"24", "--memory 24: the unit is missing, write it like 24GiB"},
      {"24XB", "--memory 24XB: unknown unit 'XB', write it like 24GiB"},
      {"24GBit", "--memory 24GBit: unknown unit 'GBit', write it like 24GiB"},
      {"0GiB", "--memory 0GiB: must be above 0"},
      {"-1GiB", "--memory -1GiB: must be above 0"},
      {"nanGiB", "--memory nanGiB: must be a finite number"},
      {"infGiB", "--memory infGiB: must be a finite number"},
      {"1e400GiB", "--memory 1e400GiB: the number is too large or too small"},
      {"1e20GiB", "--memory 1e20GiB: no machine has that much"},
      {"", "--memory '': not a number"},
      {"lots", "--memory 'lots': not a number"},
  };
  for (const auto& [text, sentence] : cases) {
    const auto bytes = ParseBytes(text, Units::kSi, "--memory");
    ASSERT_FALSE(bytes) << text;
    EXPECT_EQ(bytes.error().message(), sentence);
  }
}

TEST(Quantity, ParsesNumbersAndCounts) {
  EXPECT_EQ(*ParsePositive("4.5", 64, "--weights-bits"), 4.5);
  for (const char* bad : {"0", "-4", "nan", "inf", "1e999", "65", "4bits", "", "0x8"})
    EXPECT_FALSE(ParsePositive(bad, 64, "--weights-bits")) << bad;
  EXPECT_EQ(*ParseCount("4096", 1 << 20, "--context"), 4096);
  EXPECT_EQ(*ParseCount("4k", 1 << 20, "--context"), 4096);
  for (const char* bad : {"0", "-1", "1.5", "99999999999999999999", "1048577", "1025k", "x", "", "4kk"})
    EXPECT_FALSE(ParseCount(bad, 1 << 20, "--context")) << bad;
  EXPECT_EQ(ParseCount("0", 1000000, "--batch").error().message(), "--batch 0: must be from 1 to 1,000,000");
}

TEST(Quantity, FloorSaturates) {
  EXPECT_EQ(Floor(2.9), 2);
  EXPECT_EQ(Floor(-0.5), -1);
  EXPECT_EQ(Floor(1e300), 9000000000000000000);
}

TEST(Quantity, Formats) {
  EXPECT_EQ(FormatBytes(14.2e9), "14.2 GB");
  EXPECT_EQ(FormatBytes(524288, Units::kBinary), "512 KiB");
  EXPECT_EQ(FormatBytes(999.9e6), "1.00 GB");
  EXPECT_EQ(FormatBandwidth(1008e9), "1008 GB/s");
  EXPECT_EQ(FormatBandwidth(55e9), "55.0 GB/s");
  EXPECT_EQ(FormatFlops(82.58e12), "82.58 TFLOP/s");
  EXPECT_EQ(FormatFlops(166.4e9), "166.4 GFLOP/s");
  EXPECT_EQ(FormatSeconds(0.0131), "13.1 ms");
  EXPECT_EQ(FormatSeconds(31.2e-6), "31.2 us");
  EXPECT_EQ(FormatSeconds(2), "2.00 s");
  EXPECT_EQ(FormatNumber(1), "1.00");
  EXPECT_EQ(FormatNumber(83.04), "83.0");
  EXPECT_EQ(FormatNumber(6354), "6354");
  EXPECT_EQ(FormatNumber(0), "0.00");
  EXPECT_EQ(FormatCount(22072), "22,072");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
  EXPECT_EQ(FormatBandwidth(936e9), "936 GB/s");
  EXPECT_EQ(FormatParams(7.1e9), "7.10B");
  EXPECT_EQ(FormatParams(134.5e6), "134M");
  EXPECT_EQ(FormatParams(6.61 * 1073741824.0, Units::kBinary), "6.61B");
}

}  // namespace
}  // namespace celer
