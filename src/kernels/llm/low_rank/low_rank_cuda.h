// Products of low rank beside those of a layer (low_rank.h) on a GPU: first A x of the tokens that have terms, then B of
// it onto the product that the layer's own kernel made. Which tokens have which terms is read from device memory, so a
// captured graph never changes with the adapters of a batch.
//
// The order of a token's sums depends on widths and ranks alone: not on the batch, nor on where the token stands in it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

enum class LowRankType : uint8_t { kF32, kBf16, kF16 };

// As LowRankTerm; all null: the adapter has none for this matrix.
struct DeviceTerm {
  const void* a = nullptr;  // [rank, a_stride]; of an embedding [tokens, rank]
  const void* b = nullptr;  // [rank, b_stride], of which the matrix has the first `rows`
  const float* row_scale = nullptr;
  const float* shift = nullptr;
  const void* whole = nullptr;  // [rows, whole_stride]
  int32_t rank = 0, a_stride = 0, b_stride = 0, whole_stride = 0;
  LowRankType a_type = LowRankType::kF32, b_type = LowRankType::kF32, whole_type = LowRankType::kF32;
};

// One adapter of a mix.
struct DeviceUse {
  int32_t slot = 0;
  float scale = 1;
  int32_t low_at = 0;  // where its A x begins among those of the mix; a multiple of kLowRankStep
  int32_t unused = 0;
};

constexpr int kLowRankStep =
    16;                          // ranks of a tensor core's product: A x of each adapter begins at a multiple
constexpr int kLowRankTile = 8;  // rows at a time

constexpr int kPlainRank = 64;  // of a mix, at most, for the tensor cores
// Columns of x are summed in pieces of this many, each on its own, and those in order.
constexpr int kPlainCols = 1024;
constexpr int PlainPieces(int64_t cols) {
  return static_cast<int>((cols + kPlainCols - 1) / kPlainCols);
}
constexpr int PlainWidth(int matrices) {
  return matrices * kPlainRank + 1;
}

// Rows of a product with the same mix of adapters, or with none (no uses).
struct LowRankTile {
  int32_t count = 0, first_use = 0, uses = 0;
  int32_t rank = 0;  // of all uses together, each rounded up to kLowRankStep
  int32_t plain =
      0;  // whether it is for the tensor cores: terms of A and B in 16 bits alone, rank up to kPlainRank
  int32_t expert = 0;  // whose terms they are: LowRankArgs::Matrix::expert_places
  std::array<int32_t, kLowRankTile> rows = {};
};

// In device memory: every row of a batch is in one tile.
struct LowRankPlan {
  const int32_t* tile_count = nullptr;
  const LowRankTile* tiles = nullptr;
  const DeviceUse* uses = nullptr;
  const DeviceTerm* terms = nullptr;  // [slots, places]
  int places = 0;
  bool late = false;  // tiles come from a kernel in front, not from the host
};

struct LowRankArgs {
  LowRankPlan plan;
  int rows = 0;       // of the product, at most one tile each
  int most_rank = 0;  // of a mix: sizes the grid

  // What the product reads.
  const float* x = nullptr;         // [rows, x_stride]
  const int32_t* x_rows = nullptr;  // which rows of x, or null for the first ones
  int64_t x_stride = 0;
  int cols = 0;
  const float* norm = nullptr;  // RMSNorm in front, or none
  float eps = 0;

  // [rows, low_stride]: A x of each use, for the matrices one after the other.
  float* low = nullptr;
  int64_t low_stride = 0;

  // For plain tiles, [pieces of columns, rows, PlainWidth()]: the same, and a square sum of x. A product without this, or
  // of a shape that the tensor cores' kernels do not take, has all its tiles done by the others.
  float* plain_low = nullptr;
  int64_t plain_room = 0;   // numbers for each row
  int most_plain_rank = 0;  // of a plain mix: sizes the grid
  bool others = true;       // some tiles may not be plain

  // Matrices with the same input. Their products are bare: bias and residual come behind the terms.
  struct Matrix {
    int place = 0;
    int expert_places = 0;  // of mixtures: from one expert's place to the next one's
    int rows = 0;           // of the matrix
    float* product = nullptr;
    int64_t stride = 0;
    const float* bias = nullptr;  // [rows], of mixtures [experts, rows]; or none
    float* add_to =
        nullptr;  // [rows of the product, stride]: the sum goes there; none: it replaces the product
  };
  std::array<Matrix, 3> matrices = {};
  int count = 0;
};

// A x into `low`.
cudaError_t LaunchLowRankShrink(const LowRankArgs& args, cudaStream_t stream);
// All but matrices as a whole, which LaunchLowRankWhole() adds: to be launched behind it if a term has one.
cudaError_t LaunchLowRankExpand(const LowRankArgs& args, cudaStream_t stream);
cudaError_t LaunchLowRankWhole(const LowRankArgs& args, cudaStream_t stream);

// Instead of the expansion of up and gate, in this order, and the activation behind it.
struct LowRankActivation {
  DeviceActivation activation = DeviceActivation::kSilu;
  float limit = 0;           // as in gate_up_cuda.h
  float* out = nullptr;      // [rows of the product, stride of the matrices]; may be one of the products
  void* out_bf16 = nullptr;  // likewise; or none
};
// Whether there is such a kernel for these products.
bool LowRankActivates(const LowRankArgs& args);
cudaError_t LaunchLowRankExpandActivate(const LowRankArgs& args, const LowRankActivation& to,
                                        cudaStream_t stream);

// The terms of an embedding, added to its rows.
struct LowRankEmbedArgs {
  LowRankPlan plan;
  int rows = 0;
  int place = 0;
  const int32_t* tokens = nullptr;  // [rows]
  DeviceMatrix table;               // the model's own
  float scale = 1;                  // of all rows
  float* out = nullptr;             // [rows, cols of the table]
};
cudaError_t LaunchLowRankEmbed(const LowRankEmbedArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
