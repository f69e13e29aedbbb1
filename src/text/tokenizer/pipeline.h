// The tokenizer that all files but tokenizer.model become: added tokens, normalizer, pre-tokenizer, model,
// post-processor (template of BOS and EOS); and back through the decoder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/model/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

class Pipeline : public Tokenizer {
 public:
  // What a reader of files fills in; Make checks that it fits together.
  struct Parts {
    std::unique_ptr<Vocabulary> vocabulary;  // of the model; it refers to it
    std::unique_ptr<TokenModel> model;
    std::vector<AddedToken> added;
    std::unique_ptr<Normalizer> normalizer;       // may be null
    std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null
    Decoder decoder;
    std::vector<int32_t> prefix, suffix;  // BOS and EOS: what add_special puts around the text
    bool raw_bytes = false;               // the model takes text that is not UTF-8
    bool unknown_is_text = false;         // the unknown token is special, but decodes to text of its own
    // By id, may be short: tokens that stand for themselves though the decoder expects GPT-2's alphabet
    // (GGUF: control and user-defined ones).
    std::vector<bool> verbatim;
    TokenizerInfo info;
  };
  static Result<std::unique_ptr<Tokenizer>> Make(Parts parts);

  using Tokenizer::Encode;
  std::vector<int32_t> Encode(std::string_view text, EncodeOptions options) const override;
  std::string_view Piece(int32_t id) const override;
  std::optional<int32_t> Find(std::string_view token) const override;
  bool IsSpecial(int32_t id) const override;
  bool NormalizesToSpecial() const override { return added_.has_normalized_special(); }
  int vocab_size() const override { return static_cast<int>(pieces_.size()); }
  std::unique_ptr<DecodeStream> OpenStream(bool skip_special) const override;

 private:
  class Stream;
  Pipeline(Parts parts, AddedTokens added);
  void EncodeStretch(std::string_view text, bool at_start, bool parse_special, RegexBudget& budget,
                     std::vector<int32_t>& out) const;
  std::optional<std::string_view> Token(int32_t id) const;

  Parts parts_;
  AddedTokens added_;
  std::vector<std::string> pieces_;  // by id
};

}  // namespace celer
