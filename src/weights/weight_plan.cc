#include "weights/weight_plan.h"

#include <fmt/format.h>

#include <charconv>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "io/file/printable.h"
#include "kernels/llm/latent/head_product.h"

namespace celer {
namespace {

// The format for each value of `weights`, without its groups.
struct FormatRequest {
  WeightFormat format;
  std::optional<WeightFormatSpec> becomes;  // none: what it is
};
constexpr FormatRequest kFormatRequests[] = {
    {WeightFormat::kAsStored, {}},
    {WeightFormat::kF32, WeightFormatSpec::Stored(DType::kF32)},
    {WeightFormat::kF16, WeightFormatSpec::Stored(DType::kF16)},
    {WeightFormat::kBf16, WeightFormatSpec::Stored(DType::kBf16)},
    {WeightFormat::kInt8, WeightFormatSpec{.kind = WeightKind::kInt8}},
    {WeightFormat::kInt4, WeightFormatSpec{.kind = WeightKind::kInt4}},
    {WeightFormat::kFp8, WeightFormatSpec{.kind = WeightKind::kFp8}},
};

const FormatRequest& Find(WeightFormat format) {
  for (const FormatRequest& request : kFormatRequests)
    if (request.format == format) return request;
  CELER_CHECK(false);
  return kFormatRequests[0];
}

std::string BaseName(const FormatRequest& request) {
  return request.becomes ? request.becomes->Name() : "stored";
}

std::string FormatRequestNames() {
  std::string out;
  for (const FormatRequest& request : kFormatRequests) {
    if (!out.empty()) out += ", ";
    out += BaseName(request);
    if (request.becomes && !request.becomes->stored()) out += ", " + BaseName(request) + "-gN";
  }
  return out;
}

// Of the dimensions that are not 1: GGUF converters drop those.
struct Extent {
  int64_t count = 1, rows = 1, cols = 1;
  bool matrix = false;
};
Extent ExtentOf(const Shape& shape) {
  std::vector<int64_t> dims;
  for (const int64_t dim : shape.dims())
    if (dim != 1) dims.push_back(dim);
  Extent out;
  if (!dims.empty()) out.cols = dims.back();
  if (dims.size() > 1) out.rows = dims[dims.size() - 2];
  for (size_t i = 0; i + 2 < dims.size(); ++i) out.count *= dims[i];
  out.matrix = dims.size() > 1;
  return out;
}

}  // namespace

Result<WeightOptions> WeightOptions::Parse(std::string_view text) {
  const size_t dash = text.find("-g");
  const std::string_view base = text.substr(0, dash);
  const FormatRequest* found = nullptr;
  for (const FormatRequest& request : kFormatRequests)
    if (BaseName(request) == base) found = &request;
  if (!found) return Error::Invalid("`weights` '", text, "' is not one of ", FormatRequestNames());
  WeightOptions options{.format = found->format};
  const bool grouped = found->becomes && !found->becomes->stored();
  if (grouped) options.group = found->becomes->info().groups[0];
  if (dash == std::string_view::npos) return options;

  const std::string_view digits = text.substr(dash + 2);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), options.group);
  const bool number = error == std::errc() && end == digits.data() + digits.size();
  bool known = false;
  if (grouped)
    for (const int64_t group : found->becomes->info().groups) known |= group > 0 && group == options.group;
  if (!number || !known)
    return Error::Invalid("`weights` '", text, "': groups are -g32, -g64 or -g128, of int8, int4 and fp8");
  return options;
}

std::string WeightOptions::ToString() const {
  const FormatRequest& request = Find(format);
  if (!request.becomes || request.becomes->stored()) return BaseName(request);
  WeightFormatSpec named = *request.becomes;
  if (group != named.info().groups[0]) named.group = group;
  return named.Name();
}

std::string_view Name(WeightRole role) {
  switch (role) {
    case WeightRole::kProjection:
      return "projection";
    case WeightRole::kVocabulary:
      return "vocabulary";
    case WeightRole::kTable:
      return "table";
    case WeightRole::kRouter:
      return "router";
    case WeightRole::kHeads:
      return "heads";
    case WeightRole::kVector:
      return "vector";
  }
  return "";
}

WeightFormatSpec PlanFormat(const WeightOptions& options, const WeightFormatSpec& stored, int64_t cols,
                            WeightRole role) {
  if (role == WeightRole::kVector) return WeightFormatSpec::Stored(DType::kF32);
  if (role == WeightRole::kHeads && options.format != WeightFormat::kF32)
    return stored.stored() && IsHeadWeight(stored.dtype) ? stored : WeightFormatSpec::Stored(DType::kF16);
  const FormatRequest& request = Find(options.format);
  if (!request.becomes) return stored;
  if (role == WeightRole::kRouter && options.format != WeightFormat::kF32) return stored;
  WeightFormatSpec out = *request.becomes;
  if (out.stored()) return out;
  if (out.kind == WeightKind::kFp8 && stored.kind == out.kind && options.group == 0) return stored;
  out.group = options.group > 0 ? options.group : out.info().groups[0];
  const bool vocabulary = role == WeightRole::kVocabulary || role == WeightRole::kTable;
  if (vocabulary && out.info().bits < 8) out.kind = WeightKind::kInt8;
  if (out.Fits(cols)) return out;
  return {.kind = out.kind == WeightKind::kFp8 ? WeightKind::kFp8 : WeightKind::kInt8};
}

int64_t PlannedWeight::bytes() const {
  if (!format.Fits(cols)) return 0;  // a damaged file, which is rejected where the tensor is read
  return count * rows * (format.RowBytes(cols) + format.ScaleBytes(cols));
}

int64_t PlannedWeight::ColumnStep() const {
  return std::lcm(stored.ColumnStep(), format.ColumnStep());
}

Result<PlannedWeight> PlannedWeight::SliceRows(int64_t begin, int64_t n) const {
  CELER_CHECK(begin >= 0 && n >= 0);
  CELER_CHECK_LE(begin + n, rows);
  PlannedWeight out = *this;
  out.rows = n;
  return out;
}

Result<PlannedWeight> PlannedWeight::SliceColumns(int64_t begin, int64_t n) const {
  CELER_CHECK(begin >= 0 && n >= 0);
  CELER_CHECK_LE(begin + n, cols);
  const int64_t step = ColumnStep(), end = begin + n;
  if (begin % step != 0 || (end % step != 0 && end != cols))
    return Error::Invalid("tensor '", name, "': columns ", begin, " to ", end, " of ", cols,
                          " cannot be a part of its own: ", stored.Name(), " in the file and ", format.Name(),
                          " in memory can be cut at multiples of ", step);
  PlannedWeight out = *this;
  out.cols = n;
  return out;
}

WeightPlan WeightPlan::Make(const WeightOptions& options, std::span<const TensorRecord> tensors,
                            const Roles& roles) {
  WeightPlan plan(options);
  std::map<std::string_view, const TensorRecord*> by_name;
  for (const TensorRecord& record : tensors) by_name[record.name] = &record;
  const auto find = [&](std::string_view name) {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
  };
  constexpr std::string_view kScales = ".scales";  // of llama2.c's int8 matrices
  for (const TensorRecord& record : tensors) {
    const std::string_view name = record.name;
    if (name.ends_with(kScales) && find(name.substr(0, name.size() - kScales.size()))) continue;
    const Extent extent = ExtentOf(record.shape);
    PlannedWeight weight{
        .name = record.name, .count = extent.count, .rows = extent.rows, .cols = extent.cols};
    const auto role = roles.find(name);
    weight.role = role != roles.end() ? role->second
                  : extent.matrix     ? WeightRole::kProjection
                                      : WeightRole::kVector;
    weight.stored = WeightFormatSpec::Stored(record.dtype);
    if (record.dtype == DType::kI8) {
      const TensorRecord* scales = find(record.name + std::string(kScales));
      const int64_t groups = scales && scales->shape.rank() == 2 ? scales->shape[1] : 0;
      if (groups > 0 && weight.cols % groups == 0)
        weight.stored = {.kind = WeightKind::kInt8, .group = groups > 1 ? weight.cols / groups : 0};
    }
    weight.format = PlanFormat(options, weight.stored, weight.cols, weight.role);
    plan.index_[weight.name] = plan.weights_.size();
    plan.weights_.push_back(std::move(weight));
  }
  return plan;
}

WeightPlan WeightPlan::Make(const WeightOptions& options, const TensorSource& source, const Roles& roles) {
  WeightPlan plan = Make(options, source.tensors(), roles);
  for (PlannedWeight& weight : plan.weights_) {
    const CodedTensor* coded = source.Coded(weight.name);
    if (!coded) continue;
    weight.stored = coded->format;
    weight.format = PlanFormat(options, weight.stored, weight.cols, weight.role);
  }
  return plan;
}

const PlannedWeight* WeightPlan::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &weights_[it->second];
}

WeightRole WeightPlan::RoleOf(std::string_view name) const {
  const PlannedWeight* found = Find(name);
  return found && found->role != WeightRole::kVector ? found->role : WeightRole::kProjection;
}

WeightFormatSpec WeightPlan::FormatFor(std::string_view name, const WeightFormatSpec& stored, int64_t cols,
                                       WeightRole default_role) const {
  const PlannedWeight* found = Find(name);
  if (found && found->role != WeightRole::kVector) return found->format;
  return PlanFormat(options_, stored, cols, default_role);
}

Result<WeightPlan> WeightPlan::Cut(const TensorSlices& slices) const {
  WeightPlan out = *this;
  for (PlannedWeight& weight : out.weights_) {
    const auto found = slices.find(weight.name);
    if (found == slices.end() || weight.role == WeightRole::kVector) continue;
    const TensorSlice& slice = found->second;
    if (slice.begin + slice.count > (slice.columns ? weight.cols : weight.rows))
      return Error::Invalid("tensor '", Printable(weight.name), "' of ", weight.rows, " rows and ",
                            weight.cols, " columns cannot be cut to ", slice.begin, " + ", slice.count);
    CELER_ASSIGN(weight, slice.columns ? weight.SliceColumns(slice.begin, slice.count)
                                       : weight.SliceRows(slice.begin, slice.count));
  }
  return out;
}

WeightPlan WeightPlan::With(const WeightOptions& options) const {
  WeightPlan out = *this;
  out.options_ = options;
  for (PlannedWeight& weight : out.weights_)
    weight.format = PlanFormat(options, weight.stored, weight.cols, weight.role);
  return out;
}

int64_t WeightPlan::bytes() const {
  int64_t all = 0;
  for (const PlannedWeight& weight : weights_) all += weight.bytes();
  return all;
}

std::vector<std::string> WeightPlan::Lines() const {
  struct Line {
    int64_t tensors = 0, bytes = 0;
    const PlannedWeight* first = nullptr;
  };
  std::map<std::tuple<WeightRole, std::string, std::string>, Line> lines;
  for (const PlannedWeight& weight : weights_) {
    Line& line = lines[{weight.role, weight.stored.Name(), weight.format.Name()}];
    if (!line.first) line.first = &weight;
    ++line.tensors;
    line.bytes += weight.bytes();
  }
  constexpr double kMega = 1e6;
  std::vector<std::string> out = {fmt::format("weights {}: {} tensors, {:.1f} MB", options_.ToString(),
                                              weights_.size(), static_cast<double>(bytes()) / kMega)};
  for (const auto& [key, line] : lines) {
    const auto& [role, stored, format] = key;
    out.push_back(fmt::format("  {:<10}  {:<5} {}  {} x, {:.1f} MB, first '{}' [{}, {}]", Name(role), stored,
                              stored == format ? std::string("as it is") : "-> " + format, line.tensors,
                              static_cast<double>(line.bytes) / kMega, Printable(line.first->name),
                              line.first->rows, line.first->cols));
    const bool grouped = options_.group > 0 && !line.first->format.stored() && line.first->format.group == 0;
    if (grouped)
      out.back() += fmt::format("; {} columns are no multiple of {}", line.first->cols, options_.group);
  }
  return out;
}

std::string WeightPlan::ToString() const {
  return fmt::format("{}", fmt::join(Lines(), "\n"));
}

}  // namespace celer
