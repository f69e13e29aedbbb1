// Turns tensors of a file into the matrices that kernels read: zero-copy from the mapping, or converted, one
// tensor at a time and a few rows at a time, so that the unconverted form is never in memory as a whole
// beside the converted one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "device/allocator.h"
#include "device/buffer.h"
#include "device/thread_pool.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/llm/weight_view.h"
#include "weights/pack_cache.h"
#include "weights/tensor_source.h"
#include "weights/weight_plan.h"
#include "weights/weight_reader.h"

namespace celer {

class WeightStore final : public WeightReader {
 public:
  using Role = WeightRole;

  // Matrices are converted by the plan and packed for the variant `prepare_for`. Without one they stay as
  // they lie in the file: a device converts them itself, by the same plan. With `pack_cache`, packed matrices
  // come from that folder if it has them; see WritePackCache().
  WeightStore(const TensorSource& source, WeightPlan plan, ThreadPool& pool,
              const MatmulKernels* prepare_for = &ChosenMatmul(),
              const std::filesystem::path& pack_cache = {});
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  // An error names file, tensor and shapes. Values that are not finite, or that the planned format cannot hold, are
  // an error too (value_check.h). What comes from the pack cache was checked when it was written; what is not
  // converted here is checked where it is uploaded.
  Result<WeightView> Matrix(const std::string& name, int64_t rows, int64_t cols) override;
  Result<std::vector<WeightView>> Stack(const std::string& name, int64_t count, int64_t rows,
                                        int64_t cols) override;
  Result<WeightView> Heads(const std::string& name, int64_t heads, int64_t rows, int64_t cols,
                           const HeadPart& part) override;
  using WeightReader::Vector;
  Result<const float*> Vector(const std::string& name, int64_t n, bool required) override;
  Result<const float*> ScaledVector(const std::string& name, int64_t n, float scale) override;
  Result<const float*> Table(const std::string& name, int64_t rows, int64_t cols) override;
  bool Has(const std::string& name) const override { return source_.Find(name) != nullptr; }
  void Skip(const std::string& name) override { taken_.insert(name); }

  // An error if the file holds a tensor that was not read: running without it would give wrong results.
  Status CheckNoUnusedTensors(std::string_view architecture) const;

  // Once all matrices are loaded: writes the packed ones to the cache, if it is on and incomplete. A failure
  // is a warning.
  void WritePackCache();

  // Bytes per format name over all matrices, as the kernels read them.
  const std::map<std::string, int64_t>& bytes_by_format() const { return bytes_by_format_; }
  int64_t owned_bytes() const { return owned_bytes_; }  // what conversion allocated; the rest is mapped
  const WeightPlan& plan() const { return plan_; }

 private:
  Status DecodeFloats(const std::string& name, const Shape& shape, float* out);
  // Its dimensions must be those, except that dimensions of 1 do not count.
  Result<const TensorRecord*> Take(const std::string& name, const Shape& expected);
  // Matrix `index` of a stack. A coded one has no memory yet: Decode() gives it some.
  Result<WeightView> Stored(const TensorRecord& record, int64_t index, int64_t rows, int64_t cols);
  Status Decode(const CodedTensor& coded, int64_t index, WeightView* view);
  // What `stored` becomes: itself, or a matrix of the planned format, without memory yet.
  WeightView Target(const WeightView& stored) const;
  Result<WeightView> Convert(const WeightView& stored, WeightView target);
  // A head's part of `stored`, encoded at `out`, whose rows follow each other.
  Status EncodeHead(const WeightView& stored, int64_t first_row, const HeadPart& part,
                    const WeightFormatSpec& format, std::byte* out) const;
  Status InFile(const Status& status) const;  // an error names the file
  // Converted and packed, or taken from the cache under this name.
  Result<WeightView> Make(const TensorRecord& record, int64_t index, int64_t rows, int64_t cols,
                          const std::string& cache_name);
  int64_t PackedBytes(const WeightView& view) const;
  Status Pack(Role role, WeightView* view);
  bool Owns(const void* data) const;
  Result<std::byte*> Own(int64_t bytes);
  void Disown(const void* data);  // frees it; no effect if it is not owned
  // Memory for packed weights, which are read in the order of the layers: neighbours in large pieces.
  Result<std::byte*> OwnPacked(int64_t bytes);

  const TensorSource& source_;
  WeightPlan plan_;
  ThreadPool& pool_;
  const MatmulKernels* prepare_for_;
  std::optional<PackCache> cache_;
  PackCache::Entries packed_;  // all that the cache should hold
  bool cache_lacks_ = false;   // some of it
  std::vector<Buffer> buffers_;
  std::span<std::byte> packed_room_;  // the rest of the last large piece
  std::unordered_set<std::string> taken_;
  std::map<std::string, int64_t> bytes_by_format_;
  int64_t owned_bytes_ = 0;
};

}  // namespace celer
