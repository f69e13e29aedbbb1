#include "hub/hf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "base/escape.h"
#include "hub/subprocess.h"
#include "io/file/atomic_file.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

// Names of files that go with the weights. Anything else in a repository (pictures, pickles, other formats)
// stays.
constexpr std::string_view kSideFiles[] = {"config.json",
                                           "generation_config.json",
                                           "model.safetensors.index.json",
                                           "tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "chat_template.jinja",
                                           "chat_template.json"};

constexpr const char* kDone = ".pulled";  // in a folder whose files all came: the path of the result in it

std::string Endpoint() {
  const char* set = std::getenv("HF_ENDPOINT");
  std::string endpoint = set && *set ? set : "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return endpoint;
}

std::string UrlEncode(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// The token goes in through curl's standard input: arguments are visible to everybody on the machine.
Result<std::string> CurlConfig() {
  const char* token = std::getenv("HF_TOKEN");
  if (!token || !*token) return std::string();
  const std::string_view text(token);
  const auto bad = [](char c) { return c <= 0x20 || c == 0x7f || c == '"' || c == '\\'; };
  if (text.size() > 1024 || std::any_of(text.begin(), text.end(), bad))
    return Error::Invalid("HF_TOKEN is not a token: it has spaces, quotes or control characters");
  return fmt::format("header = \"Authorization: Bearer {}\"\n", text);
}

Result<SubprocessResult> Curl(const std::vector<std::string>& arguments, int64_t patience_s,
                              SubprocessOptions options) {
  const std::string patience = std::to_string(patience_s);
  // A server that answers "later" is asked again; one that was silent for as long as we wait is not.
  std::vector<std::string> argv = {"curl",
                                   "--fail",
                                   "--location",
                                   "--proto",
                                   "=http,https",
                                   "--silent",
                                   "--show-error",
                                   "--retry",
                                   "3",
                                   "--retry-max-time",
                                   patience,
                                   "--connect-timeout",
                                   std::to_string(std::min<int64_t>(15, patience_s)),
                                   "--speed-limit",
                                   "1",
                                   "--speed-time",
                                   patience};
  CELER_ASSIGN(options.input, CurlConfig());
  if (!options.input.empty()) argv.insert(argv.end(), {"--config", "-"});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  options.capture_errors = true;
  return RunProgram(argv, options);
}

constexpr int kCurlWriteError = 23, kCurlPartial = 18, kCurlTimeout = 28, kCurlNoResume = 33,
              kCurlReceive = 56;

Error CurlError(const std::string& url, const SubprocessResult& result, int64_t patience_s) {
  const std::string said = LastLines(result.errors, 1);
  if (result.exit_code == kCurlTimeout)
    return Error::Io(url, ": nothing came for ", patience_s,
                     " s; try again (what has come is kept), or give a longer --timeout");
  std::string hint;
  if (said.find(" 401") != std::string::npos || said.find(" 403") != std::string::npos)
    hint = "; the model may need an account that accepted its licence: set HF_TOKEN";
  else if (said.find(" 404") != std::string::npos)
    hint = "; is the name spelled as on the hub?";
  return Error::Io(
      url, ": ", said.empty() ? fmt::format("curl failed with exit code {}", result.exit_code) : said, hint);
}

Result<std::vector<HubFile>> List(const HubName& name, int64_t patience_s) {
  const size_t slash = name.file.rfind('/');
  const std::string below = slash == std::string::npos ? "" : "/" + name.file.substr(0, slash);
  const std::string url =
      fmt::format("{}/api/models/{}/tree/{}{}", Endpoint(), name.repository, name.revision, UrlEncode(below));
  CELER_ASSIGN(const SubprocessResult result, Curl({url}, patience_s, {.capture_output = true}));
  if (result.exit_code != 0) return CurlError(url, result, patience_s);
  return ParseHubList(result.output, url);
}

int64_t SizeOf(const fs::path& path) {
  std::error_code missing;
  const auto size = fs::file_size(path, missing);
  return missing ? 0 : static_cast<int64_t>(size);
}

// Everything that is not in `part` yet. After a broken connection we try again, as long as each try
// brings more.
Status FetchRest(const std::string& url, const HubFile& file, const fs::path& part, int64_t patience_s) {
  ProgressLine progress(file.path, file.bytes);
  SubprocessOptions options;
  options.tick = [&] { progress.Update(SizeOf(part)); };
  const std::vector<std::string> arguments = {
      "--continue-at", "-", "--max-filesize", std::to_string(std::max<int64_t>(file.bytes, 1)), "--output",
      part.string(),   url};
  while (true) {
    const int64_t before = SizeOf(part);
    CELER_ASSIGN(SubprocessResult result, Curl(arguments, patience_s, options));
    std::error_code error;
    if (result.exit_code == kCurlNoResume && fs::remove(part, error)) continue;
    const bool broken = result.exit_code == kCurlPartial || result.exit_code == kCurlTimeout ||
                        result.exit_code == kCurlReceive;
    if (broken && SizeOf(part) > before) continue;
    if (result.exit_code == kCurlWriteError)
      return Error::Device(part.string(), ": cannot be written: ", LastLines(result.errors, 1),
                           "; is the disk full?");
    if (result.exit_code != 0) return CurlError(url, result, patience_s);
    return {};
  }
}

Status Download(const HubName& name, const HubFile& file, const ExpectedFile& expected, int64_t patience_s) {
  const fs::path part = WithSuffix(expected.path, ".part");
  CELER_RETURN_IF_ERROR(MakeFolder(part.parent_path()));
  std::error_code error;
  int64_t have = SizeOf(part);
  // Without a hash nothing would tell an old beginning from a new one.
  if (have > file.bytes || (file.sha256.empty() && file.git_hash.empty())) {
    fs::remove(part, error);
    have = 0;
  }
  if (have < file.bytes || file.bytes == 0) {
    if (have > 0) Say("{}: going on at {}\n", file.path, FormatBytes(static_cast<double>(have)));
    CELER_RETURN_IF_ERROR(FetchRest(
        fmt::format("{}/{}/resolve/{}/{}", Endpoint(), name.repository, name.revision, UrlEncode(file.path)),
        file, part, patience_s));
    if (file.bytes == 0 && !fs::exists(part, error)) {
      CELER_ASSIGN(AtomicFile empty, AtomicFile::Create(part));
      CELER_RETURN_IF_ERROR(empty.Commit());
    }
  }
  return AcceptPart(expected);
}

std::string ByHand(const HubName& name, const fs::path& folder) {
  return fmt::format(
      "To fetch it by hand: from {}/{} take {}\nand put {} into\n  {}\nor anywhere else: every command "
      "takes a path. "
      "(HF_ENDPOINT names a mirror, HF_TOKEN an account; curl follows\nHTTPS_PROXY.)\n",
      Endpoint(), name.repository,
      name.file.empty() ? "config.json, the tokenizer files and all *.safetensors (or one .gguf)" : name.file,
      name.file.empty() ? "them" : "it", folder.string());
}

// The result of an earlier pull, as it is recorded in the folder.
Result<fs::path> Recorded(const HubName& name, const fs::path& folder) {
  const auto text = ReadTextFile(folder / kDone, 4096);
  std::error_code error;
  if (text) {
    const std::string line = text->substr(0, text->find('\n'));
    const fs::path path = line == "." ? folder : folder / line;
    if ((line == "." || IsSafeRelativePath(line)) && fs::exists(path, error)) return path;
  }
  return Error::NotFound("'", name.Text(), "' is not here yet; run celer pull ", name.Text());
}

ExpectedFile Expect(const fs::path& folder, const HubFile& file) {
  return {folder / file.path, file.bytes, file.sha256, file.git_hash};
}

Result<fs::path> FetchAll(const HubName& name, const fs::path& folder, const FetchOptions& options) {
  CELER_ASSIGN(const std::vector<HubFile> all, List(name, options.patience_s));
  CELER_ASSIGN(const std::vector<HubFile> files, ChooseModelFiles(all, name));
  int64_t missing = 0;
  std::vector<const HubFile*> needed;
  for (const HubFile& file : files) {
    // Files without a hash are fetched again, since their size alone says little.
    if (!file.sha256.empty() || !file.git_hash.empty()) {
      CELER_ASSIGN(const Verdict verdict, VerifyFile(Expect(folder, file), options.check));
      if (verdict.good) continue;
    }
    needed.push_back(&file);
    missing += file.bytes;
  }
  CELER_RETURN_IF_ERROR(CheckSpace(folder, missing));
  Say("{}: {} files, {} to fetch into {}\n", name.Text(), files.size(),
      FormatBytes(static_cast<double>(missing)), folder.string());
  for (const HubFile* file : needed)
    CELER_RETURN_IF_ERROR(Download(name, *file, Expect(folder, *file), options.patience_s));

  const bool one_file = files.size() == 1 && files[0].path.ends_with(".gguf");
  if (name.file.empty()) {
    CELER_RETURN_IF_ERROR(WriteWholeFile(folder / kDone, (one_file ? files[0].path : ".") + "\n"));
  }
  return one_file || !name.file.empty() ? folder / files[0].path : folder;
}

}  // namespace

Result<std::vector<HubFile>> ParseHubList(std::string_view text, const std::string& where) {
  CELER_ASSIGN(const nlohmann::json json, ParseJson(text, where));
  if (!json.is_array())
    return Error::Corrupt(where, ": the list of files is no array but ", json.type_name());
  std::vector<HubFile> files;
  for (const nlohmann::json& entry : json) {
    CELER_ASSIGN(const JsonFields fields, JsonFields::Of(entry, where));
    CELER_ASSIGN(const std::string type, fields.GetString("type"));
    if (type != "file") continue;
    HubFile file;
    CELER_ASSIGN(file.path, fields.GetString("path"));
    if (!IsSafeRelativePath(file.path))
      return Error::Corrupt(where, ": names the file '", Printable(file.path),
                            "', which would leave the model's folder");
    if (Escaped(file.path) != file.path)
      return Error::Corrupt(where, ": names the file '", Printable(file.path),
                            "', which has characters that no terminal shows");
    CELER_ASSIGN(file.bytes, fields.GetInt("size", 0, int64_t{1} << 50));
    const auto is_hash = [](const std::string& hash, size_t digits) {
      return hash.size() == digits && hash.find_first_not_of("0123456789abcdef") == std::string::npos;
    };
    if (fields.Has("lfs")) {
      CELER_ASSIGN(const JsonFields lfs, fields.GetObject("lfs"));
      CELER_ASSIGN(file.sha256, lfs.GetString("oid"));
      CELER_ASSIGN(file.bytes, lfs.GetInt("size", 0, int64_t{1} << 50, file.bytes));
      if (!is_hash(file.sha256, 64))
        return Error::Corrupt(where, ": '", Printable(file.path), "' has the hash '", Printable(file.sha256),
                              "', which is no sha256");
    } else {
      CELER_ASSIGN(file.git_hash, fields.GetString("oid", ""));
      if (!is_hash(file.git_hash, 40)) file.git_hash.clear();  // a mirror that has none
    }
    files.push_back(std::move(file));
  }
  return files;
}

Result<std::vector<HubFile>> ChooseModelFiles(const std::vector<HubFile>& files, const HubName& name) {
  std::vector<HubFile> chosen, weights, other_weights, ggufs;
  for (const HubFile& file : files) {
    if (!name.file.empty()) {
      if (file.path == name.file) return std::vector<HubFile>{file};
      continue;
    }
    if (file.path.find('/') != std::string::npos) continue;
    if (file.path.ends_with(".gguf"))
      ggufs.push_back(file);
    else if (file.path.ends_with(".safetensors"))
      (file.path.starts_with("model") ? weights : other_weights).push_back(file);
    else if (std::find(std::begin(kSideFiles), std::end(kSideFiles), file.path) != std::end(kSideFiles))
      chosen.push_back(file);
  }
  if (!name.file.empty())
    return Error::NotFound(name.Text(), ": the repository holds no file '", name.file, "'");
  // Some repositories hold the weights twice, under the maker's own names too.
  if (weights.empty()) weights = other_weights;
  if (!weights.empty()) {
    chosen.insert(chosen.end(), weights.begin(), weights.end());
    return chosen;
  }
  if (ggufs.size() == 1) return ggufs;
  if (ggufs.empty())
    return Error::NotFound(name.Text(), ": the repository holds neither safetensors nor GGUF files");
  std::string list;
  for (const HubFile& file : ggufs)
    list += fmt::format("{}hf:{}/{} ({})", list.empty() ? "" : ", ", name.repository, file.path,
                        FormatBytes(static_cast<double>(file.bytes)));
  return Error::Invalid(name.Text(), ": the repository holds ", ggufs.size(),
                        " GGUF files; name one: ", list);
}

Result<fs::path> PulledFromHub(const HubName& name) {
  CELER_ASSIGN(const fs::path models, ModelsFolder());
  const fs::path folder = name.Folder(models);
  if (name.file.empty()) return Recorded(name, folder);
  std::error_code error;
  if (fs::is_regular_file(folder / name.file, error)) return folder / name.file;
  return Error::NotFound("'", name.Text(), "' is not here yet; run celer pull ", name.Text());
}

Result<fs::path> PullFromHub(const HubName& name, const FetchOptions& options) {
  CELER_ASSIGN(const fs::path models, ModelsFolder());
  const fs::path folder = name.Folder(models);
  CELER_RETURN_IF_ERROR(MakeFolder(folder));
  CELER_ASSIGN(const FetchLock lock, FetchLock::Take(folder / ".lock"));
  RemoveLeftovers(folder);
  if (options.check == Check::kQuick) {
    if (const auto before = PulledFromHub(name)) {
      Say("{}: already here; --verify asks the hub again\n", name.Text());
      return *before;
    }
  }
  auto result = FetchAll(name, folder, options);
  if (!result) {
    const auto code = result.error().code();
    std::error_code kept;
    if (fs::remove(folder / ".lock", kept)) fs::remove(folder, kept);  // only if nothing is left in it
    const bool unreachable = code == Error::Code::kIo || code == Error::Code::kNotFound;
    if (unreachable) Say("{}", ByHand(name, folder));  // before the error, which is one line
    return result.error();
  }
  Say("{}: all files are here and checked\n", name.Text());
  return result;
}

}  // namespace celer::cli
