// What is physically possible: a model's shape, a machine's peaks, and the formulas that join them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace celer {

// What a machine can do at best. Data-sheet presets and measured machines have the same form.
struct Machine {
  std::string name;                     // "rtx4090", or the name of this machine
  std::string source;                   // "data sheet", "measured 2026-11-15", "flags"
  double memory_bytes = 0;              // memory that holds weights and KV
  double read_bytes_per_s = 0;          // all cores / the whole GPU
  double read_bytes_per_s_one = 0;      // one core; 0 if unknown or meaningless
  double copy_bytes_per_s = 0;          // bytes read plus bytes written; 0 if unknown
  std::map<std::string, double> flops;  // dense peak per dtype: "f32", "f16", "bf16", "int8", "fp8"
};

// The shape of a Llama-like decoder, as far as its cost goes.
struct LlmShape {
  std::string name;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t vocab = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool tied_embeddings = false;
  // Mixture of experts: 0 experts means dense. Each expert has `intermediate` columns.
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t shared_intermediate = 0;  // columns of an always-active shared expert; 0 if none
};

}  // namespace celer
