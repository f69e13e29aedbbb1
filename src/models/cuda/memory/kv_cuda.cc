#include "models/cuda/memory/kv.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "kernels/llm/kv_blocks/kv_blocks_cuda.h"

namespace celer {
namespace {

constexpr int64_t kPartAlignment = 512;
constexpr int64_t kStagingBytes = int64_t{4} << 20;

int64_t LayersWithKv(const DecoderConfig& config) {
  int64_t count = 0;
  for (int64_t i = 0; i < config.layers; ++i) count += config.HasAttention(i);
  return count;
}

}  // namespace

cuda::DeviceKv DeviceKvShape(const DecoderConfig& config, DType dtype) {
  return {nullptr,
          nullptr,
          dtype,
          static_cast<int>(config.kv_heads),
          static_cast<int>(config.head_dim),
          cuda::DeviceKv::PaddedDim(dtype, config.head_dim)};
}

int64_t DeviceKvBlockBytes(const DecoderConfig& config, DType dtype) {
  return LayersWithKv(config) * KvParts(config) * DeviceKvShape(config, dtype).block_bytes();
}

Result<std::unique_ptr<CudaKv>> CudaKv::Make(int device, const DecoderConfig& config, DType dtype,
                                             int64_t blocks, int64_t host_blocks) {
  const CudaDeviceScope scope(device);
  const cuda::DeviceKv shape = DeviceKvShape(config, dtype);
  // Every layer's keys and values begin where an allocation of their own would.
  const auto part_bytes = [&](int64_t count) {
    return (count * shape.block_bytes() + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  };
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (blocks < 1 || blocks > kMost || host_blocks < 0 || host_blocks > kMost)
    return Error::Invalid("keys and values of ", blocks, " blocks, and ", host_blocks, " on the host");
  auto kv = std::unique_ptr<CudaKv>(new CudaKv);
  kv->device_ = device;
  kv->blocks_ = blocks;
  kv->host_blocks_ = host_blocks;
  const int parts = KvParts(config);
  kv->parts_ = LayersWithKv(config) * parts;
  kv->part_bytes_ = part_bytes(blocks);
  kv->host_part_bytes_ = part_bytes(host_blocks);
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  CELER_ASSIGN(kv->memory_, Buffer::Allocate(*allocator, static_cast<size_t>(kv->parts_ * kv->part_bytes_)));
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(kv->memory_.data(), 0, kv->memory_.size()), "clearing keys and values"));
  if (host_blocks > 0) {
    CELER_ASSIGN(kv->host_,
                 Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(kv->parts_ * kv->host_part_bytes_)));
  }
  std::byte* at = kv->memory_.data();
  for (int64_t i = 0; i < config.layers; ++i) {
    cuda::DeviceKv& layer = kv->layers_.emplace_back(shape);
    if (!config.HasAttention(i)) continue;
    layer.k = at;
    layer.v = at + (parts - 1) * kv->part_bytes_;
    at += parts * kv->part_bytes_;
  }
  // cudaMemset went to the default stream, for which other streams do not wait. Not for the whole device:
  // another stream may be capturing a graph.
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "clearing keys and values"));
  return kv;
}

Status CudaKv::Move(std::span<const BlockCopy> copies, Place from, Place to, const char* what,
                    cudaStream_t stream) {
  const int64_t block_bytes = layers_[0].block_bytes();
  const auto count = [&](Place place) { return place == Place::kHost ? host_blocks_ : blocks_; };
  const auto place = [&](Place which) -> cuda::KvBlockPlace {
    if (which == Place::kNone) return {};
    return which == Place::kHost ? cuda::KvBlockPlace{host_.data(), host_part_bytes_, block_bytes}
                                 : cuda::KvBlockPlace{memory_.data(), part_bytes_, block_bytes};
  };
  for (const BlockCopy& copy : copies)
    if (copy.from < 0 || copy.from >= count(from) || copy.to < 0 || copy.to >= count(to))
      return Error::Invalid(what, ": block ", copy.from, " of ", count(from), " to block ", copy.to, " of ",
                            count(to));
  const CudaDeviceScope scope(device_);
  return CudaStatus(cuda::LaunchMoveKvBlocks({.from = place(from),
                                              .to = place(to),
                                              .parts = static_cast<int>(parts_),
                                              .block_bytes = block_bytes},
                                             copies, stream),
                    what);
}

Status CudaKv::Copy(std::span<const BlockCopy> copies, cudaStream_t stream) {
  return Move(copies, Place::kDevice, Place::kDevice, "copying keys and values", stream);
}

Status CudaKv::SwapOut(std::span<const BlockCopy> copies, cudaStream_t stream) {
  return Move(copies, Place::kDevice, Place::kHost, "swapping keys and values out", stream);
}

Status CudaKv::SwapIn(std::span<const BlockCopy> copies, cudaStream_t stream) {
  return Move(copies, Place::kHost, Place::kDevice, "swapping keys and values in", stream);
}

int64_t CudaKv::block_bytes() const {
  return parts_ * layers_[0].block_bytes();
}

Status CudaKv::InStages(std::span<const int32_t> blocks,
                        const std::function<Status(std::span<const int32_t>, std::span<std::byte>)>& step) {
  const CudaDeviceScope scope(device_);
  const int64_t at_once = std::max<int64_t>(1, kStagingBytes / block_bytes());
  if (staging_.empty()) {
    CELER_ASSIGN(staging_, Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(at_once * block_bytes())));
  }
  const std::span<std::byte> staging{staging_.data(), staging_.size()};
  for (size_t first = 0; first < blocks.size(); first += static_cast<size_t>(at_once)) {
    const auto now = blocks.subspan(first, std::min(static_cast<size_t>(at_once), blocks.size() - first));
    CELER_RETURN_IF_ERROR(step(now, staging.first(now.size() * static_cast<size_t>(block_bytes()))));
  }
  return {};
}

Status CudaKv::MoveStage(std::span<const int32_t> blocks, std::span<std::byte> staging, bool out,
                         cudaStream_t stream) {
  const char* const what = out ? "reading keys and values" : "writing keys and values";
  const int64_t each = layers_[0].block_bytes();
  const cuda::KvBlockPlace pool{memory_.data(), part_bytes_, each};
  const cuda::KvBlockPlace host{staging.data(), each, parts_ * each};
  std::vector<BlockCopy> pairs;
  pairs.reserve(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] < 0 || blocks[i] >= blocks_)
      return Error::Invalid(what, ": block ", blocks[i], " of ", blocks_);
    const auto at = static_cast<int32_t>(i);
    pairs.push_back(out ? BlockCopy{blocks[i], at} : BlockCopy{at, blocks[i]});
  }
  CELER_RETURN_IF_ERROR(CudaStatus(cuda::LaunchMoveKvBlocks({.from = out ? pool : host,
                                                             .to = out ? host : pool,
                                                             .parts = static_cast<int>(parts_),
                                                             .block_bytes = each},
                                                            pairs, stream),
                                   what));
  return CudaStatus(cudaStreamSynchronize(stream), what);
}

Status CudaKv::Read(std::span<const int32_t> blocks, std::span<std::byte> out, cudaStream_t stream) {
  CELER_CHECK_EQ(std::ssize(out), std::ssize(blocks) * block_bytes());
  return InStages(blocks, [&](std::span<const int32_t> now, std::span<std::byte> staging) -> Status {
    CELER_RETURN_IF_ERROR(MoveStage(now, staging, true, stream));
    std::memcpy(out.data(), staging.data(), staging.size());
    out = out.subspan(staging.size());
    return {};
  });
}

Status CudaKv::Write(std::span<const int32_t> blocks, std::span<const std::byte> from, cudaStream_t stream) {
  CELER_CHECK_EQ(std::ssize(from), std::ssize(blocks) * block_bytes());
  return InStages(blocks, [&](std::span<const int32_t> now, std::span<std::byte> staging) {
    std::memcpy(staging.data(), from.data(), staging.size());
    from = from.subspan(staging.size());
    return MoveStage(now, staging, false, stream);
  });
}

Status CudaKv::Clear(std::span<const int32_t> blocks, cudaStream_t stream) {
  std::vector<BlockCopy> to;
  to.reserve(blocks.size());
  for (const int32_t block : blocks) to.push_back({block, block});
  return Move(to, Place::kNone, Place::kDevice, "clearing keys and values", stream);
}

}  // namespace celer
