#include "device/buffer.h"

#include <utility>

namespace celer {

Result<Buffer> Buffer::Allocate(Allocator& from, size_t bytes) {
  CELER_ASSIGN(void* data, from.Allocate(bytes));
  Buffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  buffer.device_ = from.device();
  buffer.allocator_ = &from;
  return buffer;
}

Buffer Buffer::Borrow(Device device, std::span<std::byte> bytes) {
  Buffer buffer;
  buffer.data_ = bytes.data();
  buffer.size_ = bytes.size();
  buffer.device_ = device;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(std::exchange(other.device_, Device::Cpu())),
      allocator_(std::exchange(other.allocator_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  device_ = std::exchange(other.device_, Device::Cpu());
  allocator_ = std::exchange(other.allocator_, nullptr);
  return *this;
}

void Buffer::Release() {
  if (allocator_ != nullptr) allocator_->Free(data_);
}

}  // namespace celer
