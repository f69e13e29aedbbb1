#include "text/tokenizer/pipeline.h"

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"

namespace celer {

Result<std::unique_ptr<Tokenizer>> Pipeline::Make(Parts parts) {
  CELER_CHECK(parts.vocabulary && parts.model);
  CELER_ASSIGN(AddedTokens added, AddedTokens::Make(std::move(parts.added), parts.normalizer.get()));
  return std::unique_ptr<Tokenizer>(new Pipeline(std::move(parts), std::move(added)));
}

Pipeline::Pipeline(Parts parts, AddedTokens added) : parts_(std::move(parts)), added_(std::move(added)) {
  int32_t size = parts_.vocabulary->size();
  for (const AddedToken& token : added_.tokens()) size = std::max(size, token.id + 1);
  pieces_.resize(size);
  parts_.verbatim.resize(size);
  for (int32_t id = 0; id < size; ++id) {
    const auto token = Token(id);
    if (!token) continue;
    const bool as_is = parts_.verbatim[id] || IsSpecial(id);
    pieces_[id] = as_is ? std::string(*token) : parts_.decoder.Piece(std::string(*token));
  }
  SetInfo(std::move(parts_.info));
}

std::optional<std::string_view> Pipeline::Token(int32_t id) const {
  if (const AddedToken* added = added_.Find(id)) return added->text;
  if (parts_.vocabulary->Has(id)) return parts_.vocabulary->Get(id);
  return std::nullopt;
}

std::string_view Pipeline::Piece(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(pieces_[id]) : std::string_view();
}

std::optional<int32_t> Pipeline::Find(std::string_view token) const {
  if (const AddedToken* added = added_.Find(token)) return added->id;
  return parts_.vocabulary->Find(token);
}

bool Pipeline::IsSpecial(int32_t id) const {
  const AddedToken* added = added_.Find(id);
  return added && added->special;
}

std::vector<int32_t> Pipeline::Encode(std::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (!parts_.raw_bytes && !utf8::IsValid(text)) {
    CELER_CHECK(options.plain.empty());  // they would name other bytes
    repaired = utf8::ToValid(text);
    text = repaired;
  }
  std::vector<int32_t> out;
  if (options.add_special) out = parts_.prefix;
  RegexBudget budget(text.size());
  const auto parses = [&](std::string_view part) {
    const auto begin = static_cast<size_t>(part.data() - text.data());
    // The normalizer moves bytes, so a stretch is plain as a whole or not at all.
    const auto next = std::partition_point(
        options.plain.begin(), options.plain.end(),
        [&](const TextRange& range) { return std::max(range.begin, range.end) <= begin; });
    return options.parse_special &&
           (next == options.plain.end() || !next->Overlaps(begin, begin + part.size()));
  };
  added_.Split(text, false, options.parse_special, options.plain, [&](int32_t id, std::string_view part) {
    if (id >= 0)
      out.push_back(id);
    else
      EncodeStretch(part, part.data() == text.data(), parses(part), budget, out);
  });
  if (options.add_special) out.insert(out.end(), parts_.suffix.begin(), parts_.suffix.end());
  return out;
}

void Pipeline::EncodeStretch(std::string_view text, bool at_start, bool parse_special, RegexBudget& budget,
                             std::vector<int32_t>& out) const {
  Stretch stretch{std::string(text), at_start};
  if (parts_.normalizer) parts_.normalizer->Apply(stretch, budget);
  const std::string& normalized = stretch.text;
  added_.Split(normalized, true, parse_special, {}, [&](int32_t id, std::string_view part) {
    if (id >= 0) {
      out.push_back(id);
      return;
    }
    if (!parts_.pre_tokenizer) {
      parts_.model->Tokenize(part, out);
      return;
    }
    Pieces pieces;
    pieces.text = part;
    pieces.ranges.push_back({0, part.size(), stretch.at_start && part.data() == normalized.data()});
    parts_.pre_tokenizer->Apply(pieces, budget);
    for (const Pieces::Range& range : pieces.ranges) parts_.model->Tokenize(pieces.Get(range), out);
  });
}

// Streams ids through the decoder's chain, at whose end the text is collected.
class Pipeline::Stream : public DecodeStream {
 public:
  Stream(const Pipeline& tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {
    auto last = std::make_unique<Last>();
    last_ = last.get();
    chain_ = tokenizer.parts_.decoder.Open(std::move(last));
  }

  void Push(int32_t id, std::string& out) override {
    const auto token = tokenizer_.Token(id);
    const bool shown = tokenizer_.parts_.unknown_is_text && id == tokenizer_.unk_id();
    if (!token || (skip_special_ && tokenizer_.IsSpecial(id) && !shown)) return;
    last_->out = &out;
    chain_->Push(tokenizer_.parts_.verbatim[id] ? ByteLevelEncode(*token) : std::string(*token));
  }

  void Finish(std::string& out) override {
    last_->out = &out;
    chain_->Finish();
  }

 private:
  struct Last : TokenSink {  // tokens of hostile files need not be UTF-8
    void Push(std::string text) override { joiner.Push(text, *out); }
    void Finish() override { joiner.Finish(*out); }
    std::string* out = nullptr;
    utf8::Joiner joiner;
  };

  const Pipeline& tokenizer_;
  bool skip_special_;
  Last* last_;  // owned by the chain
  std::unique_ptr<TokenSink> chain_;
};

std::unique_ptr<DecodeStream> Pipeline::OpenStream(bool skip_special) const {
  return std::make_unique<Stream>(*this, skip_special);
}

}  // namespace celer
