// A model file in another container: celer convert without its flags.
//
//   a Hugging Face folder -> GGUF          keys, names and orders of rows as llama.cpp's converter writes them
//   GGUF -> a Hugging Face folder          config.json, tokenizer and safetensors, as transformers reads them
//   either -> llama2.c's .bin              of models like Llama that the format can hold
//
// All three take the parts of a model by their names in Hugging Face's container (model_parts.h) and write what the
// target's list of tensors says (models/load/file_tensors.h). Values that the target's type holds stay what they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/fill_tensor.h"
#include "device/thread_pool.h"

namespace celer {

enum class ConvertTarget : uint8_t { kGguf, kHf, kLlama2c };
const char* Name(ConvertTarget target);  // "a GGUF file"

struct ConvertOptions {
  std::string weights =
      {};  // f32, f16 or bf16; in GGUF also what celer quantize writes there. Empty: as the file
  bool tokenizer = true;    // false: the model alone
  bool lossy = false;       // write a model that the target cannot describe in full, with a warning
  int llama2c_version = 0;  // 0, 1 or 2
  int64_t shard_bytes = 5'000'000'000;
  ConvertProgress progress = {};  // counts bytes
};

struct Converted {
  std::string model;    // "llama"
  std::string weights;  // what most values are written in
  int64_t tensors = 0, bytes = 0;
  std::vector<std::string> files = {};  // beside OUT: a tokenizer.bin
  std::vector<std::string> notes = {};  // what the output does not have, a sentence each
};

// `out` is a file or, of a folder, a name that is not taken; it appears whole or not at all.
Result<Converted> ConvertModel(const std::filesystem::path& model, const std::filesystem::path& out,
                               ConvertTarget target, const ConvertOptions& options, ThreadPool& pool);

}  // namespace celer
