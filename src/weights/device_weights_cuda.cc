#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/log.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "weights/device_weights.h"
#include "weights/repack_cuda.h"
#include "weights/sent_rows.h"
#include "weights/value_check.h"

namespace celer::cuda {
namespace {

Status Send(const Buffer& from, Buffer& to, int64_t bytes, cudaStream_t stream, const char* what) {
  return CudaStatus(
      cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
      what);
}

}  // namespace

RepackArgs RepackOf(const MatrixSource& source, const SentRows& sent, const DeviceMatrix& target, int64_t row,
                    int64_t rows) {
  RepackArgs args;
  args.dtype = sent.dtype;
  args.source_row_bytes = sent.row_bytes;
  args.source_group = static_cast<int>(sent.group);
  args.first_row = static_cast<int>(row);
  args.rows = static_cast<int>(rows);
  args.head_dim = source.order.head_dim;
  args.rope_dim = source.order.rope_dim;
  args.target = target;
  return args;
}

Result<DeviceWeights> DeviceWeights::Create(int device, WeightPlan plan) {
  DeviceWeights out;
  out.device_ = device;
  out.plan_ = std::move(plan);
  CELER_ASSIGN(Stream stream, Stream::Create(device));
  out.stream_ = std::make_unique<Stream>(std::move(stream));
  return out;
}

DeviceMatrix DeviceWeights::PlanMatrix(const WeightView& host, WeightRole role) const {
  return DeviceForm(plan_, host, role);
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
  std::byte* at = fed_at_;
  if (fed_at_) {
    fed_at_ += aligned(data) + scales;
  } else {
    CELER_ASSIGN(at, Own(aligned(data) + scales));
  }
  std::byte* scales_at = at + aligned(data);
  for (DeviceMatrix& m : out) {
    m.data = at;
    at += m.data_bytes();
    if (const int64_t bytes = ScaleArrayBytes(m.format, m.rows, m.padded, m.group)) {
      m.scales = scales_at;
      scales_at += aligned(bytes);
    }
    if (!fed_at_) bytes_by_format_[FormatName(m)] += m.bytes();
  }
  return out;
}

Result<std::vector<DeviceMatrix>> DeviceWeights::Upload(std::span<const MatrixSource> sources) {
  const CudaDeviceScope scope(device_);
  std::vector<DeviceMatrix> plans;
  for (const MatrixSource& source : sources) plans.push_back(PlanMatrix(source.host, source.role));
  CELER_ASSIGN(std::vector<DeviceMatrix> placed, Place(plans));
  for (size_t i = 0; i < sources.size(); ++i) {
    if (fed_at_)
      fed_.push_back({sources[i], placed[i]});
    else
      CELER_RETURN_IF_ERROR(Fill(sources[i], placed[i]));
  }
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
  const SentRows sent(host);
  const int64_t row_bytes = sent.row_bytes, row_scale_bytes = sent.scale_row_bytes;
  int64_t step = std::max<int64_t>(1, kStagingBytes / row_bytes);
  if (source.order.head_dim > 0)
    step = std::max<int64_t>(1, step / source.order.head_dim) * source.order.head_dim;
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  const auto grow = [](Buffer& buffer, Allocator& from, int64_t bytes) -> Status {
    if (static_cast<int64_t>(buffer.size()) >= bytes) return {};
    CELER_ASSIGN(buffer, Buffer::Allocate(from, static_cast<size_t>(bytes)));
    return {};
  };
  // Matrices of a file have a name, and are validated while they are copied.
  const ValueRange range = RangeOf(target.format);
  const auto looks_good = [&](int64_t begin, int64_t end) {
    return host.name.empty() || SurelyInRange(host, begin, end, range);
  };
  for (int64_t row = 0; row < host.rows; row += step) {
    const int64_t rows = std::min(step, host.rows - row);
    std::atomic<bool> good = true;
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
    if (row_scale_bytes > 0) {
      CELER_RETURN_IF_ERROR(grow(s.scales_pinned, PinnedAllocator(), rows * row_scale_bytes));
      CELER_RETURN_IF_ERROR(grow(s.scales_device, *allocator, rows * row_scale_bytes));
    }
    if (sent.decoded) {
      sent.Copy(host, row, rows, s.pinned.data(), nullptr);
      good = host.name.empty() ||
             InRange(reinterpret_cast<const float*>(s.pinned.data()), rows * host.cols, range);
    } else {
      // In parallel: one core does not saturate the bus.
      const int64_t parts =
          std::clamp<int64_t>(bytes >> 22, 1, std::max(1u, std::thread::hardware_concurrency() / 2));
      std::vector<std::thread> helpers;
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t begin = rows * i / parts, end = rows * (i + 1) / parts;
        const auto copy = [&, begin, end] {
          sent.Copy(host, row + begin, end - begin, s.pinned.data() + begin * row_bytes,
                    s.scales_pinned.data() + begin * row_scale_bytes);
          if (!looks_good(row + begin, row + end)) good = false;
        };
        if (i + 1 < parts)
          helpers.emplace_back(copy);
        else
          copy();
      }
      for (std::thread& helper : helpers) helper.join();
    }
    if (!good) CELER_RETURN_IF_ERROR(CheckRows(host, row, row + rows, range));
    CELER_RETURN_IF_ERROR(Send(s.pinned, s.device, bytes, stream_->get(), "copying weights to the GPU"));
    RepackArgs args = RepackOf(source, sent, target, row, rows);
    args.source = s.device.data();
    if (row_scale_bytes > 0) {
      CELER_RETURN_IF_ERROR(Send(s.scales_pinned, s.scales_device, rows * row_scale_bytes, stream_->get(),
                                 "copying scales to the GPU"));
      args.source_scales = s.scales_device.data();
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
