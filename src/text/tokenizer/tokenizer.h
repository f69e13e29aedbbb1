// Text to token ids and back. One class for every kind of file; immutable, and safe to use from many threads
// once it is made.
//
// Text that is not valid UTF-8: what comes from tokenizer.json is fed U+FFFD for every maximal invalid part,
// as the Hugging Face package sees such text after Python's decode(errors="replace"). SentencePiece models
// and vocabularies by score (GGUF "llama", llama2.c) take the bytes, which become byte tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace celer {

class GgufFile;

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;

  // Whether they share a byte; an empty range: whether it lies strictly inside the other.
  bool Overlaps(size_t other_begin, size_t other_end) const {
    return other_begin < (end > begin ? end : begin) && other_end > begin;
  }
};

struct EncodeOptions {
  bool add_special = true;    // BOS and EOS as the file asks
  bool parse_special = true;  // special-token strings in the text become control tokens; false for user text
  // Where they do not, though parse_special is set: no control token is made of a byte in one of these, nor
  // across an empty one. In ascending order.
  std::span<const TextRange> plain = {};
};

// Ids in, text out. Made by a tokenizer that outlives it; what one Push appends is whole code points.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  virtual void Push(int32_t id, std::string& out) = 0;
  virtual void Finish(std::string& out) = 0;
};

// What a file says about its tokens, besides the tokens themselves.
struct TokenizerInfo {
  std::optional<int32_t> bos = {}, eos = {}, unk = {}, pad = {};
  std::vector<int32_t> end_of_turn = {};  // sorted; eos is among them
  std::string chat_template = {};         // "" if there is none
};

class Tokenizer {
 public:
  // tokenizer.json, else tokenizer.model; with tokenizer_config.json, special_tokens_map.json,
  // generation_config.json and chat_template.jinja where they are. `path` may also name tokenizer.json or
  // tokenizer.model itself.
  static Result<std::unique_ptr<Tokenizer>> FromHfDirectory(const std::filesystem::path& path);
  // The metadata tokenizer.ggml.*; the file need not outlive the tokenizer.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  // llama2.c's tokenizer.bin, which does not say how many tokens it has: vocab_size is the model's, or 0 to
  // take all that are there.
  static Result<std::unique_ptr<Tokenizer>> FromLlama2c(const std::filesystem::path& tokenizer_bin,
                                                        int vocab_size);

  virtual ~Tokenizer() = default;

  // Never fails: what has no token becomes byte tokens or the unknown token, as the vocabulary provides.
  virtual std::vector<int32_t> Encode(std::string_view text, EncodeOptions options = {}) const = 0;
  // As transformers' decode(ids, skip_special_tokens, clean_up_tokenization_spaces=False). Ids that do not
  // exist are left out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;
  // The bytes that one token stands for, which need not be valid UTF-8; "" for an id that does not exist.
  virtual std::string_view Piece(int32_t id) const = 0;
  // The token of that name, as the vocabulary spells it ("<|im_end|>", "\u2581the", "\u0120the").
  virtual std::optional<int32_t> Find(std::string_view token) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  // Whether a control token may come of text that does not spell it, because the normalizer makes it so.
  virtual bool NormalizesToSpecial() const { return false; }
  virtual int vocab_size() const = 0;  // the largest id + 1
  virtual std::unique_ptr<DecodeStream> OpenStream(bool skip_special) const = 0;

  std::optional<int32_t> bos_id() const { return info_.bos; }
  std::optional<int32_t> eos_id() const { return info_.eos; }
  std::optional<int32_t> unk_id() const { return info_.unk; }
  std::optional<int32_t> pad_id() const { return info_.pad; }
  // What ends an answer: eos, and the end-of-turn tokens (<|im_end|>, <|eot_id|>, ...) that the file names or
  // has under a well-known name.
  const std::vector<int32_t>& end_of_turn_ids() const { return info_.end_of_turn; }
  bool IsEndOfTurn(int32_t id) const;
  const std::string& chat_template() const { return info_.chat_template; }

 protected:
  // Drops ids that do not exist, adds the well-known end-of-turn tokens. Called last by whoever makes one.
  void SetInfo(TokenizerInfo info);

 private:
  TokenizerInfo info_;
};

// Streaming detokenization of tokens as they are sampled. The concatenation of all it returns equals Decode
// of all ids; it never ends in the middle of a code point.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : stream_(tokenizer.OpenStream(skip_special)) {}
  std::string Push(int32_t id);
  std::string Finish();  // what was held back; nothing may be pushed after it

 private:
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace celer
