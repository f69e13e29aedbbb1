// The epilogues of wgmma_cuda.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/llm/matmul/cuda/wgmma/wgmma_ring.cuh"

namespace celer::cuda::wgmma {

__device__ __forceinline__ void MultipliersBarrier() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}
__device__ __forceinline__ void GroupBarrier(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

// Whose sums a lane has: rows g of the two eights of its warp, and of every eight columns two tokens, or one
// in two parts.
struct Place {
  int matrix;  // kQkv: 0 q, 1 k, 2 v
  int row[2];  // of the matrix
  bool exists[2];
  float scale[2];
  int column[2];  // of the output
  int token;      // the first one
};

template <int N>
__device__ __forceinline__ bool Parted(const WgmmaArgs& a) {
  return N == 16 && a.x.parts == 2;
}
// The i-th token that a lane has of the j-th eight columns, from its first one on.
template <int N>
__device__ __forceinline__ int TokenOf(const WgmmaArgs& a, int j, int i) {
  return Parted<N>(a) ? j * 4 : j * 8 + i;
}

// The row that a lane has of each of a warp's two eights, in its matrix.
__device__ __forceinline__ int RowOf(const Params& p, const Rows& rows, int pair, int half, int lane) {
  const bool gate_up = p.a.epilogue == WgmmaEpilogue::kGateUp;
  return (rows.eight[gate_up ? half : 0] + (gate_up ? pair : EightOf(p, pair, half))) * 8 + lane / 4;
}
// What the sums of those rows are still to be multiplied with.
template <Format F>
__device__ __forceinline__ float2 RowScales(const Params& p, int tile, int pair, int lane) {
  float out[2] = {1, 1};
  if (BitsOf(F) == 8 && p.scale_bytes == 0) {
    const Rows rows = FindRows(p, tile / p.token_tiles);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const DeviceMatrix& m = p.a.w[static_cast<size_t>(rows.matrix[half])];
      const int row = RowOf(p, rows, pair, half, lane);
      if (row < m.rows) out[half] = __ldg(reinterpret_cast<const float*>(m.scales) + row);
    }
  }
  return make_float2(out[0], out[1]);
}

template <int N>
__device__ __forceinline__ Place FindPlace(const Params& p, int tile, int pair, int lane, float2 scales) {
  const WgmmaArgs& a = p.a;
  const Rows rows = FindRows(p, tile / p.token_tiles);
  Place out;
  out.matrix = rows.matrix[0];
  out.token = (tile % p.token_tiles * N + lane % 4 * 2) / a.x.parts;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int base = a.epilogue == WgmmaEpilogue::kGateUp ? half : 0;
    out.row[half] = RowOf(p, rows, pair, half, lane);
    out.exists[half] = out.row[half] < a.w[static_cast<size_t>(rows.matrix[half])].rows;
    out.scale[half] = half == 0 ? scales.x : scales.y;
    out.column[half] = rows.column[base] + out.row[half] - rows.eight[base] * 8;
  }
  return out;
}

// Values of a lane: [half][token], with all scales; of a token in two parts the second is zero.
struct Values {
  float v[2][2];
};

template <int N>
__device__ __forceinline__ Values ValuesOf(const Params& p, const char* memory, const Place& place, int j,
                                           float4 d) {
  const WgmmaArgs& a = p.a;
  if (Parted<N>(a)) d = make_float4(d.x + d.y, 0, d.z + d.w, 0);
  Values out = {{{d.x * place.scale[0], d.y * place.scale[0]}, {d.z * place.scale[1], d.w * place.scale[1]}}};
  if constexpr (N <= kWgmmaJoined) {
    if (a.squares) {
      const Facts* facts = reinterpret_cast<const Facts*>(memory + p.facts_offset);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = place.token + TokenOf<N>(a, j, i);
        const float scale = token < a.tokens ? facts[token].scale : 0;
        out.v[0][i] *= scale, out.v[1][i] *= scale;
      }
    }
  }
  return out;
}

__device__ __forceinline__ float ActivateFast(DeviceActivation kind, float v) {
  return kind == DeviceActivation::kSilu ? __fdividef(v, 1.0f + __expf(-v)) : matvec::Activate(kind, v);
}

// One row's values of a lane's tokens as pairs of neighbouring columns, which lanes g and g ^ 1 have: the one
// with even g gets both of column 2t of the eight, the other those of 2t + 1. Of a token in two parts these
// are the parts.
__device__ __forceinline__ uint32_t PairOf(bool parted, int lane, const float (&v)[2]) {
  const bool odd = lane / 4 % 2 != 0;
  const float theirs = __shfl_xor_sync(0xffffffffu, odd || parted ? v[0] : v[1], 4);
  if (!parted) return odd ? PackBf16(theirs, v[1]) : PackBf16(v[0], theirs);
  const float low = odd ? theirs : v[0], high = odd ? v[0] : theirs;
  const uint32_t pair = PackBf16(low, high);
  const float2 kept = matvec::UnpackBf16(pair);
  return odd ? PackBf16(low - kept.x, high - kept.y) : pair;
}
// act(gate) * up.
template <int N>
__device__ __forceinline__ uint32_t GateUpPair(const WgmmaArgs& a, const Place& place, int lane,
                                               const Values& values) {
  const bool parted = Parted<N>(a);
  float v[2] = {0, 0};
  if (place.exists[0]) {
    v[0] = ActivateFast(a.activation, values.v[0][0]) * values.v[1][0];
    if (!parted) v[1] = ActivateFast(a.activation, values.v[0][1]) * values.v[1][1];
  }
  return PairOf(parted, lane, v);
}

// Where the 32 columns of four warps' eights lie in kGateUp's output.
template <int N>
__device__ __forceinline__ char* FindMid(const Params& p, int tile, int group) {
  const int block = tile / p.token_tiles * (kEights / 8) + group;
  if (block * 32 >= p.a.mid.padded) return nullptr;
  return static_cast<char*>(p.a.mid.data) +
         static_cast<int64_t>(tile % p.token_tiles) * p.a.mid.padded * N * 2 +
         static_cast<int64_t>(block) * 64 * N;
}

// ---- q, k and v

__device__ __forceinline__ void Append(const DeviceKv& kv, std::byte* row, int at, float value) {
  if (kv.dtype == DType::kBf16)
    reinterpret_cast<__nv_bfloat16*>(row)[at] = __float2bfloat16(value);
  else if (kv.dtype == DType::kFp8E4M3)
    reinterpret_cast<__nv_fp8_storage_t*>(row)[at] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  else
    reinterpret_cast<__half*>(row)[at] = __float2half_rn(value);
}

// A lane's two rows are half a head apart.
template <int N>
__device__ __forceinline__ void StoreQkv(const Params& p, const char* memory, const Place& place, int j,
                                         Values values) {
  const WgmmaArgs& a = p.a;
  if (!place.exists[0]) return;
  const int dim = a.qkv.kv.head_dim, half = dim / 2, head = place.row[0] / dim, at = place.row[0] % dim;
  const float* bias = a.qkv.bias[static_cast<size_t>(place.matrix)];
  const Facts* all = reinterpret_cast<const Facts*>(memory + p.facts_offset);
  const float add[2] = {bias ? __ldg(bias + place.row[0]) : 0.0f, bias ? __ldg(bias + place.row[1]) : 0.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = place.token + TokenOf<N>(a, j, i);
    if (token >= a.tokens || (Parted<N>(a) && i > 0)) break;
    const Facts facts = all[token];
    float low = values.v[0][i] + add[0], high = values.v[1][i] + add[1];
    if (place.matrix < 2) {
      const int64_t angle = static_cast<int64_t>(facts.position) * half + at;
      const float cosine = __ldg(a.qkv.rope_cos + angle), sine = __ldg(a.qkv.rope_sin + angle);
      const float turned = low * cosine - high * sine;
      high = high * cosine + low * sine;
      low = turned;
    }
    if (place.matrix == 0) {
      float* to = a.out + token * a.out_stride + place.row[0];
      to[0] = low, to[half] = high;
      continue;
    }
    const DeviceKv& kv = a.qkv.kv;
    std::byte* row = (place.matrix == 1 ? kv.k : kv.v) + kv.HeadOffset(facts.block, head) +
                     facts.position % kKvBlock * kv.row_bytes();
    Append(kv, row, at, low);
    Append(kv, row, at + half, high);
  }
}

// ---- accumulation into the output, and the prologue of the next product

// What the sums are added to, where it has to be read.
template <int N>
__device__ __forceinline__ Values LoadBefore(const WgmmaArgs& a, const Place& place, int j) {
  Values out = {};
  if constexpr (N <= kWgmmaJoined) {
    if (a.epilogue != WgmmaEpilogue::kAdd || !a.next.data) return out;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = place.token + TokenOf<N>(a, j, i);
        if (place.exists[half] && token < a.tokens && !(Parted<N>(a) && i > 0))
          out.v[half][i] = __ldcg(a.out + token * a.out_stride + place.column[half]);
      }
  }
  return out;
}

// Squares of the rows of a warp's lanes, [8 warps, N tokens] in shared memory.
template <int N>
__device__ __forceinline__ void AddOn(const Params& p, char* memory, const Place& place, int warp, int lane,
                                      int j, const Values& values, const Values& before) {
  const WgmmaArgs& a = p.a;
  const bool parted = Parted<N>(a);
  float squares[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float v[2] = {0, 0};
    const float norm = place.exists[half] ? __ldg(a.next_norm + place.column[half]) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = place.token + TokenOf<N>(a, j, i);
      if (!place.exists[half] || token >= a.tokens || (parted && i > 0)) continue;
      const float sum = before.v[half][i] + values.v[half][i];
      a.out[token * a.out_stride + place.column[half]] = sum;
      squares[i] += sum * sum;
      v[i] = sum * norm;
    }
    const int column = place.column[half];
    const int at = j * 8 + lane % 4 * 2 + lane / 4 % 2;  // one token tile
    *reinterpret_cast<uint32_t*>(static_cast<char*>(a.next.data) +
                                 (static_cast<int64_t>(column / 32 * 4 + column % 8 / 2) * N + at) * 16 +
                                 column % 32 / 8 * 4) = PairOf(parted, lane, v);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], apart);
    if (lane < 4 && !(parted && i > 0))
      reinterpret_cast<float*>(
          memory + p.staging_offset)[warp * N + lane * (parted ? 1 : 2) + TokenOf<N>(a, j, i)] = squares[i];
  }
}
// By all multipliers, after AddOn() for eights [first, last) of columns.
template <int N>
__device__ __forceinline__ void PutSquares(const Params& p, char* memory, int tile, int first, int last) {
  const WgmmaArgs& a = p.a;
  const int each = Parted<N>(a) ? 4 : 8;
  MultipliersBarrier();
  const int token = static_cast<int>(threadIdx.x) + first * each;
  if (token < min(last * each, a.tokens)) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kGroups * 4; ++w)
      sum += reinterpret_cast<const float*>(memory + p.staging_offset)[w * N + token];
    a.next_squares[tile * kWgmmaJoined + token] = sum;
  }
  MultipliersBarrier();
}

// Lanes g and g ^ 1 have neighbouring rows: each writes both for one of the two tokens.
__device__ __forceinline__ void StoreNarrow(const WgmmaArgs& a, const Place& place, int lane, int j,
                                            const Values& values) {
  const bool odd = lane / 4 % 2 != 0;
  const int token = place.token + j * 8 + (odd ? 1 : 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&v)[2] = values.v[half];
    const float theirs = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 4);
    const float low = odd ? theirs : v[0], high = odd ? v[1] : theirs;
    if (!place.exists[half] || token >= a.tokens) continue;
    const __half2 halves = __floats2half2_rn(low, high);
    const uint32_t bits = a.narrow_bf16 ? PackBf16(low, high) : reinterpret_cast<const uint32_t&>(halves);
    static_cast<uint32_t*>(a.narrow_out)[(token * a.out_stride + place.column[half]) / 2] = bits;
  }
}

// The j-th eight columns of a warp, `d` as in Wgmma. Not for kGateUp.
template <int N>
__device__ __forceinline__ void FinishEight(const Params& p, char* memory, const Place& place, int warp,
                                            int lane, int j, const Values& values, const Values& before) {
  const WgmmaArgs& a = p.a;
  if constexpr (N <= kWgmmaJoined) {
    if (a.epilogue == WgmmaEpilogue::kQkv) return StoreQkv<N>(p, memory, place, j, values);
    if (a.epilogue == WgmmaEpilogue::kAdd && a.next.data)
      return AddOn<N>(p, memory, place, warp, lane, j, values, before);
  } else if (a.narrow_out) {
    return StoreNarrow(a, place, lane, j, values);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = place.token + TokenOf<N>(a, j, i);
      if (!place.exists[half] || token >= a.tokens || (Parted<N>(a) && i > 0)) continue;
      float* to = a.out + token * a.out_stride + place.column[half];
      if (a.epilogue == WgmmaEpilogue::kAdd)
        atomicAdd(to, values.v[half][i]);  // the only one to this value: no load to wait for
      else
        *to = values.v[half][i];
    }
}

// A tile that this block has computed alone.
template <int N>
__device__ __forceinline__ void FinishTile(const Params& p, char* memory, int group, int warp, int lane,
                                           int tile, float2 scales, const float (&sums)[N / 2]) {
  const WgmmaArgs& a = p.a;
  const Place place = FindPlace<N>(p, tile, group * 4 + warp, lane, scales);
  const auto quad = [&](int j) {
    return make_float4(sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]);
  };
  if (a.epilogue != WgmmaEpilogue::kGateUp) {
    if constexpr (N <= kWgmmaJoined) {
      Values before[N / 8];
#pragma unroll
      for (int j = 0; j < N / 8; ++j) before[j] = LoadBefore<N>(a, place, j);
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
        FinishEight<N>(p, memory, place, group * 4 + warp, lane, j, ValuesOf<N>(p, memory, place, j, quad(j)),
                       before[j]);
      if (a.epilogue == WgmmaEpilogue::kAdd && a.next.data) PutSquares<N>(p, memory, tile, 0, N / 8);
    } else {
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
        FinishEight<N>(p, memory, place, 0, lane, j, ValuesOf<N>(p, memory, place, j, quad(j)), {});
    }
    return;
  }
  // Through shared memory, so that whole lines are written.
  constexpr int kNow = N < kSlice ? N : kSlice;
  char* staging = memory + p.staging_offset + group * kSlice * 64;
  char* to = FindMid<N>(p, tile, group);
#pragma unroll
  for (int slice = 0; slice < N / kNow; ++slice) {
#pragma unroll
    for (int j = 0; j < kNow / 8; ++j) {
      const int all = slice * kNow / 8 + j;
      *reinterpret_cast<uint32_t*>(staging + (lane / 8 * kNow + j * 8 + lane % 4 * 2 + lane / 4 % 2) * 16 +
                                   warp * 4) =
          GateUpPair<N>(a, place, lane, ValuesOf<N>(p, memory, place, all, quad(all)));
    }
    GroupBarrier(group);
    if (to)
      for (int i = threadIdx.x % 128; i < 4 * kNow; i += 128)
        *reinterpret_cast<uint4*>(to + (static_cast<int64_t>(i / kNow) * N + slice * kNow + i % kNow) * 16) =
            *reinterpret_cast<const uint4*>(staging + i * 16);
    GroupBarrier(group);
  }
}

// ---- tiles in pieces
//
// Stream-K: a block puts the accumulators of its piece into one of its two slots: 1 if the piece begins the
// tile, else 0. When all of them are there, the blocks that share the tile reduce them in the order of k,
// each for a part of the tokens. All blocks are resident at once, so that they can wait for each other.

constexpr int64_t kSlotQuads = int64_t{kMaxAccumulators} / 4 * kMultipliers;

template <int N>
__device__ __forceinline__ void PutPiece(const Params& p, const Piece& piece, const float (&sums)[N / 2]) {
  float4* to = reinterpret_cast<float4*>(p.a.partial) +
               (static_cast<int64_t>(blockIdx.x) * 2 + (piece.begin == 0 ? 1 : 0)) * kSlotQuads + threadIdx.x;
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
    __stcg(to + j * kMultipliers,
           make_float4(sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]));
  __threadfence();
  MultipliersBarrier();
  if (threadIdx.x == 0) atomicAdd(p.a.tickets + 2 * (piece.tile - p.waves * static_cast<int>(gridDim.x)), 1);
}

template <Format F, int N>
__device__ __forceinline__ void FinishTogether(const Params& p, char* memory, int group, int warp, int lane,
                                               int tile, const Schedule& schedule) {
  const WgmmaArgs& a = p.a;
  const int64_t number = tile - static_cast<int64_t>(p.waves) * gridDim.x;
  const int first = schedule.OwnerOf(number * p.chunks), last = schedule.OwnerOf((number + 1) * p.chunks - 1);
  const int pieces = last - first + 1, mine = static_cast<int>(blockIdx.x) - first;
  int32_t* arrived = a.tickets + 2 * number;
  if (threadIdx.x == 0) {
    int count;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
    } while (count < pieces);
  }
  MultipliersBarrier();
  const float4* parts = reinterpret_cast<const float4*>(a.partial) + threadIdx.x;
  const int pair = group * 4 + warp;
  const Place place = FindPlace<N>(p, tile, pair, lane, RowScales<F>(p, tile, pair, lane));
  char* mid = a.epilogue == WgmmaEpilogue::kGateUp ? FindMid<N>(p, tile, group) : nullptr;
  const int begin = mine * (N / 8) / pieces, end = (mine + 1) * (N / 8) / pieces;
  constexpr int kAtOnce = N > kWgmmaJoined ? 4 : 2;
  for (int first_j = begin; first_j < end; first_j += kAtOnce) {
    Values before[kAtOnce];
    float4 d[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first_j + i >= end) break;
      before[i] = LoadBefore<N>(a, place, first_j + i);
      d[i] = __ldcg(parts + (first_j + i) * kMultipliers + (first * 2 + 1) * kSlotQuads);
    }
#pragma unroll 2
    for (int block = first + 1; block <= last; ++block) {
      float4 more[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first_j + i < end)
          more[i] = __ldcg(parts + (first_j + i) * kMultipliers + block * 2 * kSlotQuads);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first_j + i < end)
          d[i] = make_float4(d[i].x + more[i].x, d[i].y + more[i].y, d[i].z + more[i].z, d[i].w + more[i].w);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = first_j + i;
      if (j >= end) break;
      const Values values = ValuesOf<N>(p, memory, place, j, d[i]);
      if (a.epilogue != WgmmaEpilogue::kGateUp) {
        FinishEight<N>(p, memory, place, group * 4 + warp, lane, j, values, before[i]);
        continue;
      }
      const uint32_t pair = GateUpPair<N>(a, place, lane, values);
      if (mid)
        *reinterpret_cast<uint32_t*>(
            mid + (static_cast<int64_t>(lane / 8) * N + j * 8 + lane % 4 * 2 + lane / 4 % 2) * 16 +
            warp * 4) = pair;
    }
  }
  if constexpr (N <= kWgmmaJoined)
    if (a.epilogue == WgmmaEpilogue::kAdd && a.next.data) PutSquares<N>(p, memory, tile, begin, end);
  // The last one to leave resets the counters for the next product.
  if (threadIdx.x == 0 && atomicAdd(arrived + 1, 1) == pieces - 1) arrived[0] = arrived[1] = 0;
}

}  // namespace celer::cuda::wgmma
