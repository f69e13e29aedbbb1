// celer quantize for networks.
#pragma once

#include <string>
#include <vector>

namespace celer::cli {

int QuantizeNetworkCommand(const std::vector<std::string>& args);
// A network is named, to read or to write.
bool IsNetworkToQuantize(const std::vector<std::string>& args);

}  // namespace celer::cli
