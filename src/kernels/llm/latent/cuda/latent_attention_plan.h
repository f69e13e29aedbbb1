// How the keys of latent attention are split, for the kernel that sums and the one that joins.
#pragma once

namespace celer::cuda::latent {

constexpr int kLatentKeys = 64;         // at once; a split begins at a multiple of it
constexpr int kSmallLatentKeys = 32;    // at once, where blocks have little shared memory
constexpr int kSteadyLatentKeys = 256;  // of a split at least, where splits depend on the length alone
constexpr int kMostLatentSplits = 64;   // of a sequence
constexpr int kSteadyLatentSplits = 8;

constexpr int kGroupedRows =
    64;  // of tokens and heads at once, unless tokens are alone; half with little shared memory

// Whether a block may have less than the forms of 64 keys need.
bool SmallLatentForms();

}  // namespace celer::cuda::latent
