// What two servers say to each other when one fetches keys and values from the other, over TCP:
//
//   the one that asks:  a frame with a KvAsk
//   the other one:      a frame with a KvAnswer, then pieces until all blocks are sent: a KvPiece, and the blocks' bytes
//   the one that asks:  the byte kKvThanks, once all of them are stored
//
// A frame is "CELERKV\n", the version and the length of what follows. Numbers are little-endian; a text is its length (2
// bytes) and its bytes. All that is read here may come from anybody: sizes are checked before they are used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/kv/kv_identity.h"

namespace celer::server {

inline constexpr uint32_t kKvVersion = 1;
inline constexpr size_t kKvFrameHead = 16, kKvPieceHead = 16;
inline constexpr uint32_t kMostKvFrame = 1 << 16;  // bytes behind its head
inline constexpr std::byte kKvThanks{1};

// The first `blocks` blocks of a prompt, from block `first` on; it may be that none is left to send.
struct KvAsk {
  std::string engine = {};    // which is asked: another one may listen there by now
  std::string transfer = {};  // as its answer named it
  KvHash hash = {};           // KvPrefix::Hash(blocks)
  uint32_t first = 0, blocks = 0;
  KvIdentity identity = {};
  bool operator==(const KvAsk&) const = default;
};

struct KvAnswer {
  std::string refusal = {};  // a sentence; nothing follows
  KvIdentity identity = {};
  bool operator==(const KvAnswer&) const = default;
};

struct KvPiece {
  uint32_t blocks = 0;
  uint64_t checksum = 0;  // ContentHash() of their bytes
  bool operator==(const KvPiece&) const = default;
};

std::vector<std::byte> Encode(const KvAsk& ask);        // the whole frame
std::vector<std::byte> Encode(const KvAnswer& answer);  // likewise
std::array<std::byte, kKvPieceHead> Encode(const KvPiece& piece);

// How many bytes follow the head of a frame.
Result<uint32_t> ReadFrameHead(std::span<const std::byte> head);
Result<KvAsk> ReadAsk(std::span<const std::byte> body);
Result<KvAnswer> ReadAnswer(std::span<const std::byte> body);
// One of at most so many blocks.
Result<KvPiece> ReadPiece(std::span<const std::byte> head, int64_t most_blocks);

}  // namespace celer::server
