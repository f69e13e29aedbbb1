// Every command of the program: one file and one row in main.cc each.
#pragma once

#include <string>
#include <vector>

namespace celer::cli {

int RunCommand(const std::vector<std::string>& args);
int ChatCommand(const std::vector<std::string>& args);
int BatchCommand(const std::vector<std::string>& args);
int ServeCommand(const std::vector<std::string>& args);
int PplCommand(const std::vector<std::string>& args);
int EvalCommand(const std::vector<std::string>& args);
int QuantizeCommand(const std::vector<std::string>& args);
int ConvertCommand(const std::vector<std::string>& args);
int MergeCommand(const std::vector<std::string>& args);
int TokenizeCommand(const std::vector<std::string>& args);
int PullCommand(const std::vector<std::string>& args);
int SynthCommand(const std::vector<std::string>& args);
int InspectCommand(const std::vector<std::string>& args);
int GraphCommand(const std::vector<std::string>& args);
int LimitsCommand(const std::vector<std::string>& args);
int PlanCommand(const std::vector<std::string>& args);
int BenchCommand(const std::vector<std::string>& args);
int ProbeCommand(const std::vector<std::string>& args);
int KernelsCommand(const std::vector<std::string>& args);

}  // namespace celer::cli
