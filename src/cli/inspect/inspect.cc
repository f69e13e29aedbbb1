// celer inspect: what a model file or folder holds, without running it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/shared/command.h"
#include "cli/shared/commands.h"
#include "hub/model_path.h"
#include "io/file/detect.h"
#include "io/file/printable.h"
#include "io/gguf/gguf.h"
#include "io/json/json.h"
#include "io/llama2c/llama2c.h"
#include "io/safetensors/safetensors.h"
#include "limits/quantity.h"
#include "report/output.h"
#include "report/table.h"
#include "weights/published/published_source.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Field {
  std::string key;
  std::string type;
  std::string text;  // short, for people
  Json value;        // for --json
};

struct Tensor {
  std::string name;
  std::string type;  // "bf16", or how it is quantized: "gptq int4-g128"
  Shape shape;
  int64_t bytes;
  std::string held = {};  // of a quantized one: the format in memory
};

struct Contents {
  std::string kind;
  std::string detail;        // "version 3"
  std::string architecture;  // empty when the file does not say
  int64_t file_bytes = 0;
  std::string quantization;          // of a folder whose weights are quantized: "AWQ, 4 bits, ..."
  std::vector<std::string> remarks;  // about that
  std::vector<std::string> files;    // of a folder or a split model
  std::vector<Field> fields;
  std::vector<Tensor> tensors;
};

// Scales of llama2.c's int8 matrices belong to their matrix and are no parameters of their own.
bool IsParameter(const Tensor& tensor) {
  return !tensor.name.ends_with(".weight.scales");
}

void AddTensors(const std::vector<TensorRecord>& records, Contents* out) {
  for (const TensorRecord& record : records)
    out->tensors.push_back({record.name, std::string(Name(record.dtype)), record.shape,
                            static_cast<int64_t>(record.bytes.size())});
}

// Quantized matrices under the names that they have without quantization.
void AddTensors(const published::PublishedSource& source, Contents* out) {
  for (const TensorRecord& record : source.tensors()) {
    Tensor tensor{record.name, std::string(Name(record.dtype)), record.shape,
                  static_cast<int64_t>(record.bytes.size())};
    if (const CodedTensor* coded = source.Coded(record.name)) {
      tensor.type = coded->scheme;
      tensor.held = coded->format.Name();
      tensor.bytes = 0;
      for (const TensorRecord* part : coded->parts) tensor.bytes += static_cast<int64_t>(part->bytes.size());
    }
    out->tensors.push_back(std::move(tensor));
  }
}

int64_t FileBytes(const fs::path& path) {
  std::error_code ignored;
  const uintmax_t size = fs::file_size(path, ignored);
  return ignored ? 0 : static_cast<int64_t>(size);
}

// Long arrays and texts, such as vocabularies, are abbreviated in JSON too.
constexpr size_t kMaxJsonElements = 64;

Json GgufJson(const GgufFile& file, const GgufValue& value) {
  if (value.type == GgufType::kString) return Printable(*file.GetString(value.key), 4096);
  if (value.type == GgufType::kBool) return *file.GetBool(value.key);
  if (value.type == GgufType::kFloat32 || value.type == GgufType::kFloat64) return *file.GetFloat(value.key);
  if (value.type != GgufType::kArray) {
    if (const auto number = file.GetInt(value.key)) return *number;
    return *file.GetUint(value.key);
  }
  if (value.count > kMaxJsonElements) return Json{{"type", value.TypeName()}, {"first", value.ToText()}};
  Json out = Json::array();
  if (const auto strings = file.GetStringArray(value.key)) {
    for (const std::string_view text : *strings) out.push_back(Printable(text, 4096));
  } else if (const auto floats = file.GetFloatArray(value.key)) {
    for (const float number : *floats) out.push_back(number);
  } else if (const auto ints = file.GetIntArray(value.key)) {
    for (const int64_t number : *ints) out.push_back(number);
  } else {
    out.push_back(value.ToText());
  }
  return out;
}

Result<Contents> InspectGguf(const fs::path& path) {
  CELER_ASSIGN(const GgufFile file, GgufFile::Open(path));
  Contents out;
  out.detail = fmt::format("version {}", file.version());
  out.architecture = Printable(file.GetString("general.architecture").value_or(""));
  for (const GgufValue& value : file.metadata())
    out.fields.push_back({Printable(value.key), value.TypeName(), value.ToText(), GgufJson(file, value)});
  AddTensors(file.tensors(), &out);
  const std::vector<fs::path> parts = file.files();
  for (const fs::path& part : parts) {
    out.file_bytes += FileBytes(part);
    if (parts.size() > 1) out.files.push_back(Printable(part.filename().string(), 1024));
  }
  return out;
}

void AddStrings(const std::map<std::string, std::string>& metadata, Contents* out) {
  for (const auto& [key, value] : metadata)
    out->fields.push_back({Printable(key), "str", Printable(value, 128), Printable(value, 4096)});
}

Result<Contents> InspectSafetensors(const fs::path& path) {
  CELER_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  Contents out;
  AddStrings(file.metadata(), &out);
  AddTensors(file.tensors(), &out);
  return out;
}

std::string_view JsonTypeName(const nlohmann::json& value) {
  return value.is_number_float() ? "f64"
         : value.is_number()     ? "i64"
         : value.is_string()     ? "str"
                                 : value.type_name();
}

Result<Contents> InspectFolder(const fs::path& path) {
  const fs::path config_path = path / "config.json";
  CELER_ASSIGN(const auto config, ReadJsonFile(config_path));
  CELER_ASSIGN(const auto fields, JsonFields::Of(config, config_path.string()));
  CELER_ASSIGN(SafetensorsModel model, SafetensorsModel::Open(path));
  Contents out;
  CELER_ASSIGN(out.architecture, fields.GetString("model_type", ""));
  if (const auto* names = fields.Find("architectures"); names && names->is_array() && !names->empty())
    if ((*names)[0].is_string()) out.detail = Printable((*names)[0].get<std::string>());
  out.architecture = Printable(out.architecture);
  for (const auto& [key, value] : config.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : JsonText(value);
    const bool large = text.size() > 4096;
    out.fields.push_back({Printable(key), std::string(JsonTypeName(value)), Printable(text, 128),
                          large ? Json(Printable(text, 4096)) : Json(value)});
  }
  for (const SafetensorsFile& file : model.files()) {
    out.file_bytes += FileBytes(file.source());
    out.files.push_back(Printable(fs::path(file.source()).filename().string(), 1024));
  }
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json"}) {
    std::error_code ignored;
    if (fs::exists(path / name, ignored)) out.files.emplace_back(name);
  }
  const nlohmann::json* quantized = fields.Find(published::kConfigKey);
  if (!quantized || quantized->empty()) {
    AddTensors(model.tensors(), &out);
    return out;
  }
  // What cannot be read is shown all the same, with the reason.
  std::vector<TensorRecord> records = model.tensors();
  auto file = std::make_unique<FileTensorSource<SafetensorsModel>>(std::move(model), path.string());
  const auto source =
      published::PublishedSource::Open(std::move(file), *quantized, published::Where(config_path));
  if (source) {
    out.quantization = (*source)->scheme();
    out.remarks = (*source)->Warnings();
    for (std::string& note : (*source)->Notes()) out.remarks.push_back(std::move(note));
    AddTensors(**source, &out);
  } else {
    out.quantization = "cannot be run";
    out.remarks = {source.error().message()};
    AddTensors(records, &out);
  }
  return out;
}

Result<Contents> InspectLlama2c(const fs::path& path) {
  CELER_ASSIGN(const Llama2cFile file, Llama2cFile::Open(path));
  const Llama2cFile::Config& config = file.config();
  Contents out;
  out.detail = config.version == 0 ? "legacy" : fmt::format("version {}", config.version);
  out.architecture = "llama";
  const auto number = [&](const char* name, int64_t value) {
    out.fields.push_back({name, "i32", std::to_string(value), value});
  };
  number("dim", config.hidden);
  number("hidden_dim", config.intermediate);
  number("n_layers", config.layers);
  number("n_heads", config.heads);
  number("n_kv_heads", config.kv_heads);
  number("vocab_size", config.vocab);
  number("seq_len", config.max_positions);
  out.fields.push_back(
      {"shared_classifier", "bool", config.tied_embeddings ? "true" : "false", config.tied_embeddings});
  if (config.version == 2) number("group_size", config.group_size);
  AddTensors(file.tensors(), &out);
  return out;
}

Result<Contents> Inspect(const fs::path& path) {
  CELER_ASSIGN(const FileKind kind, DetectFile(path));
  Result<Contents> contents = [&] {
    switch (kind) {
      case FileKind::kGguf:
        return InspectGguf(path);
      case FileKind::kSafetensors:
        return InspectSafetensors(path);
      case FileKind::kLlama2c:
        return InspectLlama2c(path);
      case FileKind::kHfDirectory:
        break;
    }
    return InspectFolder(path);
  }();
  if (!contents) return contents.error();
  contents->kind = Name(kind);
  if (contents->file_bytes == 0) contents->file_bytes = FileBytes(path);
  return contents;
}

struct TypeShare {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
};

// Most bytes first.
std::vector<std::pair<std::string, TypeShare>> ByType(const std::vector<Tensor>& tensors) {
  std::map<std::string, TypeShare> shares;
  for (const Tensor& tensor : tensors) {
    TypeShare& share = shares[tensor.type];
    ++share.tensors;
    share.parameters += IsParameter(tensor) ? tensor.shape.elements().value_or(0) : 0;
    share.bytes += tensor.bytes;
  }
  std::vector<std::pair<std::string, TypeShare>> sorted(shares.begin(), shares.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  return sorted;
}

TypeShare Total(const std::vector<std::pair<std::string, TypeShare>>& types) {
  TypeShare total;
  for (const auto& [type, share] : types) {
    total.tensors += share.tensors;
    total.parameters += share.parameters;
    total.bytes += share.bytes;
  }
  return total;
}

void PrintJson(const std::string& path, const Contents& contents, bool with_tensors) {
  const auto types = ByType(contents.tensors);
  const TypeShare total = Total(types);
  Json out;
  out["path"] = path;
  out["kind"] = contents.kind;
  if (!contents.detail.empty()) out["detail"] = contents.detail;
  out["architecture"] = contents.architecture.empty() ? Json() : Json(contents.architecture);
  out["bytes"] = contents.file_bytes;
  out["parameters"] = total.parameters;
  out["tensor_count"] = total.tensors;
  out["tensor_bytes"] = total.bytes;
  out["types"] = Json::object();
  for (const auto& [type, share] : types)
    out["types"][type] = {
        {"tensors", share.tensors}, {"parameters", share.parameters}, {"bytes", share.bytes}};
  if (!contents.quantization.empty()) {
    out["quantization"] = contents.quantization;
    out["remarks"] = contents.remarks;
  }
  if (!contents.files.empty()) out["files"] = contents.files;
  out["metadata"] = Json::object();
  for (const Field& field : contents.fields) out["metadata"][field.key] = field.value;
  if (with_tensors) {
    out["tensors"] = Json::array();
    for (const Tensor& tensor : contents.tensors) {
      const auto dims = tensor.shape.dims();
      out["tensors"].push_back({{"name", Printable(tensor.name, 1024)},
                                {"type", tensor.type},
                                {"shape", std::vector<int64_t>(dims.begin(), dims.end())},
                                {"bytes", tensor.bytes}});
      if (!tensor.held.empty()) out["tensors"].back()["held"] = tensor.held;
    }
  }
  fmt::print("{}\n", JsonText(out, 2));
}

void PrintText(const std::string& path, const Contents& contents, bool with_tensors) {
  const auto types = ByType(contents.tensors);
  const TypeShare total = Total(types);
  fmt::print("{}\n", path);
  fmt::print("  {:<14} {}{}\n", "kind", contents.kind, contents.detail.empty() ? "" : ", " + contents.detail);
  if (!contents.architecture.empty()) fmt::print("  {:<14} {}\n", "architecture", contents.architecture);
  if (!contents.quantization.empty()) fmt::print("  {:<14} {}\n", "quantization", contents.quantization);
  for (const std::string& remark : contents.remarks)
    fmt::print("  {:<14} {}\n", "", Wrap(remark, OutputWidth(), 17, 17));
  fmt::print("  {:<14} {} ({} bytes)\n", "size", FormatBytes(static_cast<double>(contents.file_bytes)),
             FormatCount(contents.file_bytes));
  fmt::print("  {:<14} {}\n", "parameters",
             total.tensors == 0 ? "none (a vocabulary only)"
                                : fmt::format("{} ({})", FormatParams(static_cast<double>(total.parameters)),
                                              FormatCount(total.parameters)));
  for (const auto& [type, share] : types)
    fmt::print("  {:<14} {} in {} tensor{}\n", type, FormatBytes(static_cast<double>(share.bytes)),
               share.tensors, share.tensors == 1 ? "" : "s");
  if (total.parameters > 0)
    fmt::print("  {:<14} {:.2f} on average\n", "bits",
               8.0 * static_cast<double>(total.bytes) / static_cast<double>(total.parameters));
  if (!contents.files.empty())
    fmt::print("  {:<14} {}\n", "files",
               Wrap(fmt::format("{}", fmt::join(contents.files, ", ")), OutputWidth(), 17, 17));

  if (!contents.fields.empty()) fmt::print("\nmetadata\n");
  size_t key_width = 0, type_width = 0;
  for (const Field& field : contents.fields) {
    key_width = std::max(key_width, std::min<size_t>(field.key.size(), 40));
    type_width = std::max(type_width, std::min<size_t>(field.type.size(), 10));
  }
  for (const Field& field : contents.fields) {
    const std::string head = fmt::format("  {:<{}}  {:<{}}  ", field.key, key_width, field.type, type_width);
    // A text that finds little room beside its name goes below it.
    const int width = OutputWidth(), at = static_cast<int>(Columns(head));
    const bool beside = at + static_cast<int>(Columns(field.text)) <= width || at + 30 <= width;
    fmt::print("{}{}\n", head,
               beside ? Wrap(field.text, width, at, at) : "\n      " + Wrap(field.text, width, 6, 6));
  }

  if (!with_tensors) {
    if (total.tensors > 0) fmt::print("\n--tensors lists the {} tensors.\n", total.tensors);
    return;
  }
  Table table;
  table.title = "tensors";
  table.header.resize(4);
  table.keys = 1;
  for (const Tensor& tensor : contents.tensors)
    table.rows.push_back({Printable(tensor.name),
                          tensor.held.empty() ? tensor.type : tensor.type + ", held as " + tensor.held,
                          tensor.shape.ToString(), FormatBytes(static_cast<double>(tensor.bytes))});
  fmt::print("{}", TableText(table));
}

}  // namespace

int InspectCommand(const std::vector<std::string>& args) {
  CommandLine app("inspect", "what a model file or folder holds", "celer inspect model.gguf --tensors");
  std::string model;
  bool json = false, tensors = false;
  app.add_option("MODEL", model,
                 "a GGUF, safetensors or llama2.c file, a Hugging Face folder, or a pulled name")
      ->required();
  app.add_flag("--json", json, "print JSON");
  app.add_flag("--tensors", tensors, "list every tensor with its type, shape and size");
  if (const auto stop = Parse(app, args)) return *stop;

  const auto path = ResolveModelPath(model);
  if (!path) return Fail(path.error());
  const auto contents = Inspect(*path);
  if (!contents) return Fail(contents.error());
  if (json)
    PrintJson(path->string(), *contents, tensors);
  else
    PrintText(path->string(), *contents, tensors);
  return kOk;
}

}  // namespace celer::cli
