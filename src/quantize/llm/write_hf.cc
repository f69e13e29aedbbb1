// A Hugging Face folder in the layout of compressed-tensors: config.json says what was quantized and how, and
// each quantized weight is several tensors.
//
//   int-quantized (w8a8) and float-quantized (fp8):
//   NAME             int8 or fp8 e4m3 [rows, cols]
//   NAME_scale       bf16  [rows, 1]
//
//   pack-quantized (all other integers):
//   NAME_packed      int32 [rows, cols * bits / 32]
//   NAME_scale       bf16  [rows, groups]
//   NAME_zero_point  int32 [rows * bits / 32, groups], packed along the rows; only if asymmetric
//   NAME_shape       int64 [2]
#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>

#include "formats/decode.h"
#include "io/file/atomic_file.h"
#include "io/file/disk_space.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "quantize/llm/fp8_matrix.h"
#include "quantize/llm/quantize.h"
#include "quantize/llm/source_hash.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kNoSpace = "give -o a place with more room";

// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight".
std::string ModuleOf(const std::string& name) {
  constexpr std::string_view kEnd = ".weight";
  return name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : name;
}

const char* FormatName(const Target& target) {
  if (target.kind == Target::Kind::kFp8) return "float-quantized";
  return target.int8_inputs ? "int-quantized" : "pack-quantized";
}

bool IsCompressed(const Target& target) {
  return target.kind == Target::Kind::kInt || target.kind == Target::Kind::kFp8;
}

// Activations are quantized dynamically, with one scale per token.
Json InputsJson(const Target& target) {
  const bool fp8 = target.kind == Target::Kind::kFp8;
  if (!fp8 && !target.int8_inputs) return nullptr;
  return {
      {"num_bits", 8},       {"type", fp8 ? "float" : "int"},    {"symmetric", true}, {"group_size", nullptr},
      {"strategy", "token"}, {"block_structure", nullptr},       {"dynamic", true},   {"actorder", nullptr},
      {"observer", nullptr}, {"observer_kwargs", Json::object()}};
}

Json WeightsJson(const Target& target) {
  const bool fp8 = target.kind == Target::Kind::kFp8;
  return {{"num_bits", fp8 ? 8 : target.bits},
          {"type", fp8 ? "float" : "int"},
          {"symmetric", fp8 || target.symmetric},
          {"group_size", target.group > 0 ? Json(target.group) : Json(nullptr)},
          {"strategy", target.group > 0 ? "group" : "channel"},
          {"block_structure", nullptr},
          {"dynamic", false},
          {"actorder", nullptr},
          {"observer", "minmax"},
          {"observer_kwargs", Json::object()}};
}

// "quantization_config" as transformers and vLLM read it.
Json ConfigJson(const QuantizePlan& plan, bool tied) {
  std::vector<std::pair<Target, Json>> groups;
  Json ignored = Json::array();
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!IsCompressed(tensor.target)) {
      const bool linear = tensor.shape.rank() == 2 && tensor.place.part != Part::kEmbedding &&
                          tensor.place.part != Part::kHead && tensor.place.part != Part::kVector;
      if (linear || tensor.name == "lm_head.weight") ignored.push_back(ModuleOf(tensor.name));
      continue;
    }
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& group) { return group.first == tensor.target; });
    if (it == groups.end()) it = groups.insert(groups.end(), {tensor.target, Json::array()});
    it->second.push_back(ModuleOf(tensor.name));
  }
  if (tied) ignored.push_back("lm_head");  // transformers has the module, the file has no tensor
  Json config_groups = Json::object();
  for (size_t i = 0; i < groups.size(); ++i)
    config_groups["group_" + std::to_string(i)] = {
        {"targets", groups.size() == 1 ? Json::array({"Linear"}) : groups[i].second},
        {"weights", WeightsJson(groups[i].first)},
        {"input_activations", InputsJson(groups[i].first)},
        {"output_activations", nullptr},
        {"format", FormatName(groups[i].first)}};
  std::set<std::string> formats;
  for (const auto& group : groups) formats.insert(FormatName(group.first));
  return {{"quant_method", "compressed-tensors"},
          {"format", formats.size() == 1 ? *formats.begin() : "mixed-precision"},
          {"quantization_status", "compressed"},
          {"config_groups", config_groups},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr},
          {"global_compression_ratio", nullptr}};
}

Status WriteText(const fs::path& path, const std::string& text) {
  return WriteWholeFile(path, text);
}

Status CopyRest(const fs::path& from, const fs::path& to) {
  CELER_ASSIGN(const std::vector<fs::path> files, FilesBesideWeights(from));
  for (const fs::path& file : files) {
    std::error_code error;
    fs::copy_file(file, to / file.filename(), error);
    if (error) return Error::Io((to / file.filename()).string(), ": cannot be written: ", error.message());
  }
  return {};
}

class FolderWriter {
 public:
  FolderWriter(const TensorSource& model, const QuantizePlan& plan, const WriteOptions& options,
               ThreadPool& pool)
      : model_(model), plan_(plan), options_(options), pool_(pool) {}

  Status Write(const fs::path& folder) {
    std::vector<TensorSpec> specs;
    for (const PlannedTensor& tensor : plan_.tensors) Specs(tensor, &specs);
    return WriteSafetensors(folder / "model.safetensors", specs, {{"format", "pt"}},
                            [&](const TensorSpec& spec, const TensorSink& sink) { return Fill(spec, sink); });
  }

 private:
  bool IsReplaced(const std::string& name) const { return options_.parts && options_.parts->Floats(name); }

  void Specs(const PlannedTensor& tensor, std::vector<TensorSpec>* out) {
    const auto add = [&](const std::string& name, DType dtype, Shape shape) {
      owners_[name] = &tensor;
      out->push_back({name, dtype, std::move(shape)});
    };
    const Target& t = tensor.target;
    if (t.kind == Target::Kind::kKeep && !IsReplaced(tensor.name))
      return add(tensor.name, tensor.dtype, tensor.shape);
    if (t.kind == Target::Kind::kKeep || options_.dequantized)
      return add(tensor.name, DType::kF32, tensor.shape);
    if (t.kind == Target::Kind::kStored) return add(tensor.name, t.dtype, tensor.shape);
    const int64_t rows = tensor.rows(), cols = tensor.cols(), groups = t.group > 0 ? cols / t.group : 1;
    if (t.kind == Target::Kind::kFp8 || t.int8_inputs) {
      add(tensor.name, t.int8_inputs ? DType::kI8 : DType::kFp8E4M3, tensor.shape);
      return add(tensor.name + "_scale", DType::kBf16, {rows, 1});
    }
    add(tensor.name + "_packed", DType::kI32, {rows, cols * t.bits / 32});
    add(tensor.name + "_scale", DType::kBf16, {rows, groups});
    if (!t.symmetric) add(tensor.name + "_zero_point", DType::kI32, {(rows * t.bits + 31) / 32, groups});
    add(tensor.name + "_shape", DType::kI64, {2});
  }

  Status Fill(const TensorSpec& spec, const TensorSink& sink) {
    const PlannedTensor& tensor = *owners_.at(spec.name);
    const TensorRecord& record = *model_.Find(tensor.name);
    if (options_.progress && spec.name.starts_with(tensor.name) && tensor.name != last_) {
      done_ += tensor.bytes_before();
      last_ = tensor.name;
      CELER_RETURN_IF_ERROR(options_.progress(done_, plan_.bytes_before()));
    }
    if (IsReplaced(tensor.name)) {
      const TensorRecord& made = *options_.parts->Floats(tensor.name);
      CELER_RETURN_IF_ERROR(sink(made.bytes));
      options_.parts->DropPages(made);
      return {};
    }
    if (tensor.target.kind == Target::Kind::kKeep) {
      CELER_RETURN_IF_ERROR(sink(record.bytes));
      model_.DropPages(record);
      return {};
    }
    if (tensor.target.kind == Target::Kind::kStored) return Convert(tensor, record, sink);
    if (tensor.target.kind == Target::Kind::kFp8) return Fp8(tensor, record, spec, sink);
    CELER_ASSIGN(const IntTensor* ints, Ints(tensor, record));
    if (options_.dequantized) return Dequantized(*ints, sink);
    if (spec.name == tensor.name) return sink(std::as_bytes(std::span<const int8_t>(ints->Bytes())));
    if (spec.name.ends_with("_packed")) return sink(std::as_bytes(std::span(ints->words())));
    if (spec.name.ends_with("_scale")) return sink(std::as_bytes(std::span(ints->scales())));
    if (spec.name.ends_with("_zero_point"))
      return sink(std::as_bytes(std::span<const int32_t>(ints->PackedZeros())));
    const int64_t shape[] = {tensor.rows(), tensor.cols()};
    return sink(std::as_bytes(std::span(shape)));
  }

  // From calibration, or rounded now; the four tensors of a weight follow each other.
  Result<const IntTensor*> Ints(const PlannedTensor& tensor, const TensorRecord& record) {
    if (rounded_name_ == tensor.name) return &rounded_;
    if (options_.parts && options_.parts->HasInts(tensor.name)) {
      CELER_ASSIGN(rounded_, options_.parts->Ints(tensor));
      rounded_name_ = tensor.name;
      return &rounded_;
    }
    const int64_t rows = tensor.rows(), cols = tensor.cols();
    std::vector<float> values(static_cast<size_t>(rows * cols)), importance;
    CELER_RETURN_IF_ERROR(ReadRows(model_, record, 0, rows, values.data(), pool_));
    if (options_.importance) {
      CELER_ASSIGN(importance, options_.importance->For(tensor.name, 0, 1, cols));
    }
    rounded_ = RoundToNearest(values.data(), rows, cols, tensor.target,
                              importance.empty() ? nullptr : importance.data(),
                              importance.empty() ? 0 : kGridCandidates, pool_);
    rounded_name_ = tensor.name;
    model_.DropPages(record);
    return &rounded_;
  }

  // From calibration, or rounded now. Both tensors of a weight need the whole of it.
  Status Fp8(const PlannedTensor& tensor, const TensorRecord& record, const TensorSpec& spec,
             const TensorSink& sink) {
    const int64_t rows = tensor.rows(), cols = tensor.cols();
    if (fp8_name_ != tensor.name) {
      fp8_name_ = tensor.name;
      const TensorRecord* made = options_.parts ? options_.parts->Blocks(tensor.name) : nullptr;
      if (made) {
        fp8_ = Fp8Matrix::FromBytes(rows, cols, made->bytes);
        options_.parts->DropPages(*made);
      } else {
        std::vector<float> values(static_cast<size_t>(rows * cols));
        CELER_RETURN_IF_ERROR(ReadRows(model_, record, 0, rows, values.data(), pool_));
        fp8_ = Fp8Matrix::Of(values.data(), rows, cols, pool_);
        model_.DropPages(record);
      }
    }
    if (options_.dequantized) {
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t r = 0; r < rows; ++r) {
        fp8_.DecodeRow(r, row.data());
        CELER_RETURN_IF_ERROR(sink(std::as_bytes(std::span(row))));
      }
      return {};
    }
    if (spec.name == tensor.name) return sink(std::as_bytes(std::span(fp8_.values)));
    return sink(std::as_bytes(std::span(fp8_.scales)));
  }

  Status Dequantized(const IntTensor& ints, const TensorSink& sink) {
    std::vector<float> row(static_cast<size_t>(ints.cols()));
    for (int64_t r = 0; r < ints.rows(); ++r) {
      ints.DecodeRow(r, row.data());
      CELER_RETURN_IF_ERROR(sink(std::as_bytes(std::span(row))));
    }
    return {};
  }

  // To f32, f16 or bf16: what calibration made, or the file's values.
  Status Convert(const PlannedTensor& tensor, const TensorRecord& record, const TensorSink& sink) {
    const int64_t cols = tensor.cols();
    const DType dtype = tensor.target.dtype;
    const TensorRecord* made = options_.parts ? options_.parts->Blocks(tensor.name) : nullptr;
    std::vector<float> row(static_cast<size_t>(cols));
    std::vector<std::byte> rounded(static_cast<size_t>(*BytesFor(dtype, cols)));
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      if (made) {
        std::copy_n(made->bytes.data() + r * static_cast<int64_t>(rounded.size()), rounded.size(),
                    rounded.data());
      } else {
        CELER_RETURN_IF_ERROR(ReadRows(model_, record, r, r + 1, row.data(), pool_));
        EncodeRow(dtype, row.data(), cols, rounded.data());
      }
      if (options_.dequantized) {
        DecodeRow(dtype, rounded.data(), cols, row.data());
        CELER_RETURN_IF_ERROR(sink(std::as_bytes(std::span(row))));
      } else {
        CELER_RETURN_IF_ERROR(sink(rounded));
      }
    }
    if (made) options_.parts->DropPages(*made);
    model_.DropPages(record);
    return {};
  }

  const TensorSource& model_;
  const QuantizePlan& plan_;
  const WriteOptions& options_;
  ThreadPool& pool_;
  std::map<std::string, const PlannedTensor*> owners_;  // of each tensor that is written
  IntTensor rounded_;
  Fp8Matrix fp8_;
  std::string rounded_name_, fp8_name_, last_;
  int64_t done_ = 0;
};

}  // namespace

Status WriteQuantizedHf(const fs::path& model, const QuantizePlan& plan, const fs::path& out,
                        const WriteOptions& options, ThreadPool& pool) {
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.target.kind == Target::Kind::kStored && IsBlockQuantized(tensor.target.dtype))
      return Error::Invalid("'", tensor.name, "' as ", Name(tensor.target.dtype),
                            ": only a GGUF file holds such blocks; take int4 or int8 for a folder");
  CELER_ASSIGN(const std::unique_ptr<TensorSource> source, OpenForQuantize(model, options.every_part));
  CELER_ASSIGN(const nlohmann::json parsed, ReadJsonFile(model / "config.json"));
  Json config = Json(parsed);
  const bool tied = config.value("tie_word_embeddings", false);
  config.erase("quantization_config");  // of weights that are decoded here
  if (plan.has_ints() && !options.dequantized) config["quantization_config"] = ConfigJson(plan, tied);
  CELER_RETURN_IF_ERROR(CheckFreeSpace(out, plan.bytes_after(), kNoSpace));
  CELER_ASSIGN(AtomicFolder folder, AtomicFolder::Create(out));
  CELER_RETURN_IF_ERROR(CopyRest(model, folder.path()));
  CELER_RETURN_IF_ERROR(WriteText(folder.path() / "config.json", JsonText(config, 2) + "\n"));
  CELER_RETURN_IF_ERROR(FolderWriter(*source, plan, options, pool).Write(folder.path()));
  return folder.Commit();
}

}  // namespace celer
