// From a model file to a smaller one: celer quantize without its flags.
//
//   1. MakePlan: what each tensor becomes, by the recipe. Nothing is read but the file's table.
//   2. MakeParts: the matrices of all layers with the help of a calibration text, one layer at a time. Only
//      for methods that calibrate.
//   3. WriteModel: all tensors into a file of the same container, which appears by rename at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/result.h"
#include "core/thread_pool.h"
#include "io/tensor_record.h"
#include "models/model.h"
#include "quantize/imatrix.h"
#include "quantize/int_tensor.h"
#include "quantize/target.h"

namespace celer {

struct PlannedTensor {
  std::string name;
  DType dtype = DType::kF32;  // in the file
  Shape shape;
  TensorPlace place;
  Target target;

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
  const PlannedTensor* Find(std::string_view name) const;
};

// An error where a tensor cannot be had in the format that was asked for.
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

// What calibration made: it takes the place of the file's values.
struct QuantizedParts {
  std::map<std::string, IntTensor, std::less<>> ints;
  // In the tensor's Target::dtype, or what Fp8Matrix::ToBytes() gives.
  std::map<std::string, std::vector<std::byte>, std::less<>> blocks;
  std::map<std::string, std::vector<float>, std::less<>> floats;  // norms and biases with scales folded in
};

struct CalibrationText {
  std::vector<int32_t> tokens;
  int64_t window = 512;
};

// The heavy work runs on `device`. `progress` counts layers. With `work`, finished layers are kept in that
// folder (work_folder.h), and those that are there already are taken from it; who has written the output
// removes it.
Result<QuantizedParts> MakeParts(const Model& model, bool gguf, const QuantizePlan& plan, Method method,
                                 const CalibrationText& text, ThreadPool& pool,
                                 const QuantizeProgress& progress, const std::filesystem::path& work = {},
                                 const Device& device = Device::Cpu());

// The importance of all matrices of all layers, under their names in GGUF files.
Result<ImportanceMatrix> CollectImportance(const Model& model, const CalibrationText& text, ThreadPool& pool,
                                           const QuantizeProgress& progress);

struct WriteOptions {
  const ImportanceMatrix* importance = nullptr;
  const QuantizedParts* parts = nullptr;
  bool dequantized = false;  // the rounded values as f32 instead of the integers: any program reads them
  QuantizeProgress progress = {};  // counts bytes
};

Status WriteQuantizedGguf(const std::filesystem::path& model, const QuantizePlan& plan,
                          const std::filesystem::path& out, const WriteOptions& options, ThreadPool& pool);
// A folder; it must not exist.
Status WriteQuantizedHf(const std::filesystem::path& model, const QuantizePlan& plan,
                        const std::filesystem::path& out, const WriteOptions& options, ThreadPool& pool);

// A tensor's rows as floats, [begin, end) of them, checked to be finite. `out` holds (end - begin) * cols.
Status ReadRows(const TensorRecord& tensor, const std::string& path, int64_t begin, int64_t end, float* out,
                ThreadPool& pool);

}  // namespace celer
