// llama2.c checkpoints (.bin): the legacy fp32 form, version 1 (fp32) and version 2 (int8 in groups).
//
// Tensors carry the names that Hugging Face uses ("model.layers.0.self_attn.q_proj.weight"), but the rows of
// q_proj and k_proj are in the INTERLEAVED rope order (pairs 2i, 2i+1), not in Hugging Face's halves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "celer/model_shape.h"
#include "io/file/mapped_file.h"
#include "io/file/tensor_table.h"

namespace celer {

inline constexpr uint32_t kLlama2cMagic = 0x616b3432;  // "ak42" read as a number
inline constexpr size_t kLlama2cHeaderBytes = 256;     // of versions 1 and 2

class Llama2cFile {
 public:
  struct Config : ModelShape {  // with tied embeddings there is no "lm_head.weight"
    int64_t max_positions = 0;
    int version = 0;     // 0 is the legacy form
    int group_size = 0;  // of version 2; 0 otherwise
  };

  static Result<Llama2cFile> Open(const std::filesystem::path& path);
  // `bytes` outlive the result; `source` is what error sentences call it.
  static Result<Llama2cFile> FromBytes(std::span<const std::byte> bytes, std::string source);

  const Config& config() const { return config_; }
  const std::string& source() const { return source_; }

  // Version 2 stores a matrix as kI8 [rows, cols] and, after it, "<name>.scales" kF32 [rows, cols /
  // group_size]: w[r][c] = q[r][c] * scales[r][c / group_size].
  const std::vector<TensorRecord>& tensors() const { return tensors_.records(); }
  const TensorRecord* Find(std::string_view name) const { return tensors_.Find(name); }

  void DropPages(const TensorRecord& tensor) const;

 private:
  Status ReadHeader(std::span<const std::byte> bytes, size_t* data_start);
  Status MapTensors(std::span<const std::byte> bytes, size_t data_start);

  std::optional<MappedFile> file_;
  std::string source_;
  Config config_;
  TensorTable tensors_;
};

}  // namespace celer
