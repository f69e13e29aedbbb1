#include "cli/command.h"
#include "cli/commands.h"
namespace celer::cli {
int LimitsCommand(const std::vector<std::string>&) {
  return kOk;
}
}  // namespace celer::cli
