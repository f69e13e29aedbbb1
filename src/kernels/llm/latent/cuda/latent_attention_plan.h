// How the keys of latent attention are split, for the kernel that sums and the one that joins.
#pragma once

namespace celer::cuda::latent {

constexpr int kLatentKeys = 64;         // at once; a split begins at a multiple of it
constexpr int kSteadyLatentKeys = 256;  // of a split at least, where splits depend on the length alone
constexpr int kMostLatentSplits = 64;   // of a sequence
constexpr int kSteadyLatentSplits = 8;

constexpr int kGroupedRows = 64;  // of tokens and heads at once, unless tokens are alone

}  // namespace celer::cuda::latent
