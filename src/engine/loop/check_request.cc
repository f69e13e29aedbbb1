#include "engine/loop/check_request.h"

#include <fmt/format.h>

#include <cmath>

#include "base/result.h"
#include "engine/sample/beams.h"
#include "engine/sample/sampler.h"
#include "kernels/llm/kv_block.h"

namespace celer {
namespace {

constexpr int kMostAnswers = 1024, kMostBeams = 256;

Status CheckBeams(const Request& request, int64_t vocab) {
  const BeamSearch& beam = request.beam;
  const SamplingParams& s = request.sampling;
  if (beam.width > kMostBeams)
    return Error::Invalid("the beam width is ", beam.width, ", expected 1 to ", kMostBeams);
  if (!std::isfinite(beam.length_penalty))
    return Error::Invalid("the length penalty is ", beam.length_penalty, ", expected a finite number");
  if (request.n > beam.width)
    return Error::Invalid("n is ", request.n, " and the beam width ", beam.width,
                          ": there are not more answers than beams");
  if (request.best_of > 0)
    return Error::Invalid("best_of does not go with beam search, which ranks its beams");
  if (!IsPlainGreedy(s) && !(s.logprobs >= 0 && s.temperature == 0 && s.repetition_penalty == 1 &&
                             s.presence_penalty == 0 && s.frequency_penalty == 0 && s.logit_bias.empty()))
    return Error::Invalid("beam search takes no temperature, penalties or logit bias");
  if (request.mask || !s.allowed_tokens.empty())
    return Error::Invalid("beam search takes neither a token mask nor allowed tokens");
  if (Beams::Candidates(request) > vocab)
    return Error::Invalid("a beam width of ", beam.width, " with ", request.stop_tokens.size(),
                          " stop tokens looks at ", Beams::Candidates(request),
                          " tokens, but the vocabulary has ", vocab);
  return {};
}

Status CheckResumed(const Request& request, const Engine::Info& info, bool scored) {
  const auto resumed = static_cast<int64_t>(request.resumed.size());
  if (resumed == 0) return {};
  if (scored || request.n != 1 || request.best_of > 1 || request.beam.width > 0)
    return Error::Invalid(
        "an answer that is resumed is one answer: it takes no n, best_of, beams or pooling");
  for (const int32_t token : request.resumed)
    if (token < 0 || token >= info.vocab)
      return Error::Invalid("the resumed answer names token ", token, ", but the vocabulary has ", info.vocab,
                            " tokens");
  if (resumed >= request.max_tokens)
    return Error::Invalid("the resumed answer has ", resumed, " tokens and max tokens is ",
                          request.max_tokens, ", so nothing is left of it");
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt + resumed > info.context)
    return Error::Invalid("the prompt has ", prompt, " tokens and the resumed answer ", resumed,
                          ", and the context holds ", info.context);
  return {};
}

}  // namespace

Status CheckRequest(const Request& request, const Engine::Info& info, bool scored) {
  if (request.pooling != Pooling::kNone) {
    if (request.n != 1 || request.best_of != 0 || request.beam.width != 0 || request.prompt_logprobs >= 0 ||
        request.mask)
      return Error::Invalid("an embedding is one vector: it takes no n, best_of, beams, mask or logprobs");
    scored = true;  // no token comes after it
  }
  if (request.prompt.empty()) return Error::Invalid("the prompt has no tokens");
  for (const int32_t token : request.prompt)
    if (token < 0 || token >= info.vocab)
      return Error::Invalid("the prompt names token ", token, ", but the vocabulary has ", info.vocab,
                            " tokens");
  CELER_RETURN_IF_ERROR(Validate(request.sampling, info.vocab));
  if (request.max_tokens < 1)
    return Error::Invalid("max tokens is ", request.max_tokens, ", expected 1 or more");
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return Error::Invalid("min tokens is ", request.min_tokens, ", expected 0 to max tokens, which is ",
                          request.max_tokens);
  if (request.n < 1 || request.n > kMostAnswers)
    return Error::Invalid("n is ", request.n, ", expected 1 to ", kMostAnswers);
  if (request.best_of != 0 && (request.best_of < request.n || request.best_of > kMostAnswers))
    return Error::Invalid("best_of is ", request.best_of, ", expected n, which is ", request.n, ", to ",
                          kMostAnswers);
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > 100)
    return Error::Invalid("prompt logprobs is ", request.prompt_logprobs, ", expected 0 to 100");
  if (request.beam.width < 0)
    return Error::Invalid("the beam width is ", request.beam.width, ", expected 1 to ", kMostBeams);
  if (request.beam.width > 0) CELER_RETURN_IF_ERROR(CheckBeams(request, info.vocab));
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt >= info.context + (scored ? 1 : 0))
    return Error::Invalid(
        "the prompt has ", prompt, " tokens and the context holds ", info.context, "; ",
        info.context < info.max_positions ? "raise `context`" : "the model has no more positions");
  return CheckResumed(request, info, scored);
}

int64_t MostBlocks(const Request& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  // The last token of an answer is not appended to the KV, so the first one needs no beams.
  if (request.max_tokens < 2) return KvBlocksFor(prompt);
  const int64_t common = prompt / kKvBlockTokens, all = KvBlocksFor(prompt + request.max_tokens - 1);
  return common + std::max(request.beam.width, 1) * (all - common);
}

std::string NeverFits(const Request& request, const Engine::Info& info) {
  // Answers that draw on their own need not all be in the KV at once, and the context is no longer than it.
  if (request.beam.width < 1) return "";
  const int64_t need = MostBlocks(request), have = info.kv_tokens / kKvBlockTokens;
  if (need <= have) return "";
  return fmt::format(
      "{} beams of up to {} tokens need {} blocks of {} tokens, and the KV has {}; lower the beam width or "
      "max tokens, or raise `kv_memory`",
      request.beam.width, static_cast<int64_t>(request.prompt.size()) + request.max_tokens, need,
      kKvBlockTokens, have);
}

std::string NeverFitsWithStates(const Request& request, const Engine::Info& info, int64_t slots) {
  if (request.beam.width < 2 || request.max_tokens < 2) return "";
  if (request.beam.width > slots)
    return fmt::format(
        "{} beams need a state each, and there is room for those of {}; lower the beam width, or raise "
        "`sequences` or `kv_memory`",
        request.beam.width, slots);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t need = request.beam.width * KvBlocksFor(prompt + request.max_tokens - 1),
                have = info.kv_tokens / kKvBlockTokens;
  if (need <= have) return "";
  return fmt::format(
      "{} beams of up to {} tokens of a model with recurrent layers need {} blocks of {} tokens, and the KV "
      "has {}; "
      "lower the beam width or max tokens, or raise `kv_memory`",
      request.beam.width, prompt + request.max_tokens, need, kKvBlockTokens, have);
}

}  // namespace celer
