// What one of several ranks does with the others: the vocabulary is split, and the outputs of attention and of
// feed-forward blocks are sums over all ranks.
#include <algorithm>
#include <numeric>

#include "models/cpu/cpu_decoder.h"

namespace celer {

void CpuDecoder::set_group(const Group& group) {
  const auto first = group.vocab_parts.begin();
  group_.emplace();
  static_cast<Group&>(*group_) = group;
  group_->vocab = std::accumulate(first, group.vocab_parts.end(), int64_t{0});
  group_->first_token = std::accumulate(first, first + group.communicator->rank(), int64_t{0});
}

// Tokens of other ranks are row 0 here, and become zeros.
std::span<const int32_t> CpuDecoder::OwnTokens(std::span<const int32_t> tokens) {
  work_.own_tokens.clear();
  for (const int32_t token : tokens) {
    const int64_t own = token - group_->first_token;
    work_.own_tokens.push_back(own >= 0 && own < config_.vocab ? static_cast<int32_t>(own) : 0);
  }
  return work_.own_tokens;
}

void CpuDecoder::JoinEmbeddings(std::span<const int32_t> tokens, int64_t width, float* embedded) {
  for (size_t t = 0; t < tokens.size(); ++t) {
    const int64_t own = tokens[t] - group_->first_token;
    if (own < 0 || own >= config_.vocab) std::fill_n(embedded + static_cast<int64_t>(t) * width, width, 0.0f);
  }
  SumOverRanks(embedded, std::ssize(tokens) * width);
}

void CpuDecoder::SumOverRanks(float* values, int64_t count) {
  // Forward() looks at the group's status.
  [[maybe_unused]] const Status summed =
      group_->communicator->AllReduceSum({values, static_cast<size_t>(count)});
}

void CpuDecoder::JoinLogits(int64_t rows, float* logits) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const auto size = static_cast<size_t>(rows * group_->vocab);
  if (work_.all_logits.size() < size) work_.all_logits.resize(size);
  std::vector<int64_t> bytes;
  for (const int64_t tokens : group_->vocab_parts) bytes.push_back(rows * tokens * kFloat);
  const std::span<const float> mine(work_.part_logits.data(), static_cast<size_t>(rows * config_.vocab));
  const Status joined = group_->communicator->AllGather(
      std::as_bytes(mine), bytes, reinterpret_cast<std::byte*>(work_.all_logits.data()));
  if (!joined || !logits) return;
  const float* from = work_.all_logits.data();
  int64_t first = 0;
  for (const int64_t tokens : group_->vocab_parts) {
    for (int64_t r = 0; r < rows; ++r, from += tokens)
      std::copy_n(from, tokens, logits + r * group_->vocab + first);
    first += tokens;
  }
}

}  // namespace celer
