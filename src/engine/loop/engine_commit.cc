#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "base/log.h"
#include "engine/loop/engine_impl.h"

namespace celer {

const char* Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kRefused:
      return "refused";
    case FinishReason::kConstraint:
      return "constraint";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

void Engine::Impl::Commit(std::span<const Scheduled> scheduled, const StepOutput& output,
                          std::vector<TokenEvent>* events) {
  const auto vocab = static_cast<size_t>(info.vocab);
  std::vector<Sequence*> failed;  // they come last: looking for a fault ends the logits of this step
  size_t choice = 0, row = 0, hidden_row = 0;
  events->reserve(events->size() + scheduled.size());
  for (size_t i = 0; i < scheduled.size(); ++i) {
    Sequence* const sequence = scheduled[i].sequence;
    const int64_t tokens = scheduled[i].tokens;
    Group& group = *sequence->group;
    if (!group.counted) {
      group.counted = true;
      counts.prompt_tokens += sequence->prompt_count;
      counts.cached_tokens += group.cached;
      if (sequence->root != 0) counts.looked_up_tokens += sequence->prompt_count;
    }
    if (speculator && speculator->reads_hidden() && sequence->speculates()) {
      const auto width = static_cast<size_t>(runner->info().config.hidden);
      speculator->ReadHidden(*sequence,
                             output.hidden.subspan(hidden_row * width, static_cast<size_t>(tokens) * width));
      hidden_row += static_cast<size_t>(tokens);
    }
    if (sequence->scores_rows()) {
      const auto rows = output.logits.subspan(row * vocab, static_cast<size_t>(tokens) * vocab);
      if (!CommitScores(*sequence, tokens, rows)) failed.push_back(sequence);
      row += static_cast<size_t>(tokens);
      continue;
    }
    if (group.request.pooling != Pooling::kNone) {
      const bool mean = group.request.pooling == Pooling::kMean;
      const auto hidden = static_cast<size_t>(runner->info().config.hidden);
      const auto count = static_cast<size_t>(mean ? tokens : tokens == sequence->pending() ? 1 : 0);
      const auto rows = output.hidden.subspan(hidden_row * hidden, count * hidden);
      hidden_row += count;
      if (!CommitHidden(*sequence, tokens, rows, events)) failed.push_back(sequence);
      continue;
    }
    if (tokens > sequence->pending()) {
      const int64_t drafted = tokens - sequence->pending();
      const auto count = static_cast<size_t>(drafted + 1);
      if (!CommitDraft(*sequence, drafted, output.logits.subspan(row * vocab, count * vocab), events))
        failed.push_back(sequence);
      row += count;
      continue;
    }
    sequence->computed += tokens;
    sequence->replayed = std::max<int64_t>(0, sequence->replayed - tokens);
    Publish(*sequence);
    if (sequence->pending() > 0 || sequence->only_scored()) continue;
    if (group.beams) {
      // The scheduler runs the beams of a request together, side by side.
      const size_t beams = group.sequences.size();
      for (size_t b = 1; b < beams; ++b) {
        Sequence* const other = scheduled[++i].sequence;
        CELER_CHECK(other->group == &group);
        other->computed += 1;
        Publish(*other);
      }
      const auto rows = output.logits.subspan(row * vocab, beams * vocab);
      row += beams;
      size_t finite = 0;
      while (finite < beams && LogitsAreFinite(rows.subspan(finite * vocab, vocab))) ++finite;
      if (finite == beams)
        CommitBeams(group, rows, events);
      else
        failed.push_back(group.sequences[finite].get());
      continue;
    }
    const Sampler::Choice& chosen = output.choices[choice++];
    if (chosen.token == Sampler::kNoToken)
      failed.push_back(sequence);
    else
      CommitChoice(*sequence, chosen, events);
  }
  for (size_t i = 0; i < failed.size(); ++i) {
    Sequence* const sequence = failed[i];
    Group& group = *sequence->group;
    Scoring* const scoring = sequence->scoring;
    const Error error =
        ExplainFault(*sequence, sequence->scores_rows() ? scoring->visited + 1 : sequence->computed);
    if (sequence->only_scored()) scoring->error = error;
    // Other answers to the same prompt have the same logits, which are not finite either.
    failed.erase(std::remove_if(failed.begin() + static_cast<int64_t>(i) + 1, failed.end(),
                                [&](const Sequence* other) { return other->group == &group; }),
                 failed.end());
    EndGroup(group, FinishReason::kError, error.message(), events);
  }
}

void Engine::Impl::Publish(Sequence& sequence) {
  if (sequence.root == 0) return;
  blocks.Publish(sequence.block_table,
                 std::span(sequence.tokens).first(static_cast<size_t>(sequence.computed)), sequence.root,
                 &sequence.published, &sequence.content);
  if (states.any()) SaveState(sequence);
}

void Engine::Impl::SaveState(const Sequence& sequence) {
  // At the end of a prompt, and now and then in long texts: a copy costs as much as a state is large.
  const int64_t computed = sequence.computed;
  if (computed != sequence.published * kKvBlockTokens || computed == 0 || sequence.group->together()) return;
  const bool prompt_ends = sequence.output_count() == 0 && sequence.pending() <= kKvBlockTokens;
  if (!prompt_ends && computed % Sequence::kSnapshotTokens != 0) return;
  const int32_t slot = states.AddSnapshot(sequence.content);
  if (slot != StateSlots::kNone)
    state_copies.push_back({BlockMove::Kind::kCopyState, {sequence.state, slot}});
}

void Engine::Impl::ForkWithStates() {
  if (!states.any()) return;
  std::vector<Sequence*> ready;
  for (Sequence* const sequence : scheduler.running_sequences())
    if (sequence->forks() && sequence->prompt_count > 1 && sequence->computed == sequence->prompt_count - 1)
      ready.push_back(sequence);
  for (Sequence* const sequence : ready) Fork(*sequence);
}

bool Engine::Impl::CommitChoice(Sequence& sequence, const Sampler::Choice& choice,
                                std::vector<TokenEvent>* events) {
  Group& group = *sequence.group;
  if (group.answers > 1 && !group.forked) Fork(sequence);
  TokenEvent event;
  if (choice.token == Sampler::kNoneAllowed) {
    event.finish = FinishReason::kStop;
  } else {
    sequence.tokens.push_back(choice.token);
    sequence.logprobs += double{choice.logprob};
    ++counts.generated_tokens;
    event.token = choice.token;
    event.logprob = choice.logprob;
    if (!choice.top.empty()) event.top = choice.top;
    const auto& stops = group.request.stop_tokens;
    if (std::find(stops.begin(), stops.end(), choice.token) != stops.end())
      event.finish = FinishReason::kStop;
    else if (sequence.output_count() >= group.request.max_tokens)
      event.finish = FinishReason::kLength;
  }
  const bool ends = event.finish != FinishReason::kNone;
  Emit(sequence, std::move(event), events);
  if (ends) EndAnswer(sequence, events);
  return !ends;
}

// The answers share the prompt's blocks. Each recomputes the prompt's last token, to draw its own first one.
void Engine::Impl::Fork(Sequence& first) {
  Group& group = *first.group;
  group.forked = true;
  for (int answer = 1; answer < group.answers; ++answer) {
    auto sequence = std::make_unique<Sequence>(next_sequence++, group.request, answer);
    sequence->group = &group;
    sequence->computed = first.prompt_count - 1;
    sequence->reached = first.reached;
    sequence->block_table = blocks.Share(first.block_table);
    blocks.Shrink(&sequence->block_table, sequence->prompt_count);
    sequence->root = sequence->content = first.root;
    if (states.any()) TakeForkedState(first, *sequence);
    if (states.any() && sequence->state == StateSlots::kNone)
      scheduler.Add(sequence.get());
    else
      scheduler.AddRunning(sequence.get());
    group.sequences.push_back(std::move(sequence));
  }
}

void Engine::Impl::TakeForkedState(const Sequence& first, Sequence& sequence) {
  sequence.recurrent = true;
  sequence.state = states.Take();
  if (sequence.state == StateSlots::kNone) {  // it waits for one, and begins with its prompt
    blocks.Shrink(&sequence.block_table, 0);
    sequence.computed = 0;
  } else if (sequence.computed > 0) {
    state_copies.push_back({BlockMove::Kind::kCopyState, {first.state, sequence.state}});
  }
}

void Engine::Impl::Emit(Sequence& sequence, TokenEvent event, std::vector<TokenEvent>* events) {
  Group& group = *sequence.group;
  event.request = group.id;
  event.answer = sequence.answer;
  if (group.holds_back) {
    sequence.held.push_back(std::move(event));
    return;
  }
  event.last = event.finish != FinishReason::kNone && group.open == 1;
  Send(group, std::move(event), events);
}

void Engine::Impl::Send(Group& group, TokenEvent event, std::vector<TokenEvent>* events) {
  if (!group.event_sent) {
    group.event_sent = true;
    event.cached_tokens = std::max<int64_t>(group.cached, 0);
    event.begun = group.begun;
    event.prompt = std::move(group.prompt_scores);
  }
  events->push_back(std::move(event));
}

void Engine::Impl::Release(Sequence& sequence) {
  sequence.ended = true;
  scheduler.Remove(&sequence);
  if (speculator) speculator->Forget(sequence);
  if (sequence.state != StateSlots::kNone) states.Free(sequence.state);
  if (sequence.draft_state != StateSlots::kNone) states.Free(sequence.draft_state);
  sequence.state = sequence.draft_state = StateSlots::kNone;
  blocks.Shrink(&sequence.block_table, 0);
  blocks.FreeHost(&sequence.host_table);
}

void Engine::Impl::Keep(std::unique_ptr<Sequence> sequence) {
  if (sequence && !ahead.empty()) ended.push_back(std::move(sequence));
}

void Engine::Impl::EndAnswer(Sequence& sequence, std::vector<TokenEvent>* events) {
  Group& group = *sequence.group;
  Release(sequence);
  const auto it = std::find_if(group.sequences.begin(), group.sequences.end(),
                               [&](const auto& one) { return one.get() == &sequence; });
  group.root = sequence.root;
  if (group.holds_back)
    group.ended.push_back(std::move(*it));
  else
    Keep(std::move(*it));
  group.sequences.erase(it);
  if (--group.open > 0) return;
  if (group.holds_back) EmitBest(group, events);
  Forget(group);
}

void Engine::Impl::EmitBest(Group& group, std::vector<TokenEvent>* events) {
  const auto score = [](const auto& sequence) {
    return sequence->logprobs / static_cast<double>(std::max<int64_t>(sequence->output_count(), 1));
  };
  std::stable_sort(group.ended.begin(), group.ended.end(),
                   [&](const auto& a, const auto& b) { return score(a) > score(b); });
  const int wanted = group.request.n;
  for (int rank = 0; rank < wanted; ++rank) {
    const auto& sequence = group.ended[rank];
    for (TokenEvent& event : sequence->held) {
      event.answer = rank;
      if (group.request.sampling.logprobs < 0) event.logprob = 0;
      if (event.finish != FinishReason::kNone) {
        event.score = score(sequence);
        event.last = rank == wanted - 1;
      }
      Send(group, std::move(event), events);
    }
  }
}

void Engine::Impl::CommitBeams(Group& group, std::span<const float> logits, std::vector<TokenEvent>* events) {
  const std::vector<Beams::Next> next = group.beams->Advance(logits, info.vocab);
  counts.generated_tokens += static_cast<int64_t>(next.size());
  if (next.empty()) {
    EmitBeams(group, events);
    group.root = group.sequences[0]->root;
    for (const auto& sequence : group.sequences) Release(*sequence);
    Forget(group);
    return;
  }
  std::vector<int32_t> slots;
  const bool have_states = !states.any() || ShareStates(next, group, &slots);
  struct State {
    std::vector<int32_t> tokens;
    BlockTable table;
    int64_t computed, published;
    PrefixCache::Content content;
  };
  std::vector<State> texts;
  for (const auto& [parent, token] : next) {
    const Sequence& from = *group.sequences[parent];
    texts.push_back(
        {from.tokens, blocks.Share(from.block_table), from.computed, from.published, from.content});
    texts.back().tokens.push_back(token);
  }
  for (const auto& sequence : group.sequences) blocks.Shrink(&sequence->block_table, 0);
  while (group.sequences.size() > next.size()) {
    scheduler.Remove(group.sequences.back().get());
    group.sequences.pop_back();
  }
  while (group.sequences.size() < next.size()) {
    const Sequence& first = *group.sequences[0];
    auto sequence =
        std::make_unique<Sequence>(next_sequence++, group.request, static_cast<int>(group.sequences.size()));
    sequence->group = &group;
    sequence->root = first.root;
    sequence->reached = first.reached;
    sequence->recurrent = first.recurrent;
    scheduler.AddRunning(sequence.get());
    group.sequences.push_back(std::move(sequence));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    Sequence& sequence = *group.sequences[i];
    sequence.tokens = std::move(texts[i].tokens);
    sequence.block_table = std::move(texts[i].table);
    sequence.computed = texts[i].computed;
    sequence.published = texts[i].published;
    sequence.content = texts[i].content;
    if (!slots.empty()) sequence.state = slots[i];
  }
  if (!have_states) scheduler.Restart(group);
}

bool Engine::Impl::ShareStates(std::span<const Beams::Next> next, const Group& group,
                               std::vector<int32_t>* slots) {
  // The first that goes on from a beam has its slot, and the others copies.
  slots->assign(next.size(), StateSlots::kNone);
  std::vector<bool> given(group.sequences.size());
  for (size_t i = 0; i < next.size(); ++i) {
    const auto parent = static_cast<size_t>(next[i].parent);
    if (!given[parent]) (*slots)[i] = group.sequences[parent]->state;
    given[parent] = true;
  }
  for (size_t p = 0; p < given.size(); ++p)
    if (!given[p]) states.Free(group.sequences[p]->state);
  for (size_t i = 0; i < next.size(); ++i) {
    if ((*slots)[i] != StateSlots::kNone) continue;
    (*slots)[i] = states.Take();
    if ((*slots)[i] == StateSlots::kNone) return false;
    state_copies.push_back({BlockMove::Kind::kCopyState,
                            {group.sequences[static_cast<size_t>(next[i].parent)]->state, (*slots)[i]}});
  }
  return true;
}

void Engine::Impl::EmitBeams(Group& group, std::vector<TokenEvent>* events) {
  const std::vector<Beams::Text>& texts = group.beams->ended();
  const int wanted = group.request.n;
  for (int rank = 0; rank < wanted; ++rank) {
    TokenEvent event{.request = group.id, .answer = rank};
    const bool known =
        rank < static_cast<int>(texts.size());  // else fewer beams ended than answers were requested
    const size_t count = known ? texts[rank].tokens.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const bool end = i + 1 == count;
      if (known) {
        const Beams::Text& text = texts[rank];
        event.token = text.tokens[i];
        if (group.request.sampling.logprobs >= 0) event.logprob = text.logprobs[i];
        if (end) event.score = double{text.score};
        if (end) event.finish = text.stopped ? FinishReason::kStop : FinishReason::kLength;
      } else {
        event.finish = FinishReason::kStop;
      }
      event.last = end && rank == wanted - 1;
      Send(group, event, events);
    }
  }
}

bool Engine::Impl::CommitScores(Sequence& sequence, int64_t tokens, std::span<const float> logits) {
  Scoring& scoring = *sequence.scoring;
  const auto vocab = static_cast<size_t>(info.vocab);
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t predicted = sequence.computed + i + 1;
    if (predicted <= scoring.visited) continue;
    const auto row = logits.subspan(static_cast<size_t>(i) * vocab, vocab);
    if (!LogitsAreFinite(row)) return false;
    scoring.visit(predicted, row);
    scoring.visited = predicted;
  }
  sequence.computed += tokens;
  if (sequence.pending() > 0 || !scoring.only) return true;
  scoring.done = true;
  Release(sequence);
  Forget(*sequence.group);
  return true;
}

void Engine::Impl::EndGroup(Group& group, FinishReason reason, const std::string& error,
                            std::vector<TokenEvent>* events) {
  std::vector<int> open;
  if (group.holds_back || !group.forked)
    for (int i = 0; i < group.request.n; ++i) open.push_back(i);
  else
    for (const auto& sequence : group.sequences) open.push_back(sequence->answer);
  const bool silent = !group.sequences.empty() && group.sequences[0]->only_scored();
  for (const int answer : open)
    if (!silent)
      Send(group,
           {.request = group.id,
            .answer = answer,
            .finish = reason,
            .last = answer == open.back(),
            .error = error},
           events);
  for (const auto& sequence : group.sequences) {
    group.root = sequence->root;
    Release(*sequence);
  }
  Forget(group);
}

void Engine::Impl::Forget(Group& group) {
  if (group.root != 0) blocks.cache().DropRoot(group.root);
  if (group.request.deadline) {
    const auto [first, last] = deadlines.equal_range(*group.request.deadline);
    const auto it = std::find_if(first, last, [&](const auto& row) { return row.second == group.id; });
    if (it != last) deadlines.erase(it);
  }
  ++counts.finished;
  for (auto* of : {&group.sequences, &group.ended})
    for (auto& sequence : *of) Keep(std::move(sequence));
  groups.erase(group.id);
}

// A bug: requests that cannot fit are rejected before they begin (NeverFits).
void Engine::Impl::Refuse(Group& group, std::vector<TokenEvent>* events) {
  const std::string why = fmt::format(
      "the request came to need more than the {} blocks of {} tokens that the KV has; lower n, the beam "
      "width "
      "or max tokens, or raise `kv_memory`",
      blocks.blocks(), kKvBlockTokens);
  log::Warning("request {}: {}", group.id, why);
  if (group.sequences[0]->only_scored()) group.sequences[0]->scoring->error = Error::OutOfMemory(why);
  EndGroup(group, FinishReason::kRefused, why, events);
}

void Engine::Impl::Stop(const Error& error, std::vector<TokenEvent>* events) {
  fault = error;
  DropAhead();
  std::vector<int64_t> ids;
  for (const auto& [id, group] : groups) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const int64_t id : ids) {
    Group& group = *groups[id];
    if (!group.sequences.empty() && group.sequences[0]->only_scored())
      group.sequences[0]->scoring->error = error;
    EndGroup(group, FinishReason::kError, error.message(), events);
  }
}

Error Engine::Impl::ExplainFault(Sequence& sequence, int64_t count) {
  const std::span<const int32_t> run = std::span(sequence.tokens).first(count);
  const std::string more =
      log::Enabled(log::Level::kInfo)
          ? FindFault(run, sequence)
          : "`verbose` names the layer, and `kv` f32 or `weights` f32 may hold what a smaller type cannot";
  // Attention multiplies what lies behind a sequence's end in its last block with zero, and zero times NaN is
  // NaN. All beams and answers end with this one. Blocks that other requests share are theirs to clear.
  std::map<int32_t, int> users;
  for (const auto& one : sequence.group->sequences) {
    blocks.Uncache(one->block_table);
    for (const int32_t block : one->block_table) ++users[block];
  }
  std::vector<int32_t> own;
  for (const auto& [block, tables] : users)
    if (blocks.ref_count(block) == tables) own.push_back(block);
  if (const Status cleared = runner->ClearBlocks(own); !cleared)
    log::Warning("{}", cleared.error().message());
  return Error::NotFinite("the model's logits after ", count,
                          " tokens are not finite, so there is no next one; ", more);
}

// Rewrites the blocks with the same keys and values.
std::string Engine::Impl::FindFault(std::span<const int32_t> tokens, const Sequence& sequence) {
  constexpr int64_t kAtOnce = 16;
  const auto count = static_cast<int64_t>(tokens.size());
  DropAhead();
  std::string found;
  for (int64_t begin = 0; begin < count && found.empty(); begin += kAtOnce) {
    const int64_t now = std::min(kAtOnce, count - begin);
    runner->set_watch([&](int64_t layer, std::span<const float> x) {
      if (!found.empty()) return;
      const auto bad = std::find_if_not(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
      if (bad == x.end()) return;
      const int64_t position = begin + (bad - x.begin()) * now / static_cast<int64_t>(x.size());
      found = fmt::format("the first such values come from {} at position {}",
                          layer < 0 ? "the embedding"
                          : layer < runner->info().first_layer
                              ? fmt::format("one of the layers 0 to {} of {}", layer, info.shape.layers)
                              : fmt::format("layer {} of {}", layer, info.shape.layers),
                          position);
    });
    const Slice slice{.tokens = tokens.subspan(begin, now),
                      .position = begin,
                      .state = sequence.state,
                      .block_table = sequence.block_table,
                      .rows = Slice::Rows::kLast,
                      .lora = *sequence.group->request.lora};
    const Status queued = runner->Queue({&slice, 1});
    const Result<StepOutput> output = queued ? runner->Take() : queued.error();
    runner->set_watch({});
    if (!output) return "looking for the layer failed: " + output.error().message();
    if (found.empty() && !LogitsAreFinite(output->logits))
      found = fmt::format("all layers are finite at position {}, the output head is not", begin + now - 1);
  }
  return found.empty() ? "run once more they are finite, so that no layer can be named" : found;
}

}  // namespace celer
