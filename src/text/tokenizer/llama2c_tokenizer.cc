// llama2.c's tokenizer.bin: the length of the longest token, then a score, a length and the bytes for each.
#include <cmath>
#include <cstring>

#include "io/file/mapped_file.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/pipeline.h"

namespace celer {
namespace {

constexpr int32_t kUnk = 0, kBos = 1, kEos = 2, kFirstByte = 3;  // fixed by the format
constexpr int kMinTokens = kFirstByte;

// "\n<s>\n" is how the file spells "<s>".
std::string Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of("\n ");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of("\n ") + 1 - begin));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromLlama2c(const std::filesystem::path& tokenizer_bin,
                                                          int vocab_size) {
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(tokenizer_bin));
  const std::string where = tokenizer_bin.string();
  std::span<const std::byte> left = file.bytes();
  const auto take = [&](void* out, size_t size) {
    if (left.size() < size) return false;
    std::memcpy(out, left.data(), size);
    left = left.subspan(size);
    return true;
  };
  int32_t longest = 0;
  if (!take(&longest, sizeof longest) || longest <= 0)
    return Error::Corrupt(where, ": is not a llama2.c tokenizer (its longest token would have ", longest,
                          " bytes)");

  Pipeline::Parts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  std::vector<float> scores;
  while (vocab_size > 0 ? static_cast<int>(scores.size()) < vocab_size : !left.empty()) {
    const auto id = static_cast<int32_t>(scores.size());
    float score = 0;
    int32_t length = 0;
    if (!take(&score, sizeof score) || !take(&length, sizeof length))
      return Error::Corrupt(where, ": ends at token ", id, vocab_size > 0 ? " of " : "",
                            vocab_size > 0 ? std::to_string(vocab_size) : "");
    if (length < 0 || length > longest || static_cast<size_t>(length) > left.size())
      return Error::Corrupt(where, ": token ", id, " has ", length, " bytes, but ", left.size(),
                            " are left and no token may have more than ", longest);
    if (std::isnan(score)) return Error::Corrupt(where, ": token ", id, " has the score NaN");
    parts.vocabulary->Add(std::string(reinterpret_cast<const char*>(left.data()), length), id);
    left = left.subspan(length);
    scores.push_back(score);
  }
  const auto count = static_cast<int32_t>(scores.size());
  if (count < kMinTokens) return Error::Corrupt(where, ": has only ", count, " tokens");

  std::vector<bool> never(count);
  std::vector<int32_t> bytes = FindByteTokens(*parts.vocabulary);
  for (int byte = 0; byte < 256; ++byte) {
    if (bytes[byte] < 0 && kFirstByte + byte < count && count >= kFirstByte + 256)
      bytes[byte] = kFirstByte + byte;
    if (bytes[byte] >= 0) never[bytes[byte]] = true;
  }
  for (const int32_t id : {kUnk, kBos, kEos}) {
    never[id] = true;
    std::string content = Trim(parts.vocabulary->Get(id));
    if (!content.empty()) parts.added.push_back({.content = std::move(content), .id = id, .special = true});
  }
  parts.model = MakeScoredBpe(*parts.vocabulary, std::move(scores), never, std::move(bytes),
                              {.unk_id = kUnk, .join_unknown = false});
  parts.normalizer = MakePrepend(" ");
  parts.decoder = Decoder::SentencePiece(1);
  parts.raw_bytes = true;
  parts.prefix = {kBos};
  parts.info = {.bos = kBos, .eos = kEos, .unk = kUnk};
  return Pipeline::Make(std::move(parts));
}

}  // namespace celer
