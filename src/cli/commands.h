// Every command of the program: one file and one row in main.cc each.
#pragma once

#include <string>
#include <vector>

namespace celer::cli {

int LimitsCommand(const std::vector<std::string>& args);
int ProbeCommand(const std::vector<std::string>& args);
int KernelsCommand(const std::vector<std::string>& args);

}  // namespace celer::cli
