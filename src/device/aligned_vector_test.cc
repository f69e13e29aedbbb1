#include "device/aligned_vector.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace celer {
namespace {

TEST(AlignedVector, StartsLinesAndHugePagesAndKeepsItsElements) {
  AlignedVector<float> v(3, 1.5f);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data()) % 64, 0u);
  v.resize(600'000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data()) % (2 << 20), 0u);
  EXPECT_EQ(v[2], 1.5f);
  EXPECT_EQ(v[3], 0.0f);
  EXPECT_EQ(v.back(), 0.0f);
}

}  // namespace
}  // namespace celer
