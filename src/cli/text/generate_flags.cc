#include "cli/text/generate_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <random>
#include <string_view>

#include "base/log.h"
#include "celer/adapters.h"
#include "cli/shared/engine_flags.h"
#include "device/allocator.h"
#include "device/cpu_features.h"
#include "limits/quantity.h"
#include "limits/roofline.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr int64_t kMaxGenerated = 1'000'000'000;

Result<int64_t> ParseLoraMemory(std::string_view text) {
  const auto bytes = ParseBytes(std::string(text), Units::kSi, "`lora_memory`");
  if (!bytes) return bytes.error();
  return static_cast<int64_t>(*bytes);
}

// All of the text, and not nothing.
template <class T>
bool IsNumber(std::string_view text, T* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

double AcceptedPercent(const TextResult& result) {
  return 100 * static_cast<double>(result.accepted_tokens) / static_cast<double>(result.drafted_tokens);
}

}  // namespace

void ModelFlags::AddTo(CLI::App& app) {
  AddEngineFlags(app, &model, &options.engine);
  app.add_option(
      "--context", options.engine.context,
      "tokens of the longest sequence, prompt and answer (0: the model's own limit, at most 4096)");
  options.engine.sequences = 1;  // one conversation; a command with more says so
  app.add_option_function<std::vector<std::string>>(
         "--lora",
         [this](const std::vector<std::string>& given) {
           for (const std::string& text : given) {
             auto spec = LoraSpec::Parse(text);
             if (!spec) throw CLI::ValidationError(WithFlags(spec.error().message()));
             options.engine.lora.adapters.push_back(std::move(*spec));
           }
         },
         "NAME=PATH[:SCALE]: a LoRA adapter, a PEFT folder or a GGUF file; may be repeated: the model gets "
         "the sum of all, each times its scale (default 1)")
      ->allow_extra_args(false);
  app.add_option("--max-lora-rank", options.engine.lora.max_rank, "that an adapter may have; 0: any")
      ->check(Between(0, 65536));
  AddParsed(app, "--lora-memory", &options.engine.lora.memory, ParseLoraMemory,
            "GPU memory for adapters, such as 2GiB; those used least recently are in host memory alone "
            "(default: what "
            "the adapters take that are given here)",
            "");
  app.add_option("--tokenizer", options.tokenizer, "tokenizer file or folder, if not the model's own");
  app.add_flag("-v,--verbose", verbose, "say what is loaded and where defaults come from; twice for more");
}

void ModelFlags::AddChatTo(CLI::App& app) {
  app.add_option("--chat-template", options.chat_template, "a Jinja file, if not the model's own");
}

Result<TextModel> ModelFlags::Load() {
  if (verbose > 0) log::SetLevel(verbose > 1 ? log::Level::kDebug : log::Level::kInfo);
  CELER_RETURN_IF_ERROR(ResolveModels(model, &options.engine));
  CELER_ASSIGN(TextModel loaded, TextModel::Load(options));
  const Engine::Info& info = loaded.engine->info();
  for (const auto& [format, bytes] : info.bytes_by_format)
    log::Info("weights {}: {}", format, FormatBytes(static_cast<uint64_t>(bytes)));
  log::Info("{} on {} ({} threads), sequences of up to {} tokens, KV for {} tokens, {} each",
            info.architecture, info.device, info.threads, info.context, info.kv_tokens,
            FormatBytes(static_cast<uint64_t>(info.kv_bytes_per_token)));
  for (const Adapters::Info& adapter : loaded.engine->adapters()->List())
    log::Info("adapter {}: rank {}, {} matrices, {}, from {}", adapter.name, adapter.rank, adapter.matrices,
              FormatBytes(static_cast<uint64_t>(adapter.bytes)), adapter.path);
  return loaded;
}

void SamplingFlags::AddTo(CLI::App& app) {
  app.add_option("-n,--max-tokens", max_tokens, "tokens to generate at most")
      ->check(Between(1, kMaxGenerated));
  app.add_option("--temperature", temperature,
                 "0: always the most likely token (default: the model's own, else 0)");
  app.add_option("--top-k", top_k, "keep the k most likely tokens (0: all)")
      ->check(Between(0, std::numeric_limits<int>::max()));
  app.add_option("--top-p", top_p, "keep the most likely tokens until they hold this probability");
  app.add_option("--min-p", min_p,
                 "keep tokens with at least this share of the most likely one's probability");
  app.add_option("--typical-p", typical_p, "keep tokens whose surprise is nearest the expected one");
  app.add_option("--repetition-penalty", repetition_penalty,
                 "divides the logits of tokens seen before (1: off)");
  app.add_option("--presence-penalty", presence_penalty,
                 "subtracted from tokens already in the answer (-2 to 2)");
  app.add_option("--frequency-penalty", frequency_penalty, "the same, once per occurrence (-2 to 2)");
  app.add_option("--logit-bias", logit_bias, "ID=VALUE, added to that token's logit; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--seed", seed, "same seed, same text (default: a new one each time)");
  app.add_option("--stop", stop, "a string that ends the answer; may be repeated")->allow_extra_args(false);
}

Result<SamplingParams> SamplingFlags::Apply(const SamplingParams& defaults, int64_t vocab) const {
  SamplingParams p = defaults;
  p.temperature = temperature.value_or(p.temperature);
  p.top_k = top_k.value_or(p.top_k);
  p.top_p = top_p.value_or(p.top_p);
  p.min_p = min_p.value_or(p.min_p);
  p.typical_p = typical_p.value_or(p.typical_p);
  p.repetition_penalty = repetition_penalty.value_or(p.repetition_penalty);
  p.presence_penalty = presence_penalty.value_or(p.presence_penalty);
  p.frequency_penalty = frequency_penalty.value_or(p.frequency_penalty);
  p.seed = seed ? *seed : std::random_device{}();
  p.logprobs = logprobs;
  for (const std::string& text : logit_bias) {
    int32_t token = 0;
    float bias = 0;
    const size_t equals = text.find('=');
    const std::string_view left = std::string_view(text).substr(0, equals),
                           right = std::string_view(text).substr(equals == std::string::npos ? text.size()
                                                                                             : equals + 1);
    if (!IsNumber(left, &token) || !IsNumber(right, &bias))
      return Error::Invalid("--logit-bias '", text, "': expected TOKEN=VALUE, e.g. 123=-5");
    if (!p.logit_bias.emplace(token, bias).second)
      return Error::Invalid("--logit-bias '", text, "': token ", token,
                            " has a bias already; give one per token");
  }
  CELER_RETURN_IF_ERROR(Validate(p, vocab));
  return p;
}

Result<TextRequest> MakeRequest(const SamplingFlags& flags, const TextModel& model) {
  TextRequest request;
  CELER_ASSIGN(request.sampling, flags.Apply(model.prompter.default_sampling(), model.engine->info().vocab));
  request.max_tokens = flags.max_tokens;
  request.stop = flags.stop;
  return request;
}

Speed MeasureSpeed(const TextResult& result, const Engine& engine) {
  Speed speed;
  const auto computed = static_cast<double>(result.prompt_tokens - result.reused_tokens);
  if (result.prefill_seconds > 0) speed.prefill_per_s = computed / result.prefill_seconds;
  if (result.decode_steps() > 0 && result.decode_seconds > 0)
    speed.decode_per_s = static_cast<double>(result.decode_steps()) / result.decode_seconds;
  const auto machine = MachineOf(engine.info(), /*allow_measure=*/false);
  if (machine && machine->read_bytes_per_s > 0) {
    // The step in the middle is the average one: what a step reads grows evenly.
    const int64_t middle = result.prompt_tokens + result.decode_steps() / 2;
    const OperatorWork step = Sum(engine.Work({.position = middle}));
    speed.read_bytes_per_s = machine->read_bytes_per_s;
    speed.decode_limit_per_s = 1 / LimitOf(step, *machine).seconds();
  }
  return speed;
}

void SaySpeed(const TextResult& result, const Engine& engine, std::string_view more) {
  std::string line = fmt::format("[{}{}]", SpeedLine(result, engine), more);
  const int width = MessageWidth();
  const size_t equals = line.find(" = ");
  if (Columns(line) > static_cast<size_t>(width) && equals != std::string::npos) line[equals] = '\n';
  Say("{}\n", Wrap(line, width, 1));
}

std::string SpeedLine(const TextResult& result, const Engine& engine) {
  const Speed speed = MeasureSpeed(result, engine);
  std::string line = fmt::format("{} prompt tokens", result.prompt_tokens);
  if (result.reused_tokens > 0) line += fmt::format(" ({} reused)", result.reused_tokens);
  line += fmt::format(" at {:.1f} tok/s, {} new tokens", speed.prefill_per_s, result.tokens.size());
  if (speed.decode_per_s > 0) {
    line += fmt::format(" at {:.1f} tok/s", speed.decode_per_s);
    if (speed.decode_limit_per_s)
      line += fmt::format(" = {:.0f} % of this machine's limit ({:.0f} tok/s by reading {:.1f} GB/s)",
                          100 * speed.decode_per_s / *speed.decode_limit_per_s, *speed.decode_limit_per_s,
                          speed.read_bytes_per_s / 1e9);
    else
      line += fmt::format("; run `celer probe{}` once to see the share of this machine's limit",
                          !DeviceOf(engine.info()).is_cpu() || engine.info().threads >= HostCpu().usable_cores
                              ? ""
                              : fmt::format(" --threads {}", engine.info().threads));
  }
  if (result.drafted_tokens > 0)
    line += fmt::format(", {:.1f} tokens per step, {:.0f} % of {} drafted tokens accepted",
                        static_cast<double>(result.decode_steps()) / static_cast<double>(result.steps),
                        AcceptedPercent(result), result.drafted_tokens);
  return line;
}

std::string NoDraftNote(const TextResult& result, const Speculation& speculation) {
  if (speculation.kind == Speculation::Kind::kNone || result.drafted_tokens > 0) return "";
  return speculation.kind == Speculation::Kind::kLookup
             ? ", nothing was drafted: no n-gram of the text repeats, or it would not pay"
             : ", nothing was drafted: it would not pay";
}

nlohmann::ordered_json SpeedJson(const TextResult& result, const Engine& engine,
                                 const Speculation& speculation) {
  const Speed speed = MeasureSpeed(result, engine);
  nlohmann::ordered_json json = {
      {"prompt_tokens", result.prompt_tokens},       {"reused_tokens", result.reused_tokens},
      {"completion_tokens", result.tokens.size()},   {"prefill_seconds", result.prefill_seconds},
      {"prefill_tokens_per_s", speed.prefill_per_s}, {"decode_seconds", result.decode_seconds},
      {"decode_tokens_per_s", speed.decode_per_s}};
  json["decode_limit_tokens_per_s"] =
      speed.decode_limit_per_s ? nlohmann::ordered_json(*speed.decode_limit_per_s) : nullptr;
  json["ratio_to_limit"] = speed.decode_limit_per_s
                               ? nlohmann::ordered_json(speed.decode_per_s / *speed.decode_limit_per_s)
                               : nullptr;
  if (speculation.kind != Speculation::Kind::kNone) {
    json["steps"] = result.steps;
    json["drafted_tokens"] = result.drafted_tokens;
    json["accepted_tokens"] = result.accepted_tokens;
    if (engine.info().predicted_gain > 0) json["predicted_gain"] = engine.info().predicted_gain;
  }
  return json;
}

}  // namespace celer::cli
