#include "server/service/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/split_mix.h"
#include "io/file/printable.h"

namespace celer::server {
namespace {

// Steps of some nanoseconds, as in TokenMask::Prepared: seconds. Nothing is generated meanwhile, so a short request must
// not buy more.
constexpr uint64_t kMostMaskWork = 1'000'000'000;

// Nothing that only decides when the answer ends or how it is reported: a client may change that.
std::string FingerprintOf(const ServedModel& model, const Query& query, const Prepared& prepared) {
  const Request& request = prepared.requests[0];
  const SamplingParams& s = request.sampling;
  const Engine::Info& info = model.info;
  std::string all =
      fmt::format("{} {} {} {} {} {} {}\n", info.architecture, info.vocab, info.shape.layers,
                  info.shape.hidden, info.weight_bytes, info.kv_bytes_per_token, info.bytes_by_format);
  all += fmt::format("{} {} {} {} {} {} {} {} {} {} {}\n", s.temperature > 0 ? s.seed : 0, s.temperature,
                     s.top_k, s.top_p, s.min_p, s.typical_p, s.repetition_penalty, s.presence_penalty,
                     s.frequency_penalty, s.logit_bias, s.allowed_tokens);
  all += fmt::format("{} {} {} {} {} {}\n", request.min_tokens, query.ignore_eos, query.stop_token_ids,
                     query.bad_words, static_cast<int>(query.constraint.kind), query.constraint.choices);
  all += query.constraint.text;
  all += fmt::format("\n{} {}\n", static_cast<int>(prepared.tool_choice.kind), prepared.tool_choice.name);
  for (const AdapterChoice& one : query.lora.value_or(std::vector<AdapterChoice>()))
    all += fmt::format("{} ", one.scale);
  all += fmt::format("{}", prepared.adapters);
  all += fmt::format("\n{}", fmt::join(request.prompt, " "));
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : all) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", SplitMix64(hash));
}

// A clone that has accepted the tokens.
Refusal AdvanceMask(const std::vector<int32_t>& tokens, int64_t vocab,
                    std::shared_ptr<const TokenMask>* mask) {
  std::shared_ptr<TokenMask> at = (*mask)->Clone();
  std::vector<uint32_t> bits(static_cast<size_t>(vocab + 31) / 32);
  uint64_t work = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Result<TokenMask::Prepared> prepared = at->Prepare(TokenMask::kAnyWork);
    if (!prepared) return ApiError{.message = prepared.error().message(), .code = "grammar_too_complex"};
    work += prepared->work;
    if (work > kMostMaskWork)
      return ApiError{
          .message = fmt::format("after {} of the {} tokens of resume.token_ids the form of the answer has "
                                 "taken too much work; begin the answer anew",
                                 i + 1, tokens.size()),
          .param = "resume",
          .code = "grammar_too_complex"};
    std::fill(bits.begin(), bits.end(), 0);
    at->Allow(bits);
    if ((bits[static_cast<size_t>(tokens[i]) / 32] >> (tokens[i] % 32) & 1) == 0)
      return ApiError{
          .message = fmt::format("resume.token_ids[{}] is {}, which the form of the answer or bad_words does "
                                 "not allow there",
                                 i, tokens[i]),
          .param = "resume"};
    at->Accept(tokens[i]);
  }
  *mask = std::move(at);
  return {};
}

}  // namespace

Refusal CheckResume(Query* query) {
  if (!query->resume) return {};
  const Resume& resume = *query->resume;
  const Request& request = query->request;
  const auto alone = [](const char* what) {
    return ApiError{
        .message = fmt::format("resume is of one answer to one prompt; it cannot be combined with {}", what),
        .param = "resume"};
  };
  if (request.n > 1) return alone("n above 1");
  if (request.best_of > 1) return alone("best_of above 1");
  if (query->beam || request.beam.width > 0) return alone("beam search");
  if (query->prompts.size() > 1) return alone("several prompts");
  if (query->echo) return alone("echo");
  if (query->seed && resume.seed && *query->seed != *resume.seed)
    return ApiError{
        .message = fmt::format("seed is {}, but the answer that is resumed was drawn with resume.seed, {}",
                               *query->seed, *resume.seed),
        .param = "seed"};
  if (!query->seed) query->seed = resume.seed;
  if (!resume.token_ids.empty() && !query->seed && request.sampling.temperature > 0)
    return ApiError{
        .message =
            "resume.seed is missing, and without the seed of its first tokens a sampled answer cannot go "
            "on",
        .param = "resume"};
  return {};
}

Refusal ReplayAnswer(Job* job) {
  if (!job->query.resume) return {};
  const ServedModel& model = *job->model;
  const Query& query = job->query;
  const Resume& resume = *query.resume;
  Request& request = job->prepared.requests[0];
  const std::string& fingerprint = job->prepared.fingerprint = FingerprintOf(model, query, job->prepared);
  if (!resume.fingerprint.empty() && resume.fingerprint != fingerprint)
    return ApiError{.message = fmt::format(
                        "resume.fingerprint is '{}' and that of this request {}: its prompt, its sampling "
                        "parameters or the model are not those of the answer that is resumed",
                        Printable(resume.fingerprint, 40), fingerprint),
                    .param = "resume",
                    .code = "resume_mismatch"};
  const auto& tokens = resume.token_ids;
  if (std::ssize(tokens) > request.max_tokens)
    return ApiError{.message = fmt::format("resume.token_ids has {} tokens, but the answer may have {}",
                                           tokens.size(), request.max_tokens),
                    .param = "resume"};
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= model.info.vocab)
      return ApiError{.message = fmt::format("resume.token_ids[{}] is {}, but the model has {} tokens", i,
                                             tokens[i], model.info.vocab),
                      .param = "resume"};
  if (request.mask && !tokens.empty())
    if (auto refusal = AdvanceMask(tokens, model.info.vocab, &request.mask)) return refusal;
  request.resumed = tokens;
  job->replayed.emplace(0, model.prompter, TextOptionsOf(query), job->prepared.parts);
  return job->replayed->Replay(query, request);
}

}  // namespace celer::server
