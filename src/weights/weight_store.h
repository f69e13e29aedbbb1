// Turns tensors of a file into the matrices that kernels read: as they lie in the mapping, or converted on
// the way, one tensor at a time and in pieces of a few rows, so that the large form never stands in memory
// beside the small one.
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

#include "core/allocator.h"
#include "core/buffer.h"
#include "core/result.h"
#include "core/thread_pool.h"
#include "kernels/weight_view.h"
#include "weights/pack_cache.h"
#include "weights/tensor_source.h"

namespace celer {

enum class WeightFormat : uint8_t { kAsStored, kF32, kF16, kBf16, kInt8, kInt4 };

struct WeightOptions {
  WeightFormat format = WeightFormat::kAsStored;
  int64_t group = 0;  // int8: 0 = one scale per output channel; int4: 0 = 32

  // "stored", "f32", "bf16", "f16", "int8", "int8-g64", "int4", "int4-g128"
  static Result<WeightOptions> Parse(std::string_view text);
};

class WeightStore {
 public:
  // With `pack_cache`, packed matrices come from that folder if it has them; see KeepPacked().
  WeightStore(const TensorSource& source, WeightOptions options, ThreadPool& pool, bool pack = true,
              const std::filesystem::path& pack_cache = {});
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  // The tensor as [rows, cols], packed for the matmul variant in use; an error names file, tensor and shapes.
  // What `role` a matrix has decides how far it is compressed: the embedding and the output head are more
  // sensitive, so int4 keeps them at int8. A table is only looked up, row by row, and not packed; kVocabulary
  // is a head, or an embedding that is also the head.
  enum class Role { kProjection, kVocabulary, kTable };
  Result<WeightView> Matrix(const std::string& name, int64_t rows, int64_t cols,
                            Role role = Role::kProjection);
  // A tensor [count, rows, cols] as `count` matrices.
  Result<std::vector<WeightView>> Stack(const std::string& name, int64_t count, int64_t rows, int64_t cols);
  // A small vector, always as floats. nullptr when it is missing and not required.
  Result<const float*> Vector(const std::string& name, int64_t n, bool required = true);

  // A tensor that is known and not needed.
  void Skip(const std::string& name) { taken_.insert(name); }

  // Fails when the file holds a tensor that nobody asked for: running without it would give wrong text.
  Status CheckNothingLeft(std::string_view architecture) const;

  // Once all matrices are there: writes what was packed to the cache, if there is one and it lacks something.
  // A failure is a warning.
  void KeepPacked();

  // Bytes per format name over all matrices, as the kernels read them.
  const std::map<std::string, int64_t>& bytes_by_format() const { return bytes_by_format_; }
  int64_t owned_bytes() const { return owned_bytes_; }  // what conversion allocated; the rest is mapped

 private:
  Result<const TensorRecord*> Take(const std::string& name, int64_t elements,
                                   std::string_view expected_shape);
  Result<WeightView> Stored(const TensorRecord& record, const std::byte* data, int64_t rows, int64_t cols);
  // What `stored` becomes: itself, or the form to convert it to, without memory yet.
  WeightView Target(const TensorRecord& record, const WeightView& stored, Role role) const;
  Result<WeightView> Convert(const WeightView& stored, WeightView target);
  // Converted and packed, or taken from the cache under this name.
  Result<WeightView> Make(const TensorRecord& record, const std::byte* data, int64_t rows, int64_t cols,
                          Role role, const std::string& cache_name);
  int64_t PackedBytes(const WeightView& view) const;
  Status Pack(Role role, WeightView* view);
  bool Owns(const void* data) const;
  Result<std::byte*> Own(int64_t bytes);
  void Disown(const void* data);  // frees it; nothing happens if it is not ours
  // Memory for packed weights, which are read in the order of the layers: neighbours in large pieces.
  Result<std::byte*> OwnPacked(int64_t bytes);

  const TensorSource& source_;
  WeightOptions options_;
  ThreadPool& pool_;
  bool pack_;
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
