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

Status OptFromHf(const JsonFields& json, DecoderConfig* config);
Status Gpt2FromHf(const JsonFields& json, DecoderConfig* config);
Status Gpt2FromGguf(const GgufFile& file, DecoderConfig* config);
Status GptNeoxFromHf(const JsonFields& json, DecoderConfig* config);
Status GptNeoxFromGguf(const GgufFile& file, DecoderConfig* config);
Status GptjFromHf(const JsonFields& json, DecoderConfig* config);
Status FalconFromHf(const JsonFields& json, DecoderConfig* config);
Status FalconFromGguf(const GgufFile& file, DecoderConfig* config);
Status PhiFromHf(const JsonFields& json, DecoderConfig* config);
Status PhiFromGguf(const GgufFile& file, DecoderConfig* config);
Status Starcoder2FromHf(const JsonFields& json, DecoderConfig* config);
Status Starcoder2FromGguf(const GgufFile& file, DecoderConfig* config);
Status StablelmFromHf(const JsonFields& json, DecoderConfig* config);
Status StablelmFromGguf(const GgufFile& file, DecoderConfig* config);
Status CohereFromHf(const JsonFields& json, DecoderConfig* config);
Status CohereFromGguf(const GgufFile& file, DecoderConfig* config);
Status Cohere2FromHf(const JsonFields& json, DecoderConfig* config);
Status Cohere2FromGguf(const GgufFile& file, DecoderConfig* config);

// LayerNorm with biases; a feed-forward block act(up(x)), with biases on both products or none.
void LayerNormWithBias(DecoderConfig* config);
void PlainMlp(bool bias, DecoderConfig* config);
// A table of positions, whose row `offset` is position 0, instead of rope.
void LearnedPositions(int64_t offset, DecoderConfig* config);
void WithoutRope(DecoderConfig* config);

// "layer_types": which layers have a sliding window.
Result<std::vector<bool>> WindowedByType(const JsonFields& json, int64_t layers);
// Which layers have experts in the Qwen families: every decoder_sparse_step-th, except mlp_only_layers.
Status QwenSparseLayers(const JsonFields& json, DecoderConfig* config);

}  // namespace celer::families
