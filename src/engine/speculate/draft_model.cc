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

DraftModel::DraftModel(std::unique_ptr<Runner> runner)
    : runner_(std::move(runner)), blocks_(runner_->info().kv_blocks) {}

Result<std::unique_ptr<DraftModel>> DraftModel::Load(const EngineOptions& options) {
  EngineOptions own = options;
  const std::string& draft = options.speculation.draft;
  own.speculation = {};
  if (draft.starts_with(kSelf)) {
    CELER_ASSIGN(own.weights, WeightOptions::Parse(std::string_view(draft).substr(kSelf.size())));
  } else {
    own.model = draft;
    own.weights = {};
  }
  own.kv_memory = {};
  own.kv_host_memory = 0;
  own.sequences = options.sequences > 0 ? options.sequences : kSequences;
  auto runner = MakeRunner(own);
  if (!runner && own.context > 0) {  // it may have fewer positions: longer texts are then not drafted for
    own.context = 0;
    runner = MakeRunner(own);
  }
  if (!runner) return runner.error().WithContext("the draft model");
  if ((*runner)->info().state_slots > 0)
    return Error::Unsupported(
        "the draft model '", (*runner)->info().config.architecture,
        "' has recurrent layers, whose state cannot go back behind a rejected draft; take another");
  log::Info("draft model {}: {} tokens of context", draft, (*runner)->info().context);
  return std::make_unique<DraftModel>(std::move(*runner));
}

DraftModel::State& DraftModel::StateOf(const Sequence& sequence) {
  const auto [it, made] = states_.try_emplace(sequence.id);
  State& state = it->second;
  if (made && !info().config.rope.DependsOnLength()) {
    state.root = state.content = blocks_.cache().TakeRoot(sequence.group->request.cache_salt);
    blocks_.Attach(&state.table, std::span(sequence.tokens).first(sequence.tokens.size() - 1),
                   &state.content);
    state.published = std::ssize(state.table);
    state.computed = state.published * kKvBlockTokens;
  }
  return state;
}

void DraftModel::RollBack(const Sequence& sequence, State* state) {
  int64_t right = 0;
  while (right < std::ssize(state->draft) && state->count + right < sequence.count() &&
         state->draft[right] == sequence.tokens[static_cast<size_t>(state->count + right)])
    ++right;
  if (!state->draft.empty()) state->computed = std::min(state->computed, state->count + right);
  state->draft.clear();
  state->drawn_from.clear();
  state->count = sequence.count();
  // The last token runs again if need be: its logits are needed.
  state->computed = std::min(state->computed, state->count - 1);
}

void DraftModel::Publish(const Sequence& sequence, State* state) {
  if (state->root == 0) return;
  for (; (state->published + 1) * kKvBlockTokens <= state->computed; ++state->published) {
    const auto tokens = std::span(sequence.tokens)
                            .subspan(static_cast<size_t>(state->published) * kKvBlockTokens)
                            .first<kKvBlockTokens>();
    state->content =
        blocks_.cache().Insert(state->content, tokens, state->table[static_cast<size_t>(state->published)]);
  }
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
    if (one.depth < 1 || part.tokens < 1 || part.state->failed) continue;
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

Status DraftModel::Step(std::span<const Part> parts, bool same_tokens, uint64_t* mask_work) {
  const Clock::time_point begin = Clock::now();
  std::vector<int32_t> last(parts.size());
  std::vector<Slice> slices;
  int64_t rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [wanted, state, tokens] = parts[i];
    const bool drafted = state->computed >= state->count;
    if (drafted) last[i] = state->draft[static_cast<size_t>(state->computed - state->count)];
    slices.push_back(
        {.sequence = wanted.sequence->id,
         .tokens = drafted ? std::span<const int32_t>(&last[i], 1)
                           : std::span<const int32_t>(wanted.sequence->tokens)
                                 .subspan(static_cast<size_t>(state->computed), static_cast<size_t>(tokens)),
         .position = state->computed,
         .block_table = state->table,
         .rows =
             drafted || state->computed + tokens == state->count ? Slice::Rows::kLast : Slice::Rows::kNone,
         .prompt_length = wanted.sequence->prompt_count});
    rows += tokens;
  }
  CELER_RETURN_IF_ERROR(runner_->Queue(slices));
  CELER_ASSIGN(const StepOutput output, runner_->Take());
  const auto vocab = static_cast<size_t>(info().config.vocab);
  size_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].state->computed += parts[i].tokens;
    if (slices[i].rows == Slice::Rows::kLast)
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
  states_.erase(it);
}

}  // namespace celer
