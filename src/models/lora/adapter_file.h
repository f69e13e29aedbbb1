// The files of an adapter: which modules they change, with what tensors, before anything is known of the model.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "io/file/tensor_record.h"
#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"

namespace celer {

// Tensors of one module: a and b, or its weights as a whole, or a bias.
struct LoraModule {
  const TensorRecord* a = nullptr;       // [rank, in]; of an embedding [rank, tokens], in GGUF [tokens, rank]
  const TensorRecord* b = nullptr;       // [out, rank]
  const TensorRecord* b_bias = nullptr;  // [out], added to what b gives
  const TensorRecord* magnitude = nullptr;
  const TensorRecord* weight = nullptr;  // [out, in], in the place of the model's
  const TensorRecord* bias = nullptr;    // [out], in the place of the model's
  const TensorRecord* base = nullptr;    // a copy of the model's own
  bool embedding = false;                // a and b are those of an embedding, which is looked up
  double scale = 1;
  double down_scale = 1;  // of a module of stacked experts, if it is their down projection
};

struct AdapterFile {
  std::string path;
  bool gguf = false;         // names are llama.cpp's
  std::string architecture;  // of a GGUF file
  bool tied = false;         // what is saved of the embedding is the head's as well, and the reverse
  bool turned_experts =
      false;            // in stacks of experts whose matrices are square, lora_A and lora_B change places
  std::string content;  // SHA-256
  // By the module's name without ".weight", as the model's files have it.
  std::map<std::string, LoraModule> modules;

  // What the tensors lie in.
  std::optional<SafetensorsFile> safetensors;
  std::optional<GgufFile> gguf_file;
};

// A folder as PEFT saves it, or a GGUF file of the type adapter.
Result<AdapterFile> OpenAdapter(const std::filesystem::path& path);

}  // namespace celer
