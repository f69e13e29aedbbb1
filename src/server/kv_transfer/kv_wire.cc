#include "server/kv_transfer/kv_wire.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "io/file/printable.h"

namespace celer::server {
namespace {

constexpr std::string_view kMagic = "CELERKV\n";
constexpr size_t kMostText = 8192, kMostFields = 16;

class Writer {
 public:
  template <class T>
  void Number(T value) {
    for (size_t i = 0; i < sizeof value; ++i)
      out_.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
  }
  void Bytes(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void Text(std::string_view text) {
    text = text.substr(0, kMostText);
    Number(static_cast<uint16_t>(text.size()));
    Bytes(std::as_bytes(std::span(text)));
  }
  void Identity(const KvIdentity& identity) {
    Number(static_cast<uint64_t>(identity.block_bytes));
    CELER_CHECK_LE(identity.fields.size(), kMostFields);
    Number(static_cast<uint8_t>(identity.fields.size()));
    for (const auto& [name, value] : identity.fields) {
      Text(name);
      Text(value);
    }
  }
  std::vector<std::byte> Frame() const {
    Writer frame;
    frame.Bytes(std::as_bytes(std::span(kMagic)));
    frame.Number(kKvVersion);
    frame.Number(static_cast<uint32_t>(out_.size()));
    frame.Bytes(out_);
    return std::move(frame.out_);
  }
  const std::vector<std::byte>& written() const { return out_; }

 private:
  std::vector<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  bool Number(T* out) {
    if (left_.size() < sizeof *out) return false;
    uint64_t value = 0;
    for (size_t i = sizeof *out; i-- > 0;) value = value << 8 | std::to_integer<uint64_t>(left_[i]);
    *out = static_cast<T>(value);
    left_ = left_.subspan(sizeof *out);
    return true;
  }
  bool Bytes(std::span<std::byte> out) {
    if (left_.size() < out.size()) return false;
    std::ranges::copy(left_.first(out.size()), out.begin());
    left_ = left_.subspan(out.size());
    return true;
  }
  bool Text(std::string* out) {
    uint16_t size = 0;
    if (!Number(&size) || size > kMostText || size > left_.size()) return false;
    out->assign(reinterpret_cast<const char*>(left_.data()), size);
    left_ = left_.subspan(size);
    return true;
  }
  bool Identity(KvIdentity* out) {
    uint64_t block_bytes = 0;
    uint8_t count = 0;
    if (!Number(&block_bytes) || !Number(&count) || block_bytes > uint64_t{1} << 40 || count > kMostFields)
      return false;
    out->block_bytes = static_cast<int64_t>(block_bytes);
    for (uint8_t i = 0; i < count; ++i) {
      std::string name, value;
      if (!Text(&name) || !Text(&value) || !out->fields.emplace(name, std::move(value)).second) return false;
    }
    return true;
  }
  bool ended() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

Error Malformed(const char* what) {
  return Error::Corrupt("what comes is no ", what, " of celer's KV transfer");
}

}  // namespace

std::vector<std::byte> Encode(const KvAsk& ask) {
  Writer writer;
  writer.Text(ask.engine);
  writer.Text(ask.transfer);
  writer.Bytes(ask.hash);
  writer.Number(ask.first);
  writer.Number(ask.blocks);
  writer.Identity(ask.identity);
  return writer.Frame();
}

std::vector<std::byte> Encode(const KvAnswer& answer) {
  Writer writer;
  writer.Text(answer.refusal);
  writer.Identity(answer.identity);
  return writer.Frame();
}

std::array<std::byte, kKvPieceHead> Encode(const KvPiece& piece) {
  Writer writer;
  writer.Number(piece.blocks);
  writer.Number(uint32_t{0});
  writer.Number(piece.checksum);
  std::array<std::byte, kKvPieceHead> out = {};
  std::ranges::copy(writer.written(), out.begin());
  return out;
}

Result<uint32_t> ReadFrameHead(std::span<const std::byte> head) {
  Reader reader(head);
  std::array<std::byte, 8> magic;
  uint32_t version = 0, size = 0;
  if (!reader.Bytes(magic) || !reader.Number(&version) || !reader.Number(&size) || !reader.ended() ||
      !std::ranges::equal(magic, std::as_bytes(std::span(kMagic))))
    return Malformed("frame");
  if (version != kKvVersion)
    return Error::Unsupported("the other side speaks version ", version, " of the KV transfer, and this one ",
                              kKvVersion);
  if (size > kMostKvFrame)
    return Error::Corrupt("a frame of the KV transfer has ", size, " bytes, and may have ", kMostKvFrame);
  return size;
}

Result<KvAsk> ReadAsk(std::span<const std::byte> body) {
  Reader reader(body);
  KvAsk ask;
  if (!reader.Text(&ask.engine) || !reader.Text(&ask.transfer) || !reader.Bytes(ask.hash) ||
      !reader.Number(&ask.first) || !reader.Number(&ask.blocks) || !reader.Identity(&ask.identity) ||
      !reader.ended())
    return Malformed("question");
  if (ask.blocks == 0 || ask.first > ask.blocks)
    return Error::Invalid("blocks ", ask.first, " to ", ask.blocks, " of a prompt are asked for");
  return ask;
}

Result<KvAnswer> ReadAnswer(std::span<const std::byte> body) {
  Reader reader(body);
  KvAnswer answer;
  if (!reader.Text(&answer.refusal) || !reader.Identity(&answer.identity) || !reader.ended())
    return Malformed("answer");
  answer.refusal = answer.refusal.empty() ? "" : Printable(answer.refusal, 1000);
  return answer;
}

Result<KvPiece> ReadPiece(std::span<const std::byte> head, int64_t most_blocks) {
  Reader reader(head);
  KvPiece piece;
  uint32_t zero = 0;
  if (!reader.Number(&piece.blocks) || !reader.Number(&zero) || !reader.Number(&piece.checksum) ||
      !reader.ended() || zero != 0)
    return Malformed("piece");
  if (piece.blocks == 0 || piece.blocks > most_blocks)
    return Error::Corrupt("a piece has ", piece.blocks, " blocks, expected 1 to ", most_blocks);
  return piece;
}

}  // namespace celer::server
