// celer merge: a model with adapters added to its weights.
#include <fmt/format.h>

#include "celer/options.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "device/thread_pool.h"
#include "hub/model_path.h"
#include "limits/quantity.h"
#include "quantize/llm/merge_lora.h"
#include "report/output.h"

namespace celer::cli {
namespace {

Status Merge(const std::string& model, const std::vector<std::string>& texts, const std::string& out) {
  std::vector<LoraUse> uses;
  for (const std::string& text : texts) {
    CELER_ASSIGN(const LoraSpec spec, LoraSpec::Parse(text));
    CELER_ASSIGN(auto adapter, LoadLora(spec.name, spec.path, model, DefaultThreadPool()));
    const LoraInfo& info = InfoOf(*adapter);
    Say("{}: {} matrices of rank up to {}, {}\n", info.path, info.matrices, info.rank,
        FormatBytes(static_cast<double>(info.bytes)));
    uses.push_back({.adapter = std::move(adapter), .scale = spec.scale});
  }
  CELER_ASSIGN(const auto mix, LoraMix::Make(std::move(uses)));
  if (!mix) return Error::Invalid("--lora: all scales are 0, so there is nothing to merge");
  return MergeLora(model, *mix, out);
}

}  // namespace

int MergeCommand(const std::vector<std::string>& args) {
  CommandLine app("merge", "write a model with LoRA adapters added to its weights",
                  "celer merge qwen3-8b/ --lora my-adapter/ -o merged/");
  std::string model, out;
  std::vector<std::string> adapters;
  app.add_option("MODEL", model, "a Hugging Face folder whose weights are f32, f16 or bf16")->required();
  app.add_option("--lora", adapters,
                 "PATH[:SCALE]: a PEFT folder or a GGUF adapter, several times if several are to be added")
      ->required()
      ->allow_extra_args(false);
  app.add_option("-o,--output", out, "the folder to write")->required();
  app.footer(
      "Weights keep their types and names, so the folder runs wherever the model does. Adapters can also "
      "stay beside the model: celer run MODEL --lora PATH.");
  if (const auto stop = Parse(app, args)) return *stop;
  const auto path = ResolveModelPath(model);
  if (!path) return Fail(path.error());
  if (const Status merged = Merge(path->string(), adapters, out); !merged) return Fail(merged.error());
  Say("wrote {}\n", out);
  return kOk;
}

}  // namespace celer::cli
