// Owns bytes on one device, or borrows a mapping. Move-only; TensorView names what is inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "device/allocator.h"

namespace celer {

class Buffer {
 public:
  Buffer() = default;  // empty, on the CPU
  // `from` must outlive the buffer. The contents are undefined.
  static Result<Buffer> Allocate(Allocator& from, size_t bytes);
  static Buffer Borrow(Device device, std::span<std::byte> bytes);  // the mapping outlives us

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { Release(); }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Device device() const { return device_; }
  bool owns() const { return allocator_ != nullptr; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

  // The bytes as an array of T; CHECKs that they hold whole, aligned elements.
  template <class T>
  std::span<T> as() const {
    CELER_CHECK_EQ(size_ % sizeof(T), 0u);
    CELER_CHECK_EQ(reinterpret_cast<uintptr_t>(data_) % alignof(T), 0u);
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  void Release();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Device device_;
  Allocator* allocator_ = nullptr;  // null when borrowed
};

}  // namespace celer
