// Runs models from JSON lines with exact arithmetic, and checks that their logits do not depend on how the
// work is cut into steps.
//   in:  {"model": PATH, "prompt": [...], "greedy": N, "prefill": P}
//   out: {"vocab", "logits": one row after the other, "tokens", "warnings", "unequal": sentences} or {"error"}
// The first P tokens of the prompt (all of them without P) are one slice, the others follow one by one, then N
// tokens, the most likely one each time. "unequal" names each way of cutting that gives other bits than that.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "base/log.h"
#include "celer/engine.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "io/json/json.h"
#include "kernels/llm/kv_block.h"
#include "models/config/decoder_config.h"
#include "models/load/model.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<int32_t>;

constexpr int64_t kSequences = 5;
constexpr int kLogprobs = 5;

// What one request asks for.
struct Task {
  std::string model;
  Tokens prompt;
  int64_t greedy = 0;
  int64_t prefill = 0;
  WeightOptions weights = {};

  int64_t length() const { return std::ssize(prompt); }
  int64_t total() const { return length() + greedy; }
  // Lengths of prompts that are prefixes of this one, of all sizes; the first is the whole.
  std::vector<int64_t> Lengths() const {
    const int64_t n = length();
    return {n, std::max<int64_t>(1, n / 3), 1, std::max<int64_t>(1, n - 1), std::max<int64_t>(1, 2 * n / 3)};
  }
};

// One sequence of a runner's pool: it has blocks of its own.
struct Sequence {
  int64_t id;
  Tokens blocks;

  Sequence(int64_t number, int64_t tokens) : id(number) {
    const int64_t count = KvBlocksFor(tokens);
    for (int64_t i = 0; i < count; ++i)  // in descending order: nothing may rely on neighbours
      blocks.push_back(static_cast<int32_t>((number + 1) * count - 1 - i));
  }
  Slice Part(std::span<const int32_t> tokens, int64_t begin, int64_t end, int64_t prompt_length) const {
    return {.sequence = id,
            .tokens = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
            .position = begin,
            .state = static_cast<int32_t>(id),
            .block_table = blocks,
            .rows = Slice::Rows::kAll,
            .prompt_length = prompt_length};
  }
};

// [tokens, vocab] of one text.
struct Rows {
  int64_t vocab = 0;
  std::vector<float> values = {};

  int64_t count() const { return std::ssize(values) / vocab; }
  std::span<const float> operator[](int64_t row) const {
    return std::span(values).subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab));
  }
};

int32_t MostLikely(std::span<const float> row) {
  return static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
}

// What is the same in both must have the same bits; `what` names the second. Empty if so.
std::string Compare(const Rows& expected, const Rows& got, int64_t first, const std::string& what) {
  for (int64_t i = 0; i < got.count(); ++i) {
    float worst = 0;
    for (int64_t k = 0; k < got.vocab; ++k)
      worst = std::max(worst, std::abs(expected[first + i][k] - got[i][k]));
    if (worst != 0)
      return what + ": the logits of token " + std::to_string(first + i) + " differ by " +
             std::to_string(worst);
  }
  return {};
}

class Checker {
 public:
  static Result<Checker> Make(const Task& task) {
    CELER_ASSIGN(std::unique_ptr<Runner> runner, MakeRunner({.model = task.model,
                                                             .weights = task.weights,
                                                             .kv = KvType::kF32,
                                                             .threads = 1,
                                                             .context = task.total(),
                                                             .sequences = kSequences + 1}));
    return Checker(task, std::move(runner));
  }

  const DecoderConfig& config() const { return runner_->info().config; }

  // The text in the fewest slices; the tokens that it chooses are added to it.
  Result<Rows> Whole() {
    Rows rows{config().vocab};
    const Sequence sequence = Next();
    text_ = task_.prompt;
    for (int64_t begin = 0; begin < task_.total();) {
      if (begin == std::ssize(text_)) text_.push_back(MostLikely(rows[begin - 1]));
      const int64_t end = begin == 0 ? std::min(task_.prefill, task_.length()) : begin + 1;
      CELER_RETURN_IF_ERROR(Run(sequence, begin, end, rows));
      begin = end;
    }
    return rows;
  }

  // In slices of `sizes`, one after the other and again from the first.
  Result<Rows> Pieces(const std::vector<int64_t>& sizes) {
    Rows rows{config().vocab};
    const Sequence sequence = Next();
    size_t turn = 0;
    for (int64_t begin = 0; begin < task_.total();) {
      const int64_t end = std::min(begin + sizes[turn++ % sizes.size()], task_.total());
      CELER_RETURN_IF_ERROR(Run(sequence, begin, end, rows));
      begin = end;
    }
    return rows;
  }

  // Several sequences that begin alike and have different lengths, in one step and then token by token. The
  // rows of each.
  Result<std::vector<Rows>> Batch() {
    struct Member {
      Sequence sequence;
      int64_t done, next;
    };
    std::vector<Member> members;
    for (const int64_t length : task_.Lengths()) members.push_back({Next(), 0, length});
    std::vector<Rows> rows(members.size(), Rows{config().vocab});
    for (bool more = true; more;) {
      std::vector<Slice> slices;
      std::vector<size_t> of;
      for (size_t i = 0; i < members.size(); ++i)
        if (Member& m = members[i]; m.done < task_.total()) {
          slices.push_back(m.sequence.Part(text_, m.done, m.next, task_.length()));
          of.push_back(i);
        }
      CELER_ASSIGN(const std::vector<float> logits, RunLogits(*runner_, slices));
      auto at = logits.begin();
      more = false;
      for (size_t s = 0; s < slices.size(); ++s) {
        Member& m = members[of[s]];
        const auto end = at + slices[s].count() * config().vocab;
        rows[of[s]].values.insert(rows[of[s]].values.end(), at, end);
        at = end;
        m.done = m.next;
        m.next = std::min(m.done + 1, task_.total());
        more = more || m.done < task_.total();
      }
    }
    return rows;
  }

  const Tokens& text() const { return text_; }

 private:
  Checker(Task task, std::unique_ptr<Runner> runner) : task_(std::move(task)), runner_(std::move(runner)) {}

  // A sequence whose blocks no running one has.
  Sequence Next() { return {next_++ % (kSequences + 1), task_.total()}; }

  Status Run(const Sequence& sequence, int64_t begin, int64_t end, Rows& rows) {
    const Slice slice = sequence.Part(text_, begin, end, task_.length());
    CELER_ASSIGN(const std::vector<float> logits, RunLogits(*runner_, {&slice, 1}));
    for (const float logit : logits)
      if (!std::isfinite(logit)) return Error::Corrupt(task_.model, ": a logit is ", logit);
    rows.values.insert(rows.values.end(), logits.begin(), logits.end());
    return {};
  }

  Task task_;
  std::unique_ptr<Runner> runner_;
  Tokens text_;
  int64_t next_ = 0;
};

// The answers of an engine: prefixes that are cached, steps that hold several sequences, preemption.
class Served {
 public:
  struct Answer {
    Tokens tokens;
    std::vector<float> logprobs;  // the best ones of each token
    int64_t cached = 0;
    bool operator==(const Answer& other) const {
      return tokens == other.tokens && logprobs == other.logprobs;
    }
  };

  static Result<Served> Make(EngineOptions options) {
    options.kv = KvType::kF32;
    options.threads = 1;
    CELER_ASSIGN(std::unique_ptr<Engine> engine, Engine::Load(options));
    return Served(std::move(engine));
  }

  Result<std::vector<Answer>> Ask(const Task& task, std::span<const int64_t> lengths) {
    std::map<int64_t, size_t> index;
    std::vector<Answer> answers(lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i) {
      Request request;
      request.prompt.assign(task.prompt.begin(), task.prompt.begin() + lengths[i]);
      request.max_tokens = task.greedy;
      request.sampling.logprobs = static_cast<int>(std::min<int64_t>(kLogprobs, engine_->info().vocab));
      CELER_ASSIGN(const int64_t id, engine_->Submit(std::move(request)));
      index[id] = i;
    }
    while (engine_->HasWork())
      for (const TokenEvent& event : engine_->Step()) {
        if (!event.error.empty()) return Error::Device(event.error);
        Answer& answer = answers[index[event.request]];
        answer.cached += event.cached_tokens;
        if (event.token == TokenEvent::kNoToken) continue;
        answer.tokens.push_back(event.token);
        for (const TokenLogprob& top : event.top) answer.logprobs.push_back(top.logprob);
      }
    return answers;
  }
  const Engine& engine() const { return *engine_; }

 private:
  explicit Served(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  std::unique_ptr<Engine> engine_;
};

// Sentences about answers of engines that differ from those of the runner, or from one another.
Status CheckEngine(const Task& task, const Tokens& text, Json& unequal) {
  const std::vector<int64_t> lengths = task.Lengths();
  const auto Say = [&](size_t i, const std::string& what) {
    unequal.push_back("the engine, " + what + ": the answer to the first " + std::to_string(lengths[i]) +
                      " tokens differs");
  };
  const EngineOptions plain{
      .model = task.model, .weights = task.weights, .context = task.total() + 1, .sequences = kSequences};
  CELER_ASSIGN(Served served, Served::Make(plain));
  std::vector<Served::Answer> alone;
  for (size_t i = 0; i < lengths.size(); ++i) {
    CELER_ASSIGN(std::vector<Served::Answer> one, served.Ask(task, std::span(lengths).subspan(i, 1)));
    alone.push_back(std::move(one[0]));
  }
  if (!std::equal(alone[0].tokens.begin(), alone[0].tokens.end(), text.begin() + task.length(), text.end()))
    Say(0, "first");
  // Whole blocks of the prompts are cached now, but for the tokens that a step must compute.
  CELER_ASSIGN(const std::vector<Served::Answer> cached, served.Ask(task, lengths));
  if (task.length() > kKvBlockTokens + 1 && cached[0].cached == 0) unequal.push_back("no prefix was cached");
  EngineOptions cut = plain;
  cut.chunk = cut.mixed_chunk = 7;
  cut.prefix_cache = false;
  CELER_ASSIGN(Served pieces, Served::Make(cut));
  CELER_ASSIGN(const std::vector<Served::Answer> in_pieces, pieces.Ask(task, lengths));
  // Room for two of the five: others are preempted and computed again.
  EngineOptions tight = plain;
  tight.preemption = Preemption::kRecompute;
  tight.kv_memory.bytes =
      2 * KvBlocksFor(task.total() + 1) * kKvBlockTokens * served.engine().info().kv_bytes_per_token;
  CELER_ASSIGN(const DecoderConfig config, LoadDecoderConfig(task.model));
  tight.kv_memory.bytes += 2 * StateBytes(config.recurrent);
  CELER_ASSIGN(Served crowded, Served::Make(tight));
  CELER_ASSIGN(const std::vector<Served::Answer> preempted, crowded.Ask(task, lengths));
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (cached[i] != alone[i]) Say(i, "a batch with cached prefixes");
    if (in_pieces[i] != alone[i]) Say(i, "a batch in steps of 7 tokens");
    if (preempted[i] != alone[i]) Say(i, "a batch in too little memory");
  }
  return {};
}

Result<Json> Answer(const Json& request) {
  Task task{.model = request.at("model"),
            .prompt = request.at("prompt").get<Tokens>(),
            .greedy = request.value("greedy", int64_t{0})};
  task.prefill = request.value("prefill", task.length());
  CELER_ASSIGN(task.weights, WeightOptions::Parse(request.value("weights", std::string("stored"))));
  CELER_ASSIGN(const DecoderConfig stated, LoadDecoderConfig(task.model));
  if (task.total() > stated.max_positions)
    return Error::Invalid(task.total(), " tokens, the model has ", stated.max_positions, " positions");
  for (const int32_t token : task.prompt)
    if (token < 0 || token >= stated.vocab)
      return Error::Invalid("token ", token, ", the model has ", stated.vocab);

  CELER_ASSIGN(Checker checker, Checker::Make(task));
  CELER_ASSIGN(const Rows whole, checker.Whole());
  Json unequal = Json::array();
  const auto Note = [&](const std::string& sentence) {
    if (!sentence.empty()) unequal.push_back(sentence);
  };
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5}, {1}, {16, 1, 3}}) {
    CELER_ASSIGN(const Rows pieces, checker.Pieces(sizes));
    Note(Compare(whole, pieces, 0, "slices of " + std::to_string(sizes[0])));
  }
  CELER_ASSIGN(const std::vector<Rows> batch, checker.Batch());
  for (size_t i = 0; i < batch.size(); ++i)
    Note(Compare(whole, batch[i], 0, "sequence " + std::to_string(i) + " of a batch"));
  if (task.greedy > 0) {
    CELER_RETURN_IF_ERROR(CheckEngine(task, checker.text(), unequal));
  }
  return Json{{"vocab", whole.vocab},
              {"logits", whole.values},
              {"tokens", std::vector(checker.text().begin() + task.length(), checker.text().end())},
              {"warnings", checker.config().warnings},
              {"unequal", std::move(unequal)}};
}

}  // namespace
}  // namespace celer

int main() {
  setenv("CELER_FORCE", "matmul:portable", 1);      // before anything picks a kernel
  celer::log::SetLevel(celer::log::Level::kError);  // warnings are in the answer
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = celer::Answer(celer::Json::parse(line));
    std::cout << celer::JsonText(answer ? *answer : celer::Json{{"error", answer.error().message()}}) << '\n'
              << std::flush;
  }
}
