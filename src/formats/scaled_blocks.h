// Block formats that celer unpacks on the host alone, in the order in which messages name them: their numbers need tables,
// or scales that are no f16. All but MXFP4 are only read.
//
// What such a struct has:
//   kDType, kElements   its type, and the elements of a block
//   kGroup              columns that share a scale: 16, or at least 32
//   Unpack              columns 32b to 32b + 31 of the block
//   LargestScale        the bits of the block's f16 number without the sign, so that infinity and NaN are above all; 0 if
//                       there is none. MXFP4, whose scales reach beyond f16, has neither this nor kReach
//   kReach              a weight is at most this many times that number
//   Encode              of those that celer writes
#pragma once

#include "formats/blocks.h"
#include "formats/fp4/mxfp4.h"
#include "formats/fp4/nvfp4.h"
#include "formats/iq/iq1.h"
#include "formats/iq/iq2.h"
#include "formats/iq/iq3.h"
#include "formats/ternary.h"

namespace celer {

using ReadOnlyBlocks = BlockList<BlockNvfp4, BlockIq3S, BlockIq3Xxs, BlockIq2S, BlockIq2Xs, BlockIq2Xxs,
                                 BlockTq2_0, BlockTq1_0, BlockIq1M, BlockIq1S>;

template <class First, class... Rest>
constexpr BlockList<First, Rest...> Prepend(BlockList<Rest...>) {
  return {};
}
using ScaledBlocks = decltype(Prepend<BlockMxfp4>(ReadOnlyBlocks{}));

}  // namespace celer
