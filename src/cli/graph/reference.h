// ONNX Runtime as the reference of a network: run beside celer, from a Python that has it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/graph/inputs.h"
#include "io/file/atomic_file.h"
#include "io/npy/store_zip.h"

namespace celer::cli {

// A folder of its own under the system's temporary one, gone when this is.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> Make();

  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : folder_(std::move(path)) {}
  PartialPath folder_;
};

struct ReferencePython {
  std::string program;
  std::string version;  // of ONNX Runtime
};
// `asked`: --python; else that of $VIRTUAL_ENV, of .venv here, or python3: the first that has ONNX Runtime.
Result<ReferencePython> FindReference(const std::string& asked);

class ReferenceRun {
 public:
  // `values` are names of values inside the network that are wanted too. If ONNX Runtime cannot give them,
  // note() says why, and only the outputs are there. It does not optimise: each node is computed by itself. A
  // second run does, for the outputs alone. Strings, and maps of a classifier's scores, are given as in
  // `outputs`.
  static Result<ReferenceRun> Run(const ReferencePython& python, const std::filesystem::path& model,
                                  const std::vector<std::string>& input_names, const Inputs& inputs,
                                  const std::vector<std::string>& values,
                                  const std::vector<GraphPort>& outputs, const std::filesystem::path& folder);

  // Nullopt if there is no such value, or it is no array.
  Result<std::optional<NpyArray>> Find(const std::string& name) const;
  // The same of the optimised run: how far it is from the other one says how far apart two right results are.
  Result<std::optional<NpyArray>> FindOptimized(const std::string& name) const;
  const std::string& note() const { return note_; }
  size_t size() const { return names_.size(); }

 private:
  Result<std::optional<NpyArray>> Read(const std::vector<std::string>& names, size_t first,
                                       const std::string& name) const;

  std::vector<std::string> names_;      // entry i of the archive
  std::vector<std::string> optimized_;  // the entries behind them
  std::string note_;
  std::optional<StoreZip> arrays_;
};

}  // namespace celer::cli
