#include "cli/limits/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "limits/quantity.h"

namespace celer::cli {
namespace {

std::string RateText(double per_second) {
  return per_second >= 1000 ? FormatCount(Floor(per_second + 0.5)) : FormatNumber(per_second);
}

std::string Capacity(const std::optional<int64_t>& tokens) {
  return tokens ? FormatCount(*tokens) : "do not fit";
}

std::string Times(double ratio) {
  return fmt::format("x{:.2f}", ratio);
}

std::string Point(double n) {
  return std::isinf(n) ? "never" : FormatCount(Floor(n));
}

Table MemoryTable(const LimitsRequest& r) {
  Table table;
  table.title = "Memory: tokens of KV that fit beside the weights";
  table.header = {"", "weights", "KV per token", "KV tokens", "with embedding"};
  for (const LlmSetup& setup : r.setups)
    table.rows.push_back({SetupName(setup), FormatBytes(WeightBytes(r.shape, setup), r.units),
                          FormatBytes(KvBytesPerToken(r.shape, setup), r.units),
                          Capacity(KvCapacityTokens(r.shape, r.machine, setup)),
                          Capacity(KvCapacityTokens(r.shape, r.machine, setup, true))});
  table.notes = {
      "w8kv16: weights of 8 bits, KV of 16. Tokens are those of all sequences together.",
      "The embedding table may stay in host memory, as only one row per token is read; the last column "
      "counts it in."};
  return table;
}

Table PrefillTable(const LimitsRequest& r) {
  Table table;
  table.title = r.batch() == 1
                    ? "Prefill: from the prompt to the first token"
                    : fmt::format("Prefill: {} prompts together, to their first tokens", r.batch());
  table.keys = 2;
  table.header = {"",      "prompt",      "read weights", "read KV", "compute rough",
                  "exact", "first token", "floor",        "tok/s",   "floor bound by"};
  table.last_is_words = true;
  for (const int64_t prompt : r.prompts)
    for (const LlmSetup& setup : r.setups) {
      const PhaseLimit rough = PrefillLimit(r.shape, r.machine, setup, prompt, HeadRows::kRough);
      const PhaseLimit exact = PrefillLimit(r.shape, r.machine, setup, prompt);
      const PhaseLimit floor =
          PrefillLimit(r.shape, r.machine, setup, prompt, HeadRows::kExact, KvReads::kOnce);
      const bool fits = Fits(r, r.shape, setup, prompt);
      table.rows.push_back(
          {SetupName(setup), FormatCount(prompt), FormatSeconds(exact.weight_s), FormatSeconds(exact.kv_s),
           FormatSeconds(rough.compute_s), FormatSeconds(exact.compute_s), FormatSeconds(exact.seconds()),
           FormatSeconds(floor.seconds()), RateText(double(r.batch()) * double(prompt) / floor.seconds()),
           fits ? std::string(BoundText(floor.bound())) : "does not fit"});
    }
  table.notes = {
      "read KV: every prompt token reads the KV before it, n(n+1)/2 in all. rough: lm_head runs for every "
      "token; exact: only for the last.",
      "first token = max(read, compute exact). floor: attention so well tiled that each KV value is read "
      "once; no kernel can beat it."};
  return table;
}

Table TurningTable(const LimitsRequest& r) {
  Table table;
  table.title = "Turning points of prefill: prompt lengths between which arithmetic binds";
  table.header = {"", "rough from", "to", "exact from", "to"};
  for (const LlmSetup& setup : r.setups) {
    std::vector<std::string> row = {SetupName(setup)};
    for (const HeadRows head : {HeadRows::kRough, HeadRows::kExact}) {
      const auto points = PrefillTurningPoints(r.shape, r.machine, setup, head);
      row.push_back(points ? Point(points->first) : "-");
      row.push_back(points ? Point(points->second) : "-");
    }
    table.rows.push_back(row);
  }
  table.notes = {
      "Shorter prompts wait for weights: splitting them costs time. Longer ones wait for KV unless attention "
      "is tiled. '-': reading always binds."};
  return table;
}

Table DecodeTable(const LimitsRequest& r) {
  Table table;
  table.title = r.batch() == 1 ? "Decode: one token"
                               : fmt::format("Decode: one token for each of {} sequences", r.batch());
  table.header = {"", "W tok/ms", "B"};
  for (const int64_t context : r.contexts) {
    table.header.push_back("at " + FormatCount(context));
    table.header.push_back("tok/s");
  }
  table.header.push_back("bound by");
  table.last_is_words = true;
  for (const LlmSetup& setup : r.setups) {
    const DecodeForm form = DecodeWB(r.shape, r.machine, setup);
    std::vector<std::string> row = {SetupName(setup),
                                    form.w_tokens_per_ms < 100
                                        ? FormatNumber(form.w_tokens_per_ms)
                                        : FormatCount(Floor(form.w_tokens_per_ms + 0.5)),
                                    FormatSeconds(form.b_ms / 1e3)};
    std::string bounds;
    Bound last{};
    for (const int64_t context : r.contexts) {
      if (!Fits(r, r.shape, setup, context)) {
        row.insert(row.end(), {"-", "-"});
        continue;
      }
      const PhaseLimit step = DecodeLimit(r.shape, r.machine, setup, context);
      row.push_back(FormatSeconds(step.seconds()));
      row.push_back(RateText(TokensPerSecond(step, setup)));
      if (bounds.empty() || step.bound() != last)
        bounds += (bounds.empty() ? "" : ", then ") + std::string(BoundText(step.bound()));
      last = step.bound();
    }
    row.push_back(bounds.empty() ? "does not fit" : bounds);
    table.rows.push_back(row);
  }
  table.notes = {
      "Read latency = (context - 1) / W + B: every W tokens of context cost one more millisecond. '-': does "
      "not fit."};
  return table;
}

// Of layers on a GPU and on a CPU.
Table SplitTable(const LimitsRequest& r) {
  const LimitsRequest::Split& split = *r.split;
  Table table;
  table.title =
      fmt::format("Split: {} of {} at {}, and {} at {}", FormatBytes(split.gpu.memory_bytes, Units::kBinary),
                  split.gpu.name, FormatBandwidth(split.gpu.read_bytes_per_s, r.units), split.host.name,
                  FormatBandwidth(split.host.read_bytes_per_s, r.units));
  table.header = {"",     "context",   "GPU layers", "GPU memory", "GPU reads",
                  "time", "CPU reads", "time",       "step",       "tok/s"};
  for (const LlmSetup& setup : r.setups)
    for (const int64_t context : r.contexts) {
      const auto limit =
          SplitDecode(r.shape, split.gpu, split.host, setup,
                      {.context = context, .gpu_layers = split.gpu_layers, .cpu_experts = split.cpu_experts});
      std::vector<std::string> row = {SetupName(setup), FormatCount(context)};
      if (limit)
        row.insert(row.end(), {fmt::format("{} of {}", limit->gpu_layers, r.shape.layers),
                               FormatBytes(limit->resident, r.units), FormatBytes(limit->gpu_bytes, r.units),
                               FormatSeconds(limit->gpu_s), FormatBytes(limit->cpu_bytes, r.units),
                               FormatSeconds(limit->cpu_s), FormatSeconds(limit->seconds()),
                               RateText(static_cast<double>(setup.batch) / limit->seconds())});
      else
        row.insert(row.end(), {"does not fit", "-", "-", "-", "-", "-", "-", "-"});
      table.rows.push_back(std::move(row));
    }
  table.notes = {
      "Each side reads its part by turns, at its own bandwidth. The step counts the crossings between them, "
      "too; "
      "the GPU memory not what the engine takes "
      "of the GPU's memory for itself (some hundred MiB)."};
  return table;
}

// What sharing KV heads, narrower numbers and a batch do, each alone, against the first setup.
Table EffectsTable(const LimitsRequest& r) {
  const int64_t context = r.contexts[r.contexts.size() / 2];
  Table table;
  table.title = fmt::format("What changes it, at a context of {}", FormatCount(context));
  table.header = {"", "weights", "KV per token", "KV tokens", "step", "tok/s", "against the first"};
  table.last_is_words = true;
  const double base =
      TokensPerSecond(DecodeLimit(r.shape, r.machine, r.setups.front(), context), r.setups.front());
  const auto add = [&](const std::string& name, const LlmShape& shape, const LlmSetup& setup) {
    const PhaseLimit step = DecodeLimit(shape, r.machine, setup, context);
    const double rate = TokensPerSecond(step, setup);
    LimitsRequest with = r;
    with.setups = {setup};
    table.rows.push_back(
        {name, FormatBytes(WeightBytes(shape, setup), r.units),
         FormatBytes(KvBytesPerToken(shape, setup), r.units),
         Capacity(KvCapacityTokens(shape, r.machine, setup)), FormatSeconds(step.seconds()), RateText(rate),
         Times(rate / base) + ", " +
             (Fits(with, shape, setup, context) ? std::string(BoundText(step.bound())) : "does not fit")});
  };
  const LlmSetup& first = r.setups.front();
  add(fmt::format("{}, batch {}", SetupName(first), first.batch), r.shape, first);
  if (const auto other = OtherGrouping(r.shape))
    add(fmt::format("{} KV heads, not {}", other->kv_heads, r.shape.kv_heads), *other, first);
  for (size_t i = 1; i < r.setups.size(); ++i) add(SetupName(r.setups[i]), r.shape, r.setups[i]);
  // Batches that fit; when the smaller does not, the largest that does.
  const auto capacity = KvCapacityTokens(r.shape, r.machine, first);
  const int64_t largest = capacity ? *capacity / context : 0;
  std::vector<int64_t> batches = {8 * first.batch, 64 * first.batch};
  std::erase_if(batches, [&](int64_t batch) { return batch > largest; });
  if (batches.size() < 2 && largest > first.batch) batches.push_back(largest);
  for (const int64_t batch : batches) {
    LlmSetup many = first;
    many.batch = batch;
    add(fmt::format("batch {}{}", FormatCount(batch), batch == largest ? ", all that fit" : ""), r.shape,
        many);
  }
  const auto turning = DecodeTurningBatch(r.shape, r.machine, first, context);
  table.notes = {turning ? fmt::format("{}: from a batch of {} on, arithmetic binds decode at this context.",
                                       SetupName(first), FormatCount(Floor(std::ceil(*turning))))
                         : fmt::format("{}: at this context no batch makes arithmetic bind, as each sequence "
                                       "brings its own KV to read.",
                                       SetupName(first))};
  return table;
}

// What drafts change at best.
Table SpeculationTable(const LimitsRequest& r) {
  Table table;
  table.title = fmt::format("Speculation: {} drafted tokens a step, {} of them accepted", r.draft.depth,
                            FormatNumber(r.draft.acceptance));
  table.keys = 2;
  table.header = {"", "context", "a step", "with drafts", "tokens a step", "tok/s", "against without"};
  table.last_is_words = true;
  for (const int64_t context : r.contexts)
    for (const LlmSetup& setup : r.setups) {
      const PhaseLimit one = DecodeLimit(r.shape, r.machine, setup, context);
      const PhaseLimit verify = VerifyLimit(r.shape, r.machine, setup, context, r.draft);
      const double before = TokensPerSecond(one, setup);
      const double rate = r.draft.TokensPerStep() * TokensPerSecond(verify, setup);
      table.rows.push_back(
          {SetupName(setup), FormatCount(context), FormatSeconds(one.seconds()),
           FormatSeconds(verify.seconds()), FormatNumber(r.draft.TokensPerStep()), RateText(rate),
           Times(rate / before) + ", " +
               (Fits(r, r.shape, setup, context) ? std::string(BoundText(verify.bound())) : "does not fit")});
    }
  table.notes = {
      "Drafts cost nothing here, as prompt lookup's nearly do; a token is accepted with that probability if "
      "all "
      "before it were."};
  return table;
}

}  // namespace

namespace {

// What layers of a model do that are not all alike.
std::string KindsText(const LlmShape& s) {
  std::string out;
  for (const LayerKind& kind : s.kinds) {
    if (kind.window > 0)
      out += fmt::format(", {} layers see {} tokens", kind.count, FormatCount(kind.window));
    if (kind.state > 0) out += fmt::format(", {} layers are recurrent", kind.count);
    if (s.experts > 0 && kind.expert() == 0) out += fmt::format(", {} layers have no experts", kind.count);
  }
  return out;
}

}  // namespace

std::optional<LlmShape> OtherGrouping(const LlmShape& shape) {
  if (!shape.kinds.empty()) return std::nullopt;
  LlmShape other = shape;
  if (shape.kv_heads < shape.heads) {
    other.kv_heads = shape.heads;
  } else if (shape.heads > 8 && shape.heads % 8 == 0) {
    other.kv_heads = 8;
  } else {
    return std::nullopt;
  }
  return other;
}

bool Fits(const LimitsRequest& r, const LlmShape& shape, const LlmSetup& setup, int64_t context) {
  const auto capacity = KvCapacityTokens(shape, r.machine, setup);
  return capacity && *capacity / setup.batch >= context;
}

Facts LimitsFacts(const LimitsRequest& r) {
  const LlmShape& s = r.shape;
  const Machine& m = r.machine;
  const LlmParams p = CountParams(s);
  const double peak = *PeakFlops(m, r.setups.front());
  Facts facts;
  facts.emplace_back(
      "machine",
      fmt::format("{}: {} memory, {} read, {} {}; balanced at {} FLOP/byte ({})", m.name,
                  FormatBytes(m.memory_bytes, Units::kBinary), FormatBandwidth(m.read_bytes_per_s, r.units),
                  FormatFlops(peak, r.units),
                  r.setups.front().compute == "auto" ? (r.setups.front().weight_bits > 16 ? "f32" : "16-bit")
                                                     : r.setups.front().compute,
                  FormatNumber(peak / m.read_bytes_per_s), m.source));
  if (r.devices > 1)
    facts.emplace_back("devices",
                       fmt::format("{}, each with its share of every layer, as tensor parallelism divides "
                                   "them; what they send each other takes no time here",
                                   FormatCount(r.devices)));
  if (r.stages > 1)
    facts.emplace_back("stages",
                       fmt::format("{}, each with some of the layers: memory and arithmetic of all, "
                                   "and a step that reads them one after the other",
                                   FormatCount(r.stages)));
  std::string shape =
      fmt::format("{}: {} layers x {}, {} heads of {}, {} KV heads ({}), MLP {}", s.name, s.layers, s.hidden,
                  s.heads, s.head_dim, s.kv_heads,
                  s.kv_heads == s.heads ? "no GQA" : fmt::format("GQA, {} share one", s.heads / s.kv_heads),
                  s.intermediate);
  if (s.experts > 0) shape += fmt::format(", {} of {} experts per token", s.experts_per_token, s.experts);
  shape += KindsText(s) + fmt::format(", vocabulary {}", FormatCount(s.vocab));
  facts.emplace_back("model", shape);
  const auto params = [&](int64_t n) { return FormatParams(double(n), r.units); };
  facts.emplace_back(
      "parameters",
      fmt::format("layers {} + head {}: {} active; {}", params(p.layers), params(p.lm_head), params(p.active),
                  s.tied_embeddings ? fmt::format("{} in all, embedding tied", params(p.total))
                                    : fmt::format("{} in all with the embedding", params(p.total))));
  std::string kv = fmt::format("{} values per token", FormatCount(KvParamsPerToken(s)));
  if (StateParams(s) > 0) kv += fmt::format(", and {} f32 values of a sequence", FormatCount(StateParams(s)));
  facts.emplace_back("KV", kv);
  facts.emplace_back("units", r.units == Units::kSi ? "SI (GB/s = 1e9, B = 1e9); memory in GiB"
                                                    : "binary (GB/s = 2^30, TFLOPS = 2^40, B = 2^30)");
  return facts;
}

std::vector<Table> LimitsTables(const LimitsRequest& r) {
  std::vector<Table> tables = {MemoryTable(r), PrefillTable(r), TurningTable(r), DecodeTable(r),
                               EffectsTable(r)};
  if (r.draft.depth > 0) tables.push_back(SpeculationTable(r));
  if (r.split) tables.push_back(SplitTable(r));
  return tables;
}

std::string LimitsText(const LimitsRequest& r, bool brief) {
  std::string out = FactsText(LimitsFacts(r));
  std::vector<Table> tables = LimitsTables(r);
  if (brief) {
    tables = {DecodeTable(r)};
    if (r.split) tables.push_back(SplitTable(r));
  }
  for (const Table& table : tables) out += TableText(table, !brief);
  return out;
}

}  // namespace celer::cli
