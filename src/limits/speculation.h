// What speculative decoding can gain at best: drafts that cost nothing, each token of which is accepted with the
// same probability as long as all before it were.
#pragma once

#include <string_view>

#include "celer/limits.h"

namespace celer {

struct DraftAcceptance {
  int64_t depth = 0;      // drafted tokens of a step; 0: no speculation
  double acceptance = 0;  // of a drafted token, 0 to 1

  // "4,0.7"
  static Result<DraftAcceptance> Parse(std::string_view text, std::string_view what = "--speculate");
  // That a step yields: 1 + a + ... + a^depth, as the verified token after the last accepted one counts too.
  double TokensPerStep() const;
  bool operator==(const DraftAcceptance&) const = default;
};

// A step that verifies the drafts of all sequences: weights and KV are read once, the arithmetic is that of depth + 1
// tokens for each sequence. Of a mixture, as many experts are read as those tokens are expected to need.
PhaseLimit VerifyLimit(const LlmShape& shape, const Machine& machine, const LlmSetup& setup, int64_t context,
                       const DraftAcceptance& draft);

// `devices` machines that share every layer (tensor parallelism), with links that take no time: the limit of any
// number of them.
Machine Together(Machine machine, int64_t devices);

// `stages` machines that have some of the layers each (a pipeline): a step reads each of them in turn, while arithmetic
// goes on in all of them at the same time where it has enough tokens.
Machine InStages(Machine machine, int64_t stages);

}  // namespace celer
