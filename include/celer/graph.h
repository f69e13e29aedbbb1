// Networks out of ONNX and PNNX files: load once, run from as many sessions as there are threads to call
// them.
//
//   auto model = celer::GraphModel::Load("resnet50.onnx");
//   celer::GraphSession session(*model);
//   auto outputs = session.Run({{"input", {"f32", {1, 3, 224, 224}, bytes}}});
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "celer/error.h"

namespace celer {

// Dense and row-major, in this machine's byte order. `dtype` is "f32", "f64", "f16", "bf16", "i8" to "i64",
// "u8" to "u64" or "bool".
struct GraphTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// An input or output of a network. A dimension of -1 may be of any size; its name, if it has one, is in
// `dim_names`.
struct GraphPort {
  std::string name;
  std::string dtype;  // "" if the file does not say
  std::vector<int64_t> shape;
  std::vector<std::string> dim_names;
  bool is_tensor = true;  // false: a sequence or an optional, which this interface does not pass
  // Of strings: elements are i64, places in this list; -1 stands for any string that is not in it. Null:
  // numbers.
  std::shared_ptr<const std::vector<std::string>> texts = {};
  // Of a classifier's scores, [rows, classes]: what the columns are called (ONNX's ZipMap). Empty: not said.
  std::vector<std::string> classes = {};
};

// What a float network computes in. kF16: values between operators and the arithmetic of convolutions and
// products are f16, with inputs and outputs as the file has them; about half the time, and about three
// digits. It needs an Arm CPU with FEAT_FP16; elsewhere loading is an error.
enum class GraphPrecision : uint8_t { kF32, kF16 };

struct GraphOptions {
  bool optimize = true;  // rewrite the network into fewer and faster operators that compute the same
  GraphPrecision precision = GraphPrecision::kF32;
  // Of a quantized network: integer arithmetic also where floats are thought to be faster on this machine, so
  // that the result has the same bits on every machine.
  bool integers = false;
};

class GraphModel {
 public:
  // An ONNX file, or NAME.param of PNNX. One sentence about a file that is broken, or about every node that
  // cannot run.
  static Result<GraphModel> Load(const std::filesystem::path& path, const GraphOptions& options = {});

  const std::vector<GraphPort>& inputs() const { return inputs_; }
  const std::vector<GraphPort>& outputs() const { return outputs_; }
  int64_t parameters() const { return parameters_; }

 private:
  friend class GraphSession;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
  std::vector<GraphPort> inputs_, outputs_;
  int64_t parameters_ = 0;
};

// Keeps its memory from run to run. Not thread-safe; sessions of one model share its weights.
class GraphSession {
 public:
  // threads 0: those that the process shares.
  explicit GraphSession(const GraphModel& model, int threads = 0);
  ~GraphSession();
  GraphSession(GraphSession&&) noexcept;
  GraphSession& operator=(GraphSession&&) noexcept;

  // Every input by name. The outputs, in the order of outputs(), hold until the next run.
  Result<std::vector<GraphTensor>> Run(const std::map<std::string, GraphTensor>& inputs);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace celer
