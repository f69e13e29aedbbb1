// A vocabulary out of the metadata of a GGUF file.
#include <memory>

#include "text/tokenizer/stored/vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {

Result<std::optional<StoredVocabulary>> StoredVocabulary::FromGguf(const GgufFile& file) {
  const auto model = file.GetString("tokenizer.ggml.model");
  if (!model || *model == "none" || *model == "no_vocab") return std::optional<StoredVocabulary>();
  // Checks all of it.
  CELER_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::FromGguf(file));
  StoredVocabulary out;
  out.kind = *model == "gpt2" ? Kind::kByteLevel : *model == "llama" ? Kind::kScored : Kind::kMerged;
  const auto tokens = file.GetStringArray("tokenizer.ggml.tokens");
  out.tokens.assign(tokens->begin(), tokens->end());
  out.types.assign(out.tokens.size(), kNormal);
  if (const auto types = file.GetIntArray("tokenizer.ggml.token_type"))
    for (size_t i = 0; i < types->size(); ++i) out.types[i] = static_cast<int32_t>((*types)[i]);
  if (out.kind == Kind::kScored) {
    out.scores = *file.GetFloatArray("tokenizer.ggml.scores");
    out.space_prefix = file.GetBool("tokenizer.ggml.add_space_prefix").value_or(true);
  } else {
    const auto lines = file.GetStringArray("tokenizer.ggml.merges");
    for (const std::string_view line : *lines) {
      const size_t space = line.find(' ', 1);
      out.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    }
  }
  out.pre = file.GetString("tokenizer.ggml.pre").value_or("");
  out.bos = tokenizer->bos_id();
  out.eos = tokenizer->eos_id();
  out.unk = tokenizer->unk_id();
  out.pad = tokenizer->pad_id();
  if (out.eos) out.ends.push_back(*out.eos);
  for (const int32_t end : tokenizer->end_of_turn_ids())
    if (end != out.eos) out.ends.push_back(end);
  const std::vector<int32_t> around = tokenizer->Encode("");
  out.add_bos = out.bos && !around.empty() && around.front() == *out.bos;
  out.add_eos = out.eos && std::ssize(around) > (out.add_bos ? 1 : 0) && around.back() == *out.eos;
  out.chat_template = tokenizer->chat_template();
  return std::optional(std::move(out));
}

}  // namespace celer
