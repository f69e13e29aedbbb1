// What each family's file offers to the table in family.cc.
#pragma once

#include <vector>

#include "models/config/family.h"

namespace celer::families {

Status LlamaFromHf(const JsonFields& json, DecoderConfig* config);
Status LlamaFromGguf(const GgufFile& file, DecoderConfig* config);
Status MistralFromHf(const JsonFields& json, DecoderConfig* config);
Status MixtralFromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen2FromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen2FromGguf(const GgufFile& file, DecoderConfig* config);
Status Qwen3FromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen3FromGguf(const GgufFile& file, DecoderConfig* config);
Status Qwen2MoeFromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen2MoeFromGguf(const GgufFile& file, DecoderConfig* config);
Status Qwen3MoeFromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen3MoeFromGguf(const GgufFile& file, DecoderConfig* config);

// "layer_types": which layers have a sliding window.
Result<std::vector<bool>> WindowedByType(const JsonFields& json, int64_t layers);
// Which layers have experts in the Qwen families: every decoder_sparse_step-th, except mlp_only_layers.
Status QwenSparseLayers(const JsonFields& json, DecoderConfig* config);

}  // namespace celer::families
