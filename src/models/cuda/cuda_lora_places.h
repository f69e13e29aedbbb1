// The products that adapters go with on a GPU: where each has its terms (LowRankPlan::terms), and as what an adapter's
// matrix is there.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "models/cuda/model.h"
#include "models/lora/places.h"

namespace celer {

class CudaLoraPlaces {
 public:
  explicit CudaLoraPlaces(const CudaModel& model) : model_(model), parts_(PartsOf(model.config)) {}

  static int64_t Count(const DecoderConfig& config);
  // -1: the model has no such product, or no kernel that an adapter goes with. Of experts: that of the place's.
  int Of(const LoraPlace& place) const;
  static constexpr int kOfExpert = 3;  // places: gate, up, down

  // Rows and columns of the matrix there; none if there is no such product.
  std::optional<std::pair<int64_t, int64_t>> ShapeOf(const LoraPlace& place) const;

  // Rows from `row` on, or columns from `col` on: a shared expert that runs as several of the others' size is cut.
  struct Piece {
    int place = 0;
    LoraPart part = LoraPart::kUnused;  // by which the product asks
    int64_t row = 0, col = 0;
  };
  std::vector<Piece> PiecesOf(const LoraPlace& place) const;

 private:
  static std::vector<LoraPart> PartsOf(const DecoderConfig& config);  // of a layer, those of experts aside
  static int64_t ExpertsOf(const DecoderConfig& config);  // with those that a shared one is cut into
  const DeviceMatrix* MatrixOf(const DeviceLayer& layer, LoraPart part) const;

  const CudaModel& model_;
  std::vector<LoraPart> parts_;
};

}  // namespace celer
