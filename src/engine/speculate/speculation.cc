#include "engine/speculate/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "engine/runners/make_runner.h"

namespace celer {
namespace {

// Prior acceptance rate of the next token after a match of so many tokens.
constexpr double kRates[] = {0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8};  // 2 to 8 tokens
static_assert(std::size(kRates) == LookupIndex::kMost - LookupIndex::kLeast + 1);
constexpr double kDraftRate = 0.75;
constexpr double kHopefulRate = 0.95;
// Of a text, and of all of them.
constexpr double kWindow = 24, kWeight = 6, kLongWindow = 400, kShortWeight = 4;
constexpr int64_t kProbeDepth = 3;
constexpr int kAlwaysDepth = 4;

size_t BucketOf(int length) {
  return length == 0 ? 0 : static_cast<size_t>(length - LookupIndex::kLeast);
}

}  // namespace

Speculator::Speculator(const Options& options, std::unique_ptr<DraftModel> draft)
    : options_(options),
      draft_(std::move(draft)),
      acceptance_(std::size(kRates), Acceptance(kLongWindow, kShortWeight)) {
  if (options_.depth < 1 || options_.depth > kMostDepth) options_.depth = kMostDepth;
}

Result<std::unique_ptr<Speculator>> Speculator::Load(const EngineOptions& options, SharedWeights* shared) {
  const Speculation& wanted = options.speculation;
  std::unique_ptr<DraftModel> draft;
  if (wanted.kind == Speculation::Kind::kNone) return std::unique_ptr<Speculator>();
  if (wanted.depth < 0 || wanted.depth > kMostDepth)
    return Error::Invalid("`speculation.depth` ", wanted.depth, ": expected 1 to ", kMostDepth,
                          " tokens, or 0 for what pays");
  if (wanted.kind == Speculation::Kind::kDraft && !DraftsWithPredictor(wanted)) {
    CELER_ASSIGN(draft, DraftModel::Load(options, shared));
  }
  return std::make_unique<Speculator>(OptionsFor(options), std::move(draft));
}

Speculator::Options Speculator::OptionsFor(const EngineOptions& options) {
  const Speculation& wanted = options.speculation;
  return {.depth = wanted.always && wanted.depth == 0 ? kAlwaysDepth : wanted.depth,
          .same_tokens = options.deterministic,
          .always = wanted.always};
}

void Speculator::UsePredictor(std::unique_ptr<Runner> predictor) {
  draft_ = std::make_unique<DraftModel>(std::move(predictor), /*reads_hidden=*/true);
}

Status Speculator::SetTarget(const Runner::Info& target) {
  if (!draft_) return {};
  const Runner::Info& draft = draft_->info();
  if (draft.config.vocab != target.config.vocab)
    return Error::Invalid("the draft model's vocabulary has ", draft.config.vocab,
                          " tokens and the model's has ", target.config.vocab,
                          "; give a draft of the same family, or self:int4");
  if (target.weight_bytes > 0)
    draft_share_ = static_cast<double>(draft.weight_bytes) / static_cast<double>(target.weight_bytes);
  predicted_gain_ = PredictGain({kDraftRate, options_.depth}, draft_share_);
  const std::string prediction = fmt::format(
      "the draft reads {:.0f} % of what the model reads, so with {:.0f} % of its tokens accepted decoding is "
      "predicted to "
      "run at {:.2f} times its plain speed",
      100 * draft_share_, 100 * kDraftRate, predicted_gain_);
  if (options_.always || predicted_gain_ >= kClearlyFaster)
    log::Info("speculation: {}", prediction);
  else
    log::WarningOnce(
        "speculation: {}; decoding is plain unless steps turn out cheaper. A smaller draft, or "
        "--speculate lookup, may pay; --speculate-always drafts all the same",
        prediction);
  return {};
}

Speculator::State& Speculator::StateOf(const Sequence& sequence) {
  State& state = states_[sequence.id];
  if (state.acceptance.empty())
    state.acceptance.assign(draft_ ? 1 : std::size(kRates), Acceptance(kWindow, kWeight));
  return state;
}

void Speculator::Learn(const Sequence& sequence, State* state) {
  const int64_t come = sequence.count() - state->count;
  int64_t right = 0;
  const int64_t compared = std::min(come, std::ssize(state->draft));
  while (right < compared &&
         state->draft[right] == sequence.tokens[static_cast<size_t>(state->count + right)])
    ++right;
  if (compared > 0) {
    const size_t bucket = BucketOf(state->length);
    state->acceptance[bucket].Add(right, right < compared);
    acceptance_[bucket].Add(right, right < compared);
  }
  state->draft.clear();
}

double Speculator::RateOf(const State& state, int length) const {
  const size_t bucket = BucketOf(length);
  return state.acceptance[bucket].Rate(acceptance_[bucket].Rate(draft_ ? kDraftRate : kRates[bucket]));
}

// The step gives one token more than were drafted.
int64_t Speculator::MostFor(const Sequence& sequence) const {
  return std::min({int64_t{options_.depth}, sequence.most_drafted(),
                   sequence.group->request.max_tokens - sequence.output_count() - 1});
}

Status Speculator::Propose(std::span<Sequence* const> running, int64_t free_blocks, bool queued,
                           uint64_t* mask_work) {
  wants_next_ = false;
  std::vector<Sequence*> able;
  int64_t decoding = 0;
  for (Sequence* const sequence : running) {
    sequence->draft.clear();
    if (!sequence->decodes() || sequence->sampler.awaits_mask()) continue;
    ++decoding;
    if (sequence->speculates() && MostFor(*sequence) > 0) able.push_back(sequence);
  }
  if (able.empty()) return {};
  CELER_RETURN_IF_ERROR(draft_ ? Draft(able, decoding, queued, mask_work) : Lookup(able, decoding, queued));
  if (options_.always) return {};
  // Drafts never cause a preemption: enough blocks stay free for each sequence's next one.
  int64_t room = free_blocks - std::ssize(running);
  for (Sequence* const sequence : able) {
    if (sequence->draft.empty()) continue;
    room -= std::max<int64_t>(
        0, KvBlocksFor(sequence->count() + std::ssize(sequence->draft)) - std::ssize(sequence->block_table));
    if (room < 0) sequence->draft.clear();
  }
  return {};
}

Status Speculator::Lookup(std::span<Sequence* const> sequences, int64_t decoding, bool queued) {
  std::vector<DraftOffer> offers;
  for (const Sequence* sequence : sequences) {
    State& state = StateOf(*sequence);
    Learn(*sequence, &state);
    const LookupIndex::Match match = state.index.Find(sequence->tokens);
    DraftOffer offer;
    if (match.length > 0) {
      offer = {RateOf(state, match.length), MostFor(*sequence)};
      // Drafts that are not verified count for the acceptance rate, too.
      state.draft = CopyFrom(sequence->tokens, match.next, offer.most);
      state.count = sequence->count();
      state.length = match.length;
    }
    offers.push_back(offer);
  }
  std::vector<int64_t> depths;
  if (options_.always)
    for (const DraftOffer& offer : offers) depths.push_back(offer.most);
  else
    depths = BestDepths(offers, decoding, times_);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (depths[i] == 0) continue;
    if (queued) {
      wants_next_ = true;
      continue;
    }
    const std::vector<int32_t>& draft = StateOf(*sequences[i]).draft;
    sequences[i]->draft.assign(draft.begin(), draft.begin() + depths[i]);
  }
  return {};
}

// Before it has run: in proportion to its weights, by the time of the target.
double Speculator::DraftSeconds(int64_t sequences) const {
  const double measured = draft_->StepSeconds(sequences);
  return measured > 0 ? measured : times_.Of(sequences) * draft_share_;
}

Status Speculator::Draft(std::span<Sequence* const> sequences, int64_t decoding, bool queued,
                         uint64_t* mask_work) {
  std::vector<DraftOffer> offers, hopeful;
  for (const Sequence* sequence : sequences) {
    State& state = StateOf(*sequence);
    Learn(*sequence, &state);
    offers.push_back({RateOf(state, 0), MostFor(*sequence)});
    hopeful.push_back({kHopefulRate, MostFor(*sequence)});
  }
  const auto count = std::ssize(sequences);
  const double seconds = DraftSeconds(count);
  const int64_t depth = options_.always ? options_.depth : BestDepth(offers, decoding, times_, seconds);
  // Where it does not pay, a draft is tried from time to time (exponential back-off), unless it could not pay
  // even if all were accepted.
  const bool probes = depth == 0 && BestDepth(hopeful, decoding, times_, seconds) > 0;
  std::vector<DraftModel::Wanted> wanted;
  for (size_t i = 0; i < sequences.size(); ++i) {
    State& state = StateOf(*sequences[i]);
    int64_t now = std::min(depth, offers[i].most);
    if (depth > 0) {
      state.steps_without_draft = 0;
      state.backoff = kFirstBackoff;
    } else if (probes && ++state.steps_without_draft >= state.backoff) {
      now = std::min(kProbeDepth, offers[i].most);
      if (!queued) {
        state.steps_without_draft = 0;
        state.backoff = std::min(2 * state.backoff, kMaxBackoff);
      }
    }
    if (now > 0) wanted.push_back({sequences[i], now});
  }
  if (queued) {
    wants_next_ = !wanted.empty();
    return {};
  }
  if (wanted.empty()) return {};
  CELER_RETURN_IF_ERROR(draft_->Propose(wanted, options_.same_tokens, mask_work));
  for (const DraftModel::Wanted& one : wanted) {
    State& state = StateOf(*one.sequence);
    state.draft = one.sequence->draft;
    state.count = one.sequence->count();
  }
  return {};
}

const Distribution* Speculator::DrawnFrom(const Sequence& sequence, size_t i) const {
  return draft_ ? draft_->DrawnFrom(sequence, i) : nullptr;
}

int64_t Speculator::RowsOf(std::span<const Scheduled> scheduled) {
  int64_t rows = 0;
  for (const auto& [sequence, tokens] : scheduled) {
    if (!sequence->decodes()) return 0;
    rows += tokens;
  }
  return rows;
}

void Speculator::Ran(int64_t rows, double seconds) {
  if (rows > 0) times_.Add(rows, seconds);
}

void Speculator::Forget(const Sequence& sequence) {
  states_.erase(sequence.id);
  if (draft_) draft_->Forget(sequence);
}

}  // namespace celer
