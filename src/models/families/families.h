// What each family's file offers to the table in family.cc.
#pragma once

#include "models/family.h"

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

// Sliding window of the Qwen families: off unless use_sliding_window, and then only from max_window_layers
// on.
Status QwenWindow(const JsonFields& json, DecoderConfig* config);
// Which layers have experts in the Qwen families: every decoder_sparse_step-th, except mlp_only_layers.
Status QwenSparseLayers(const JsonFields& json, DecoderConfig* config);

}  // namespace celer::families
