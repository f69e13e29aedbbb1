// What each family's file offers to the table in family.cc.
#pragma once

#include <string>
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
Status Gemma2FromHf(const JsonFields& json, DecoderConfig* config);
Status Gemma2FromGguf(const GgufFile& file, DecoderConfig* config);
Status Gemma3FromHf(const JsonFields& json, DecoderConfig* config);
Status Gemma3FromGguf(const GgufFile& file, DecoderConfig* config);
void Gemma2HfTensors(const DecoderConfig& config, TensorRules* rules);
Status Gemma4FromHf(const JsonFields& json, DecoderConfig* config);
Status Gemma4FromGguf(const GgufFile& file, DecoderConfig* config);
void Gemma4HfTensors(const DecoderConfig& config, TensorRules* rules);
void Gemma4GgufTensors(const DecoderConfig& config, TensorRules* rules);
Status Gemma3nFromHf(const JsonFields& json, DecoderConfig* config);
Status Gemma3nFromGguf(const GgufFile& file, DecoderConfig* config);
Status Llama4FromHf(const JsonFields& json, DecoderConfig* config);
Status Llama4FromGguf(const GgufFile& file, DecoderConfig* config);
void Llama4HfTensors(const DecoderConfig& config, TensorRules* rules);
Status Olmo2FromHf(const JsonFields& json, DecoderConfig* config);
Status Olmo2FromGguf(const GgufFile& file, DecoderConfig* config);
Status Olmo3FromHf(const JsonFields& json, DecoderConfig* config);
Status OlmoeFromHf(const JsonFields& json, DecoderConfig* config);
Status OlmoeFromGguf(const GgufFile& file, DecoderConfig* config);
Status Exaone4FromHf(const JsonFields& json, DecoderConfig* config);
Status Exaone4FromGguf(const GgufFile& file, DecoderConfig* config);
// Norms after each branch alone, as OLMo 2 and EXAONE 4 name them.
void PostNormHfTensors(const DecoderConfig& config, TensorRules* rules);
Status HunyuanDenseFromHf(const JsonFields& json, DecoderConfig* config);
Status HunyuanDenseFromGguf(const GgufFile& file, DecoderConfig* config);
void HunyuanHfTensors(const DecoderConfig& config, TensorRules* rules);
Status Glm4FromHf(const JsonFields& json, DecoderConfig* config);
Status Glm4FromGguf(const GgufFile& file, DecoderConfig* config);
void Glm4HfTensors(const DecoderConfig& config, TensorRules* rules);
void Glm4GgufTensors(const DecoderConfig& config, TensorRules* rules);
Status DeepseekV2FromHf(const JsonFields& json, DecoderConfig* config);
Status DeepseekV3FromHf(const JsonFields& json, DecoderConfig* config);
Status Glm4MoeLiteFromHf(const JsonFields& json, DecoderConfig* config);
Status MiniCpm3FromHf(const JsonFields& json, DecoderConfig* config);
Status Deepseek2FromGguf(const GgufFile& file, DecoderConfig* config);
Status MiniCpm3FromGguf(const GgufFile& file, DecoderConfig* config);
void LatentHfTensors(const DecoderConfig& c, TensorRules* rules);
void MiniCpm3GgufTensors(const DecoderConfig& config, TensorRules* rules);
void LatentGgufTensors(const DecoderConfig& c, TensorRules* rules);

Status Ministral3FromHf(const JsonFields& json, DecoderConfig* config);
Status Ministral3FromGguf(const GgufFile& file, DecoderConfig* config);
Status GraniteFromHf(const JsonFields& json, DecoderConfig* config);
Status GraniteFromGguf(const GgufFile& file, DecoderConfig* config);
Status GraniteMoeFromHf(const JsonFields& json, DecoderConfig* config);
Status GraniteMoeSharedFromHf(const JsonFields& json, DecoderConfig* config);
void GraniteMoeHfTensors(const DecoderConfig& config, TensorRules* rules);
// Its scalars on the embedding, the branches, the scores and the logits.
Status GraniteScales(const JsonFields& json, DecoderConfig* config);
Status MiniCpmFromHf(const JsonFields& json, DecoderConfig* config);
Status MiniCpmFromGguf(const GgufFile& file, DecoderConfig* config);
Status GemmaFromHf(const JsonFields& json, DecoderConfig* config);
Status GemmaFromGguf(const GgufFile& file, DecoderConfig* config);
void GemmaHfTensors(const DecoderConfig& config, TensorRules* rules);
Status Phi3FromHf(const JsonFields& json, DecoderConfig* config);
Status Phi3FromGguf(const GgufFile& file, DecoderConfig* config);
void Phi3HfTensors(const DecoderConfig& config, TensorRules* rules);
void Phi3GgufTensors(const DecoderConfig& config, TensorRules* rules);
Status GlmFromHf(const JsonFields& json, DecoderConfig* config);
Status GlmFromGguf(const GgufFile& file, DecoderConfig* config);
void GlmHfTensors(const DecoderConfig& config, TensorRules* rules);
void GlmGgufTensors(const DecoderConfig& config, TensorRules* rules);
Status ErnieFromHf(const JsonFields& json, DecoderConfig* config);
Status ErnieFromGguf(const GgufFile& file, DecoderConfig* config);
Status SmolLm3FromHf(const JsonFields& json, DecoderConfig* config);
Status SmolLm3FromGguf(const GgufFile& file, DecoderConfig* config);

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

Status Qwen3NextFromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen3NextFromGguf(const GgufFile& file, DecoderConfig* config);
Status Qwen35FromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen35MoeFromHf(const JsonFields& json, DecoderConfig* config);
Status Qwen35FromGguf(const GgufFile& file, DecoderConfig* config);
void Qwen3NextHfTensors(const DecoderConfig& config, TensorRules* rules);
void Qwen3NextGgufTensors(const DecoderConfig& config, TensorRules* rules);
void Qwen35HfTensors(const DecoderConfig& config, TensorRules* rules);
void Qwen35GgufTensors(const DecoderConfig& config, TensorRules* rules);

Status GraniteHybridFromHf(const JsonFields& json, DecoderConfig* config);
Status GraniteHybridFromGguf(const GgufFile& file, DecoderConfig* config);
void GraniteHybridHfTensors(const DecoderConfig& c, TensorRules* rules);
void GraniteHybridGgufTensors(const DecoderConfig& c, TensorRules* rules);
Status BambaFromHf(const JsonFields& json, DecoderConfig* config);
void BambaHfTensors(const DecoderConfig& c, TensorRules* rules);
Status NemotronHFromHf(const JsonFields& json, DecoderConfig* config);
Status NemotronHFromGguf(const GgufFile& file, DecoderConfig* config);
void NemotronHHfTensors(const DecoderConfig& c, TensorRules* rules);
void NemotronHGgufTensors(const DecoderConfig& c, TensorRules* rules);

Status PhimoeFromHf(const JsonFields& json, DecoderConfig* config);
Status BloomFromHf(const JsonFields& json, DecoderConfig* config);
Status BloomFromGguf(const GgufFile& file, DecoderConfig* config);
void BloomHfTensors(const DecoderConfig& c, TensorRules* rules);
Status MptFromHf(const JsonFields& json, DecoderConfig* config);
Status MptFromGguf(const GgufFile& file, DecoderConfig* config);
void MptHfTensors(const DecoderConfig& c, TensorRules* rules);

// Names and arrangement of their tensors.
void OptHfTensors(const DecoderConfig& config, TensorRules* rules);
void Gpt2HfTensors(const DecoderConfig& config, TensorRules* rules);
void GptNeoxHfTensors(const DecoderConfig& config, TensorRules* rules);
void GptjHfTensors(const DecoderConfig& config, TensorRules* rules);
void FalconHfTensors(const DecoderConfig& config, TensorRules* rules);
void FalconGgufTensors(const DecoderConfig& config, TensorRules* rules);
void PhiHfTensors(const DecoderConfig& config, TensorRules* rules);
void Starcoder2HfTensors(const DecoderConfig& config, TensorRules* rules);
void StablelmHfTensors(const DecoderConfig& config, TensorRules* rules);
// "attn_qkv", q before k before v.
void FusedQkvGgufTensors(const DecoderConfig& config, TensorRules* rules);

// LayerNorm with biases; a feed-forward block act(up(x)), with biases on both products or none.
void LayerNormWithBias(DecoderConfig* config);
void PlainMlp(bool bias, DecoderConfig* config);
// A table of positions, whose row `offset` is position 0, instead of rope.
void LearnedPositions(int64_t offset, DecoderConfig* config);
void WithoutRope(DecoderConfig* config);

Status GptOssFromHf(const JsonFields& json, DecoderConfig* config);
Status GptOssFromGguf(const GgufFile& file, DecoderConfig* config);
void GptOssHfTensors(const DecoderConfig& c, TensorRules* rules);
void GptOssGgufTensors(const DecoderConfig& c, TensorRules* rules);
Status Glm4MoeFromHf(const JsonFields& json, DecoderConfig* config);
Status Glm4MoeFromGguf(const GgufFile& file, DecoderConfig* config);
void Glm4MoeHfTensors(const DecoderConfig& c, TensorRules* rules);
void Glm4MoeGgufTensors(const DecoderConfig& c, TensorRules* rules);
Status Ernie45MoeFromHf(const JsonFields& json, DecoderConfig* config);
Status Ernie45MoeFromGguf(const GgufFile& file, DecoderConfig* config);
void Ernie45MoeHfTensors(const DecoderConfig& c, TensorRules* rules);
Status MiniMaxM2FromHf(const JsonFields& json, DecoderConfig* config);
Status MiniMaxM2FromGguf(const GgufFile& file, DecoderConfig* config);
Status HunyuanV1MoeFromHf(const JsonFields& json, DecoderConfig* config);
Status HunyuanV1MoeFromGguf(const GgufFile& file, DecoderConfig* config);
void HunyuanV1MoeHfTensors(const DecoderConfig& c, TensorRules* rules);

// The router of DeepSeek V3, which other families have too: sigmoid, a bias for choosing, groups by their best two.
// moe.experts is filled in.
Status DeepSeekRouterFromHf(const JsonFields& json, DecoderConfig* config);
// The router and the experts' biases in GGUF: what neither keys nor tensors say stays as it is.
Status RouterFromGguf(const GgufFile& file, DecoderConfig* config);
// Vectors of all experts' biases.
void GgufExpertBiases(const DecoderConfig& c, TensorRules* rules);
// A matrix and its bias, "in_file.weight" and "in_file.bias", as these parts.
void RenamePair(const std::string& in_file, const char* weight, const char* bias, TensorRules* rules);
// q, k and v of each of `groups` groups of heads, one group after the other, with their biases.
void SplitQkv(const std::string& in_file, int64_t groups, const DecoderConfig& config, TensorRules* rules);

// "layer_types": which layers have a sliding window.
Result<std::vector<bool>> WindowedByType(const JsonFields& json, int64_t layers);
// "sliding_window" (4096 if missing) and the layers that it is about: by "layer_types", else all but every
// `period`-th.
Status HfWindows(const JsonFields& json, int64_t period, DecoderConfig* config);
// Which layers have experts in the Qwen families: every decoder_sparse_step-th, except mlp_only_layers.
Status QwenSparseLayers(const JsonFields& json, DecoderConfig* config);

}  // namespace celer::families
