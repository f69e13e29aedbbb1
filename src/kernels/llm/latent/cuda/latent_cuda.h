// Latent attention on the GPU, absorbed as in latent.h: the KV of a token is one row that all heads share and that is both
// key and value, so DeviceKv::v is not read. Three launches: queries and the append, attention, values.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/shared/cuda/device_batch.h"
#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

// Of the KV row and of its part that is a value; and of keys of a head that do not rotate.
constexpr int kMaxLatentRow = 576, kMaxLatentRank = 512;
// Shared memory that a block of the attention has: compute capability 8.0 allows 163 KB, 8.6 only 99.
constexpr int kLatentSharedBytes = 160 * 1024, kSmallLatentSharedBytes = 80 * 1024;
bool LatentRuns(const DeviceKv& kv, int kv_rank);

// What the projections made becomes queries in the latent space, and rows of the paged KV.
struct LatentQueriesArgs {
  DeviceBatch batch;
  DeviceKv kv;                    // one head of kv_rank + rope_dim
  const float* q = nullptr;       // [count, q_stride], heads * (nope_dim + rope_dim) of them
  const float* kv_row = nullptr;  // [count, kv_row_stride], kv_rank + rope_dim of them
  int64_t q_stride = 0, kv_row_stride = 0;
  const float* kv_bias = nullptr;  // of kv_row, or null
  const float* kv_norm = nullptr;  // [kv_rank]
  float eps = 1e-6f;               // of that norm
  DeviceMatrix k_b;                // [heads * kv_rank, nope_dim] in f32, f16 or bf16
  int heads = 0, kv_rank = 0, nope_dim = 0, rope_dim = 0;
  bool interleaved = false;         // rotated pairs are neighbours, else half of rope_dim apart
  const float* rope_cos = nullptr;  // [positions, rope_dim / 2]
  const float* rope_sin = nullptr;
  bool decode = false;   // positions and tables were there before the kernel in front began
  float* out = nullptr;  // [count, heads, kv_rank + rope_dim]
};
// A token's results depend on it alone. Products in f32.
cudaError_t LaunchLatentQueries(const LatentQueriesArgs& args, cudaStream_t stream);

// Attention leaves sums that are not normalized yet, for each split of the keys.
struct LatentPieces {
  int splits = 1;
  float* sums = nullptr;  // [count, heads, splits, kv_rank], sums of values by weight
  float2* tops =
      nullptr;  // [count, heads, splits]: the largest score, in powers of two, and the sum of weights
};

struct LatentAttentionArgs {
  DeviceBatch batch;
  int first = 0, count = 0;  // which of its tokens; all of their sequences
  DeviceKv kv;
  const float* q = nullptr;  // [tokens of the batch, heads, kv_rank + rope_dim]
  int heads = 0, kv_rank = 0;
  float scale = 1;
  // Each token by itself, with queries and weights as two 16-bit parts each: for few tokens, and where results must not
  // depend on the batch. Else 64 rows of tokens and heads of a sequence at a time, rounded to the type of the KV.
  bool alone = true;
  bool decode = false;  // every sequence has one token: all keys in front of it are there already
  bool steady = false;  // how keys are split depends on the token's own position alone; with `alone`
  const int32_t* seq_start =
      nullptr;  // [sequences + 1], unless alone: where those of the tokens begin in the batch
  int sequences = 0;
  LatentPieces pieces = {};  // splits: LatentSplits() of all of the above
};
int LatentSplits(const LatentAttentionArgs& args);
// Tokens of one launch that is steady.
constexpr int kSteadyLatentTokens = 64;
// Sums, that is [token, head, split], of batches of up to that many tokens; even.
int64_t LatentPieceCount(int64_t tokens, int heads);
cudaError_t LaunchLatentAttention(const LatentAttentionArgs& args, cudaStream_t stream);

// The splits together, and their values out of the latent space.
struct LatentValuesArgs {
  LatentPieces pieces;
  int count = 0, heads = 0, kv_rank = 0;
  DeviceMatrix v_b;         // [heads * value_dim, kv_rank] in f32, f16 or bf16
  float* joined = nullptr;  // scratch [count, heads, kv_rank]
  float* out = nullptr;     // [count, heads * value_dim]
};
cudaError_t LaunchLatentValues(const LatentValuesArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
