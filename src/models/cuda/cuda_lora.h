// Adapters on a GPU: those of the last steps in its memory, the least recently used ones in the host's alone, and which
// rows of a batch have which. A captured step reads all of that from fixed addresses.
//
//   Prepare()            in front of each batch with adapters: uploads what is missing, and the plan of the batch
//   Shrink(), Expand()   around each product, from the operators of a layer
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "kernels/llm/low_rank/low_rank_cuda.h"
#include "models/cuda/fault.h"
#include "models/cuda/memory/upload.h"
#include "models/cuda/model.h"
#include "models/lora/lora.h"
#include "models/lora/places.h"

namespace celer {

class CudaLora {
 public:
  static constexpr int kMostUses = 8;  // adapters of one sequence

  // `memory`: for adapters, in bytes. The model and the stream of its steps outlive it.
  CudaLora(int device, const CudaModel& model, const Stream& stream, CudaFault& fault, int64_t memory)
      : device_(device), model_(model), stream_(stream), fault_(fault), memory_(memory) {}
  ~CudaLora();
  CudaLora(const CudaLora&) = delete;

  // What it takes beside the adapters, for batches of that many tokens and rows of logits.
  static int64_t FixedBytes(const DecoderConfig& config, int64_t tokens, int64_t logit_rows);
  Status Allocate(int64_t tokens, int64_t logit_rows);

  // Whether sequences can run with these adapters here; a sentence with the module that cannot be applied. Thread-safe.
  Status Check(const LoraMix& mix) const;
  // Whether the adapters of one batch have room together.
  bool FitTogether(std::span<const std::shared_ptr<const LoraMix>> mixes) const;

  // For a batch whose sequences begin at `starts`; `mixes` may be empty. `logit_rows`: tokens; those of a decode step are all.
  Status Prepare(std::span<const std::shared_ptr<const LoraMix>> mixes, std::span<const int32_t> starts,
                 std::span<const int32_t> logit_rows, UploadRing& ring);
  // Increases when steps that were captured before cannot run with what is loaded now: a larger rank, adapters of modules
  // that none had, or the first ones that are not for the tensor cores.
  int64_t version() const { return version_; }

  // A product of one to three matrices of a layer with the same input.
  struct Product {
    std::span<const LoraPart> parts = {};
    int64_t layer = -1;
    const float* x = nullptr;
    const int32_t* x_rows = nullptr;  // of x; or null
    int cols = 0;
    const float* norm = nullptr;
    float eps = 0;
    struct Out {
      int rows = 0;  // of the matrix
      float* product = nullptr;
    };
    std::array<Out, 3> outs = {};
    int64_t stride = 0;           // of the products, and of add_to
    const float* bias = nullptr;  // with one matrix
    float* add_to = nullptr;      // likewise: the sum goes there
  };
  // In front of the product; and behind it, which then has everything that its tokens add.
  void Shrink(const Product& product, int rows);
  void Expand(const Product& product, int rows);
  // Likewise of up and gate, with the activation; false: nothing was done.
  bool ExpandActivate(const Product& product, int rows, const cuda::LowRankActivation& to);
  // Behind the embedding.
  void AddEmbedding(const int32_t* tokens, float* x, int rows);

 private:
  struct Resident {
    std::weak_ptr<const LoraAdapter> adapter;
    Buffer memory;
    int64_t bytes = 0;
    int64_t rank = 0;   // the greatest, rounded up as low_at is
    bool plain = true;  // as a tile is
    uint64_t used = 0;
    int slot = 0;
    std::vector<cuda::DeviceTerm> terms;  // [places]
  };

  int places() const { return static_cast<int>(PartsOf(model_.config)); }
  static int64_t PartsOf(const DecoderConfig& config);
  static int64_t PlainRoom(const DecoderConfig& config);  // LowRankArgs::plain_room
  int PlaceOf(const LoraPlace& place) const;              // -1: none here
  const DeviceMatrix* MatrixOf(const LoraPlace& place) const;

  Status Use(const std::shared_ptr<const LoraAdapter>& adapter);
  Status MakeRoom(int64_t bytes);
  Status Evict(std::map<const LoraAdapter*, Resident>::iterator it);
  Status Upload(const LoraAdapter& adapter, Resident* to);
  Status GrowLow(int64_t rank);
  // The mixes of rows as tiles, into device memory at `plan`.
  struct PlanMemory {
    Buffer memory;
    int64_t rows = 0;
    std::vector<std::byte> seen;
  };
  Status Send(std::span<const int32_t> mix_of, std::span<const LoraMix* const> mixes, PlanMemory* plan,
              UploadRing& ring);
  cuda::LowRankPlan PlanOf(const PlanMemory& plan) const;
  cuda::LowRankArgs Args(const Product& product, int rows) const;
  bool Touches(std::span<const LoraPart> parts, uint64_t of) const;

  int device_;
  const CudaModel& model_;
  const Stream& stream_;
  CudaFault& fault_;
  const int64_t memory_;
  int64_t resident_bytes_ = 0;
  std::map<const LoraAdapter*, Resident> residents_;
  std::vector<bool> taken_;  // slots
  uint64_t step_ = 0;

  int64_t tokens_ = 0;
  Buffer terms_;  // [slots, places]
  PlanMemory rows_plan_, logits_plan_;
  Buffer low_, plain_low_;
  int64_t low_rank_ = 0;               // of a mix, at most
  int64_t plain_rank_ = 0;             // of a plain mix that ever was here
  bool others_ = false;                // a mix that is not plain ever was here
  uint64_t touched_ = 0, wholes_ = 0;  // by LoraPart, of all that ever was here
  int64_t version_ = 0;
};

}  // namespace celer
