#include "engine/speculate/draft_model.h"

#include <algorithm>
#include <chrono>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "engine/runners/make_runner.h"

namespace celer {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens that are prefilled before one step of the target, which waits for them.
constexpr int64_t kReadAtOnce = 256;
// Long sequences that the draft's KV has room for, where the options do not say.
constexpr int64_t kSequences = 8;
constexpr std::string_view kSelf = "self:";

}  // namespace

DraftModel::DraftModel(std::unique_ptr<Runner> runner, bool reads_hidden)
    : runner_(std::move(runner)),
      reads_hidden_(reads_hidden),
      blocks_(runner_->info().kv_blocks),
      slots_(runner_->info().state_slots) {}

Result<std::unique_ptr<DraftModel>> DraftModel::Load(const EngineOptions& options, SharedWeights* shared) {
  EngineOptions own = options;
  const std::string& draft = options.speculation.draft;
  own.speculation = {};
  own.parallel = {};   // it is small
  own.placement = {};  // so it is on one device
  if (draft.starts_with(kSelf)) {
    CELER_ASSIGN(own.weights, WeightOptions::Parse(std::string_view(draft).substr(kSelf.size())));
  } else {
    own.model = draft;
    own.weights = {};
  }
  own.kv_memory = {};
  own.kv_host_memory = 0;
  own.sequences = options.sequences > 0 ? options.sequences : kSequences;
  auto runner = MakeRunner(own, 0, shared);
  if (!runner && own.context > 0) {  // it may have fewer positions: longer texts are then not drafted for
    own.context = 0;
    runner = MakeRunner(own, 0, shared);
  }
  if (!runner) return runner.error().WithContext("the draft model");
  if ((*runner)->info().state_slots > 0 && !(*runner)->info().drafts_states)
    return Error::Unsupported(
        "the draft model '", (*runner)->info().config.architecture,
        "' has recurrent layers, whose state does not go back behind a rejected draft on ",
        (*runner)->info().device, "; take another");
  log::Info("draft model {}: {} tokens of context", draft, (*runner)->info().context);
  return std::make_unique<DraftModel>(std::move(*runner));
}

DraftModel::State& DraftModel::StateOf(const Sequence& sequence) {
  const auto [it, made] = states_.try_emplace(sequence.id);
  State& state = it->second;
  if (made && !info().config.rope.DependsOnLength() && !slots_.any()) {
    std::string salt = sequence.group->request.cache_salt;
    if (reads_hidden_) salt += '\0' + std::to_string(sequence.tokens[0]);
    state.root = state.content = blocks_.cache().TakeRoot(salt);
    const std::span<const int32_t> text = TextOf(sequence, state);
    blocks_.Attach(&state.table, text.first(std::max<size_t>(text.size(), 1) - 1), &state.content);
    state.published = std::ssize(state.table);
    state.computed = state.published * kKvBlockTokens;
  }
  return state;
}

bool DraftModel::TakeSlots(State* state) {
  if (!slots_.any() || state->slot != StateSlots::kNone) return true;
  if (slots_.free() < 2) return false;
  state->slot = slots_.Take();
  state->draft_slot = slots_.Take();
  return true;
}

void DraftModel::RollBack(const Sequence& sequence, State* state) {
  const std::span<const int32_t> text = TextOf(sequence, *state);
  int64_t right = 0;
  while (right < std::ssize(state->draft) && state->count + right < std::ssize(text) &&
         state->draft[right] == text[static_cast<size_t>(state->count + right)])
    ++right;
  if (reads_hidden_) right = 0;  // their keys came from its own hidden states, in the place of the target's
  if (!state->draft.empty()) state->computed = std::min(state->computed, state->count + right);
  if (slots_.any()) state->computed = state->settled;
  state->draft.clear();
  state->drawn_from.clear();
  state->count = std::ssize(text);
  // The last token runs again if need be: its logits are needed.
  state->computed = std::min(state->computed, state->count - 1);
  if (!reads_hidden_) return;
  // What lies behind belongs to rejected tokens, and what lies in front is not needed again.
  const int64_t known = std::ssize(state->hidden) / width(),
                kept = std::clamp<int64_t>(state->count - state->hidden_first, 0, known),
                done = std::clamp<int64_t>(state->computed - state->hidden_first, 0, kept);
  state->hidden.resize(static_cast<size_t>(kept * width()));
  state->hidden.erase(state->hidden.begin(), state->hidden.begin() + done * width());
  state->hidden_first += done;
}

void DraftModel::SkipTo(int64_t position, State* state) {
  blocks_.Shrink(&state->table, 0);
  if (state->root != 0) blocks_.cache().DropRoot(state->root);
  state->root = state->content = 0;
  state->computed = state->published = 0;
  state->skipped = position;
}

void DraftModel::ReadHidden(Sequence& sequence, std::span<const float> rows) {
  const bool begins = !states_.contains(sequence.id);
  State& state = StateOf(sequence);
  if (state.failed) return;
  // Behind a prefix that the target had in its cache: where this one has not, its text begins there.
  constexpr int64_t kMostUnknown = 2 * kKvBlockTokens;
  if (begins && sequence.computed - state.computed > kMostUnknown) SkipTo(sequence.computed, &state);
  // Recomputed ones are known already.
  const int64_t known = std::ssize(state.hidden) / width(), at = sequence.computed - state.skipped,
                again = std::clamp<int64_t>(state.hidden_first - at, 0, std::ssize(rows) / width()),
                first = at + again;
  rows = rows.subspan(static_cast<size_t>(again * width()));
  if (first < state.hidden_first) return;
  if (first > state.hidden_first + known || state.hidden.empty()) {
    state.hidden.clear();
    state.hidden_first = first;
  }
  state.hidden.resize(static_cast<size_t>((first - state.hidden_first) * width()));
  state.hidden.insert(state.hidden.end(), rows.begin(), rows.end());
  if (sequence.output_count() > 0) return;
  // Prompts are read along, so that hidden states are not kept, and answers that fork find them in the cache.
  state.count = std::ssize(TextOf(sequence, state));
  while (true) {
    const int64_t end = std::min(state.count - 1, state.hidden_first + std::ssize(state.hidden) / width());
    const int64_t now = std::min(end - state.computed, kReadAtOnce);
    if (now < 1) return;
    const Part part{.wanted = {&sequence, 1}, .state = &state, .tokens = now};
    uint64_t no_masks = 0;
    const Result<bool> fits = Prepare(part);
    if (!fits || !*fits || !Step({&part, 1}, false, &no_masks)) {
      state.failed = true;  // no room for such a text: nothing is drafted for it
      state.hidden.clear();
      return;
    }
    RollBack(sequence, &state);
    Publish(sequence, &state);
  }
}

void DraftModel::Publish(const Sequence& sequence, State* state) {
  if (state->root == 0) return;
  blocks_.Publish(state->table, TextOf(sequence, *state).first(static_cast<size_t>(state->computed)),
                  state->root, &state->published, &state->content);
}

Result<bool> DraftModel::Prepare(const Part& part) {
  std::vector<BlockMove> moves;
  State& state = *part.state;
  // The last drafted token does not run.
  const int64_t end = state.count + part.wanted.depth - 1;
  if (end > info().context || !blocks_.Prepare(&state.table, state.computed, end, &moves)) return false;
  for (const BlockMove& move : moves) CELER_RETURN_IF_ERROR(runner_->CopyBlocks({&move.blocks, 1}));
  return true;
}

Status DraftModel::Propose(std::span<const Wanted> wanted, bool same_tokens, uint64_t* mask_work) {
  std::vector<Part> parts;
  int64_t budget = kReadAtOnce;
  for (const Wanted& one : wanted) {
    Part part{.wanted = one, .state = &StateOf(*one.sequence)};
    RollBack(*one.sequence, part.state);
    Publish(*one.sequence, part.state);
    part.tokens = std::min(budget, part.state->count - part.state->computed);
    if (one.depth < 1 || part.tokens < 1 || part.state->failed || !TakeSlots(part.state)) continue;
    CELER_ASSIGN(const bool fits, Prepare(part));
    if (!fits) continue;
    budget -= part.tokens;
    parts.push_back(part);
    one.sequence->sampler.Mark();
  }
  const std::vector<Part> begun = parts;
  Status status;
  while (!parts.empty() && status) {
    status = Step(parts, same_tokens, mask_work);
    std::erase_if(parts, [](const Part& part) {
      const State& state = *part.state;
      // Texts that are not prefilled yet continue in the next call.
      return state.failed || state.draft.empty() || std::ssize(state.draft) >= part.wanted.depth ||
             state.computed >= state.count + std::ssize(state.draft);
    });
    for (Part& part : parts) part.tokens = 1;
  }
  for (const Part& part : begun) {
    part.wanted.sequence->sampler.Rewind();
    part.wanted.sequence->draft = part.state->draft;
  }
  return status;
}

Slice DraftModel::SliceOf(const Part& part, std::span<const int32_t> tokens) {
  State& state = *part.state;
  const bool drafted = state.computed >= state.count;
  const bool draws = drafted || state.computed + part.tokens == state.count;
  Slice slice{.sequence = part.wanted.sequence->id,
              .tokens = tokens,
              .position = state.computed,
              .block_table = state.table,
              .rows = draws ? Slice::Rows::kLast : Slice::Rows::kNone,
              .prompt_length = part.wanted.sequence->prompt_count,
              .keeps_hidden = reads_hidden_ && draws};
  if (!slots_.any()) return slice;
  slice.state = drafted ? state.draft_slot : state.slot;
  if (drafted) return slice;
  // The last token may have to run again.
  state.settled = state.computed + part.tokens - (draws ? 1 : 0);
  if (draws) {
    slice.draft_state = state.draft_slot;
    slice.certain = part.tokens - 1;
  }
  return slice;
}

void DraftModel::AppendHidden(const Part& part, bool drafted, std::vector<float>* rows) const {
  const State& state = *part.state;
  if (drafted) {
    rows->insert(rows->end(), state.own_hidden.begin(), state.own_hidden.end());
    return;
  }
  // Those of a prefix that the target had cached are unknown: zeros stand for them.
  const int64_t known = std::ssize(state.hidden) / width();
  for (int64_t i = state.computed; i < state.computed + part.tokens; ++i) {
    const int64_t row = i - state.hidden_first;
    if (row >= 0 && row < known)
      rows->insert(rows->end(), state.hidden.begin() + row * width(),
                   state.hidden.begin() + (row + 1) * width());
    else
      rows->insert(rows->end(), static_cast<size_t>(width()), 0.0f);
  }
}

Status DraftModel::Step(std::span<const Part> parts, bool same_tokens, uint64_t* mask_work) {
  const Clock::time_point begin = Clock::now();
  std::vector<int32_t> last(parts.size());
  std::vector<Slice> slices;
  std::vector<float> hidden;
  int64_t rows = 0;
  for (const Part& part : parts) rows += part.tokens;
  if (reads_hidden_) hidden.reserve(static_cast<size_t>(rows * width()));  // the slices point into it
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [wanted, state, tokens] = parts[i];
    const bool drafted = state->computed >= state->count;
    if (drafted) last[i] = state->draft[static_cast<size_t>(state->computed - state->count)];
    slices.push_back(SliceOf(
        parts[i], drafted ? std::span<const int32_t>(&last[i], 1)
                          : TextOf(*wanted.sequence, *state)
                                .subspan(static_cast<size_t>(state->computed), static_cast<size_t>(tokens))));
    if (!reads_hidden_) continue;
    const size_t at = hidden.size();
    AppendHidden(parts[i], drafted, &hidden);
    slices.back().before = std::span(hidden).subspan(at);
  }
  CELER_RETURN_IF_ERROR(runner_->Queue(slices));
  CELER_ASSIGN(const StepOutput output, runner_->Take());
  const auto vocab = static_cast<size_t>(info().config.vocab);
  size_t row = 0, hidden_row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    State& state = *parts[i].state;
    state.computed += parts[i].tokens;
    if (slices[i].rows != Slice::Rows::kLast) continue;
    if (reads_hidden_) {
      hidden_row += static_cast<size_t>(parts[i].tokens);
      const auto own = output.hidden.subspan((hidden_row - 1) * static_cast<size_t>(width()),
                                             static_cast<size_t>(width()));
      state.own_hidden.assign(own.begin(), own.end());
    }
    Draw(parts[i], output.logits.subspan(vocab * row++, vocab), same_tokens, mask_work);
  }
  // Prefill steps are not comparable.
  if (rows <= 2 * std::ssize(parts))
    times_.Add(std::ssize(parts), std::chrono::duration<double>(Clock::now() - begin).count());
  return {};
}

void DraftModel::Draw(const Part& part, std::span<const float> row, bool same_tokens, uint64_t* mask_work) {
  Sampler& sampler = part.wanted.sequence->sampler;
  State& state = *part.state;
  state.failed = !LogitsAreFinite(row);
  if (state.failed) return;
  if (const Result<bool> ready = sampler.PrepareMask(mask_work); !ready || !*ready) return;
  if (same_tokens || sampler.params().temperature == 0) {
    const int32_t token = sampler.Next(row).token;
    if (token >= 0) state.draft.push_back(token);
    return;
  }
  Distribution q = sampler.DistributionOf(row);
  if (q.empty()) return;
  state.draft.push_back(sampler.DrawDraft(q));
  sampler.Accept(state.draft.back());
  state.drawn_from.push_back(std::move(q));
}

const Distribution* DraftModel::DrawnFrom(const Sequence& sequence, size_t i) const {
  const auto state = states_.find(sequence.id);
  if (state == states_.end() || i >= state->second.drawn_from.size()) return nullptr;
  return &state->second.drawn_from[i];
}

void DraftModel::Forget(const Sequence& sequence) {
  const auto it = states_.find(sequence.id);
  if (it == states_.end()) return;
  blocks_.Shrink(&it->second.table, 0);
  if (it->second.root != 0) blocks_.cache().DropRoot(it->second.root);
  for (const int32_t slot : {it->second.slot, it->second.draft_slot})
    if (slot != StateSlots::kNone) slots_.Free(slot);
  states_.erase(it);
}

}  // namespace celer
