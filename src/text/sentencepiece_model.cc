// tokenizer.model, through the SentencePiece library.
#include <sentencepiece_processor.h>

#include <cstring>

#include "io/printable.h"
#include "text/metaspace.h"
#include "text/tokenizer_json.h"

namespace celer {
namespace {

constexpr size_t kMaxModel = size_t{256} << 20;

// What we must know of the protobuf message besides what the library tells.
struct ModelFacts {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
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

// The library follows the offsets of this table (a double-array trie over units of 32 bits, then the texts it
// leads to) without looking at its bounds, so that is done here for every place it can get to.
bool CharsMapIsSound(std::string_view map) {
  if (map.empty()) return true;
  uint32_t trie_bytes;
  if (map.size() < sizeof trie_bytes) return false;
  std::memcpy(&trie_bytes, map.data(), sizeof trie_bytes);
  map.remove_prefix(sizeof trie_bytes);
  if (trie_bytes % 4 != 0 || trie_bytes < 1024 || trie_bytes >= map.size() || map.back() != '\0')
    return false;
  const size_t units = trie_bytes / 4, texts = map.size() - trie_bytes;
  for (size_t i = 0; i < units; ++i) {
    uint32_t unit;
    std::memcpy(&unit, map.data() + i * 4, 4);
    if (unit >> 31) {  // a leaf: where its text starts
      if ((unit & 0x7FFFFFFFu) >= texts) return false;
      continue;
    }
    const size_t offset = size_t{unit >> 10} << ((unit & 0x200u) >> 6);
    if (((i ^ offset) | 0xFF) >= units) return false;
  }
  return true;
}

Result<ModelFacts> Examine(std::string_view bytes, const std::string& where) {
  ModelFacts facts;
  constexpr uint32_t kNormalizer = 3, kDenormalizer = 5;                               // of ModelProto
  constexpr uint32_t kCharsMap = 2, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4;  // of NormalizerSpec
  for (Wire model(bytes); !model.done();) {
    const auto field = model.Next();
    if (!field) return Error::Corrupt(where, ": is not a SentencePiece model");
    if (field->number != kNormalizer && field->number != kDenormalizer) continue;
    for (Wire spec(field->bytes); !spec.done();) {
      const auto part = spec.Next();
      if (!part) return Error::Corrupt(where, ": is not a SentencePiece model");
      if (part->number == kCharsMap && !CharsMapIsSound(part->bytes))
        return Error::Corrupt(where, ": the normalization table leads out of itself");
      if (field->number != kNormalizer) continue;
      if (part->number == kAddDummyPrefix) facts.add_dummy_prefix = part->varint != 0;
      if (part->number == kRemoveExtraWhitespaces) facts.remove_extra_whitespaces = part->varint != 0;
    }
  }
  return facts;
}

class SentencePieceModel : public Model {
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
  parts.decoder = Decoder::SentencePiece(facts.remove_extra_whitespaces ? SIZE_MAX
                                         : facts.add_dummy_prefix       ? 1
                                                                        : 0);
  parts.raw_bytes = true;
  parts.model = std::make_unique<SentencePieceModel>(std::move(processor));
  return Pipeline::Make(std::move(parts));
}

}  // namespace celer
