#include "models/load/arranged_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/decode.h"
#include "io/file/printable.h"

namespace celer {
namespace {

// A name as rules have it, "model.layers.%.mlp.experts.#.w1.weight", and the two numbers.
struct PatternName {
  std::string pattern;
  std::string layer, expert;
};

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

PatternName PatternOf(std::string_view name) {
  PatternName out;
  while (true) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view word = name.substr(0, dot);
    std::string* const number = out.layer.empty() ? &out.layer : out.expert.empty() ? &out.expert : nullptr;
    if (number && IsNumber(word)) {
      *number = word;
      out.pattern += number == &out.layer ? '%' : '#';
    } else {
      out.pattern += word;
    }
    if (dot == name.size()) return out;
    out.pattern += '.';
    name.remove_prefix(dot + 1);
  }
}

void Fill(std::string* name, char sign, const std::string& value) {
  if (const size_t at = name->find(sign); at != std::string::npos) name->replace(at, 1, value);
}

std::string NameOf(std::string part, const PatternName& in_file, int64_t expert = -1) {
  Fill(&part, '%', in_file.layer);
  Fill(&part, '#', expert >= 0 ? std::to_string(expert) : in_file.expert);
  return part;
}

// Rows of a matrix that do not lie together, or that are its columns.
class RowsOfTensor final : public CodedTensor {
 public:
  // `inner` decodes the tensor's rows; none: they are plain.
  RowsOfTensor(const TensorRecord& record, const CodedTensor* inner, const ArrangedSource::RowMap& map)
      : record_(record), inner_(inner), map_(map) {
    cols = record.shape[record.shape.rank() - 1];
    format = inner ? inner->format : WeightFormatSpec::Stored(record.dtype);
    scheme = fmt::format("{}rows {} + {} of {}", inner ? inner->scheme + ", " : "", map.first, map.run,
                         map.period);
    parts = {&record};
  }

  void Row(int64_t row, std::byte* values, void* scales) const override {
    if (inner_) return inner_->Row(map_(row), values, scales);
    const int64_t bytes = format.RowBytes(cols);
    std::memcpy(values, record_.bytes.data() + map_(row) * bytes, static_cast<size_t>(bytes));
  }

 private:
  const TensorRecord& record_;
  const CodedTensor* inner_;
  ArrangedSource::RowMap map_;
};

class ColumnsOfTensor final : public CodedTensor {
 public:
  ColumnsOfTensor(const TensorRecord& record, const ArrangedSource::RowMap& map)
      : record_(record), map_(map) {
    const int rank = record.shape.rank();
    width_ = record.shape[rank - 1];
    cols = record.shape[rank - 2];
    format = WeightFormatSpec::Stored(record.dtype);
    scheme = fmt::format("columns {} + {} of {}", map.first, map.run, map.period);
    parts = {&record};
  }

  void Row(int64_t row, std::byte* values, void*) const override {
    const auto size = static_cast<size_t>(format.RowBytes(1));
    const int64_t column = map_(row);  // of all experts' columns
    const std::byte* from = record_.bytes.data() +
                            (column / width_ * cols * width_ + column % width_) * static_cast<int64_t>(size);
    for (int64_t c = 0; c < cols; ++c, from += width_ * static_cast<int64_t>(size))
      std::memcpy(values + c * static_cast<int64_t>(size), from, size);
  }

 private:
  const TensorRecord& record_;
  ArrangedSource::RowMap map_;
  int64_t width_ = 0;
};

int64_t RowsOfGroup(const TensorRule& rule) {
  int64_t rows = 0;
  for (const TensorPart& part : rule.parts) rows += part.rows;
  return rows;
}

ArrangedSource::RowMap MapOf(const TensorRule& rule, size_t part) {
  ArrangedSource::RowMap map{.first = 0, .run = rule.parts[part].rows, .period = RowsOfGroup(rule)};
  for (size_t i = 0; i < part; ++i) map.first += rule.parts[i].rows;
  return map;
}

Error Misfit(const std::string& path, const TensorRecord& record, const TensorRule& rule) {
  std::string parts;
  for (const TensorPart& part : rule.parts)
    parts += fmt::format("{}{} of '{}'", parts.empty() ? "" : ", ", part.rows * rule.groups, part.name);
  return Error::Corrupt(path, ": tensor '", Printable(record.name), "' has shape ", record.shape.ToString(),
                        ", which cannot be split into rows: ", parts);
}

// Floats that a weight can have.
bool IsFloats(const TensorRecord& record) {
  return CanDecode(record.dtype) && record.dtype != DType::kI64 && record.dtype != DType::kBool &&
         record.shape.elements() && BytesFor(record.dtype, *record.shape.elements());
}

std::vector<float> FloatsOf(const TensorRecord& record) {
  std::vector<float> out(static_cast<size_t>(*record.shape.elements()));
  DecodeRow(record.dtype, record.bytes.data(), std::ssize(out), out.data());
  return out;
}

}  // namespace

Result<std::unique_ptr<ArrangedSource>> ArrangedSource::Open(std::unique_ptr<TensorSource> file,
                                                             const TensorRules& rules) {
  std::unique_ptr<ArrangedSource> out(new ArrangedSource(std::move(file)));
  std::vector<std::pair<std::string, int64_t>> skipped;  // for what, how many
  for (const TensorRecord& record : out->file_->tensors()) {
    std::string name = record.name;
    const auto begins = [&](const auto& row) { return name.starts_with(row.first); };
    const auto& skips = rules.skipped();
    if (const auto skip = std::find_if(skips.begin(), skips.end(), begins); skip != skips.end()) {
      const auto same = [&](const auto& row) { return row.first == skip->second; };
      auto found = std::find_if(skipped.begin(), skipped.end(), same);
      if (found == skipped.end()) found = skipped.insert(found, {skip->second, 0});
      ++found->second;
      continue;
    }
    const auto& prefixes = rules.prefixes();
    if (const auto prefix = std::find_if(prefixes.begin(), prefixes.end(), begins); prefix != prefixes.end())
      name = prefix->second + name.substr(prefix->first.size());
    CELER_RETURN_IF_ERROR(out->Arrange(record, name, rules));
  }
  for (const auto& [what, count] : skipped)
    out->warnings_.push_back(
        fmt::format("{}: {} tensors are for {}; they are not read", out->path(), count, what));
  return out;
}

Status ArrangedSource::Arrange(const TensorRecord& record, const std::string& name,
                               const TensorRules& rules) {
  const PatternName pattern = PatternOf(name);
  const auto found = rules.rules().find(pattern.pattern);
  if (found == rules.rules().end()) return AddWhole(record, name, rules.PlusOne(pattern.pattern));
  const TensorRule& rule = found->second;
  const std::string& first = rule.parts[0].name;
  if (rule.renames()) return AddWhole(record, NameOf(first, pattern), rules.PlusOne(first));

  const int rank = record.shape.rank();
  const bool vector = rank == 1 || rule.elements;
  const auto elements = record.shape.elements();
  if (rank < 1 || rank > 3 || !elements || *elements == 0) return Misfit(path(), record, rule);
  const int64_t rows = record.shape[vector || Transposed(record, rule) ? rank - 1 : rank - 2];
  if (rows != RowsOfGroup(rule) * rule.groups) return Misfit(path(), record, rule);
  const int64_t experts = !vector && rank == 3 ? record.shape[0] : 1;
  for (size_t p = 0; p < rule.parts.size(); ++p) {
    const std::string& part = rule.parts[p].name;
    RowMap map = MapOf(rule, p);
    if (vector) {
      CELER_RETURN_IF_ERROR(AddElements(record, map, NameOf(part, pattern), rules.PlusOne(part)));
    } else if (rank == 2 || part.find('#') == std::string::npos) {
      // A quantized stack of one expert is a matrix.
      const int64_t only = pattern.expert.empty() ? 0 : -1;
      CELER_RETURN_IF_ERROR(AddRows(record, rule, map, rank == 2 ? 0 : experts, NameOf(part, pattern, only)));
    } else {
      for (int64_t e = 0; e < experts; ++e, map.first += rows)
        CELER_RETURN_IF_ERROR(AddRows(record, rule, map, 0, NameOf(part, pattern, e)));
    }
  }
  return {};
}

// What quantizers write has the rows of products, whatever the plain tensor's are.
bool ArrangedSource::Transposed(const TensorRecord& record, const TensorRule& rule) const {
  return rule.transposed && !file_->Coded(record.name);
}

Status ArrangedSource::AddElements(const TensorRecord& record, const RowMap& map, const std::string& name,
                                   bool plus_one) {
  if (!IsFloats(record) || file_->Coded(record.name))
    return Error::Unsupported(path(), ": tensor '", Printable(record.name), "' of type ", Name(record.dtype),
                              " cannot be split into vectors");
  const std::vector<float> all = FloatsOf(record);
  std::vector<float> some(all.size() / map.period * map.run);
  for (size_t i = 0; i < some.size(); ++i) some[i] = all[map(static_cast<int64_t>(i))] + (plus_one ? 1 : 0);
  return AddVector(name, std::move(some), record);
}

Status ArrangedSource::AddVector(const std::string& name, std::vector<float> values,
                                 const TensorRecord& record) {
  vectors_.push_back(std::move(values));
  const std::vector<float>& kept = vectors_.back();
  return Add({name, DType::kF32, {std::ssize(kept)}, std::as_bytes(std::span(kept))}, record);
}

Status ArrangedSource::AddRows(const TensorRecord& record, const TensorRule& rule, const RowMap& map,
                               int64_t experts, const std::string& name) {
  const CodedTensor* inner = file_->Coded(record.name);
  const int rank = record.shape.rank();
  const bool transposed = Transposed(record, rule);
  const int64_t cols = record.shape[transposed ? rank - 2 : rank - 1];
  if (transposed && IsBlockQuantized(record.dtype))
    return Error::Unsupported(path(), ": tensor '", Printable(record.name), "' is quantized (",
                              Name(record.dtype),
                              ") and lies with its columns as rows, which cannot be turned");
  const auto row_bytes = BytesFor(record.dtype, cols);
  if (!row_bytes || !CanDecode(record.dtype))
    return Error::Unsupported(path(), ": tensor '", Printable(record.name), "' of type ", Name(record.dtype),
                              " cannot be split into rows of ", cols, " elements");
  const int64_t rows = map.run * rule.groups;
  const Shape shape = experts > 0 ? Shape{experts, rows, cols} : Shape{rows, cols};
  const bool together = rule.groups == 1 && (experts <= 1 || map.run == map.period);
  if (!inner && !transposed && together) {
    const int64_t bytes = *row_bytes * rows * std::max<int64_t>(experts, 1);
    const auto at = static_cast<size_t>(map.first * *row_bytes);
    return Add({name, record.dtype, shape, record.bytes.subspan(at, static_cast<size_t>(bytes))}, record);
  }
  std::unique_ptr<CodedTensor> coded;
  if (transposed)
    coded = std::make_unique<ColumnsOfTensor>(record, map);
  else
    coded = std::make_unique<RowsOfTensor>(record, inner, map);
  coded->name = name;
  coded->count = std::max<int64_t>(experts, 1);
  coded->rows = rows;
  CELER_RETURN_IF_ERROR(Add({name, record.dtype, shape, record.bytes}, record));
  coded_[name] = std::move(coded);
  return {};
}

Status ArrangedSource::AddWhole(const TensorRecord& record, const std::string& name, bool plus_one) {
  if (plus_one && IsFloats(record) && !file_->Coded(record.name)) {
    std::vector<float> values = FloatsOf(record);
    for (float& value : values) value += 1;
    return AddVector(name, std::move(values), record);
  }
  if (file_->Coded(record.name)) in_file_[name] = record.name;
  TensorRecord renamed = record;
  renamed.name = name;
  return Add(std::move(renamed), record);
}

Status ArrangedSource::Add(TensorRecord record, const TensorRecord& in_file) {
  const std::string name = record.name;
  if (table_.Add(std::move(record))) return {};
  return Error::Corrupt(path(), ": tensor '", Printable(in_file.name), "' is '", Printable(name),
                        "', and so is another one");
}

const CodedTensor* ArrangedSource::Coded(std::string_view name) const {
  const std::string key(name);
  if (const auto it = coded_.find(key); it != coded_.end()) return it->second.get();
  const auto renamed = in_file_.find(key);
  return renamed == in_file_.end() ? nullptr : file_->Coded(renamed->second);
}

}  // namespace celer
