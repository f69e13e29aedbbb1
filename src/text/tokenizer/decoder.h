// Detokenization: the "decoder" of tokenizer.json, as a chain that works token by token. The same chain
// serves Decode and streaming, so the two cannot differ.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/json/json.h"

namespace celer {

// Takes tokens (or the parts of the one token that an earlier step fused), gives text to what comes next.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void Push(std::string token) = 0;
  virtual void Finish() = 0;
};

class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual std::unique_ptr<TokenSink> Open(std::unique_ptr<TokenSink> next) const = 0;
  // What this step makes of one token by itself, for Tokenizer::Piece.
  virtual std::string Piece(std::string token) const { return token; }
};

class Decoder {
 public:
  // No steps: the tokens, with a space between them.
  Decoder() = default;
  static Result<Decoder> Parse(const nlohmann::json& json, const std::string& where);
  // GPT-2's byte alphabet; a token that is not written in it stands for itself.
  static Decoder ByteLevel();
  // SentencePiece: U+2581 is a space, <0xNN> a byte; up to this many leading spaces are dropped. Bytes that
  // are not UTF-8 become one U+FFFD each. The token `unknown` becomes `unknown_text`.
  static Decoder SentencePiece(size_t leading_spaces_dropped, std::string unknown = {},
                               std::string unknown_text = {});

  std::unique_ptr<TokenSink> Open(std::unique_ptr<TokenSink> last) const;
  std::string Piece(std::string token) const;

 private:
  Status ParseStep(const nlohmann::json& json, const std::string& where, bool& fused, int depth);
  Status ParseWordStep(const JsonFields& fields, const std::string& type, const std::string& where,
                       bool fused);
  void Add(std::unique_ptr<DecoderStep> step) { steps_.push_back(std::move(step)); }

  std::vector<std::unique_ptr<DecoderStep>> steps_;
};

}  // namespace celer
