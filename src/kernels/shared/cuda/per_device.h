// Properties of a GPU that are queried once and cached: what a function static would hold, if a process had
// one GPU only.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

namespace celer::cuda {

// The number of the calling thread's current GPU; -1 if there is none.
int CurrentDevice();

// One value per device, made the first time it is wanted there. Threads may ask at the same time. Tests give
// a function of their own for the current device.
template <class T, int (*kCurrentDevice)() = CurrentDevice>
class PerDevice {
 public:
  template <class Make>
  T Get(const Make& make) {
    const int device = kCurrentDevice();
    if (device < 0 || device >= kRemembered) return make();
    Slot& slot = slots_[static_cast<size_t>(device)];
    if (!slot.made.load(std::memory_order_acquire)) {
      const std::lock_guard lock(making_);
      if (!slot.made.load(std::memory_order_relaxed)) {
        slot.value = make();
        slot.made.store(true, std::memory_order_release);
      }
    }
    return slot.value;
  }

 private:
  static constexpr int kRemembered = 64;  // devices; those beyond are asked every time
  struct Slot {
    std::atomic<bool> made = false;
    T value = {};
  };
  std::array<Slot, kRemembered> slots_;
  std::mutex making_;
};

// Of the current device.
int Multiprocessors();
// Whether the driver took the code of compute capability 9.0 there; else kernels are generic (target.cuh).
bool HopperCode();
// Bytes of shared memory that a block may have there, or on the GPU that CELER_CUDA_ARCH names.
int SharedLimit();

}  // namespace celer::cuda
