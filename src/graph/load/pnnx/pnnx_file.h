// The two files of a PNNX network as they are: text that lists operators, and an archive of their weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"
#include "io/npy/store_zip.h"

namespace celer::graph {

// monostate: None, () and [].
using PnnxParameter = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                                   std::vector<double>, std::vector<std::string>>;

struct PnnxOperator {
  std::string type = {}, name = {};
  int line = 0;                                          // of the file, for error sentences
  std::vector<std::string> inputs = {}, outputs = {};    // operands
  std::map<std::string, std::string> input_of = {};      // argument to operand
  std::map<std::string, PnnxParameter> parameters = {};  // key=value
  std::map<std::string, Constant> weights = {};          // @key
};

struct PnnxFile {
  std::string source = {};
  std::vector<PnnxOperator> operators = {};
  std::map<std::string, ValueType> operands = {};  // those whose type is given
  int64_t bytes = 0;
};

// `param` ends with ".param"; the weights are beside it with ".bin" instead, unless no operator has any.
Result<PnnxFile> ReadPnnx(const std::filesystem::path& param);
// From memory. `weights` may be null.
Result<PnnxFile> ParsePnnx(std::string_view text, const StoreZip* weights, const std::string& source);

// Both files, each of which appears when it is complete.
Status WritePnnx(const PnnxFile& file, const std::filesystem::path& param);
// The text alone.
std::string PrintPnnx(const PnnxFile& file);

}  // namespace celer::graph
