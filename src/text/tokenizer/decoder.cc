#include "text/tokenizer/decoder.h"

#include <functional>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/metaspace.h"
#include "text/tokenizer/normalizer.h"

namespace celer {
namespace {

using nlohmann::json;
using Sink = std::unique_ptr<TokenSink>;

constexpr int kMaxDecoderDepth = 16;

class Stage : public TokenSink {
 public:
  explicit Stage(Sink next) : next_(std::move(next)) {}
  void Finish() override { next_->Finish(); }

 protected:
  Sink next_;
};

// A stateless step: changes each token by itself.
class Each : public DecoderStep {
 public:
  using Function = std::function<std::string(std::string)>;
  explicit Each(Function function) : function_(std::move(function)) {}

  Sink Open(Sink next) const override {
    struct Run : Stage {
      Run(Sink sink, const Function& f) : Stage(std::move(sink)), function(f) {}
      void Push(std::string token) override { next_->Push(function(std::move(token))); }
      const Function& function;
    };
    return std::make_unique<Run>(std::move(next), function_);
  }
  std::string Piece(std::string token) const override { return function_(std::move(token)); }

 private:
  Function function_;
};

// Buffers all tokens and passes them on as one at the end: before a step that must see the whole fused text.
class Collect : public DecoderStep {
 public:
  Sink Open(Sink next) const override {
    struct Run : Stage {
      using Stage::Stage;
      void Push(std::string token) override { all += token; }
      void Finish() override {
        next_->Push(std::move(all));
        next_->Finish();
      }
      std::string all;
    };
    return std::make_unique<Run>(std::move(next));
  }
};

class JoinWithSpaces : public TokenSink {
 public:
  explicit JoinWithSpaces(Sink next) : next_(std::move(next)) {}
  void Push(std::string token) override {
    next_->Push(first_ ? std::move(token) : " " + token);
    first_ = false;
  }
  void Finish() override { next_->Finish(); }

 private:
  Sink next_;
  bool first_ = true;
};

std::string PlainBytes(std::string token) {
  if (auto bytes = ByteLevelDecode(token)) return std::move(*bytes);
  return token;
}

class ByteLevelStep : public DecoderStep {
 public:
  Sink Open(Sink next) const override {
    struct Run : Stage {
      using Stage::Stage;
      void Push(std::string token) override {
        std::string out;
        joiner.Push(PlainBytes(std::move(token)), out);
        if (!out.empty()) next_->Push(std::move(out));
      }
      void Finish() override {
        std::string out;
        joiner.Finish(out);
        if (!out.empty()) next_->Push(std::move(out));
        next_->Finish();
      }
      utf8::Joiner joiner;
    };
    return std::make_unique<Run>(std::move(next));
  }
  std::string Piece(std::string token) const override { return PlainBytes(std::move(token)); }
};

class MetaspaceStep : public DecoderStep {
 public:
  MetaspaceStep(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}

  Sink Open(Sink next) const override {
    struct Run : Stage {
      Run(Sink sink, const MetaspaceStep& s) : Stage(std::move(sink)), step(s) {}
      void Push(std::string token) override {
        // The first token loses every replacement character, not only a leading one.
        next_->Push(ReplaceAll(token, step.replacement_, first && step.prepended_ ? "" : " "));
        first = false;
      }
      const MetaspaceStep& step;
      bool first = true;
    };
    return std::make_unique<Run>(std::move(next), *this);
  }
  std::string Piece(std::string token) const override { return ReplaceAll(token, replacement_, " "); }

 private:
  std::string replacement_;
  bool prepended_;
};

// A run of byte tokens becomes text if it is valid UTF-8 as a whole, else one U+FFFD for each byte. So
// nothing of a run can be given before it ends.
class ByteFallbackStep : public DecoderStep {
 public:
  Sink Open(Sink next) const override {
    struct Run : Stage {
      using Stage::Stage;
      void Push(std::string token) override {
        if (const auto byte = ParseByteToken(token)) {
          bytes.push_back(static_cast<char>(*byte));
          return;
        }
        Flush();
        next_->Push(std::move(token));
      }
      void Finish() override {
        Flush();
        next_->Finish();
      }
      void Flush() {
        if (bytes.empty()) return;
        if (utf8::IsValid(bytes))
          next_->Push(bytes);
        else
          for (size_t i = 0; i < bytes.size(); ++i) next_->Push(std::string(utf8::kReplacement));
        bytes.clear();
      }
      std::string bytes;
    };
    return std::make_unique<Run>(std::move(next));
  }
  std::string Piece(std::string token) const override {
    if (const auto byte = ParseByteToken(token)) return std::string(1, static_cast<char>(*byte));
    return token;
  }
};

// Drops up to `start` characters `content` from the front and up to `stop` from the back of a text that comes
// in parts.
class StripFused : public DecoderStep {
 public:
  StripFused(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  Sink Open(Sink next) const override {
    struct Run : Stage {
      Run(Sink sink, const StripFused& s) : Stage(std::move(sink)), step(s), to_drop(s.start_) {}
      void Push(std::string part) override {
        const std::string& content = step.content_;
        size_t begin = 0;
        while (to_drop > 0 && begin < part.size()) {
          if (!std::string_view(part).substr(begin).starts_with(content)) {
            to_drop = 0;
            break;
          }
          begin += content.size();
          --to_drop;
        }
        part.erase(0, begin);
        if (part.empty()) return;
        if (step.stop_ == 0) return next_->Push(std::move(part));
        // A possible suffix is held back.
        held += part;
        size_t end = held.size();
        for (size_t i = 0; i < step.stop_ && std::string_view(held).substr(0, end).ends_with(content); ++i)
          end -= content.size();
        if (end > 0) next_->Push(held.substr(0, end));
        held.erase(0, end);
      }
      void Finish() override { next_->Finish(); }
      const StripFused& step;
      size_t to_drop;
      std::string held;
    };
    return std::make_unique<Run>(std::move(next), *this);
  }

 private:
  std::string content_;
  size_t start_, stop_;
};

std::string StripToken(std::string token, const std::string& content, size_t start, size_t stop) {
  size_t begin = 0, end = token.size();
  for (size_t i = 0; i < start && std::string_view(token).substr(begin).starts_with(content); ++i)
    begin += content.size();
  for (size_t i = 0; i < stop && std::string_view(token).substr(begin, end - begin).ends_with(content); ++i)
    end -= content.size();
  return token.substr(begin, end - begin);
}

// English punctuation and contractions without the space that cutting put before them.
std::string CleanUp(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplacements) text = ReplaceAll(text, from, to);
  return text;
}

// A space before every token but the first, or the prefix of those inside a word off.
class WordPieceStep : public DecoderStep {
 public:
  WordPieceStep(std::string prefix, bool clean_up) : prefix_(std::move(prefix)), clean_up_(clean_up) {}

  Sink Open(Sink next) const override {
    struct Run : Stage {
      Run(Sink sink, const WordPieceStep& s) : Stage(std::move(sink)), step(s) {}
      void Push(std::string token) override {
        if (!std::exchange(first, false)) return next_->Push(step.Piece(std::move(token)));
        next_->Push(step.clean_up_ ? CleanUp(std::move(token)) : std::move(token));
      }
      const WordPieceStep& step;
      bool first = true;
    };
    return std::make_unique<Run>(std::move(next), *this);
  }
  std::string Piece(std::string token) const override {
    if (token.starts_with(prefix_))
      token.erase(0, prefix_.size());
    else
      token.insert(0, " ");
    return clean_up_ ? CleanUp(std::move(token)) : token;
  }

 private:
  std::string prefix_;
  bool clean_up_;
};

// CTC decoding (speech): repeated tokens are collapsed, then blanks (the padding) are dropped.
class CtcStep : public DecoderStep {
 public:
  CtcStep(std::string pad, std::string delimiter, bool clean_up)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), clean_up_(clean_up) {}

  Sink Open(Sink next) const override {
    struct Run : Stage {
      Run(Sink sink, const CtcStep& s) : Stage(std::move(sink)), step(s) {}
      void Push(std::string token) override {
        if (previous == token) return;
        previous = token;
        std::string text = step.Piece(std::move(token));
        if (!text.empty()) next_->Push(std::move(text));
      }
      const CtcStep& step;
      std::optional<std::string> previous;
    };
    return std::make_unique<Run>(std::move(next), *this);
  }
  std::string Piece(std::string token) const override {
    token = ReplaceAll(token, pad_, "");
    return clean_up_ ? ReplaceAll(CleanUp(std::move(token)), delimiter_, " ") : token;
  }

 private:
  std::string pad_, delimiter_;
  bool clean_up_;
};

// The suffix of a word's last token is the space after it, but not at the end.
class SuffixStep : public DecoderStep {
 public:
  explicit SuffixStep(std::string suffix) : suffix_(std::move(suffix)) {}

  Sink Open(Sink next) const override {
    struct Run : Stage {
      Run(Sink sink, const SuffixStep& s) : Stage(std::move(sink)), step(s) {}
      void Push(std::string token) override {
        if (held) next_->Push(step.Piece(*std::move(held)));
        held = std::move(token);
      }
      void Finish() override {
        if (held) next_->Push(ReplaceAll(*held, step.suffix_, ""));
        next_->Finish();
      }
      const SuffixStep& step;
      std::optional<std::string> held;
    };
    return std::make_unique<Run>(std::move(next), *this);
  }
  std::string Piece(std::string token) const override { return ReplaceAll(token, suffix_, " "); }

 private:
  std::string suffix_;
};

// SentencePiece as the library decodes it: bytes join across tokens, each bad byte is one U+FFFD. While there
// is no text yet, a piece loses one leading space mark; the first such loss is the last unless all are to go.
// A space that comes as a byte token is text, and stays.
class SentencePieceStep : public DecoderStep {
 public:
  SentencePieceStep(size_t leading_spaces_dropped, std::string unknown, std::string unknown_text)
      : leading_(leading_spaces_dropped),
        unknown_(std::move(unknown)),
        unknown_text_(std::move(unknown_text)) {}

  Sink Open(Sink next) const override {
    struct Run : Stage {
      Run(Sink sink, const SentencePieceStep& s) : Stage(std::move(sink)), step(s), to_drop(s.leading_) {}
      void Push(std::string token) override {
        if (!step.unknown_.empty() && token == step.unknown_) {
          to_drop = 0;
          return Give(step.unknown_text_);
        }
        const size_t mark = token.starts_with(kMetaspace) ? kMetaspace.size()
                            : token.starts_with(' ')      ? 1
                                                          : 0;
        if (to_drop > 0 && mark > 0) {  // llama2.c's vocabularies spell the mark as a space
          token.erase(0, mark);
          --to_drop;
        }
        if (!token.empty()) to_drop = 0;
        Give(step.Piece(std::move(token)));
      }
      void Give(const std::string& bytes) {
        std::string out;
        joiner.Push(bytes, out);
        if (!out.empty()) next_->Push(std::move(out));
      }
      void Finish() override {
        std::string out;
        joiner.Finish(out);
        if (!out.empty()) next_->Push(std::move(out));
        next_->Finish();
      }
      const SentencePieceStep& step;
      size_t to_drop;
      utf8::Joiner joiner{true};
    };
    return std::make_unique<Run>(std::move(next), *this);
  }
  std::string Piece(std::string token) const override {
    if (const auto byte = ParseByteToken(token)) return std::string(1, static_cast<char>(*byte));
    return ReplaceAll(token, kMetaspace, " ");
  }

 private:
  size_t leading_;
  std::string unknown_, unknown_text_;
};

}  // namespace

Decoder Decoder::ByteLevel() {
  Decoder decoder;
  decoder.Add(std::make_unique<ByteLevelStep>());
  return decoder;
}

Decoder Decoder::SentencePiece(size_t leading_spaces_dropped, std::string unknown, std::string unknown_text) {
  Decoder decoder;
  decoder.Add(std::make_unique<SentencePieceStep>(leading_spaces_dropped, std::move(unknown),
                                                  std::move(unknown_text)));
  return decoder;
}

Sink Decoder::Open(Sink last) const {
  if (steps_.empty()) return std::make_unique<JoinWithSpaces>(std::move(last));
  for (size_t i = steps_.size(); i-- > 0;) last = steps_[i]->Open(std::move(last));
  return last;
}

std::string Decoder::Piece(std::string token) const {
  for (const auto& step : steps_) token = step->Piece(std::move(token));
  return token;
}

Result<Decoder> Decoder::Parse(const json& spec, const std::string& where) {
  Decoder decoder;
  bool fused = false;
  if (!spec.is_null()) CELER_RETURN_IF_ERROR(decoder.ParseStep(spec, where, fused, 0));
  return decoder;
}

// `fused`: what reaches this step is one token in parts, because an earlier step joined all.
Status Decoder::ParseStep(const json& spec, const std::string& where, bool& fused, int depth) {
  if (depth > kMaxDecoderDepth)
    return Error::Corrupt(where, ": the decoder is nested deeper than ", kMaxDecoderDepth);
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(spec, where + ": 'decoder'"));
  CELER_ASSIGN(const std::string type, fields.GetString("type"));
  const auto need_whole_tokens = [&] {
    if (fused) Add(std::make_unique<Collect>());
  };
  if (type == "Sequence") {
    const json* list = fields.Find("decoders");
    if (!list || !list->is_array()) return Error::Corrupt(fields.where(), ": 'decoders' is not a list");
    for (const json& step : *list) CELER_RETURN_IF_ERROR(ParseStep(step, where, fused, depth + 1));
    if (list->empty() && depth == 0) Add(std::make_unique<Each>([](std::string token) { return token; }));
    return {};
  }
  if (type == "ByteLevel") {
    need_whole_tokens();
    Add(std::make_unique<ByteLevelStep>());
    fused = true;
    return {};
  }
  if (type == "Fuse") {
    if (!fused) Add(std::make_unique<Each>([](std::string token) { return token; }));
    fused = true;
    return {};
  }
  if (type == "ByteFallback") {
    need_whole_tokens();
    Add(std::make_unique<ByteFallbackStep>());
    fused = false;
    return {};
  }
  if (type == "Metaspace") {
    need_whole_tokens();
    CELER_ASSIGN(std::string replacement, fields.GetString("replacement", std::string(kMetaspace)));
    CELER_ASSIGN(const bool add_prefix_space, fields.GetBool("add_prefix_space", true));
    CELER_ASSIGN(const std::string scheme,
                 fields.GetString("prepend_scheme", add_prefix_space ? "always" : "never"));
    Add(std::make_unique<MetaspaceStep>(std::move(replacement), scheme != "never"));
    return {};
  }
  if (type == "Replace") {
    need_whole_tokens();
    CELER_ASSIGN(const std::string content, fields.GetString("content"));
    const json* pattern = fields.Find("pattern");
    if (!pattern) return Error::Corrupt(fields.where(), " of type Replace has no 'pattern'");
    CELER_ASSIGN(Regex regex, ParsePattern(*pattern, fields.where()));
    Add(std::make_unique<Each>(
        [content, shared = std::make_shared<Regex>(std::move(regex))](std::string token) {
          RegexBudget budget(token.size());
          return ReplaceAll(token, *shared, content, budget);
        }));
    return {};
  }
  if (type == "Strip") {
    CELER_ASSIGN(const std::string content, fields.GetString("content"));
    CELER_ASSIGN(const int64_t start, fields.GetInt("start", 0, 1 << 20, 0));
    CELER_ASSIGN(const int64_t stop, fields.GetInt("stop", 0, 1 << 20, 0));
    if (content.empty() || utf8::Decode(content).length != content.size())
      return Error::Corrupt(fields.where(), ": 'content' of Strip is not one character");
    if (fused)
      Add(std::make_unique<StripFused>(content, start, stop));
    else
      Add(std::make_unique<Each>(
          [=](std::string token) { return StripToken(std::move(token), content, start, stop); }));
    return {};
  }
  return ParseWordStep(fields, type, where, fused);
}

// Decoders of models that cut a text into words.
Status Decoder::ParseWordStep(const JsonFields& fields, const std::string& type, const std::string& where,
                              bool fused) {
  if (fused) Add(std::make_unique<Collect>());
  if (type == "WordPiece") {
    CELER_ASSIGN(std::string prefix, fields.GetString("prefix", "##"));
    CELER_ASSIGN(const bool clean_up, fields.GetBool("cleanup", true));
    Add(std::make_unique<WordPieceStep>(std::move(prefix), clean_up));
    return {};
  }
  if (type == "CTC") {
    CELER_ASSIGN(std::string pad, fields.GetString("pad_token", "<pad>"));
    CELER_ASSIGN(std::string delimiter, fields.GetString("word_delimiter_token", "|"));
    CELER_ASSIGN(const bool clean_up, fields.GetBool("cleanup", true));
    Add(std::make_unique<CtcStep>(std::move(pad), std::move(delimiter), clean_up));
    return {};
  }
  if (type == "BPEDecoder") {
    CELER_ASSIGN(std::string suffix, fields.GetString("suffix", "</w>"));
    Add(std::make_unique<SuffixStep>(std::move(suffix)));
    return {};
  }
  return Error::Unsupported(where, ": decoder '", type,
                            "' is not supported (ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, "
                            "WordPiece, CTC, BPEDecoder "
                            "and Sequence are)");
}

}  // namespace celer
