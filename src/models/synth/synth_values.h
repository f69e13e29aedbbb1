// The random values of a synthetic model, in rows and in the format of the file. Only integer arithmetic and
// one multiplication by a constant decide a value, so every machine draws the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/thread_pool.h"
#include "models/synth/synth.h"

namespace celer {

// Values of one stream: element i depends on the seed, the name and i alone. Bell-shaped (the sum of eight
// uniform bytes), mean 0, standard deviation 0.02, at most 0.0976 from zero.
class SynthStream {
 public:
  SynthStream(uint64_t seed, std::string_view name);

  void Fill(int64_t first, int64_t n, float* out) const;
  uint64_t Bits(int64_t index) const;  // 64 random bits

 private:
  uint64_t key_;
};

inline constexpr const char* kNoSpaceRemedy = "fewer layers or a smaller format need less";

// Makes the data of one tensor after another, a few megabytes at a time.
class SynthFiller {
 public:
  // `total` bytes will be written in all, for the progress.
  SynthFiller(const SynthModel& model, ThreadPool& pool, SynthProgress progress, int64_t total);

  Status Fill(const SynthTensor& tensor, const TensorSink& sink);

 private:
  void FillPlain(const SynthTensor& tensor, int64_t first_row, int64_t rows, std::byte* out);
  void FillFromPool(const SynthTensor& tensor, int64_t first_row, int64_t rows, std::byte* out);
  bool UsesPool(const SynthTensor& tensor) const;

  const SynthModel& model_;
  ThreadPool& pool_;
  SynthProgress progress_;
  int64_t total_, done_ = 0;
  std::vector<std::byte> piece_;   // rows on their way to the file
  std::vector<std::byte> blocks_;  // kPoolBlocks encoded blocks; see UsesPool()
};

}  // namespace celer
