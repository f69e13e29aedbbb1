// Models with random weights at real shapes, for benchmarks and tests: the cost of running a model depends on
// its shape and its format, not on its values. Names, metadata and layout are those of published files, and
// every file says that it is synthetic.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "celer/limits.h"
#include "device/thread_pool.h"
#include "io/file/tensor_record.h"
#include "models/config/decoder_config.h"
#include "models/config/family.h"

namespace celer {

struct SynthModel {
  LlmShape shape;
  const Family* family = nullptr;
  RopeConfig rope;  // as far as config.json says it: no layout, no freq_factors
  int64_t positions = 0;
  double norm_eps = 1e-5;
  int64_t sliding_window = 0;
  DType weights = DType::kF16;  // of matrices; GGUF keeps vectors and routers in f32
  uint64_t seed = 0;

  // Width of a dense layer as the files state it; mixtures name it too, though no tensor has it.
  int64_t dense_intermediate() const;
  // Mistral and Mixtral have no name of their own in GGUF: they are "llama" there, with its order of rows.
  std::string_view gguf_architecture() const;
};

// The 256 bytes and an end token: see synth_tokenizer.h.
inline constexpr int64_t kSynthMinVocab = 257;

// The family follows from what the shape has (experts, biases, qk-norm), the rest from the preset it is named
// after. Refuses shapes that Validate(LlmShape) refuses.
Result<SynthModel> MakeSynthModel(const LlmShape& shape, DType weights, uint64_t seed);

enum class SynthContainer { kGguf, kHf };

struct SynthTensor {
  enum class Values { kNormal, kOnes, kRopeFactors };

  TensorSpec spec;
  Values values = Values::kNormal;
  // Hugging Face's names of the equal pieces it is made of, outermost first. Values are drawn per name, so
  // that one seed gives one model, whichever container holds it.
  std::vector<std::string> parts;
  int64_t interleave_head = 0;  // head size if the rows of each head are stored as GGUF's "llama" wants them
};

std::vector<SynthTensor> SynthTensors(const SynthModel& model, SynthContainer container);
nlohmann::ordered_json SynthConfigJson(const SynthModel& model);  // config.json

// Called now and then with the bytes written so far; an error stops the work and removes what is half done.
using SynthProgress = std::function<Status(int64_t done, int64_t total)>;

// Both check the free space first, hold at most about 100 MB in memory, and write whole files or none.
Status WriteSynthGguf(const SynthModel& model, const std::filesystem::path& path, ThreadPool& pool,
                      const SynthProgress& progress = {});
// config.json, tokenizer.json and model.safetensors, or shards of at most `shard_bytes` with an index. f32,
// f16, bf16.
Status WriteSynthHf(const SynthModel& model, const std::filesystem::path& folder, ThreadPool& pool,
                    const SynthProgress& progress = {}, int64_t shard_bytes = 5'000'000'000);

}  // namespace celer
