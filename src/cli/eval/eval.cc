// celer eval MODEL [TEXT]: how far each choice of kernels, weights and KV is from exact arithmetic on the
// stored weights, and how far other files are: forms of the same model that were quantized.
//
// Kernels are picked once per process, so each choice is measured in a child of its own. The first child
// computes exactly and leaves its log-probabilities in a temporary file that has no name; the others compare
// theirs with it.
#include "cli/eval/eval.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/device.h"
#include "base/log.h"
#include "celer/eval.h"
#include "cli/bench/report.h"
#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "cli/shared/interrupt.h"
#include "cli/shared/operators.h"
#include "cli/shared/parallel_flags.h"
#include "cli/text/generate_flags.h"
#include "device/gpu/gpu_code.h"
#include "device/variant.h"
#include "io/file/atomic_file.h"
#include "io/json/json.h"
#include "report/output.h"
#include "report/page.h"
#include "report/progress.h"
#include "report/table.h"

namespace celer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDefault = "default";
constexpr const char* kExactKernels = "exact";

struct EvalFlags {
  ModelFlags model;
  std::string file;
  std::vector<std::string> kernels, weights, kv, others;
  int64_t window = 512;
  int64_t windows = 16;
  bool json = false;
  std::string html;
  std::string exact_rows;
};

struct Choice {
  std::string kernels;  // a variant of matmul, kDefault or kExactKernels
  std::string weights;
  std::string kv;
  std::string other = {};  // a file of --also; empty: the model itself
};

// ---- a child's work ----

// Rows of log-probabilities, kept in a file.
class RowFile {
 public:
  explicit RowFile(int fd) : fd_(fd) {}
  Status Append(std::span<const float> row) {
    const auto* at = reinterpret_cast<const char*>(row.data());
    for (size_t left = row.size_bytes(); left > 0;) {
      const ssize_t wrote = write(fd_, at, left);
      if (wrote <= 0)
        return Error::Io("cannot keep the exact results: ", std::strerror(errno),
                         "; free some space or use fewer --windows");
      at += wrote;
      left -= static_cast<size_t>(wrote);
    }
    return {};
  }
  Status Read(int64_t index, std::span<float> row) const {
    const auto bytes = static_cast<off_t>(row.size_bytes());
    if (pread(fd_, row.data(), row.size_bytes(), index * bytes) != bytes)
      return Error::Io("cannot read back the exact results: ", std::strerror(errno));
    return {};
  }

 private:
  int fd_;
};

// `vocab`: of the rows in `base`; 0: there are none yet, and this choice makes them.
Result<Json> Measure(EvalFlags flags, const Choice& choice, const std::string& text,
                     const std::string& progress, RowFile base, int64_t vocab) {
  const bool exact = choice.kernels == kExactKernels, first = vocab == 0;
  if (!choice.other.empty()) flags.model.model = choice.other;
  EngineOptions& engine = flags.model.options.engine;
  if (exact) {
    ForceVariants(kExactVariants);
    engine.device = {};
    engine.parallel = {};
  } else if (choice.kernels != kDefault) {
    ForceVariants("matmul:" + choice.kernels);
  }
  CELER_ASSIGN(engine.weights, WeightOptions::Parse(choice.weights));
  CELER_ASSIGN(engine.kv, ParseKvType(choice.kv));
  engine.sequences = 1;
  engine.context = flags.window;
  CELER_ASSIGN(TextModel model, flags.model.Load());
  if (!first && model.engine->info().vocab != vocab)
    return Error::Invalid("--also ", choice.other, ": has a vocabulary of ", model.engine->info().vocab,
                          ", and the model one of ", vocab, "; they cannot be compared");
  CELER_ASSIGN(const TextWindows cut,
               TextWindows::Cut(model.prompter, text, flags.file.empty() ? "the built-in text" : flags.file,
                                flags.window, /*stride=*/0, flags.windows));
  const int64_t windows = cut.count();

  const StatusLine status;
  std::vector<float> row, reference(static_cast<size_t>(model.engine->info().vocab));
  Divergence divergence;
  Status kept;  // whether the file works
  double surprise = 0;
  int64_t rows = 0;
  for (int64_t w = 0; w < windows; ++w) {
    const std::vector<int32_t> window = cut.Tokens(w);
    const auto visit = [&](int64_t i, std::span<const float> logits) {
      if (!kept) return;
      row.assign(logits.begin(), logits.end());
      CELER_CHECK(LogSoftmax(row));  // the engine refuses logits that are not finite
      surprise -= row[static_cast<size_t>(window[i])];
      kept = first ? base.Append(row) : base.Read(rows, reference);
      ++rows;
      if (!first) divergence.Add(CompareDistributions(reference, row));
    };
    CELER_RETURN_IF_ERROR(model.engine->VisitLogits(window, cut.First(w), visit));
    if (!kept) return kept.error();
    status.Show(fmt::format("{} window {} of {}", progress, w + 1, windows));
  }
  const std::string matmul = [] {
    for (const OperatorInfo& op : AllOperators())
      for (const VariantInfo& variant : op.variants)
        if (op.name == "matmul" && variant.chosen && DeviceKind(variant.isa) == Device::Kind::kCpu)
          return variant.name;
    return std::string("?");
  }();
  Json out = {{"kernels", exact                              ? kExactKernels
                          : engine.device == DeviceOptions() ? matmul
                                                             : "cuda"},
              {"weights", choice.weights},
              {"kv", choice.kv},
              {"kv_bytes_per_token", model.engine->info().kv_bytes_per_token},
              {"device", model.engine->info().device},
              {"perplexity", std::exp(surprise / static_cast<double>(rows))},
              {"tokens", rows},
              {"windows", windows},
              {"vocab", model.engine->info().vocab}};
  if (!choice.other.empty()) out["file"] = choice.other;
  if (!first) {
    out["kl_mean"] = divergence.Mean();
    out["kl_p99"] = divergence.Percentile(99);
    out["kl_max"] = divergence.Max();
    out["same_top1"] = divergence.SameTop();
    out["shared_top5"] = divergence.SharedTop5();
  }
  return out;
}

// ---- the parent's ----

// Runs `work` in a child process and takes its JSON from a pipe.
template <class Work>
Result<Json> InChild(const Work& work) {
  int ends[2];
  if (pipe(ends) != 0) return Error::Io("cannot make a pipe: ", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return Error::Io("cannot start a process: ", std::strerror(errno));
  if (child == 0) {
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the parent is gone, and with it the reader of the result
    RestoreDefaultSignals();
    const Result<Json> made = work();
    Json answer =
        made ? Json{{"made", *made}}
             : Json{{"error", made.error().message()}, {"code", static_cast<int>(made.error().code())}};
    answer["warnings"] = log::Seen();
    const std::string text = JsonText(answer);
    const bool sent = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(sent ? kOk : kFailed);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const Json answer = Json::parse(text, nullptr, false);
  if (answer.is_discarded())
    return Error::Device("a measurement ended early (",
                         WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "no result", ")");
  for (const Json& warning : answer["warnings"])
    (void)log::IsNew(warning.get<std::string>());  // said by the child
  if (!answer.contains("error")) return answer["made"];
  return Error(static_cast<Error::Code>(answer["code"].get<int>()), answer["error"].get<std::string>());
}

// Those of the CPU that multiply in their own way, best first.
std::vector<std::string> OtherKernels() {
  std::vector<std::string> names;
  for (const OperatorInfo& op : AllOperators())
    for (const VariantInfo& variant : op.variants)
      if (op.name == "matmul" && variant.runs_here && !variant.chosen && variant.name != "reference")
        names.push_back(variant.name);
  return names;
}

// The exact one first. Without lists: the defaults, and everything else once. With lists: each with each.
std::vector<Choice> Choices(const EvalFlags& flags, const std::vector<std::string>& other_kernels) {
  const bool cuda = flags.model.options.engine.device != DeviceOptions();
  std::vector<Choice> out = {{kExactKernels, "stored", "f32"}};
  // Exact arithmetic shows what the weights lose, the defaults what is lost in all.
  for (const std::string& other : flags.others) {
    out.push_back({kExactKernels, "stored", "f32", other});
    out.push_back({kDefault, "stored", "f16", other});
  }
  if (!flags.others.empty() && flags.kernels.empty() && flags.weights.empty() && flags.kv.empty()) return out;
  if (flags.kernels.empty() && flags.weights.empty() && flags.kv.empty()) {
    out.push_back({kDefault, "stored", "f16"});
    if (!cuda)
      for (const std::string& kernels : other_kernels) out.push_back({kernels, "stored", "f16"});
    const std::vector<std::string> kv_types = cuda ? std::vector<std::string>{"bf16", "int8", "fp8"}
                                                   : std::vector<std::string>{"f32", "bf16", "int8", "int4"};
    for (const std::string& kv : kv_types) out.push_back({kDefault, "stored", kv});
    for (const char* weights : {"int8", "int4"}) out.push_back({kDefault, weights, "f16"});
    return out;
  }
  const auto or_else = [](const std::vector<std::string>& list, const char* value) {
    return list.empty() ? std::vector<std::string>{value} : list;
  };
  for (const std::string& kernels : or_else(flags.kernels, kDefault))
    for (const std::string& weights : or_else(flags.weights, "stored"))
      for (const std::string& kv : or_else(flags.kv, "f16")) out.push_back({kernels, weights, kv});
  return out;
}

Status CheckKernels(const EvalFlags& flags) {
  for (const std::string& name : flags.kernels) {
    if (name == kDefault) continue;
    std::string here = kDefault;
    bool found = false;
    for (const OperatorInfo& op : AllOperators())
      for (const VariantInfo& variant : op.variants) {
        if (op.name != "matmul") continue;
        if (variant.name == name && !variant.runs_here)
          return Error::Invalid("--kernels ", name, ": cannot run here: ", variant.why_not);
        found |= variant.name == name;
        if (variant.runs_here) here += ", " + variant.name;
      }
    if (!found) return Error::Invalid("--kernels ", name, ": expected some of ", here);
  }
  return {};
}

Table MakeTable(const std::vector<Json>& results) {
  Table table{.header = {"kernels", "weights", "KV", "B/token", "perplexity", "%", "KL mean", "p99", "max",
                         "top 1", "top 5"}};
  const auto exact = results[0]["perplexity"].get<double>();
  const bool files =
      std::any_of(results.begin(), results.end(), [](const Json& r) { return r.contains("file"); });
  if (files) table.header.insert(table.header.begin(), "file");
  for (const Json& r : results) {
    const auto text = [&](const char* key) { return r[key].get<std::string>(); };
    const auto perplexity = r["perplexity"].get<double>();
    std::vector<std::string> row = {text("kernels"), text("weights"), text("kv"),
                                    std::to_string(r["kv_bytes_per_token"].get<int64_t>()),
                                    fmt::format("{:.4f}", perplexity)};
    if (r.contains("kl_mean")) {
      row.push_back(fmt::format("{:+.2f}", 100 * (perplexity / exact - 1)));
      for (const char* key : {"kl_mean", "kl_p99", "kl_max"})
        row.push_back(fmt::format("{:.2g}", r[key].get<double>()));
      for (const char* key : {"same_top1", "shared_top5"})
        row.push_back(fmt::format("{:.1f}", 100 * r[key].get<double>()));
    }
    if (files)
      row.insert(row.begin(),
                 r.contains("file") ? std::filesystem::path(text("file")).filename().string() : "");
    row.resize(table.header.size());
    table.rows.push_back(std::move(row));
  }
  table.notes.push_back(
      "exact: f32 arithmetic on the values as stored, f32 KV. B/token: bytes of keys and values. %: change "
      "of the perplexity. KL: divergence of "
      "a "
      "token's distribution from the exact one, in nats. top 1: the most likely token is the same, in % of "
      "all "
      "tokens; top 5: how many of the five most likely ones are.");
  return table;
}

Result<int> Run(EvalFlags& flags) {
  if (flags.window < 4) return Error::Invalid("--window ", flags.window, ": expected 4 or more");
  if (flags.windows < 0) return Error::Invalid("--windows ", flags.windows, ": expected 0 (all) or more");
  // Before the exact rows are computed, which takes a while. In a child: where the parent has asked CUDA
  // anything, the children that measure cannot use it.
  CELER_ASSIGN(const Json here, InChild([&]() -> Result<Json> {
                 CELER_RETURN_IF_ERROR(CheckKernels(flags));
                 const DeviceOptions& device = flags.model.options.engine.device;
                 if (device.kind == DeviceOptions::Kind::kCuda) CELER_RETURN_IF_ERROR(CheckGpu(device.index));
                 return Json{{"devices", CudaDeviceCount()}, {"kernels", OtherKernels()}};
               }));
  std::string text(EvalText());
  if (!flags.file.empty()) {
    CELER_ASSIGN(text, ReadTextFile(flags.file, size_t{1} << 30));
  }
  const bool kept = !flags.exact_rows.empty();
  if (!flags.html.empty()) CELER_RETURN_IF_ERROR(CheckWritable(flags.html));
  std::optional<AtomicFile> rows;
  if (kept) {
    CELER_ASSIGN(AtomicFile made, AtomicFile::Create(flags.exact_rows));
    rows.emplace(std::move(made));
    if (!rows->whole())
      return Error::Invalid("--exact-rows ", flags.exact_rows, ": must be a regular file, to be read again");
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> scratch(kept ? nullptr : std::tmpfile(), std::fclose);
  if (!kept && !scratch) return Error::Io("a temporary file: cannot be made: ", std::strerror(errno));
  const int row_file = kept ? rows->descriptor() : fileno(scratch.get());
  const std::vector<Choice> choices = Choices(flags, here["kernels"].get<std::vector<std::string>>());
  std::vector<Json> results;
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& c = choices[i];
    const std::string progress =
        fmt::format("[{}/{}] {}{}{} kernels, {} weights, {} KV:", i + 1, choices.size(), c.other,
                    c.other.empty() ? "" : ", ", c.kernels, c.weights, c.kv);
    if (!isatty(STDERR_FILENO)) Say("{}\n", progress);
    const int64_t vocab = i == 0 ? 0 : results[0]["vocab"].get<int64_t>();
    Result<Json> made = InChild([&] { return Measure(flags, c, text, progress, RowFile(row_file), vocab); });
    if (!made) return made.error();
    results.push_back(*std::move(made));
  }
  if (rows) CELER_RETURN_IF_ERROR(rows->Commit());

  const auto exact = results[0]["perplexity"].get<double>();
  for (Json& r : results) r["perplexity_change"] = r["perplexity"].get<double>() / exact - 1;
  const std::string title =
      fmt::format("{}, {} tokens in {} windows of {}", flags.model.model, results[0]["tokens"].get<int64_t>(),
                  results[0]["windows"].get<int64_t>(), flags.window);
  const Table table = MakeTable(results);
  const Json out = {{"model", flags.model.model},
                    {"text", flags.file.empty() ? "built in" : flags.file},
                    {"window", flags.window},
                    {"results", results}};
  if (flags.json) {
    fmt::print("{}\n", JsonText(out, 2));
  } else {
    fmt::print("{}\n{}", title, TableText(table));
  }
  if (!flags.html.empty()) {
    Page page("Accuracy of " + flags.model.model,
              fmt::format("How far from exact {} runs", flags.model.model),
              {{"measured", title}, {"text", flags.file.empty() ? "built in" : flags.file}});
    page.Section("");
    page.Add(table);
    CELER_RETURN_IF_ERROR(WriteFile(flags.html, page.Html(out)));
  }
  return int{kOk};
}

}  // namespace

int EvalCommand(const std::vector<std::string>& args) {
  EvalFlags flags;
  CommandLine app("eval", "how far from exact arithmetic a model runs here",
                  "celer eval smollm2 --kv f16,int8");
  app.add_option("MODEL", flags.model.model, "a model's name, file or folder")->required();
  app.add_option("TEXT", flags.file, "a text file (default: a chapter that is built in)");
  app.add_option("--also", flags.others,
                 "other forms of this model, such as what celer quantize wrote: each compared with the exact "
                 "model, in exact arithmetic and as it runs")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("FILE,...")
      ->default_str("");
  app.add_option("--kernels", flags.kernels,
                 "variants of matmul to compare (celer kernels lists them), or default")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("");
  app.add_option("--weights", flags.weights, "weights to compare: stored, int8, int4, ...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("");
  app.add_option("--kv", flags.kv, "KV types to compare: f32, f16, bf16, int8, ...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("");
  app.add_option("--window", flags.window, "tokens of one window; the second half is scored");
  app.add_option("--windows", flags.windows, "windows at most (0: the whole text)");
  AddParsed(app, "--device", &flags.model.options.engine.device, DeviceOptions::Parse, "cpu, cuda or cuda:N",
            "cpu");
  AddRankFlags(app, &flags.model.options.engine.parallel);
  app.add_option("--threads", flags.model.options.engine.threads, "threads (0: as many as there are cores)");
  app.add_option("--tokenizer", flags.model.options.tokenizer,
                 "tokenizer file or folder, if not the model's own");
  app.add_flag("--json", flags.json, "print JSON");
  app.add_option("--html", flags.html, "also write a page with the table");
  app.add_option("--exact-rows", flags.exact_rows,
                 "keep the exact log-probabilities in this file, f32 [tokens, vocabulary] (large)");
  if (const auto stop = Parse(app, args)) return *stop;
  const auto code = Run(flags);
  return code ? *code : Fail(code.error());
}

}  // namespace celer::cli
