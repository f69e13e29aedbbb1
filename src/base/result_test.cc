#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace celer {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return Error::Invalid("value ", value, " is odd; use ", value + 1);
  return value / 2;
}

Result<int> Quarter(int value) {
  CELER_ASSIGN(const int half, Half(value));
  CELER_ASSIGN(const int quarter, Half(half));  // twice in one scope
  return quarter;
}

Status CheckQuarter(int value) {
  CELER_RETURN_IF_ERROR(Quarter(value));
  CELER_RETURN_IF_ERROR(Status());
  return {};
}

TEST(Result, HoldsAValueOrAnError) {
  const auto good = Half(10);
  ASSERT_TRUE(good);
  EXPECT_TRUE(good.has_value());
  EXPECT_EQ(*good, 5);
  const auto bad = Half(7);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Error::Code::kInvalid);
  EXPECT_EQ(bad.error().message(), "value 7 is odd; use 8");
}

TEST(Result, AssignPassesErrorsOn) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(7).error().message(), "value 7 is odd; use 8");
  EXPECT_EQ(Quarter(6).error().message(), "value 3 is odd; use 4");
  EXPECT_TRUE(CheckQuarter(8));
  EXPECT_EQ(CheckQuarter(6).error().message(), "value 3 is odd; use 4");
}

TEST(Result, CarriesMoveOnlyValues) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(3); };
  const auto use = [&]() -> Result<int> {
    CELER_ASSIGN(auto owned, make());
    return *owned;
  };
  EXPECT_EQ(*use(), 3);
  std::unique_ptr<int> taken = *make();
  EXPECT_EQ(*taken, 3);
  auto result = make();
  EXPECT_EQ(**result, 3);
}

TEST(Result, ArrowReachesTheValue) {
  Result<std::vector<int>> result(std::vector<int>{1, 2});
  result->push_back(3);
  EXPECT_EQ(result->size(), 3u);
  EXPECT_EQ(std::move(result).value().back(), 3);
}

TEST(Status, IsGoodByDefault) {
  EXPECT_TRUE(Status());
  const Status bad = Error::Io("disk");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Error::Code::kIo);
}

TEST(Error, EveryKindHasItsCode) {
  EXPECT_EQ(Error::Invalid("x").code(), Error::Code::kInvalid);
  EXPECT_EQ(Error::NotFound("x").code(), Error::Code::kNotFound);
  EXPECT_EQ(Error::Corrupt("x").code(), Error::Code::kCorrupt);
  EXPECT_EQ(Error::Unsupported("x").code(), Error::Code::kUnsupported);
  EXPECT_EQ(Error::OutOfMemory("x").code(), Error::Code::kOutOfMemory);
  EXPECT_EQ(Error::Io("x").code(), Error::Code::kIo);
  EXPECT_EQ(Error::Device("x").code(), Error::Code::kDevice);
  EXPECT_EQ(Error::Cancelled("x").code(), Error::Code::kCancelled);
}

TEST(Error, ContextGoesInFront) {
  const Error error = Error::Corrupt("row ", 3, " is short").WithContext("model.gguf");
  EXPECT_EQ(error.message(), "model.gguf: row 3 is short");
  EXPECT_EQ(error.code(), Error::Code::kCorrupt);
}

}  // namespace
}  // namespace celer
