// tokenizer.model, through the SentencePiece library.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "io/file/printable.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/chars_map.h"
#include "text/tokenizer/metaspace.h"
#include "text/tokenizer/tokenizer_json.h"

namespace celer {
namespace {

constexpr size_t kMaxModel = size_t{256} << 20;

// What we must know of the protobuf message besides what the library tells.
struct ModelFacts {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  uint64_t model_type = 1;  // unigram
  std::string unknown_text = " \u2047 ";
  std::vector<bool> user_defined;  // by id
};

// Reads protobuf fields; just enough to walk the message.
class Wire {
 public:
  explicit Wire(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t varint = 0;
    std::string_view bytes = {};  // of a length-delimited field
  };
  bool done() const { return bytes_.empty(); }

  std::optional<Field> Next() {
    const auto key = Varint();
    if (!key) return std::nullopt;
    Field field{.number = static_cast<uint32_t>(*key >> 3)};
    size_t skip = 0;
    switch (*key & 7) {
      case 0: {
        const auto value = Varint();
        if (!value) return std::nullopt;
        field.varint = *value;
        return field;
      }
      case 1:
        skip = 8;
        break;
      case 5:
        skip = 4;
        break;
      case 2: {
        const auto length = Varint();
        if (!length || *length > bytes_.size()) return std::nullopt;
        field.bytes = bytes_.substr(0, *length);
        skip = *length;
        break;
      }
      default:
        return std::nullopt;
    }
    if (skip > bytes_.size()) return std::nullopt;
    bytes_.remove_prefix(skip);
    return field;
  }

 private:
  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) return std::nullopt;
      const auto byte = static_cast<uint8_t>(bytes_[0]);
      bytes_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (!(byte & 0x80)) return value;
    }
    return std::nullopt;
  }

  std::string_view bytes_;
};

Status ExamineTrainer(std::string_view bytes, const std::string& where, ModelFacts& facts) {
  constexpr uint32_t kModelType = 3, kUnknownText = 44;  // of TrainerSpec
  for (Wire spec(bytes); !spec.done();) {
    const auto part = spec.Next();
    if (!part) return Error::Corrupt(where, ": is not a SentencePiece model");
    if (part->number == kModelType) facts.model_type = part->varint;
    if (part->number == kUnknownText) facts.unknown_text = part->bytes;
  }
  return {};
}

Status ExaminePiece(std::string_view bytes, const std::string& where, ModelFacts& facts) {
  constexpr uint32_t kType = 3, kUserDefined = 4;  // of ModelProto.SentencePiece
  uint64_t type = 1;
  for (Wire piece(bytes); !piece.done();) {
    const auto part = piece.Next();
    if (!part) return Error::Corrupt(where, ": is not a SentencePiece model");
    if (part->number == kType) type = part->varint;
  }
  facts.user_defined.push_back(type == kUserDefined);
  return {};
}

Result<ModelFacts> Examine(std::string_view bytes, const std::string& where) {
  ModelFacts facts;
  constexpr uint32_t kPiece = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;     // of ModelProto
  constexpr uint32_t kCharsMap = 2, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4;  // of NormalizerSpec
  for (Wire model(bytes); !model.done();) {
    const auto field = model.Next();
    if (!field) return Error::Corrupt(where, ": is not a SentencePiece model");
    if (field->number == kPiece) CELER_RETURN_IF_ERROR(ExaminePiece(field->bytes, where, facts));
    if (field->number == kTrainer) CELER_RETURN_IF_ERROR(ExamineTrainer(field->bytes, where, facts));
    if (field->number != kNormalizer && field->number != kDenormalizer) continue;
    for (Wire spec(field->bytes); !spec.done();) {
      const auto part = spec.Next();
      if (!part) return Error::Corrupt(where, ": is not a SentencePiece model");
      // The library follows the offsets of this table without looking at its bounds.
      if (part->number == kCharsMap && !CharsMapIsSound(part->bytes))
        return Error::Corrupt(where, ": the normalization table leads out of itself");
      if (field->number != kNormalizer) continue;
      if (part->number == kAddDummyPrefix) facts.add_dummy_prefix = part->varint != 0;
      if (part->number == kRemoveExtraWhitespaces) facts.remove_extra_whitespaces = part->varint != 0;
    }
  }
  return facts;
}

class SentencePieceModel : public TokenModel {
 public:
  explicit SentencePieceModel(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {}

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    std::vector<int> ids;
    if (processor_->Encode({piece.data(), piece.size()}, &ids).ok())
      out.insert(out.end(), ids.begin(), ids.end());
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

// The library normalizes, and our own search segments: versions 0.1 and 0.2 of the library break ties between
// segmentations of the same probability differently, and the later ones are what models are used with.
class NormalizedUnigram : public TokenModel {
 public:
  NormalizedUnigram(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor,
                    std::unique_ptr<TokenModel> unigram)
      : processor_(std::move(processor)), unigram_(std::move(unigram)) {}

  void Tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    const auto encoded = processor_->EncodeAsImmutableProto({piece.data(), piece.size()});
    std::string normalized;
    for (size_t i = 0; i < encoded.pieces_size(); ++i) {
      const auto part = encoded.pieces(static_cast<int>(i));
      const auto byte =
          processor_->IsByte(static_cast<int>(part.id())) ? ParseByteToken(part.piece()) : std::nullopt;
      if (byte)
        normalized.push_back(static_cast<char>(*byte));
      else
        normalized += part.piece();
    }
    if (!normalized.empty()) unigram_->Tokenize(normalized, out);
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::unique_ptr<TokenModel> unigram_;
};

std::unique_ptr<TokenModel> MakeModel(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor,
                                      const ModelFacts& facts, const Vocabulary& vocabulary) {
  constexpr uint64_t kUnigram = 1;
  const int size = processor->GetPieceSize();
  if (facts.model_type != kUnigram || facts.user_defined.size() != static_cast<size_t>(size))
    return std::make_unique<SentencePieceModel>(std::move(processor));
  std::vector<double> scores(size);
  std::vector<bool> never(size);
  UnigramOptions options{.unk_id = processor->unk_id(), .as_sentencepiece = true};
  float worst = FLT_MAX, best = FLT_MIN;  // of the normal pieces, from these values, as the library has it
  for (int id = 0; id < size; ++id) {
    const bool reserved = processor->IsControl(id) || processor->IsUnknown(id) || processor->IsByte(id);
    options.byte_fallback |= processor->IsByte(id);
    never[id] = reserved || processor->IsUnused(id);
    scores[id] = processor->GetScore(id);
    if (never[id] || facts.user_defined[id]) continue;
    worst = std::min(worst, processor->GetScore(id));
    best = std::max(best, processor->GetScore(id));
  }
  for (int id = 0; id < size; ++id)  // a bonus, so that it is always chosen
    if (facts.user_defined[id])
      scores[id] = static_cast<float>(static_cast<float>(processor->IdToPiece(id).size()) * best - 0.1);
  options.worst_score = worst;
  auto unigram = MakeUnigram(vocabulary, std::move(scores), never, options);
  return std::make_unique<NormalizedUnigram>(std::move(processor), std::move(unigram));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(const std::filesystem::path& path,
                                                              const HfTokenizerConfig& config) {
  CELER_ASSIGN(std::string bytes, ReadTextFile(path, kMaxModel));
  const std::string where = path.string();
  CELER_ASSIGN(const ModelFacts facts, Examine(bytes, where));

  // transformers' "legacy" puts the dummy space before every stretch of text, also after a special token;
  // without it only before the first, so the library must not add its own. Fields that come again at the end
  // of a protobuf message replace the earlier ones: normalizer_spec { add_dummy_prefix: false }.
  const bool legacy = config.legacy.value_or(true);
  if (!legacy) bytes += std::string("\x1A\x02\x18\x00", 4);
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  if (const auto status = processor->LoadFromSerializedProto({bytes.data(), bytes.size()}); !status.ok())
    return Error::Corrupt(where, ": SentencePiece does not accept it: ", status.ToString());

  Pipeline::Parts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  const int size = processor->GetPieceSize();
  for (int id = 0; id < size; ++id) {
    const std::string& piece = processor->IdToPiece(id);
    parts.vocabulary->Add(piece, id);
    if (processor->IsControl(id) || processor->IsUnknown(id))
      parts.added.push_back({.content = piece, .id = id, .special = true});
  }
  for (const AddedToken& token : config.added) {
    const int64_t limit = Vocabulary::IdLimit(static_cast<size_t>(size) + config.added.size());
    if (token.id < 0 || token.id >= limit)
      return Error::Corrupt(where, ": the added token '", Printable(token.content), "' has id ", token.id,
                            ", but ids must lie in [0, ", limit, ")");
    if (token.content.empty()) continue;
    std::erase_if(parts.added, [&](const AddedToken& old) { return old.content == token.content; });
    AddedToken copy = token;
    copy.normalized = false;  // there is no normalizer before the model's own
    parts.added.push_back(std::move(copy));
  }
  const auto find = [&](const char* role, int if_missing) -> std::optional<int32_t> {
    if (const auto it = config.special.find(role); it != config.special.end()) {
      for (const AddedToken& token : parts.added)
        if (token.content == it->second) return token.id;
      if (const auto id = parts.vocabulary->Find(it->second)) return id;
    }
    return if_missing >= 0 ? std::optional<int32_t>(if_missing) : std::nullopt;
  };
  parts.info = {.bos = find("bos_token", processor->bos_id()),
                .eos = find("eos_token", processor->eos_id()),
                .unk = find("unk_token", processor->unk_id()),
                .pad = find("pad_token", processor->pad_id()),
                .end_of_turn = config.end_ids,
                .chat_template = config.chat_template};
  if (config.add_bos.value_or(true) && parts.info.bos) parts.prefix = {*parts.info.bos};
  if (config.add_eos.value_or(false) && parts.info.eos) parts.suffix = {*parts.info.eos};
  if (!legacy && facts.add_dummy_prefix && config.add_prefix_space.value_or(true))
    parts.normalizer = MakePrepend(std::string(kMetaspace), true);
  parts.decoder = Decoder::SentencePiece(
      facts.remove_extra_whitespaces ? SIZE_MAX
      : facts.add_dummy_prefix       ? 1
                                     : 0,
      parts.info.unk == processor->unk_id() ? processor->IdToPiece(processor->unk_id()) : std::string(),
      facts.unknown_text);
  parts.unknown_is_text = parts.info.unk == processor->unk_id();
  parts.raw_bytes = true;
  parts.model = MakeModel(std::move(processor), facts, *parts.vocabulary);
  return Pipeline::Make(std::move(parts));
}

}  // namespace celer
