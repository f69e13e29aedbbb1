// Fuzzes what a peer of the KV transfer sends: frames, questions, answers and pieces. What is read is written again as it was.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "server/kv_transfer/kv_wire.h"

namespace celer::server {
namespace {

template <class T>
void Again(const Result<T>& read, Result<T> (*reader)(std::span<const std::byte>)) {
  if (!read) {
    if (read.error().message().empty()) __builtin_trap();
    return;
  }
  const std::vector<std::byte> frame = Encode(*read);
  const std::span<const std::byte> all = frame;
  const Result<uint32_t> size = ReadFrameHead(all.first(kKvFrameHead));
  // What is read may be longer than a frame may be, as its own length is not known here.
  if (frame.size() - kKvFrameHead > kMostKvFrame) return;
  if (!size || *size != frame.size() - kKvFrameHead) __builtin_trap();
  const Result<T> again = reader(all.subspan(kKvFrameHead));
  if (!again || !(*again == *read)) __builtin_trap();
}

void TryAll(std::span<const std::byte> bytes) {
  static_cast<void>(ReadFrameHead(bytes.first(std::min(bytes.size(), kKvFrameHead))));
  const auto body = bytes.size() > kKvFrameHead ? bytes.subspan(kKvFrameHead) : bytes;
  Again<KvAsk>(ReadAsk(body), ReadAsk);
  // A sentence is made printable, which a second time changes nothing but what was cut.
  if (const Result<KvAnswer> answer = ReadAnswer(body); answer && answer->refusal.size() > 8000)
    __builtin_trap();
  if (bytes.size() < kKvPieceHead) return;
  if (const auto piece = ReadPiece(bytes.first(kKvPieceHead), 1000)) {
    if (piece->blocks < 1 || piece->blocks > 1000) __builtin_trap();
    const auto again = Encode(*piece);
    if (!std::equal(again.begin(), again.end(), bytes.begin())) __builtin_trap();
  }
}

}  // namespace
}  // namespace celer::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  celer::server::TryAll(std::as_bytes(std::span(data, size)));
  return 0;
}
