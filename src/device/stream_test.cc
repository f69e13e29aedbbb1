#include "device/stream.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

#include "base/device.h"

namespace celer {
namespace {

static_assert(!std::is_copy_constructible_v<Stream> && std::is_nothrow_move_constructible_v<Stream>);
static_assert(!std::is_copy_constructible_v<Event> && std::is_nothrow_move_constructible_v<Event>);

TEST(Stream, ADeviceThatIsNotThereIsAnError) {
  EXPECT_FALSE(Stream::Create(4096));
  EXPECT_FALSE(Event::Create(4096));
}

TEST(Stream, WithoutAGpuOneSentenceSaysSo) {
  if (CudaDeviceCount() > 0) GTEST_SKIP() << "there is a GPU";
  const auto stream = Stream::Create();
  ASSERT_FALSE(stream);
  EXPECT_NE(stream.error().message().find("use `device` cpu"), std::string::npos) << stream.error().message();
}

TEST(Stream, DefaultStreamHasIdZero) {
  Stream stream;
  EXPECT_EQ(stream.get(), nullptr);
  EXPECT_EQ(stream.id(), 0u);
  const Stream moved = std::move(stream);
  EXPECT_EQ(moved.id(), 0u);
}

}  // namespace
}  // namespace celer
