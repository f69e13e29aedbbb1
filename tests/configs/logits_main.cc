// Runs models from JSON lines with exact arithmetic, so that a script can compare logits with another
// engine's.
//   in:  {"model": PATH, "tokens": [...] or "text": "...", "prefill": N, "lora": [PATH of an adapter, ...]}
//   out: {"tokens", "vocab", "logits": one row after the other, "warnings"} or {"error"}
// The first N tokens (all of them without N) are one prompt, the others follow one by one.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/log.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/run_logits.h"
#include "io/json/json.h"
#include "models/load/model.h"
#include "models/lora/lora.h"
#include "text/tokenizer/load_tokenizer.h"

namespace celer {
namespace {

using Json = nlohmann::json;

Result<Json> Answer(const Json& request) {
  const std::string path = request.at("model");
  std::vector<int32_t> tokens;
  if (request.contains("text")) {
    CELER_ASSIGN(const auto tokenizer, LoadTokenizer(path));
    tokens = tokenizer->Encode(request["text"].get<std::string>());
  } else {
    tokens = request.at("tokens").get<std::vector<int32_t>>();
  }
  const auto count = static_cast<int64_t>(tokens.size());
  CELER_ASSIGN(const DecoderConfig stated, LoadDecoderConfig(path));
  if (count > stated.max_positions)
    return Error::Invalid(count, " tokens, the model has ", stated.max_positions, " positions");
  CELER_ASSIGN(
      const std::unique_ptr<Runner> runner,
      MakeRunner({.model = path, .kv = KvType::kF32, .threads = 1, .context = count, .sequences = 1}));
  const DecoderConfig& config = runner->info().config;
  const Json warnings = config.warnings;
  const int64_t vocab = config.vocab, blocks = KvBlocksFor(count);
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab)
      return Error::Corrupt(path, ": the tokenizer has token ", token, ", the model has ", vocab);

  std::vector<LoraUse> uses;
  for (const std::string& adapter : request.value("lora", std::vector<std::string>())) {
    CELER_ASSIGN(auto loaded, LoadLora("adapter", adapter, path, DefaultThreadPool()));
    uses.push_back({.adapter = std::move(loaded)});
  }
  CELER_ASSIGN(const std::shared_ptr<const LoraMix> mix, LoraMix::Make(std::move(uses)));
  if (mix) CELER_RETURN_IF_ERROR(runner->CheckLora(*mix));

  std::vector<int32_t> table;
  for (int64_t i = 0; i < blocks; ++i) table.push_back(static_cast<int32_t>(blocks - 1 - i));
  const int64_t prefill = std::min(request.value("prefill", count), count);
  Json logits = Json::array();
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = begin == 0 ? prefill : begin + 1;
    const Slice slice{
        .tokens = std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        .position = begin,
        .state = 0,
        .block_table = table,
        .rows = Slice::Rows::kAll,
        .prompt_length = prefill,
        .lora = mix};
    CELER_ASSIGN(const std::vector<float> rows, RunLogits(*runner, {&slice, 1}));
    for (const float logit : rows) {
      if (!std::isfinite(logit)) return Error::Corrupt(path, ": a logit is ", logit);
      logits.push_back(logit);
    }
    begin = end;
  }
  return Json{{"tokens", tokens}, {"vocab", vocab}, {"logits", std::move(logits)}, {"warnings", warnings}};
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
