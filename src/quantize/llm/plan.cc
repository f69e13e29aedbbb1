#include "quantize/llm/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <system_error>

#include "formats/decode.h"
#include "io/gguf/gguf.h"
#include "models/load/open_model.h"

namespace celer {
namespace {

constexpr Method kMethods[] = {Method::kRtn, Method::kGptq, Method::kAwq, Method::kAwqGptq, Method::kSmooth};

}  // namespace

int64_t PlannedTensor::bytes_before() const {
  if (coded_bytes > 0) return coded_bytes;
  return BytesFor(dtype, cols()).value_or(0) * rows();
}

bool PlannedTensor::requantized() const {
  const bool from_grid = !scheme.empty() || IsBlockQuantized(dtype);
  const bool to_grid = target.kind == Target::Kind::kInt || target.kind == Target::Kind::kFp8 ||
                       (target.kind == Target::Kind::kStored && IsBlockQuantized(target.dtype));
  return from_grid && to_grid;
}

int64_t PlannedTensor::bytes_after() const {
  if (target.kind == Target::Kind::kKeep) return bytes_before();
  return static_cast<int64_t>(std::llround(target.BitsPerWeight(cols()) / 8 * static_cast<double>(cols()))) *
         rows();
}

int64_t QuantizePlan::bytes_before() const {
  int64_t sum = 0;
  for (const PlannedTensor& tensor : tensors) sum += tensor.bytes_before();
  return sum;
}

int64_t QuantizePlan::bytes_after() const {
  int64_t sum = 0;
  for (const PlannedTensor& tensor : tensors) sum += tensor.bytes_after();
  return sum;
}

double QuantizePlan::bits_per_weight() const {
  int64_t bytes = 0, weights = 0;
  for (const PlannedTensor& tensor : tensors) {
    if (tensor.shape.rank() < 2) continue;
    bytes += tensor.bytes_after();
    weights += tensor.rows() * tensor.cols();
  }
  return weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(weights) : 0;
}

bool QuantizePlan::has_ints() const {
  for (const PlannedTensor& tensor : tensors)
    if (tensor.target.kind == Target::Kind::kInt || tensor.target.kind == Target::Kind::kFp8) return true;
  return false;
}

bool QuantizePlan::changes_anything() const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const PlannedTensor& tensor) { return tensor.target.kind != Target::Kind::kKeep; });
}

const PlannedTensor* QuantizePlan::Find(std::string_view name) const {
  for (const PlannedTensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

namespace {

// What a matrix in a published quantization scheme becomes. Its parts cannot be kept: the new folder's
// configuration says nothing of them.
Status PlanCoded(const CodedTensor& coded, const std::string& path, PlannedTensor* tensor) {
  if (coded.count > 1)
    return Error::Unsupported(path, ": tensor '", tensor->name, "' holds ", coded.count, " matrices as ",
                              coded.scheme,
                              ", which cannot be quantized again; take the folder of the original weights");
  if (!coded.plain) {
    tensor->scheme = coded.scheme;
    tensor->coded_bytes = coded.stored_bytes;
    if (coded.stored_bytes == 0)
      for (const TensorRecord* part : coded.parts)
        tensor->coded_bytes += static_cast<int64_t>(part->bytes.size());
  }
  const bool floats = coded.format.stored() && !IsBlockQuantized(coded.format.dtype);
  if (tensor->target.kind == Target::Kind::kKeep)
    tensor->target = Target::Stored(floats ? coded.format.dtype : DType::kF32);
  return {};
}

Result<QuantizePlan> PlanTensors(std::span<const TensorRecord> tensors, const TensorSource* source,
                                 int64_t layers, bool tied, const Recipe& recipe, const std::string& path) {
  CELER_RETURN_IF_ERROR(recipe.Check());
  QuantizePlan plan;
  std::vector<bool> used(recipe.rules.size());
  for (const TensorRecord& record : tensors) {
    const std::string part(source ? source->PartOf(record.name) : record.name);
    PlannedTensor tensor{
        record.name, record.dtype, record.shape, PlaceOf(part, record.shape, layers, tied), {}};
    for (size_t i = 0; i < recipe.rules.size(); ++i)
      if (MatchesPattern(recipe.rules[i].pattern, record.name)) used[i] = true;
    if (record.shape.rank() >= 1 && tensor.place.part != Part::kVector)
      tensor.target = recipe.For(record.name, tensor.place, tensor.cols());
    const CodedTensor* coded = source ? source->Coded(record.name) : nullptr;
    if (coded) {
      CELER_RETURN_IF_ERROR(PlanCoded(*coded, path, &tensor));
    } else if (tensor.target.kind != Target::Kind::kKeep && !CanDecode(record.dtype)) {
      return Error::Unsupported(path, ": tensor '", record.name, "' of type ", Name(record.dtype),
                                " cannot be read");
    }
    if (!tensor.target.Fits(tensor.cols()))
      return Error::Invalid(path, ": tensor '", record.name, "' has ", tensor.cols(),
                            " columns, which groups of ", tensor.target.group,
                            " do not divide; take smaller groups, or keep it: --tensor '", record.name,
                            "=keep'");
    // Requantizing to the same type would only add error.
    if (!coded && tensor.target.kind == Target::Kind::kStored && tensor.target.dtype == record.dtype)
      tensor.target = Target{};
    plan.tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      return Error::Invalid("the pattern '", recipe.rules[i].pattern, "' fits no tensor of ", path,
                            "; celer inspect lists their names");
  return plan;
}

}  // namespace

Result<std::unique_ptr<TensorSource>> OpenForQuantize(const std::filesystem::path& path, bool every_part) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return OpenFolderToCopy(path, every_part);
  CELER_ASSIGN(GgufFile file, GgufFile::Open(path));
  return std::unique_ptr<TensorSource>(
      std::make_unique<FileTensorSource<GgufFile>>(std::move(file), path.string()));
}

Result<QuantizePlan> MakePlan(const TensorSource& source, int64_t layers, bool tied, const Recipe& recipe) {
  return PlanTensors(source.tensors(), &source, layers, tied, recipe, source.path());
}

Result<QuantizePlan> MakePlan(std::span<const TensorRecord> tensors, int64_t layers, bool tied,
                              const Recipe& recipe, const std::string& path) {
  return PlanTensors(tensors, nullptr, layers, tied, recipe, path);
}

Result<Method> ParseMethod(std::string_view text) {
  for (const Method method : kMethods)
    if (text == Name(method)) return method;
  return Error::Invalid("method '", text, "' is not one of ", MethodNames());
}

std::string MethodNames() {
  std::string out;
  for (const Method method : kMethods) out += (out.empty() ? "" : ", ") + std::string(Name(method));
  return out;
}

bool RunsOnGpu(Method method) {
  return method == Method::kGptq || method == Method::kAwq || method == Method::kAwqGptq;
}

Status CheckMethod(Method method, const QuantizePlan& plan) {
  const auto any = [&](auto fits) { return std::any_of(plan.tensors.begin(), plan.tensors.end(), fits); };
  const bool grids = any([](const PlannedTensor& t) {
    return t.target.kind == Target::Kind::kInt ||
           (t.target.kind == Target::Kind::kStored && GridOf(t.target.dtype).levels > 0);
  });
  const bool inputs = any([](const PlannedTensor& t) { return t.target.int8_inputs; });
  if ((method == Method::kGptq || method == Method::kAwqGptq) && !grids)
    return Error::Invalid("--method ", Name(method),
                          ": rounds to integers, and nothing becomes int4, int8 or such blocks of GGUF here; "
                          "take --method awq, or rtn with --calibration");
  if (method == Method::kSmooth && !inputs)
    return Error::Invalid("--method smoothquant: is for activations of eight bits; give --weights w8a8");
  return {};
}

const char* Name(Method method) {
  switch (method) {
    case Method::kRtn:
      return "rtn";
    case Method::kGptq:
      return "gptq";
    case Method::kAwq:
      return "awq";
    case Method::kAwqGptq:
      return "awq+gptq";
    case Method::kSmooth:
      return "smoothquant";
  }
  return "?";
}

Status ReadRows(const TensorSource& source, const TensorRecord& tensor, int64_t begin, int64_t end,
                float* out, ThreadPool& pool) {
  const int64_t cols = tensor.shape[tensor.shape.rank() - 1];
  const int64_t row_bytes = BytesFor(tensor.dtype, cols).value();
  const CodedTensor* coded = source.Coded(tensor.name);
  std::atomic<int64_t> broken{-1};
  pool.ParallelFor(end - begin, 4, [&](int64_t first, int64_t last) {
    std::vector<std::byte> values, scales;
    if (coded) {
      values.resize(static_cast<size_t>(coded->format.RowBytes(cols)));
      scales.resize(static_cast<size_t>(coded->format.ScaleBytes(cols)));
    }
    for (int64_t r = first; r < last; ++r) {
      float* row = out + r * cols;
      if (coded) {
        coded->Row(begin + r, values.data(), scales.data());
        coded->format.Decode(values.data(), scales.data(), cols, row);
      } else {
        DecodeRow(tensor.dtype, tensor.bytes.data() + (begin + r) * row_bytes, cols, row);
      }
      float sum = 0;  // infinite or NaN if one of them is
      for (int64_t c = 0; c < cols; ++c) sum += row[c] * 0.0f;
      if (sum != 0) broken = begin + r;
    }
  });
  if (broken >= 0)
    return Error::Corrupt(source.path(), ": tensor '", tensor.name, "' has values in row ", broken.load(),
                          " that are NaN or infinite; the file is damaged");
  return {};
}

}  // namespace celer
