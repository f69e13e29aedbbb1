#include "models/load/arranged_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/decode.h"
#include "io/file/printable.h"
#include "models/load/find_rule.h"
#include "models/load/tensor_names.h"

namespace celer {
namespace {

// Rows of a matrix that do not lie together, or that are its columns.
class RowsOfTensor final : public CodedTensor {
 public:
  // `inner` decodes the tensor's rows; none: they are plain.
  RowsOfTensor(const TensorRecord& record, const CodedTensor* inner, const RowMap& map)
      : record_(record), inner_(inner), map_(map) {
    cols = record.shape[record.shape.rank() - 1];
    format = inner ? inner->format : WeightFormatSpec::Stored(record.dtype);
    scheme = fmt::format("{}rows {} + {} of {}", inner ? inner->scheme + ", " : "", map.first, map.run,
                         map.period);
    plain = !inner && !IsBlockQuantized(record.dtype);
    parts = inner ? inner->parts : std::vector<const TensorRecord*>{&record};
  }

  void Row(int64_t row, std::byte* values, void* scales) const override {
    if (inner_) return inner_->Row(map_(row), values, scales);
    const int64_t bytes = format.RowBytes(cols);
    std::memcpy(values, record_.bytes.data() + map_(row) * bytes, static_cast<size_t>(bytes));
  }

 private:
  const TensorRecord& record_;
  const CodedTensor* inner_;
  RowMap map_;
};

class ColumnsOfTensor final : public CodedTensor {
 public:
  ColumnsOfTensor(const TensorRecord& record, const RowMap& map) : record_(record), map_(map) {
    const int rank = record.shape.rank();
    width_ = record.shape[rank - 1];
    cols = record.shape[rank - 2];
    format = WeightFormatSpec::Stored(record.dtype);
    scheme = fmt::format("columns {} + {} of {}", map.first, map.run, map.period);
    plain = true;
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
  RowMap map_;
  int64_t width_ = 0;
};

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

int64_t BytesOf(const CodedTensor& coded) {
  int64_t bytes = 0;
  for (const TensorRecord* part : coded.parts) bytes += static_cast<int64_t>(part->bytes.size());
  return bytes;
}

}  // namespace

Result<std::unique_ptr<ArrangedSource>> ArrangedSource::Open(std::unique_ptr<TensorSource> file,
                                                             const TensorRules& rules,
                                                             const std::string& read) {
  std::unique_ptr<ArrangedSource> out(new ArrangedSource(std::move(file)));
  std::vector<std::pair<std::string, int64_t>> skipped;  // for what, how many
  for (const TensorRecord& record : out->file_->tensors()) {
    const auto begins = [&](const auto& row) { return record.name.starts_with(row.first); };
    const auto& skips = rules.skipped();
    const bool wanted = !read.empty() && record.name.starts_with(read);
    if (const auto skip = std::find_if(skips.begin(), skips.end(), begins); skip != skips.end() && !wanted) {
      const auto same = [&](const auto& row) { return row.first == skip->second; };
      auto found = std::find_if(skipped.begin(), skipped.end(), same);
      if (found == skipped.end()) found = skipped.insert(found, {skip->second, 0});
      ++found->second;
      continue;
    }
    CELER_RETURN_IF_ERROR(out->Arrange(record, WithoutPrefix(rules, record.name), rules));
  }
  for (const auto& [what, count] : skipped)
    out->warnings_.push_back(
        fmt::format("{}: {} tensors are for {}; they are not read", out->path(), count, what));
  return out;
}

Result<std::unique_ptr<ArrangedSource>> ArrangedSource::OpenToCopy(std::unique_ptr<TensorSource> file,
                                                                   const TensorRules& rules,
                                                                   bool every_part) {
  std::unique_ptr<ArrangedSource> out(new ArrangedSource(std::move(file)));
  for (const TensorRecord& record : out->file_->tensors()) {
    if (IsSkipped(rules, record.name)) {
      out->part_of_[record.name] = "";
      CELER_RETURN_IF_ERROR(out->AddWhole(record, record.name, /*plus_one=*/false));
    } else {
      CELER_RETURN_IF_ERROR(out->Copy(record, WithoutPrefix(rules, record.name), rules, every_part));
    }
  }
  return out;
}

Status ArrangedSource::Copy(const TensorRecord& record, const std::string& name, const TensorRules& rules,
                            bool every_part) {
  const PatternName pattern = PatternOf(name);
  const auto found = rules.rules().find(pattern.pattern);
  const TensorRule* const rule = found == rules.rules().end() ? nullptr : &found->second;
  if (rule && !rule->renames() && !rule->elements && record.shape.rank() > 1) {
    const bool stack = record.shape.rank() == 3;
    if (stack || Transposed(record, *rule) || (every_part && rule->parts.size() > 1))
      return SplitTensor(record, name, *rule, rules);
  }
  part_of_[record.name] = rule ? NameOf(rule->parts[0].name, pattern) : name;
  return AddWhole(record, record.name, /*plus_one=*/false);
}

Status ArrangedSource::Arrange(const TensorRecord& record, const std::string& name,
                               const TensorRules& rules) {
  const PatternName pattern = PatternOf(name);
  const TensorRule* const found = RuleOf(rules, name);
  if (!found) return AddWhole(record, name, rules.PlusOne(pattern.pattern));
  const TensorRule& rule = *found;
  const std::string& first = rule.parts[0].name;
  if (rule.renames()) return AddWhole(record, NameOf(first, pattern), rules.PlusOne(first));
  return SplitTensor(record, name, rule, rules);
}

Status ArrangedSource::SplitTensor(const TensorRecord& record, const std::string& name,
                                   const TensorRule& rule, const TensorRules& rules) {
  const PatternName pattern = PatternOf(name);
  const int rank = record.shape.rank();
  const bool vector = rank == 1 || rule.elements;
  const auto elements = record.shape.elements();
  if (rank < 1 || rank > 3 || !elements || *elements == 0) return Misfit(path(), record, rule);
  const int64_t rows = record.shape[vector || Transposed(record, rule) ? rank - 1 : rank - 2];
  if (rows != rule.RowsOfGroup() * rule.groups) return Misfit(path(), record, rule);
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
  if (inner) coded->stored_bytes = BytesOf(*inner) / (inner->count * inner->rows) * rows * coded->count;
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

std::string_view ArrangedSource::PartOf(std::string_view name) const {
  const auto kept = part_of_.find(std::string(name));
  return kept == part_of_.end() ? name : std::string_view(kept->second);
}

const CodedTensor* ArrangedSource::Coded(std::string_view name) const {
  const std::string key(name);
  if (const auto it = coded_.find(key); it != coded_.end()) return it->second.get();
  const auto renamed = in_file_.find(key);
  return renamed == in_file_.end() ? nullptr : file_->Coded(renamed->second);
}

}  // namespace celer
