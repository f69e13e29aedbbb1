// Samples that say nothing about a model: noise, one sentence over and over, arrays of zeros.
#include "cli/quantize/samples.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cli/quantize/calibration_text.h"

namespace celer::cli {
namespace {

TEST(CalibrationText, NoiseAndRepetitionAreDoubted) {
  std::string noise, base64, prose, same(4000, 'a');
  uint64_t state = 1;
  const auto next = [&] {
    return static_cast<uint8_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 56);
  };
  const char* const kWords[] = {"the ",    "river ",   "over ", "stone ", "and ",
                                "light, ", "walked. ", "a ",    "house "};
  for (int i = 0; i < 4000; ++i) {
    noise += static_cast<char>(next());
    base64 += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[next() % 64];
    prose += kWords[next() % 9];
  }
  EXPECT_NE(CheckCalibrationText(noise, 3900).find("100.3 %"), std::string::npos)
      << CheckCalibrationText(noise, 3900);
  EXPECT_NE(CheckCalibrationText(base64, 2000).find("noise"), std::string::npos) << CompressionRatio(base64);
  EXPECT_NE(CheckCalibrationText(same, 500).find("over and over"), std::string::npos)
      << CompressionRatio(same);
  EXPECT_EQ(CheckCalibrationText(prose, 9000), "") << CompressionRatio(prose);
  EXPECT_EQ(CheckCalibrationText("short", 2), "");
}

TEST(CalibrationArrays, ConstantOnesAreNamedWithTheirRange) {
  const std::vector<GraphPort> ports = {{.name = "x", .dtype = "f32", .shape = {1, 4}, .dim_names = {}}};
  for (const bool zero : {true, false}) {
    ptq::Samples samples;
    samples.count = 3;
    samples.get = [&](int64_t index) -> Result<std::vector<NpyArray>> {
      NpyArray array{DType::kF32, Shape({1, 4}), std::vector<std::byte>(16)};
      if (!zero) array.bytes[index] = std::byte{1};
      return std::vector<NpyArray>{array};
    };
    RangeWatch watch(ports);
    const ptq::Samples watched = watch.Watched(samples);
    for (int64_t i = 0; i < 6; ++i) ASSERT_TRUE(watched.get(i % 3));
    const auto lines = watch.Warnings("--calibrate");
    ASSERT_EQ(lines.size(), zero ? 1u : 0u);
    if (zero) {
      EXPECT_NE(lines[0].find("3 of 3 samples (range 0 to 0)"), std::string::npos) << lines[0];
    }
  }
}

}  // namespace
}  // namespace celer::cli
