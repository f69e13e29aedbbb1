#include "graph/load/pnnx/pnnx_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/safe_math.h"
#include "graph/ir/operator.h"
#include "io/file/atomic_file.h"
#include "io/file/mapped_file.h"
#include "io/file/printable.h"

namespace celer::graph {
namespace {

constexpr std::string_view kMagic = "7767517";
constexpr int64_t kMostOperators = 1'000'000;
constexpr size_t kMostOperands = 100'000;  // of one operator

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {{"f32", DType::kF32},  {"f64", DType::kF64}, {"f16", DType::kF16},
                               {"i32", DType::kI32},  {"i64", DType::kI64}, {"i16", DType::kI16},
                               {"i8", DType::kI8},    {"u8", DType::kU8},   {"bool", DType::kBool},
                               {"bf16", DType::kBf16}};

std::optional<DType> TypeOf(std::string_view name) {
  for (const TypeName& row : kTypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::string_view NameOf(DType dtype) {
  for (const TypeName& row : kTypes)
    if (row.dtype == dtype) return row.name;
  return "";
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; (at = text.find_first_not_of(separators, at)) != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end;
  }
  return parts;
}

std::optional<int64_t> ToInt(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> ToFloat(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool LooksLikeNumber(std::string_view text) {
  const bool sign = !text.empty() && text[0] == '-';
  return text.size() > (sign ? 1u : 0u) && text[sign ? 1 : 0] >= '0' && text[sign ? 1 : 0] <= '9';
}

// What a value means, by how it is written.
PnnxParameter ToParameter(std::string_view text) {
  if (text.find('%') != std::string_view::npos) return std::string(text);
  if (text == "None" || text == "()" || text == "[]") return std::monostate();
  if (text == "True" || text == "False") return text == "True";
  if (text.starts_with('(') || text.starts_with('[')) {
    const auto items = Split(text, "()[],");
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::vector<std::string> texts;
    for (const std::string_view item : items) {
      texts.emplace_back(item);
      if (!LooksLikeNumber(item)) continue;
      if (const auto number = ToFloat(item)) floats.push_back(*number);
      if (const auto number = ToInt(item)) ints.push_back(*number);
    }
    if (ints.size() == items.size()) return ints;
    if (floats.size() == items.size()) return floats;
    return texts;
  }
  if (!LooksLikeNumber(text)) return std::string(text);
  if (const auto number = ToInt(text)) return *number;
  if (const auto number = ToFloat(text)) return *number;
  return std::string(text);
}

// "(1,3,?,%h)f32"
std::optional<ValueType> ToType(std::string_view text) {
  const size_t close = text.find(')');
  if (!text.starts_with('(') || close == std::string_view::npos) return std::nullopt;
  ValueType type{.dtype = TypeOf(text.substr(close + 1)), .shape = std::vector<Dim>()};
  for (const std::string_view item : Split(text.substr(1, close - 1), ",")) {
    if (item == "?") {
      type.shape->emplace_back();
    } else if (item[0] == '%') {
      type.shape->push_back({-1, std::string(item.substr(1))});
    } else {
      const auto size = ToInt(item);
      if (!size || *size < 0) return std::nullopt;
      type.shape->push_back({*size, ""});
    }
  }
  return type;
}

std::string ToText(const ValueType& type) {
  std::string out = "(";
  for (const Dim& dim : *type.shape) {
    if (out.size() > 1) out += ',';
    out += dim.fixed() ? std::to_string(dim.size) : dim.symbol.empty() ? "?" : "%" + dim.symbol;
  }
  return out + ")" + (type.dtype ? std::string(NameOf(*type.dtype)) : "null");
}

// A float is told from an integer by its point or exponent.
std::string FloatText(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string ToText(const PnnxParameter& parameter) {
  struct Print {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool value) const { return value ? "True" : "False"; }
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return FloatText(value); }
    std::string operator()(const std::string& value) const { return value; }
    std::string operator()(const std::vector<int64_t>& list) const {
      return fmt::format("({})", fmt::join(list, ","));
    }
    std::string operator()(const std::vector<double>& list) const {
      std::string out;
      for (const double value : list) out += (out.empty() ? "(" : ",") + FloatText(value);
      return out + ")";
    }
    std::string operator()(const std::vector<std::string>& list) const {
      return fmt::format("({})", fmt::join(list, ","));
    }
  };
  return std::visit(Print(), parameter);
}

class Parser {
 public:
  Parser(const StoreZip* weights, const std::string& source) : weights_(weights) { file_.source = source; }

  Result<PnnxFile> Parse(std::string_view text) {
    std::vector<std::string_view> lines;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      lines.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    const auto magic = lines.empty() ? std::vector<std::string_view>() : Split(lines[0], " \t\r");
    if (magic.size() != 1 || magic[0] != kMagic)
      return Error::Corrupt(file_.source, ": not a PNNX file: its first line is not ", kMagic);
    const auto counts = lines.size() < 2 ? std::vector<std::string_view>() : Split(lines[1], " \t\r");
    const auto operators = counts.size() == 2 ? ToInt(counts[0]) : std::nullopt;
    const auto operands = counts.size() == 2 ? ToInt(counts[1]) : std::nullopt;
    if (!operators || !operands || *operators < 0 || *operands < 0 || *operators > kMostOperators)
      return Error::Corrupt(file_.source, ":2: expected the numbers of operators and operands");
    for (size_t i = 2; i < lines.size(); ++i) {
      const auto fields = Split(lines[i], " \t\r");
      if (fields.empty()) continue;
      line_ = static_cast<int>(i) + 1;
      CELER_RETURN_IF_ERROR(Line(fields));
    }
    if (static_cast<int64_t>(file_.operators.size()) != *operators)
      return Error::Corrupt(file_.source, ": says ", *operators, " operators and has ",
                            file_.operators.size(), "; it is cut short or was changed");
    return std::move(file_);
  }

 private:
  template <class... T>
  Error Bad(const T&... parts) const {
    return Error::Corrupt(file_.source, ":", line_, ": ", parts...);
  }

  Status Line(const std::vector<std::string_view>& fields) {
    const auto in = fields.size() > 3 ? ToInt(fields[2]) : std::nullopt;
    const auto out = fields.size() > 3 ? ToInt(fields[3]) : std::nullopt;
    if (!in || !out) return Bad("expected a type, a name and the numbers of inputs and outputs");
    if (*in < 0 || *out < 0 || static_cast<size_t>(*in) > kMostOperands ||
        static_cast<size_t>(*out) > kMostOperands || fields.size() < static_cast<size_t>(4 + *in + *out))
      return Bad("'", Printable(fields[1]), "' says ", *in, " inputs and ", *out,
                 " outputs, and names fewer");
    PnnxOperator op{.type = std::string(fields[0]), .name = std::string(fields[1]), .line = line_};
    size_t at = 4;
    for (int64_t i = 0; i < *in; ++i) op.inputs.emplace_back(fields[at++]);
    for (int64_t i = 0; i < *out; ++i) op.outputs.emplace_back(fields[at++]);
    for (; at < fields.size(); ++at) {
      const size_t equals = fields[at].find('=');
      if (equals == std::string_view::npos || equals == 0)
        return Bad("'", Printable(fields[at]), "' has no '='");
      const std::string_view key = fields[at].substr(0, equals), value = fields[at].substr(equals + 1);
      if (key[0] == '@') {
        CELER_RETURN_IF_ERROR(Weight(&op, std::string(key.substr(1)), value));
      } else if (key[0] == '$') {
        op.input_of[std::string(key.substr(1))] = std::string(value);
      } else if (key[0] == '#') {
        const auto type = ToType(value);
        if (!type) return Bad("'", Printable(value), "' is no shape");
        file_.operands[std::string(key.substr(1))] = *type;
      } else {
        // An expression has commas and brackets of its own.
        op.parameters[std::string(key)] =
            key == "expr" ? PnnxParameter(std::string(value)) : ToParameter(value);
      }
    }
    file_.operators.push_back(std::move(op));
    return {};
  }

  Status Weight(PnnxOperator* op, std::string key, std::string_view text) {
    const auto type = ToType(text);
    if (!type || !type->dtype)
      return Bad("the weight '", Printable(key), "' has no known type: ", Printable(text));
    std::vector<int64_t> dims;
    int64_t elements = 1;
    for (const Dim& dim : *type->shape) {
      if (!dim.fixed()) return Bad("the weight '", Printable(key), "' has a dimension that is not known");
      const auto product = CheckedMul(elements, dim.size);
      if (!product) return Bad("the weight '", Printable(key), "' is larger than any memory");
      elements = *product;
      dims.push_back(dim.size);
    }
    const auto shape = MakeShape(dims);
    if (!shape) return Bad("the weight '", Printable(key), "': ", shape.error().message());
    const std::string entry_name = op->name + "." + key;
    const StoreZip::Entry* const entry = weights_ ? weights_->Find(entry_name) : nullptr;
    if (!entry)
      return Bad("there is no '", Printable(entry_name),
                 "' among the weights; is the .bin file the right one?");
    const auto bytes = CheckedMul(elements, Info(*type->dtype).block_bytes);
    if (!bytes || static_cast<uint64_t>(*bytes) != entry->bytes.size())
      return Bad("'", Printable(entry_name), "' has ", entry->bytes.size(), " bytes, but ", Printable(text),
                 " takes ", bytes ? *bytes : -1);
    Constant constant{*type->dtype, *shape, entry->bytes, weights_->file()};
    if (reinterpret_cast<uintptr_t>(entry->bytes.data()) % 8 != 0) {  // the archive aligns nothing
      auto copy = std::make_shared<std::vector<uint64_t>>((entry->bytes.size() + 7) / 8);
      std::memcpy(copy->data(), entry->bytes.data(), entry->bytes.size());
      constant.bytes = {reinterpret_cast<const std::byte*>(copy->data()), entry->bytes.size()};
      constant.owner = std::move(copy);
    }
    op->weights[std::move(key)] = std::move(constant);
    return {};
  }

  PnnxFile file_;
  const StoreZip* weights_;
  int line_ = 0;
};

std::filesystem::path WeightsOf(std::filesystem::path param) {
  return param.replace_extension(".bin");
}

}  // namespace

Result<PnnxFile> ParsePnnx(std::string_view text, const StoreZip* weights, const std::string& source) {
  return Parser(weights, source).Parse(text);
}

Result<PnnxFile> ReadPnnx(const std::filesystem::path& param) {
  CELER_ASSIGN(const MappedFile mapped, MappedFile::Open(param));
  const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  const std::filesystem::path bin = WeightsOf(param);
  std::optional<StoreZip> weights;
  std::error_code missing;
  if (text.find(" @") != std::string_view::npos) {
    if (!std::filesystem::exists(bin, missing))
      return Error::NotFound(param.string(), ": its weights should be beside it in '",
                             bin.filename().string(), "', which is not there");
    CELER_ASSIGN(weights, StoreZip::Open(bin));
  }
  CELER_ASSIGN(PnnxFile file, ParsePnnx(text, weights ? &*weights : nullptr, param.string()));
  file.bytes = static_cast<int64_t>(mapped.bytes().size());
  if (weights) file.bytes += static_cast<int64_t>(weights->file()->bytes().size());
  return file;
}

std::string PrintPnnx(const PnnxFile& file) {
  std::map<std::string, int> operands;
  for (const PnnxOperator& op : file.operators)
    for (const std::string& output : op.outputs) operands[output] = 0;
  std::string out = fmt::format("{}\n{} {}\n", kMagic, file.operators.size(), operands.size());
  for (const PnnxOperator& op : file.operators) {
    out += fmt::format("{:<24} {:<24} {} {}", op.type, op.name, op.inputs.size(), op.outputs.size());
    for (const std::string& operand : op.inputs) out += " " + operand;
    for (const std::string& operand : op.outputs) out += " " + operand;
    for (const auto& [key, value] : op.parameters) out += " " + key + "=" + ToText(value);
    for (const auto& [key, weight] : op.weights) {
      out += " @" + key + "=(";
      for (size_t i = 0; i < weight.shape.dims().size(); ++i)
        out += (i > 0 ? "," : "") + std::to_string(weight.shape.dims()[i]);
      out += ")" + std::string(NameOf(weight.dtype));
    }
    for (const auto& [argument, operand] : op.input_of) out += " $" + argument + "=" + operand;
    for (const auto* list : {&op.inputs, &op.outputs})
      for (const std::string& operand : *list)
        if (const auto type = file.operands.find(operand); type != file.operands.end() && type->second.shape)
          out += " #" + operand + "=" + ToText(type->second);
    out += '\n';
  }
  return out;
}

Status WritePnnx(const PnnxFile& file, const std::filesystem::path& param) {
  std::vector<std::pair<std::string, std::span<const std::byte>>> entries;
  for (const PnnxOperator& op : file.operators)
    for (const auto& [key, weight] : op.weights) {
      if (NameOf(weight.dtype).empty())
        return Error::Unsupported(op.name, ".", key, ": PNNX has no name for weights of type ",
                                  Name(weight.dtype));
      entries.emplace_back(op.name + "." + key, weight.bytes);
    }
  CELER_RETURN_IF_ERROR(WriteStoreZip(WeightsOf(param), entries));
  CELER_ASSIGN(AtomicFile text, AtomicFile::Create(param));
  CELER_RETURN_IF_ERROR(text.Write(PrintPnnx(file)));
  return text.Commit();
}

}  // namespace celer::graph
