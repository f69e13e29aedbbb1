// Models with random weights at real shapes, for benchmarks and tests: the cost of running a model depends on
// its shape and its format, not on its values. Names, metadata and layout are those of published files, and
// every file says that it is synthetic.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "celer/limits.h"
#include "device/thread_pool.h"
#include "io/file/tensor_record.h"
#include "models/config/decoder_config.h"
#include "models/config/family.h"
#include "models/load/file_tensors.h"

namespace celer {

struct SynthModel {
  std::string name;
  nlohmann::ordered_json json;  // config.json
  DecoderConfig config;         // as read from there
  const Family* family = nullptr;
  DType weights = DType::kF16;  // of matrices; GGUF keeps vectors and routers in f32
  uint64_t seed = 0;
};

// The 256 bytes and an end token: see synth_tokenizer.h.
inline constexpr int64_t kSynthMinVocab = 257;

// Of a config.json, which may be that of a model of text and images: its text model then.
Result<SynthModel> MakeSynthModel(const std::string& name, const nlohmann::ordered_json& config,
                                  DType weights, uint64_t seed);
// Of a model like Llama, Mistral or Qwen up to 3: the family follows from what the shape has (experts, biases,
// qk-norm), the rest from the preset it is named after. Refuses shapes that Validate(LlmShape) refuses.
Result<SynthModel> MakeSynthModel(const LlmShape& shape, DType weights, uint64_t seed);

// What a config.json is changed to; 0 leaves a number as it is.
struct SynthSizes {
  int64_t layers = 0, hidden = 0, intermediate = 0, vocab = 0, heads = 0, kv_heads = 0, head_dim = 0,
          experts = 0, experts_per_token = 0;
};
// Under the names that the file has for them. Lists of one entry for each layer are cut, or begin anew. `intermediate`
// is also that of one expert.
Result<nlohmann::ordered_json> ResizeConfig(const std::string& name, nlohmann::ordered_json config,
                                            const SynthSizes& sizes);

enum class SynthContainer { kGguf, kHf };

struct SynthTensor {
  TensorSpec spec;
  FileTensor in_file;  // values are drawn per part, so that one seed gives one model in either container
  int64_t interleave_head = 0;  // head size if the rows of each head are stored as GGUF's "llama" wants them
};

Result<std::vector<SynthTensor>> SynthTensors(const SynthModel& model, SynthContainer container);

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
