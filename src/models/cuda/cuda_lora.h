// Adapters on a GPU: those of the last steps in its memory, the least recently used ones in the host's alone, and which
// rows of a batch have which. A captured step reads all of that from fixed addresses.
//
//   Prepare()            in front of each batch with adapters: uploads what is missing, and the plan of the batch
//   Shrink(), Expand()   around each product, from the operators of a layer
//   Route()              in mixtures behind the routing, for products whose rows are the experts' slots
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
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "models/cuda/cuda_lora_places.h"
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
      : device_(device), model_(model), stream_(stream), fault_(fault), memory_(memory), places_(model) {}
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
    int64_t x_stride = 0;             // 0: cols
    int cols = 0;
    const float* norm = nullptr;
    float eps = 0;
    struct Out {
      int rows = 0;  // of the matrix
      float* product = nullptr;
      int64_t stride = 0;           // 0: that of all
      const float* bias = nullptr;  // comes behind the terms; or none
    };
    std::array<Out, 3> outs = {};
    int64_t stride = 0;       // of the products, and of add_to
    float* add_to = nullptr;  // with one matrix: the sum goes there
    bool slots = false;       // its rows are those of Route(), its matrices those of all experts
  };
  // In front of the product; and behind it, which then has everything that its tokens add.
  void Shrink(const Product& product, int rows);
  void Expand(const Product& product, int rows);
  // Both, behind the product.
  void Add(const Product& product, int rows) {
    Shrink(product, rows);
    Expand(product, rows);
  }
  // Likewise of up and gate, with the activation; false: nothing was done.
  bool ExpandActivate(const Product& product, int rows, const cuda::LowRankActivation& to);
  // Whether anything that ever was here changes routers, experts or shared experts.
  bool TouchesExperts() const;
  // The slots of a batch's tokens, which the device has sorted by expert.
  void Route(const cuda::MoePlan& slots, int count);
  // Behind what takes queries into the space of latent attention, or values out of it: the terms of kv_b, for rows from
  // `first` on of a batch's `rows`.
  struct Heads {
    int64_t layer = -1;
    bool keys = false;
    int first = 0, count = 0;
    const float* x = nullptr;
    int64_t x_row = 0, x_head = 0;  // from one to the next
    float* out = nullptr;
    int64_t out_row = 0, out_head = 0;
  };
  bool TouchesHeads() const;
  void AddHeads(const Heads& heads, int rows);
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

  static uint64_t Bit(LoraPart part) { return uint64_t{1} << static_cast<int>(part); }
  static int64_t PlainRoom(const DecoderConfig& config);             // LowRankArgs::plain_room
  static int64_t Slots(const DecoderConfig& config);                 // adapters in device memory at once
  static int64_t Rows(const DecoderConfig& config, int64_t tokens);  // of a product at most

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
  static int64_t PlanBytes(const DecoderConfig& config, int64_t rows);
  cuda::LowRankPlan PlanOf(const PlanMemory& plan) const;
  const int32_t* TileOf(const PlanMemory& plan) const;
  cuda::LowRankArgs Args(const Product& product, int rows) const;
  bool Touches(std::span<const LoraPart> parts, uint64_t of) const;

  int device_;
  const CudaModel& model_;
  const Stream& stream_;
  CudaFault& fault_;
  const int64_t memory_;
  const CudaLoraPlaces places_;
  int64_t resident_bytes_ = 0;
  std::map<const LoraAdapter*, Resident> residents_;
  std::vector<bool> taken_;  // slots
  uint64_t step_ = 0;

  int64_t rows_ = 0;  // Rows()
  Buffer terms_;      // [slots, places]
  PlanMemory rows_plan_, logits_plan_;
  Buffer slot_tiles_;  // of mixtures: how many, then the tiles of Route()
  Buffer low_, plain_low_;
  int64_t low_rank_ = 0;               // of a mix, at most
  int64_t plain_rank_ = 0;             // of a plain mix that ever was here
  bool others_ = false;                // a mix that is not plain ever was here
  uint64_t touched_ = 0, wholes_ = 0;  // by LoraPart, of all that ever was here
  int64_t version_ = 0;
};

}  // namespace celer
