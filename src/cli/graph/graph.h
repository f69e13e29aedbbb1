// celer graph: its subcommands, one file each.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}

namespace celer::cli {

int GraphInspectCommand(const std::vector<std::string>& args);
int GraphRunCommand(const std::vector<std::string>& args);
int GraphBenchCommand(const std::vector<std::string>& args);
int GraphCheckCommand(const std::vector<std::string>& args);
int GraphOptimizeCommand(const std::vector<std::string>& args);
int GraphOperatorsCommand(const std::vector<std::string>& args);

// --precision, of every command that runs a network.
void AddPrecisionFlag(CLI::App& app, std::string* precision);

// "NAME=TEXT" of flags that may be given several times; the names are those of the network's inputs.
Result<std::map<std::string, std::string>> ByName(const std::vector<std::string>& given,
                                                  const std::string& flag,
                                                  const std::vector<std::string>& names);
// "1,3,224,224"
Result<std::vector<int64_t>> ParseDims(const std::string& text);

}  // namespace celer::cli
