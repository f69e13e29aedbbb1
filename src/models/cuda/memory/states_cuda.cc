#include "models/cuda/memory/states.h"

#include <cuda_runtime_api.h>

#include "base/safe_math.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "models/recurrent_state.h"

namespace celer {

cuda::DeltaNetShape DeviceDeltaShape(const RecurrentConfig& c) {
  return {.key_heads = static_cast<int>(c.key_heads),
          .key_dim = static_cast<int>(c.key_dim),
          .value_heads = static_cast<int>(c.value_heads),
          .value_dim = static_cast<int>(c.value_dim),
          .conv_kernel = static_cast<int>(c.conv_kernel),
          .tiled_values = c.tiled_values};
}

int64_t DeviceStateBytes(const RecurrentConfig& c) {
  return RecurrentLayers(c) * DeviceDeltaShape(c).StateFloats() * static_cast<int64_t>(sizeof(float));
}

Status CheckStatesRunOnGpu(const RecurrentConfig& c) {
  if (c.layer.empty() || c.key_dim <= cuda::kMaxDeltaKeys) return {};
  return Error::Unsupported("recurrent layers with keys of ", c.key_dim, " do not run on the GPU (",
                            cuda::kMaxDeltaKeys, " at most); use `device` cpu");
}

Result<std::unique_ptr<CudaStates>> CudaStates::Make(int device, const RecurrentConfig& config,
                                                     int64_t slots) {
  const CudaDeviceScope scope(device);
  auto states = std::unique_ptr<CudaStates>(new CudaStates);
  states->device_ = device;
  states->slots_ = slots;
  states->stride_ = DeviceStateBytes(config) / static_cast<int64_t>(sizeof(float));
  const auto bytes = CheckedMul(slots, DeviceStateBytes(config));
  if (slots < 1 || !bytes) return Error::Invalid("states of ", slots, " sequences");
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  CELER_ASSIGN(states->memory_, Buffer::Allocate(*allocator, static_cast<size_t>(*bytes)));
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(states->memory_.data(), 0, states->memory_.size()), "clearing states"));
  auto* at = reinterpret_cast<float*>(states->memory_.data());
  for (const bool recurrent : config.layer) {
    states->layers_.push_back(recurrent ? at : nullptr);
    if (recurrent) at += DeviceDeltaShape(config).StateFloats();
  }
  // cudaMemset went to the default stream, for which other streams do not wait.
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "clearing states"));
  return states;
}

Status CudaStates::Copy(std::span<const BlockCopy> copies, cudaStream_t stream) {
  const CudaDeviceScope scope(device_);
  const auto bytes = static_cast<size_t>(stride_) * sizeof(float);
  for (const auto& [from, to] : copies) {
    if (from < 0 || from >= slots_ || to < 0 || to >= slots_)
      return Error::Invalid("copying state ", from, " to ", to, " of ", slots_);
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(memory_.data() + static_cast<size_t>(to) * bytes,
                                                     memory_.data() + static_cast<size_t>(from) * bytes,
                                                     bytes, cudaMemcpyDeviceToDevice, stream),
                                     "copying states"));
  }
  return {};
}

}  // namespace celer
