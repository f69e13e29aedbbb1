// From a model file to a smaller one: celer quantize without its flags.
//
//   1. MakePlan: what each tensor becomes, by the recipe. Nothing is read but the file's table.
//   2. MakeParts: the matrices of all layers with the help of a calibration text, one layer at a time, each
//      to a file of its own. Only for methods that calibrate.
//   3. WriteModel: all tensors into a file of the same container, which appears by rename at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/device.h"
#include "base/result.h"
#include "device/thread_pool.h"
#include "io/safetensors/safetensors.h"
#include "models/load/model.h"
#include "quantize/llm/imatrix.h"
#include "quantize/llm/int_tensor.h"
#include "quantize/llm/target.h"
#include "weights/tensor_source.h"

namespace celer {

struct PlannedTensor {
  std::string name;
  DType dtype = DType::kF32;  // in the file
  Shape shape;
  TensorPlace place;
  Target target;
  // Of a tensor that the file holds in a published quantization scheme (CodedTensor): "gptq int4-g128", and
  // its bytes there.
  std::string scheme = {};
  int64_t coded_bytes = 0;

  // Whether values that are on a quantization grid already are requantized to another one.
  bool requantized() const;
  int64_t cols() const { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }
  int64_t rows() const { return cols() == 0 ? 0 : *shape.elements() / cols(); }
  int64_t bytes_before() const;
  int64_t bytes_after() const;
};

struct QuantizePlan {
  std::vector<PlannedTensor> tensors;  // in the order of the file
  int64_t bytes_before() const;
  int64_t bytes_after() const;
  double bits_per_weight() const;  // over the tensors with two dimensions or more
  bool has_ints() const;           // asks for a folder of compressed-tensors
  bool changes_anything() const;   // else the output is a copy
  const PlannedTensor* Find(std::string_view name) const;
};

// A GGUF file or a folder; quantized matrices of the latter are listed under their names without
// quantization, and can be dequantized. Its transposed matrices and stacks of experts are listed as the parts in them;
// with `every_part`, which methods that calibrate need, so are matrices of several parts.
Result<std::unique_ptr<TensorSource>> OpenForQuantize(const std::filesystem::path& path,
                                                      bool every_part = false);

// An error where a tensor cannot be had in the format that was asked for. A matrix in a published scheme that
// the recipe keeps becomes the plain type that holds its values exactly.
Result<QuantizePlan> MakePlan(const TensorSource& source, int64_t layers, bool tied, const Recipe& recipe);
// The same of tensors that all are what their types say.
Result<QuantizePlan> MakePlan(std::span<const TensorRecord> tensors, int64_t layers, bool tied,
                              const Recipe& recipe, const std::string& path);

enum class Method : uint8_t { kRtn, kGptq, kAwq, kAwqGptq, kSmooth };
Result<Method> ParseMethod(std::string_view text);  // "rtn", "gptq", "awq", "awq+gptq", "smoothquant"
const char* Name(Method method);
std::string MethodNames();  // for help and errors
bool RunsOnGpu(Method method);
// An error where a method has nothing to do: gptq without integers, smoothquant without w8a8.
Status CheckMethod(Method method, const QuantizePlan& plan);

using QuantizeProgress = std::function<Status(int64_t done, int64_t total)>;

// What calibration made of one layer: it takes the place of the file's values.
struct LayerParts {
  std::map<std::string, IntTensor, std::less<>> ints;
  // In the tensor's Target::dtype, or what Fp8Matrix::ToBytes() gives.
  std::map<std::string, std::vector<std::byte>, std::less<>> blocks;
  std::map<std::string, std::vector<float>, std::less<>> floats;  // norms and biases with scales folded in
};

// The same of the whole model. It stays in the files of the work folder, one to a layer, which are mapped:
// writing the output has one tensor in memory at a time. The files outlive this object.
class QuantizedParts {
 public:
  // nullptr: that tensor is not of this kind, or was not changed.
  const TensorRecord* Blocks(std::string_view name) const;
  const TensorRecord* Floats(std::string_view name) const;  // f32
  bool HasInts(std::string_view name) const;
  Result<IntTensor> Ints(const PlannedTensor& tensor) const;
  void DropPages(const TensorRecord& part) const;  // done with it

  // Everything at once, in memory: for tests of small models.
  Result<LayerParts> LoadAll(const QuantizePlan& plan) const;

 private:
  friend class WorkFolder;
  const TensorRecord* Find(std::string_view kind, std::string_view name) const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_;  // of each part, by its name in the file
};

struct CalibrationText {
  std::vector<int32_t> tokens;
  int64_t window = 512;
};

// The heavy work runs on `device`. `progress` counts layers. Resumable: finished layers are written to the
// folder `work` (work_folder.h), and those that an earlier run with the same key left there are taken from
// it; the caller removes it once the output is written. At most one layer is in memory.
Result<QuantizedParts> MakeParts(const Model& model, bool gguf, const QuantizePlan& plan, Method method,
                                 const CalibrationText& text, ThreadPool& pool,
                                 const std::filesystem::path& work, const QuantizeProgress& progress = {},
                                 const Device& device = Device::Cpu());

// The files that MakeParts() left there, and the folder if nothing else is in it.
void RemoveWorkFolder(const std::filesystem::path& work);

// The importance of all matrices of all layers, under their names in GGUF files.
Result<ImportanceMatrix> CollectImportance(const Model& model, const CalibrationText& text, ThreadPool& pool,
                                           const QuantizeProgress& progress);

struct WriteOptions {
  const ImportanceMatrix* importance = nullptr;
  const QuantizedParts* parts = nullptr;
  bool dequantized = false;  // the rounded values as f32 instead of the integers: any program reads them
  bool every_part = false;   // as the plan was made
  QuantizeProgress progress = {};  // counts bytes
};

Status WriteQuantizedGguf(const std::filesystem::path& model, const QuantizePlan& plan,
                          const std::filesystem::path& out, const WriteOptions& options, ThreadPool& pool);
// A folder; it must not exist.
Status WriteQuantizedHf(const std::filesystem::path& model, const QuantizePlan& plan,
                        const std::filesystem::path& out, const WriteOptions& options, ThreadPool& pool);

// A tensor's rows as floats, [begin, end) of them, checked to be finite. `out` holds (end - begin) * cols.
Status ReadRows(const TensorSource& source, const TensorRecord& tensor, int64_t begin, int64_t end,
                float* out, ThreadPool& pool);

}  // namespace celer
