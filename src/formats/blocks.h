// The GGUF block formats whose numbers are integers under f16 scales, best first: the order in which messages name them
// (the others: scaled_blocks.h). A format is a struct with its layout, a row in base/dtype.cc and its place in this list; docs/add_a_format.md walks through it.
//
// What such a struct has. Elements are named in runs of 16, element 16 * run + j; numbers are those that the
// file holds, and w = d * Value + m, or w = d * Scale * Value - dmin * Min.
//   kDType, kElements    its type, and the elements of a block: 32, or 256 in super-blocks
//   kGroup               columns that share a scale
//   kBits                of a value, which is signed if the format has no minimum
//   kLevels              values are kLevels + 1 evenly spaced ones; 0: they are not evenly spaced
//   d, and m or dmin     f16; without m and dmin there is no minimum
//   Value, Put           of an element; no Put without levels
//   Encode               its own encoder, where those of codec.cc do not serve
// Super-blocks also have
//   Scale, PutScale, Min, PutMin   of a group
//   kTop                 the largest scale and minimum
//   kNarrow              the type of rows that are no multiple of 256 columns
// The functions are constexpr and look at integers alone, so that a GPU calls them as well.
#pragma once

#include "formats/iq/iq4_nl.h"
#include "formats/iq/iq4_xs.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

namespace celer {

template <class... Block>
struct BlockList {};
using GgufBlocks = BlockList<BlockQ8_0, BlockQ6_K, BlockQ5_K, BlockQ5_1, BlockQ5_0, BlockQ4_K, BlockQ4_1,
                             BlockQ4_0, BlockIq4Nl, BlockIq4Xs, BlockQ3_K, BlockQ2_K>;

template <class Block>
constexpr bool kIsSuper = Block::kElements > 32;
template <class Block>
constexpr bool kHasMin = requires(Block b) {
  b.m;
}
|| requires(Block b) {
  b.dmin;
};
// The largest magnitude of a value.
template <class Block>
constexpr int kMostValue = kHasMin<Block> ? (1 << Block::kBits) - 1 : 1 << (Block::kBits - 1);

}  // namespace celer
