// Puts the weights of a model into the memory of a GPU: piece by piece through pinned staging, converted
// there. The unconverted form of a matrix is never in memory as a whole beside the converted one.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/llm/weight_view.h"
#include "kernels/shared/cuda/device_matrix.h"
#include "weights/device_form.h"
#include "weights/weight_plan.h"

namespace celer {
struct SentRows;
}

namespace celer::cuda {

// Pairs (2i, 2i + 1) of each head that a rope rotates become (i, i + rope_dim / 2). Attention does not see
// the difference, as long as queries and keys agree.
struct HeadOrder {
  int head_dim = 0;  // 0: leave the rows as they are
  int rope_dim = 0;
};

struct MatrixSource {
  WeightView host;
  WeightRole role = WeightRole::kProjection;  // of a matrix that is not in the plan
  HeadOrder order = {};
};

struct RepackArgs;
// Of rows of a matrix, but for where they are on the GPU.
RepackArgs RepackOf(const MatrixSource& source, const SentRows& sent, const DeviceMatrix& target, int64_t row,
                    int64_t rows);

// A matrix that is sent again and again, and where it is then (weight_feed.h).
struct FedMatrix {
  MatrixSource source;
  DeviceMatrix target;
};

class DeviceWeights {
 public:
  static constexpr int64_t kStagingBytes = 32 << 20;  // of each of two, in pinned and in device memory

  static Result<DeviceWeights> Create(int device, WeightPlan plan);
  DeviceWeights(DeviceWeights&&) = default;
  DeviceWeights& operator=(DeviceWeights&&) = default;

  // The plan of the model that matrices come from, for all that follow.
  void set_plan(WeightPlan plan) { plan_ = std::move(plan); }
  // What a matrix of the file will be, without memory. The role counts if it is not in the plan.
  DeviceMatrix PlanMatrix(const WeightView& host, WeightRole role) const;
  static int64_t PlannedBytes(const DeviceMatrix& plan);

  // Matrices of one width whose rows follow each other in memory, if they are of one format. Those that have
  // a name are checked (value_check.h).
  Result<std::vector<DeviceMatrix>> Upload(std::span<const MatrixSource> sources);
  Result<const float*> UploadVector(const float* host, int64_t n);
  // A matrix of random values of the planned form, for benchmarks.
  Result<std::vector<DeviceMatrix>> Random(std::span<const DeviceMatrix> plans);
  // Until TakeFed() what Upload() takes is not sent, but noted, with places from `at` on, which others own. Vectors are sent.
  void BeginFed(std::byte* at) { fed_at_ = at; }
  std::vector<FedMatrix> TakeFed() {
    fed_at_ = nullptr;
    return std::exchange(fed_, {});
  }
  Status Finish();  // waits for everything queued; frees the staging

  int64_t device_bytes() const { return device_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }  // with the staging
  const std::map<std::string, int64_t>& bytes_by_format() const { return bytes_by_format_; }
  int device() const { return device_; }

 private:
  DeviceWeights() = default;
  Result<std::byte*> Own(int64_t bytes);
  Result<std::vector<DeviceMatrix>> Place(std::span<const DeviceMatrix> plans);
  Status Fill(const MatrixSource& source, const DeviceMatrix& target);

  struct Staging {
    Buffer pinned, device, scales_pinned, scales_device;
    std::unique_ptr<Event> done;
  };

  int device_ = 0;
  WeightPlan plan_;
  std::unique_ptr<Stream> stream_;
  std::array<Staging, 2> staging_;
  int next_ = 0;
  std::vector<Buffer> buffers_;
  std::byte* fed_at_ = nullptr;
  std::vector<FedMatrix> fed_;
  std::map<std::string, int64_t> bytes_by_format_;
  int64_t device_bytes_ = 0, peak_bytes_ = 0;
  uint32_t seed_ = 1;
};

}  // namespace celer::cuda
