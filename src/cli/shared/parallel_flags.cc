#include "cli/shared/parallel_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/log.h"
#include "engine/runners/group/follow.h"
#include "report/output.h"

namespace celer::cli {
namespace {

constexpr uint16_t kDefaultPort = 29511;

// The variables of one launcher.
struct Launcher {
  const char *name, *rank, *size, *local_size;
};
constexpr Launcher kLaunchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
};

std::optional<std::string> Variable(const char* name) {
  const char* const value = std::getenv(name);
  if (!value || *value == '\0') return {};
  return value;
}

Result<int64_t> Number(const std::string& what, const std::string& text, int64_t low, int64_t high) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high)
    return Error::Invalid(what, " '", text, "': expected a whole number from ", low, " to ", high);
  return number;
}

// "10.0.0.1", "node1:29511", "[::1]:29511"
Status ReadHost(const std::string& text, ParallelOptions* options) {
  const bool bracketed = text.starts_with('[');
  const size_t close = bracketed ? text.find(']') : std::string::npos;
  if (bracketed && close == std::string::npos) return Error::Invalid("--hosts '", text, "': a ] is missing");
  const size_t colon =
      bracketed ? (close + 1 < text.size() ? close + 1 : std::string::npos) : text.rfind(':');
  const bool bare_v6 = !bracketed && colon != std::string::npos && text.find(':') != colon;
  options->host = bracketed ? text.substr(1, close - 1) : bare_v6 ? text : text.substr(0, colon);
  if (options->host.empty()) return Error::Invalid("--hosts '", text, "': the name of a host is missing");
  if (colon == std::string::npos || bare_v6) return {};
  constexpr int64_t kLastPort = 65535;
  CELER_ASSIGN(const int64_t port,
               Number("--hosts '" + text + "': port", text.substr(colon + 1), 1, kLastPort));
  options->port = static_cast<uint16_t>(port);
  return {};
}

// torchrun itself listens at MASTER_PORT, unless the processes are to.
Status ReadMaster(ParallelOptions* options) {
  if (options->host.empty()) options->host = Variable("MASTER_ADDR").value_or("127.0.0.1");
  if (options->port != 0) return {};
  const auto text = Variable("MASTER_PORT");
  if (!text) {
    options->port = kDefaultPort;
    return {};
  }
  constexpr int64_t kLastPort = 65534;
  CELER_ASSIGN(const int64_t port, Number("MASTER_PORT", *text, 1, kLastPort));
  const bool taken = Variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  options->port = static_cast<uint16_t>(port + (taken ? 1 : 0));
  return {};
}

// What ranks on one GPU need of CUDA, which reads it when it is used first (engine/runners/group/cuda_group.h).
void PrepareToShareGpu() {
  if (Variable("CELER_RANKS_SHARE_GPU").value_or("") != "1") return;
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace

void AddRankFlags(CLI::App& app, ParallelOptions* options) {
  app.add_option(
         "--tensor-parallel-size", options->tensor_parallel_size,
         "also -tp N: split each layer over N ranks (docs/parallel.md): GPUs from --device on, or on the CPU "
         "threads of this process unless mpirun, torchrun or --hosts make them processes")
      ->check(Between(1, 64));
  app.add_option("--pipeline-parallel-size,--pipeline-parallel", options->pipeline_parallel_size,
                 "also -pp P: some of the layers on each of P stages, with as many ranks as "
                 "--tensor-parallel-size says; --split gives them other shares than equal ones")
      ->check(Between(1, 64));
  app.add_option("--micro-batch", options->micro_batch,
                 "tokens of the pieces, at least, in which a step passes the stages; 0: what this machine "
                 "needs to be busy")
      ->check(Between(0, 1 << 16));
}

void AddParallelFlags(CLI::App& app, ParallelOptions* options) {
  AddRankFlags(app, options);
  app.add_option_function<std::vector<std::string>>(
         "--hosts",
         [options](const std::vector<std::string>& hosts) {
           if (const Status read = ReadHost(hosts[0], options); !read)
             throw CLI::ValidationError(read.error().message());
           options->hosts = static_cast<int64_t>(hosts.size());
         },
         "with --rank: where the processes of the group are, rank 0 first: node1:29511,node2. Each is "
         "started "
         "with the same flags")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("");
  app.add_option("--rank", options->rank, "with --hosts: which of them this process is, from 0")
      ->check(Between(0, 63))
      ->default_str("");
  app.add_option("--watchdog", options->watchdog_seconds,
                 "seconds after which a rank that does not answer ends the group")
      ->check(Between(1, 86'400));
}

Status FindRank(ParallelOptions* options) {
  const int64_t stages = options->pipeline_parallel_size;
  const bool by_hand = options->hosts > 0;
  if (by_hand != (options->rank >= 0))
    return Error::Invalid("--hosts and --rank belong together: each process says which of the hosts it is");
  if (by_hand && options->tensor_parallel_size == 1 && options->hosts % stages == 0)
    options->tensor_parallel_size = options->hosts / stages;
  const int64_t ranks = options->ranks();
  const std::string asked = stages == 1 ? fmt::format("--tensor-parallel-size is {}", ranks)
                                        : fmt::format(
                                              "--pipeline-parallel-size {} times "
                                              "--tensor-parallel-size {} are {}",
                                              stages, options->tensor_parallel_size, ranks);
  if (by_hand && options->hosts != ranks)
    return Error::Invalid("--hosts names ", options->hosts, " processes, ", asked);
  if (by_hand) return ReadMaster(options);
  if (ranks == 1) return {};
  PrepareToShareGpu();
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = Variable(launcher.rank), size = Variable(launcher.size);
    if (!rank || !size) continue;
    CELER_ASSIGN(const int64_t processes, Number(launcher.size, *size, 1, 1'000'000));
    if (processes == 1) continue;
    if (processes != ranks)
      return Error::Invalid(launcher.name, " has started ", processes, " processes, and ", asked,
                            "; there is one rank in each process",
                            stages > 1 ? "" : fmt::format(", so give --tensor-parallel-size {}", processes));
    CELER_ASSIGN(const int64_t number, Number(launcher.rank, *rank, 0, processes - 1));
    CELER_ASSIGN(options->ranks_here,
                 Number(launcher.local_size, Variable(launcher.local_size).value_or("1"), 1, processes));
    options->rank = static_cast<int>(number);
    return ReadMaster(options);
  }
  return {};
}

void FollowIfNotFirst(const EngineOptions& options) {
  if (options.parallel.rank <= 0) return;
  for (;;) {
    bool joined = false;
    const Status followed = FollowOtherProcess(options, &joined);
    // A group that cannot load what it is to run ends here as well: rank 0 does not come again.
    if (followed || !joined || !options.parallel.rejoin)
      throw EndNow{followed ? kOk : Fail(followed.error())};
    log::Warning("{}; joining again", followed.error().message());
  }
}

}  // namespace celer::cli
