#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/cuda_allocator.h"
#include "core/cuda_status.h"
#include "core/log.h"
#include "weights/device_weights.h"
#include "weights/repack_cuda.h"

namespace celer::cuda {
namespace {

DeviceMatrix Shaped(Format format, int64_t rows, int64_t cols, int64_t group) {
  DeviceMatrix m;
  m.format = format;
  m.rows = static_cast<int>(rows);
  m.cols = static_cast<int>(cols);
  m.padded = static_cast<int>((cols + kColumnPad - 1) / kColumnPad * kColumnPad);
  m.row_bytes = PaddedRowBytes(format, cols);
  m.group = static_cast<int>(group);
  return m;
}

}  // namespace

std::string FormatName(const DeviceMatrix& m) {
  switch (m.format) {
    case Format::kF32:
      return "f32";
    case Format::kF16:
      return "f16";
    case Format::kBf16:
      return "bf16";
    case Format::kInt8:
      return m.group > 0 ? "int8-g" + std::to_string(m.group) : "int8";
    case Format::kInt4:
      return "int4-g" + std::to_string(m.group);
    case Format::kInt4Wide:
      return "int4-g" + std::to_string(m.group) + " with f32 scales";
  }
  return "";
}

Result<DeviceWeights> DeviceWeights::Create(int device, WeightOptions options) {
  DeviceWeights out;
  out.device_ = device;
  out.options_ = options;
  CELER_ASSIGN(Stream stream, Stream::Create(device));
  out.stream_ = std::make_unique<Stream>(std::move(stream));
  return out;
}

DeviceMatrix DeviceWeights::Plan(const WeightView& host, WeightStore::Role role) const {
  WeightFormat format = options_.format;
  int64_t group = options_.group;
  if (format == WeightFormat::kInt4 && role != WeightStore::Role::kProjection) {
    format = WeightFormat::kInt8;
    group = 0;
  }
  // Products take 32 columns at a time, and groups do not cross the 128 that share a scale of x.
  const auto fits = [&](int64_t g) { return (g == 32 || g == 64 || g == 128) && host.cols % g == 0; };
  switch (format) {
    case WeightFormat::kF32:
      return Shaped(Format::kF32, host.rows, host.cols, 0);
    case WeightFormat::kF16:
      return Shaped(Format::kF16, host.rows, host.cols, 0);
    case WeightFormat::kBf16:
      return Shaped(Format::kBf16, host.rows, host.cols, 0);
    case WeightFormat::kInt8:
      return Shaped(Format::kInt8, host.rows, host.cols, fits(group) ? group : 0);
    case WeightFormat::kInt4:
      return fits(group) ? Shaped(Format::kInt4, host.rows, host.cols, group)
                         : Shaped(Format::kInt8, host.rows, host.cols, 0);
    case WeightFormat::kAsStored:
      break;
  }
  if (host.kind == WeightView::Kind::kInt8) {
    if (host.group == host.cols) return Shaped(Format::kInt8, host.rows, host.cols, 0);
    return fits(host.group) ? Shaped(Format::kInt8, host.rows, host.cols, host.group)
                            : Shaped(Format::kF32, host.rows, host.cols, 0);
  }
  switch (host.dtype) {
    case DType::kF32:
      return Shaped(Format::kF32, host.rows, host.cols, 0);
    case DType::kBf16:
      return Shaped(Format::kBf16, host.rows, host.cols, 0);
    case DType::kQ8_0:
      return Shaped(Format::kInt8, host.rows, host.cols, 32);
    case DType::kQ4_0:
    case DType::kQ4_1:
      return Shaped(Format::kInt4, host.rows, host.cols, 32);
    case DType::kQ4_K:
      return Shaped(Format::kInt4Wide, host.rows, host.cols, 32);
    case DType::kQ5_0:
      return Shaped(Format::kInt8, host.rows, host.cols, 32);
    case DType::kQ3_K:
    case DType::kQ6_K:
      return Shaped(Format::kInt8, host.rows, host.cols, 16);
    case DType::kQ2_K:
      return Shaped(Format::kInt4Wide, host.rows, host.cols, 16);
    default:  // f16; q5_1 and q5_k, 5 bits with a minimum, are rounded to its 11 bits
      return Shaped(Format::kF16, host.rows, host.cols, 0);
  }
}

int64_t DeviceWeights::PlannedBytes(const DeviceMatrix& plan) {
  return plan.bytes();
}

Result<std::byte*> DeviceWeights::Own(int64_t bytes) {
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  CELER_ASSIGN(Buffer buffer, Buffer::Allocate(*allocator, static_cast<size_t>(bytes)));
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(bytes), stream_->get()), "clearing GPU memory"));
  buffers_.push_back(std::move(buffer));
  device_bytes_ += bytes;
  int64_t staging = 0;
  for (const Staging& s : staging_) staging += static_cast<int64_t>(s.device.size() + s.scales_device.size());
  peak_bytes_ = std::max(peak_bytes_, device_bytes_ + staging);
  return buffers_.back().data();
}

Result<std::vector<DeviceMatrix>> DeviceWeights::Place(std::span<const DeviceMatrix> plans) {
  const CudaDeviceScope scope(device_);
  std::vector<DeviceMatrix> out(plans.begin(), plans.end());
  int64_t data = 0, scales = 0;
  const auto aligned = [](int64_t n) { return (n + 255) / 256 * 256; };
  for (const DeviceMatrix& m : out) {
    data += m.data_bytes();
    scales += aligned(ScaleArrayBytes(m.format, m.rows, m.padded, m.group));
  }
  CELER_ASSIGN(std::byte * at, Own(aligned(data) + scales));
  std::byte* scales_at = at + aligned(data);
  for (DeviceMatrix& m : out) {
    m.data = at;
    at += m.data_bytes();
    if (const int64_t bytes = ScaleArrayBytes(m.format, m.rows, m.padded, m.group)) {
      m.scales = scales_at;
      scales_at += aligned(bytes);
    }
    bytes_by_format_[FormatName(m)] += m.bytes();
  }
  return out;
}

Result<std::vector<DeviceMatrix>> DeviceWeights::Upload(std::span<const MatrixSource> sources) {
  const CudaDeviceScope scope(device_);
  std::vector<DeviceMatrix> plans;
  for (const MatrixSource& source : sources) plans.push_back(Plan(source.host, source.role));
  CELER_ASSIGN(std::vector<DeviceMatrix> placed, Place(plans));
  for (size_t i = 0; i < sources.size(); ++i) CELER_RETURN_IF_ERROR(Fill(sources[i], placed[i]));
  return placed;
}

Result<std::vector<DeviceMatrix>> DeviceWeights::Random(std::span<const DeviceMatrix> plans) {
  CELER_ASSIGN(std::vector<DeviceMatrix> placed, Place(plans));
  const CudaDeviceScope scope(device_);
  for (const DeviceMatrix& m : placed)
    CELER_RETURN_IF_ERROR(CudaStatus(LaunchRandom(m, seed_++, stream_->get()), "filling a matrix"));
  return placed;
}

Status DeviceWeights::Fill(const MatrixSource& source, const DeviceMatrix& target) {
  const WeightView& host = source.host;
  const bool decode = host.kind == WeightView::Kind::kInt4 ||
                      (host.kind == WeightView::Kind::kStored && !CanRepack(host.dtype));
  const int64_t row_bytes = decode ? host.cols * 4 : host.row_bytes;
  int64_t step = std::max<int64_t>(1, kStagingBytes / row_bytes);
  if (source.order.head_dim > 0)
    step = std::max<int64_t>(1, step / source.order.head_dim) * source.order.head_dim;
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  const auto grow = [](Buffer& buffer, Allocator& from, int64_t bytes) -> Status {
    if (static_cast<int64_t>(buffer.size()) >= bytes) return {};
    CELER_ASSIGN(buffer, Buffer::Allocate(from, static_cast<size_t>(bytes)));
    return {};
  };
  for (int64_t row = 0; row < host.rows; row += step) {
    const int64_t rows = std::min(step, host.rows - row);
    Staging& s = staging_[static_cast<size_t>(next_)];
    next_ ^= 1;
    if (!s.done) {
      CELER_ASSIGN(Event event, Event::Create(device_));
      s.done = std::make_unique<Event>(std::move(event));
    } else {
      CELER_RETURN_IF_ERROR(s.done->Synchronize());
    }
    const int64_t bytes = rows * row_bytes, room = std::max(bytes, kStagingBytes);
    CELER_RETURN_IF_ERROR(grow(s.pinned, PinnedAllocator(), room));
    CELER_RETURN_IF_ERROR(grow(s.device, *allocator, room));
    if (decode) {
      for (int64_t r = 0; r < rows; ++r)
        DecodeWeightRow(host, row + r, reinterpret_cast<float*>(s.pinned.data()) + r * host.cols);
    } else {
      // One core does not reach the speed of the bus.
      const int64_t parts =
          std::clamp<int64_t>(bytes >> 22, 1, std::max(1u, std::thread::hardware_concurrency() / 2));
      std::vector<std::thread> helpers;
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t begin = bytes * i / parts, end = bytes * (i + 1) / parts;
        const auto copy = [&s, from = host.Row(row), begin, end] {
          std::memcpy(s.pinned.data() + begin, from + begin, static_cast<size_t>(end - begin));
        };
        if (i + 1 < parts)
          helpers.emplace_back(copy);
        else
          copy();
      }
      for (std::thread& helper : helpers) helper.join();
    }
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(s.device.data(), s.pinned.data(), static_cast<size_t>(bytes),
                                   cudaMemcpyHostToDevice, stream_->get()),
                   "copying weights to the GPU"));
    RepackArgs args;
    args.dtype = decode ? DType::kF32 : host.kind == WeightView::Kind::kInt8 ? DType::kI8 : host.dtype;
    args.source = s.device.data();
    args.source_row_bytes = row_bytes;
    args.first_row = static_cast<int>(row);
    args.rows = static_cast<int>(rows);
    args.head_dim = source.order.head_dim;
    args.rope_dim = source.order.rope_dim;
    args.target = target;
    if (host.kind == WeightView::Kind::kInt8) {
      const int64_t scale_bytes = rows * host.groups_per_row() * 4;
      CELER_RETURN_IF_ERROR(grow(s.scales_pinned, PinnedAllocator(), scale_bytes));
      CELER_RETURN_IF_ERROR(grow(s.scales_device, *allocator, scale_bytes));
      std::memcpy(s.scales_pinned.data(), host.scales + row * host.groups_per_row(),
                  static_cast<size_t>(scale_bytes));
      CELER_RETURN_IF_ERROR(CudaStatus(
          cudaMemcpyAsync(s.scales_device.data(), s.scales_pinned.data(), static_cast<size_t>(scale_bytes),
                          cudaMemcpyHostToDevice, stream_->get()),
          "copying scales to the GPU"));
      args.source_scales = reinterpret_cast<const float*>(s.scales_device.data());
      args.source_group = static_cast<int>(host.group);
    }
    CELER_RETURN_IF_ERROR(CudaStatus(LaunchRepack(args, stream_->get()), "repacking weights on the GPU"));
    CELER_RETURN_IF_ERROR(s.done->Record(*stream_));
  }
  return {};
}

Result<const float*> DeviceWeights::UploadVector(const float* host, int64_t n) {
  if (host == nullptr) return static_cast<const float*>(nullptr);
  const CudaDeviceScope scope(device_);
  CELER_ASSIGN(std::byte * memory, Own((n * 4 + 255) / 256 * 256));
  // Pageable memory: the copy has left the host buffer when this returns.
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(memory, host, static_cast<size_t>(n) * 4, cudaMemcpyHostToDevice, stream_->get()),
      "copying a vector to the GPU"));
  return reinterpret_cast<const float*>(memory);
}

Status DeviceWeights::Finish() {
  CELER_RETURN_IF_ERROR(stream_->Synchronize());
  for (Staging& s : staging_) s = Staging();
  return {};
}

}  // namespace celer::cuda
