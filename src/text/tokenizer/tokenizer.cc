#include "text/tokenizer/tokenizer.h"

#include <algorithm>

namespace celer {
namespace {

// Names under which models that are not careful with their metadata end a turn.
constexpr std::string_view kEndOfTurnNames[] = {
    "<|eot_id|>",      "<|im_end|>",      "<|end|>",    "<end_of_turn>",
    "<|endoftext|>",   "<|end_of_text|>", "<|eom_id|>", "<EOT>",
    "<|eot|>",         "<|return|>",      "<|call|>",   "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "<|end_of_turn|>", "<|EOT|>",
};

}  // namespace

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  const auto stream = OpenStream(skip_special);
  std::string out;
  for (const int32_t id : ids) stream->Push(id, out);
  stream->Finish(out);
  return out;
}

bool Tokenizer::IsEndOfTurn(int32_t id) const {
  return std::binary_search(info_.end_of_turn.begin(), info_.end_of_turn.end(), id);
}

void Tokenizer::SetInfo(TokenizerInfo info) {
  const auto exists = [&](int32_t id) { return id >= 0 && id < vocab_size(); };
  for (auto* id : {&info.bos, &info.eos, &info.unk, &info.pad})
    if (*id && !exists(**id)) id->reset();
  auto& ends = info.end_of_turn;
  if (info.eos) ends.push_back(*info.eos);
  for (const std::string_view name : kEndOfTurnNames)
    if (const auto id = Find(name); id && IsSpecial(*id)) ends.push_back(*id);
  // In gpt-oss's vocabulary <|end|> ends a message of an answer, which goes on with the next.
  if (const auto end = Find("<|end|>"); end && Find("<|channel|>") && Find("<|return|>"))
    std::erase(ends, *end);
  std::erase_if(ends, [&](int32_t id) { return !exists(id); });
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  info_ = std::move(info);
}

std::string Detokenizer::Push(int32_t id) {
  std::string out;
  stream_->Push(id, out);
  return out;
}

std::string Detokenizer::Finish() {
  std::string out;
  stream_->Finish(out);
  return out;
}

}  // namespace celer
