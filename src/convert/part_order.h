// How GGUF arranges the numbers of one part of a model otherwise than Hugging Face's container does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/decoder_config.h"
#include "models/load/file_tensors.h"

namespace celer {

struct PartOrder {
  // Row or column i in GGUF is row rows[i] or column cols[i] in a folder; empty: the same ones. The elements of a vector
  // are its columns.
  std::vector<int32_t> rows, cols;
  bool decay = false;  // GGUF has -exp() of the values
  // A stack of the transposed keys of each head: [heads, rank, dim]. The folder has them among other rows.
  bool turned_keys = false;

  bool plain() const { return rows.empty() && cols.empty() && !decay && !turned_keys; }
};

// Of a part as GGUF has it. `config` is the folder's.
PartOrder OrderInGguf(const DecoderConfig& config, const ModelPart& part, bool vector);

// What GGUF has for A_log.
float Decay(float log);

// The way back: row order[i] of one is row i of the other.
std::vector<int32_t> Inverted(const std::vector<int32_t>& order);

}  // namespace celer
