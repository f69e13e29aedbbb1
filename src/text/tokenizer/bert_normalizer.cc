// Normalizers that go through the characters of a text: BERT's, Nmt, and SentencePiece's precompiled table.
#include <algorithm>
#include <span>

#include "base/utf8.h"
#include "text/tokenizer/chars_map.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/unicode_tables.h"

namespace celer {
namespace {

using MadeNormalizer = std::unique_ptr<Normalizer>;

struct CharBlock {
  char32_t first, last;
};
bool InBlocks(char32_t c, std::span<const CharBlock> blocks) {
  return std::ranges::any_of(blocks, [c](CharBlock block) { return block.first <= c && c <= block.last; });
}

// f(code point, its bytes, out) appends what becomes of each character.
template <class F>
void MapCharacters(Stretch& s, F&& f) {
  std::string out;
  out.reserve(s.text.size());
  for (size_t at = 0; at < s.text.size();) {
    const std::string_view rest = std::string_view(s.text).substr(at);
    const utf8::CodePoint c = utf8::Decode(rest);
    f(c.value, rest.substr(0, c.length), out);
    if (at == 0 && out.empty()) s.at_start = false;
    at += c.length;
  }
  s.text = std::move(out);
}

bool IsChinese(char32_t c) {
  constexpr CharBlock kBlocks[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f},
                                   {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
  return InBlocks(c, kBlocks);
}

struct BertOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const BertOptions& options) : options_(options) {}

  void Apply(Stretch& s, RegexBudget&) const override {
    if (options_.clean_text)
      MapCharacters(s, [](char32_t c, std::string_view bytes, std::string& out) {
        if (c == 0 || c == 0xfffd || unicode::FindRange(unicode::BuiltInTables().bert_controls, c)) return;
        out += utf8::IsSpace(c) ? " " : bytes;
      });
    if (options_.handle_chinese_chars)
      MapCharacters(s, [](char32_t c, std::string_view bytes, std::string& out) {
        const std::string_view space = IsChinese(c) ? " " : "";
        out.append(space).append(bytes).append(space);
      });
    if (options_.strip_accents) {
      s.text = unicode::Normalize(s.text, unicode::Form::kNfd);
      MapCharacters(s, [](char32_t c, std::string_view bytes, std::string& out) {
        if (!unicode::FindRange(unicode::BuiltInTables().bert_marks, c)) out += bytes;
      });
    }
    if (options_.lowercase) s.text = unicode::ToLower(s.text);
  }

 private:
  BertOptions options_;
};

class NmtNormalizer : public Normalizer {
 public:
  void Apply(Stretch& s, RegexBudget&) const override {
    constexpr CharBlock kRemoved[] = {{0x1, 0x8},   {0xb, 0xb},   {0xe, 0x1f},
                                      {0x7f, 0x7f}, {0x8f, 0x8f}, {0x9f, 0x9f}};
    constexpr CharBlock kSpaces[] = {{0x9, 0xa},       {0xc, 0xd},       {0x1680, 0x1680}, {0x200b, 0x200f},
                                     {0x2028, 0x2029}, {0x2581, 0x2581}, {0xfeff, 0xfeff}, {0xfffd, 0xfffd}};
    MapCharacters(s, [&](char32_t c, std::string_view bytes, std::string& out) {
      if (!InBlocks(c, kRemoved)) out += InBlocks(c, kSpaces) ? " " : bytes;
    });
  }
};

// A grapheme cluster of fewer than six bytes is replaced as a whole, else character by character: what the
// Hugging Face package does, and the models were taught with.
class PrecompiledNormalizer : public Normalizer {
 public:
  PrecompiledNormalizer(CharsMap map, Regex graphemes)
      : map_(std::move(map)), graphemes_(std::move(graphemes)) {}

  void Apply(Stretch& s, RegexBudget& budget) const override {
    Regex::Matches clusters;
    graphemes_.FindAll(s.text, budget, clusters);
    std::string out;
    size_t done = 0;
    for (const auto& [begin, end] : clusters) {
      AddCharacters(std::string_view(s.text).substr(done, begin - done), out);
      const std::string_view cluster = std::string_view(s.text).substr(begin, end - begin);
      const auto whole = cluster.size() < 6 ? map_.Find(cluster) : std::nullopt;
      if (whole)
        out += *whole;
      else
        AddCharacters(cluster, out);
      done = end;
    }
    AddCharacters(std::string_view(s.text).substr(done), out);
    s.text = std::move(out);
  }

 private:
  void AddCharacters(std::string_view text, std::string& out) const {
    while (!text.empty()) {
      const std::string_view c = text.substr(0, utf8::Decode(text).length);
      out += map_.Find(c).value_or(c);
      text.remove_prefix(c.size());
    }
  }

  CharsMap map_;
  Regex graphemes_;
};

std::optional<std::string> DecodeBase64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t digit = kAlphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return out;
}

}  // namespace

Result<MadeNormalizer> ParseBertNormalizer(const JsonFields& fields) {
  BertOptions options;
  CELER_ASSIGN(options.clean_text, fields.GetBool("clean_text", true));
  CELER_ASSIGN(options.handle_chinese_chars, fields.GetBool("handle_chinese_chars", true));
  CELER_ASSIGN(options.lowercase, fields.GetBool("lowercase", true));
  CELER_ASSIGN(options.strip_accents,
               fields.GetBool("strip_accents", options.lowercase));  // null: as lowercase
  return MadeNormalizer(new BertNormalizer(options));
}

MadeNormalizer MakeNmtNormalizer() {
  return std::make_unique<NmtNormalizer>();
}

Result<MadeNormalizer> ParsePrecompiledNormalizer(const JsonFields& fields) {
  CELER_ASSIGN(const std::string text, fields.GetString("precompiled_charsmap"));
  auto map = DecodeBase64(text);
  if (!map) return Error::Corrupt(fields.where(), ": 'precompiled_charsmap' is not base64");
  if (!CharsMapIsSound(*map))
    return Error::Corrupt(fields.where(), ": 'precompiled_charsmap' leads out of itself");
  CharsMap table(*std::move(map));
  if (!utf8::IsValid(table.texts()))
    return Error::Corrupt(fields.where(), ": 'precompiled_charsmap' has texts that are not UTF-8");
  CELER_ASSIGN(Regex graphemes, Regex::Compile("\\X"));
  return MadeNormalizer(new PrecompiledNormalizer(std::move(table), std::move(graphemes)));
}

}  // namespace celer
