#include "device/buffer.h"

#include <gtest/gtest.h>

#include <array>
#include <type_traits>
#include <utility>

#include "device/cpu_allocator.h"

namespace celer {
namespace {

static_assert(!std::is_copy_constructible_v<Buffer> && !std::is_copy_assignable_v<Buffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer> && std::is_nothrow_move_assignable_v<Buffer>);

TEST(Buffer, OwnsWhatItAllocates) {
  CpuMemory memory;
  {
    const auto buffer = Buffer::Allocate(memory, 1000);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(buffer->size(), 1000u);
    EXPECT_EQ(buffer->bytes().size(), 1000u);
    EXPECT_EQ(buffer->device(), Device::Cpu());
    EXPECT_TRUE(buffer->owns());
    EXPECT_EQ(memory.Stats().requested, 1000u);
  }
  EXPECT_EQ(memory.Stats().requested, 0u);
}

TEST(Buffer, MovesOwnership) {
  CpuMemory memory;
  Buffer a = *Buffer::Allocate(memory, 64);
  Buffer b = *Buffer::Allocate(memory, 128);
  std::byte* const data = a.data();
  b = std::move(a);
  EXPECT_EQ(memory.Stats().requested, 64u);  // what b had is gone
  EXPECT_EQ(b.data(), data);
  EXPECT_TRUE(a.empty());  // NOLINT: a moved-from buffer is empty
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_FALSE(a.owns());
  Buffer& same = b;
  b = std::move(same);
  EXPECT_EQ(b.data(), data);
  const Buffer c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(memory.Stats().frees, 1u);
}

TEST(Buffer, BorrowsWithoutOwning) {
  std::array<std::byte, 24> mapping{};
  {
    const Buffer buffer = Buffer::Borrow(Device::Cuda(1), mapping);
    EXPECT_EQ(buffer.data(), mapping.data());
    EXPECT_EQ(buffer.size(), 24u);
    EXPECT_EQ(buffer.device(), Device::Cuda(1));
    EXPECT_FALSE(buffer.owns());
  }
  mapping[0] = std::byte{1};  // still ours
}

TEST(Buffer, PassesOnThatThereIsNoMemory) {
  CpuMemory memory(100);
  const auto buffer = Buffer::Allocate(memory, 101);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), Error::Code::kOutOfMemory);
}

TEST(Buffer, MayBeEmpty) {
  const auto buffer = Buffer::Allocate(CpuAllocator(), 0);
  ASSERT_TRUE(buffer);
  EXPECT_TRUE(buffer->empty());
  EXPECT_TRUE(buffer->as<float>().empty());
  EXPECT_TRUE(Buffer().empty());
}

TEST(Buffer, SeenAsElements) {
  const auto buffer = Buffer::Allocate(CpuAllocator(), 3 * sizeof(float));
  ASSERT_TRUE(buffer);
  const std::span<float> floats = buffer->as<float>();
  ASSERT_EQ(floats.size(), 3u);
  floats[2] = 1.5f;
  EXPECT_EQ(static_cast<void*>(floats.data()), buffer->data());
}

TEST(BufferDeathTest, ElementsMustBeWholeAndAligned) {
  alignas(8) std::array<std::byte, 17> bytes{};
  EXPECT_DEATH((void)Buffer::Borrow(Device::Cpu(), bytes).as<float>(), "sizeof");
  EXPECT_DEATH((void)Buffer::Borrow(Device::Cpu(), std::span(bytes).subspan(1)).as<float>(), "alignof");
}

}  // namespace
}  // namespace celer
