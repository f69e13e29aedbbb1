// Which format every weight of a model gets. Decided here, once, from the `weights` option, the file's
// formats and the role of each tensor; the CPU's WeightStore and the GPU's DeviceWeights both follow it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "formats/weight_format.h"
#include "io/file/tensor_record.h"
#include "weights/shard_source.h"
#include "weights/tensor_source.h"

namespace celer {

// The role of a tensor in the model.
enum class WeightRole : uint8_t {
  kProjection,
  kVocabulary,  // a head, or an embedding that is also the head
  kTable,       // an embedding that is only looked up, row by row; it is not packed
  kRouter,      // chooses experts, or weighs the shared one
  kHeads,       // of single heads (kernels/llm/latent/head_product.h): plain numbers
  kVector,      // a norm or a bias: always f32
};
std::string_view Name(WeightRole role);  // "projection"

// The rule, of a matrix whose rows have this many columns:
//  - The vocabulary, which is more sensitive than projections, is int8 where those are int4: with the same
//    groups, because these cost it 3 to 12 % and one scale to a row would lose a bit of precision.
//  - A router is small and decides much: it keeps the values of the file.
//  - Matrices of single heads are small, too, and keep plain values; quantized ones become f16.
//  - Where groups do not divide the columns, int8 and fp8 have one scale to a row, and int8 takes the place
//    of int4.
//  - fp8 of a file keeps its groups where fp8 is asked for.
WeightFormatSpec PlanFormat(const WeightOptions& options, const WeightFormatSpec& stored, int64_t cols,
                            WeightRole role);

struct PlannedWeight {
  std::string name;
  WeightRole role = WeightRole::kProjection;
  int64_t count = 1;  // matrices of one shape in one tensor: the experts of a layer
  int64_t rows = 0, cols = 0;
  WeightFormatSpec stored = {}, format = {};

  int64_t bytes() const;  // in `format`
  // Columns can be divided among devices at multiples of this: the file's blocks and the plan's groups stay
  // whole.
  int64_t ColumnStep() const;
  // A part of it, with the format of the whole; an error with both values where it cannot be cut.
  Result<PlannedWeight> SliceRows(int64_t begin, int64_t count) const;
  Result<PlannedWeight> SliceColumns(int64_t begin, int64_t count) const;
};

class WeightPlan {
 public:
  // Of tensors that are no projections, by name. Those with one dimension are vectors without being here.
  using Roles = std::map<std::string, WeightRole, std::less<>>;

  WeightPlan() = default;
  // The rule alone, for matrices that come from no file.
  WeightPlan(const WeightOptions& options) : options_(options) {}  // NOLINT(google-explicit-constructor)
  static WeightPlan Make(const WeightOptions& options, std::span<const TensorRecord> tensors,
                         const Roles& roles = {});
  // The same of a source, which may hold tensors in codes of their own.
  static WeightPlan Make(const WeightOptions& options, const TensorSource& source, const Roles& roles = {});

  const WeightOptions& options() const { return options_; }
  std::span<const PlannedWeight> weights() const { return weights_; }
  const PlannedWeight* Find(std::string_view name) const;  // nullptr when there is none
  WeightRole RoleOf(std::string_view name) const;          // kProjection if it is not in the plan

  // As planned for that name. A matrix that is not in the plan gets its format by the rule, with the role
  // that is given here.
  WeightFormatSpec FormatFor(std::string_view name, const WeightFormatSpec& stored, int64_t cols,
                             WeightRole default_role = WeightRole::kProjection) const;

  // One rank's part of it, in the formats of the whole.
  Result<WeightPlan> Cut(const TensorSlices& slices) const;

  // The same tensors with other options.
  WeightPlan With(const WeightOptions& options) const;

  int64_t bytes() const;
  std::vector<std::string> Lines() const;  // one in all, and one for each kind of tensor
  std::string ToString() const;            // the lines in one text

 private:
  WeightOptions options_;
  std::vector<PlannedWeight> weights_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace celer
