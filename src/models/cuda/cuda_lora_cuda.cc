#include "models/cuda/cuda_lora.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "device/allocator.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "io/file/printable.h"
#include "kernels/llm/low_rank/low_rank_experts_cuda.h"
#include "kernels/llm/low_rank/low_rank_heads_cuda.h"
#include "models/lora/lora_adapter.h"

namespace celer {
namespace {

using cuda::DeviceTerm;
using cuda::DeviceUse;
using cuda::LowRankTile;

constexpr int64_t kMostSlots = 256, kLeastSlots = 16;
constexpr int64_t kTermBytes = int64_t{128} << 20;  // that their terms may take
constexpr int64_t kFirstRank = 64;                  // room for A x from the start; it grows
constexpr int kMostMatrices = 3;                    // of a product

constexpr int64_t Up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
constexpr int64_t kTilesAt = Up(16, kLoraAlign);

constexpr std::array kExpertParts = {LoraPart::kRouter,     LoraPart::kExpertGate,  LoraPart::kExpertUp,
                                     LoraPart::kExpertDown, LoraPart::kSharedGate,  LoraPart::kSharedUp,
                                     LoraPart::kSharedDown, LoraPart::kSharedWeight};

}  // namespace

CudaLora::~CudaLora() {
  (void)stream_.Synchronize();  // steps that read it may be queued
}

int64_t CudaLora::PlainRoom(const DecoderConfig& c) {
  const auto of = [](int64_t cols, int matrices) {
    return int64_t{cuda::PlainPieces(cols)} * cuda::PlainWidth(matrices);
  };
  const RecurrentConfig& r = c.recurrent;
  const int64_t widest = std::max(
      {c.intermediate, c.heads * c.head_dim, c.latent.q_rank, c.heads * c.latent.value_dim,
       r.layer.empty() ? 0 : r.value_heads * r.value_dim, c.moe.intermediate, c.moe.shared_intermediate});
  return std::max(of(c.hidden, kMostMatrices), of(widest, 1));
}

int64_t CudaLora::Slots(const DecoderConfig& config) {
  const int64_t each = CudaLoraPlaces::Count(config) * static_cast<int64_t>(sizeof(DeviceTerm));
  return std::clamp(kTermBytes / each, kLeastSlots, kMostSlots);
}

int64_t CudaLora::Rows(const DecoderConfig& config, int64_t tokens) {
  const MoeConfig& moe = config.moe;
  return moe.experts > 0 ? tokens * (moe.experts_per_token + CudaModel::SharedExperts(moe)) : tokens;
}

// How many tiles, the tiles, the uses, and in mixtures the tile of each row.
int64_t CudaLora::PlanBytes(const DecoderConfig& config, int64_t rows) {
  return kTilesAt + rows * static_cast<int64_t>(sizeof(LowRankTile) + kMostUses * sizeof(DeviceUse)) +
         (config.moe.experts > 0 ? rows * static_cast<int64_t>(sizeof(int32_t)) : 0);
}

int64_t CudaLora::FixedBytes(const DecoderConfig& config, int64_t tokens, int64_t logit_rows) {
  const int64_t rows = Rows(config, tokens);
  return Slots(config) * CudaLoraPlaces::Count(config) * static_cast<int64_t>(sizeof(DeviceTerm)) +
         PlanBytes(config, tokens) + PlanBytes(config, logit_rows) +
         (config.moe.experts > 0 ? kTilesAt + rows * static_cast<int64_t>(sizeof(LowRankTile)) : 0) +
         4 * rows * (kMostMatrices * kFirstRank + PlainRoom(config));
}

Status CudaLora::Allocate(int64_t tokens, int64_t logit_rows) {
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  const auto zeros = [&](int64_t bytes) -> Result<Buffer> {
    CELER_ASSIGN(Buffer made, Buffer::Allocate(*allocator, static_cast<size_t>(bytes)));
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemset(made.data(), 0, made.size()), "clearing GPU memory"));
    return made;
  };
  const DecoderConfig& config = model_.config;
  rows_ = Rows(config, tokens);
  taken_.assign(static_cast<size_t>(Slots(config)), false);
  CELER_ASSIGN(terms_, zeros(std::ssize(taken_) * CudaLoraPlaces::Count(config) *
                             static_cast<int64_t>(sizeof(DeviceTerm))));
  for (const auto& [plan, rows] : {std::pair(&rows_plan_, tokens), std::pair(&logits_plan_, logit_rows)}) {
    plan->rows = rows;
    CELER_ASSIGN(plan->memory, zeros(PlanBytes(config, rows)));
  }
  if (config.moe.experts > 0) {
    CELER_ASSIGN(slot_tiles_, zeros(kTilesAt + rows_ * static_cast<int64_t>(sizeof(LowRankTile))));
  }
  CELER_ASSIGN(plain_low_, Buffer::Allocate(*allocator, static_cast<size_t>(4 * rows_ * PlainRoom(config))));
  return GrowLow(kFirstRank);
}

// A x of the widest mix for all matrices of a product.
Status CudaLora::GrowLow(int64_t rank) {
  if (rank <= low_rank_) return {};
  rank = Up(std::max(rank, low_rank_ * 2), cuda::kLowRankStep);
  CELER_RETURN_IF_ERROR(stream_.Synchronize());
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  low_ = Buffer();
  low_rank_ = 0;
  CELER_ASSIGN(low_, Buffer::Allocate(*allocator, static_cast<size_t>(4 * rows_ * kMostMatrices * rank)));
  low_rank_ = rank;
  ++version_;
  return {};
}

Status CudaLora::Check(const LoraMix& mix) const {
  const std::string where = "cuda:" + std::to_string(device_);
  if (std::ssize(mix.uses()) > kMostUses)
    return Error::Unsupported(mix.uses().size(), " adapters of one sequence; ", where, " takes up to ",
                              kMostUses, ": merge some with celer merge, or use `device` cpu");
  int64_t bytes = 0;
  std::set<const LoraAdapter*> seen;
  for (const LoraUse& use : mix.uses()) {
    const LoraAdapter& adapter = *use.adapter;
    if (seen.insert(&adapter).second) bytes += DeviceBytesOf(adapter);
    for (const LoraMatrix& m : adapter.matrices()) {
      const auto shape = places_.ShapeOf(m.at.place);
      if (!shape)
        return Error::Unsupported("adapter '", adapter.info().name, "' changes '", Printable(m.module),
                                  "', which no product on ", where,
                                  " has; merge it into the model with celer merge, or use `device` cpu");
      if (*shape != std::pair(m.at.rows, m.at.cols))
        return Error::Invalid("adapter '", adapter.info().name, "' was loaded for another model: '",
                              Printable(m.module), "' is ", m.at.rows, " x ", m.at.cols, " there and ",
                              shape->first, " x ", shape->second, " here");
    }
  }
  if (bytes > memory_)
    return Error::OutOfMemory(
        "the adapters of a sequence take ", FormatBytes(static_cast<uint64_t>(bytes)), " on ", where,
        ", and ", FormatBytes(static_cast<uint64_t>(memory_)),
        " are set aside for adapters; raise `lora_memory`, or load them with the model");
  return {};
}

bool CudaLora::FitTogether(std::span<const std::shared_ptr<const LoraMix>> mixes) const {
  std::set<const LoraAdapter*> seen;
  std::set<const LoraMix*> known;
  int64_t bytes = 0;
  for (const auto& mix : mixes)
    if (mix && known.insert(mix.get()).second)
      for (const LoraUse& use : mix->uses())
        if (seen.insert(use.adapter.get()).second) bytes += DeviceBytesOf(*use.adapter);
  return bytes <= memory_ && std::ssize(seen) <= std::ssize(taken_);
}

Status CudaLora::Evict(std::map<const LoraAdapter*, Resident>::iterator it) {
  CELER_RETURN_IF_ERROR(stream_.Synchronize());  // steps that read it may be queued
  taken_[static_cast<size_t>(it->second.slot)] = false;
  resident_bytes_ -= it->second.bytes;
  residents_.erase(it);
  return {};
}

// Of those that this step does not use.
Status CudaLora::MakeRoom(int64_t bytes) {
  while (resident_bytes_ + bytes > memory_ || residents_.size() >= taken_.size()) {
    auto oldest = residents_.end();
    for (auto it = residents_.begin(); it != residents_.end(); ++it)
      if (it->second.used < step_ && (oldest == residents_.end() || it->second.used < oldest->second.used))
        oldest = it;
    if (oldest == residents_.end())
      return Error::OutOfMemory("the adapters of one step do not fit into ",
                                FormatBytes(static_cast<uint64_t>(memory_)),
                                " of GPU memory; raise `lora_memory`");
    CELER_RETURN_IF_ERROR(Evict(oldest));
  }
  return {};
}

Status CudaLora::Use(const std::shared_ptr<const LoraAdapter>& adapter) {
  if (const auto found = residents_.find(adapter.get()); found != residents_.end()) {
    found->second.used = step_;
    return {};
  }
  const int64_t bytes = DeviceBytesOf(*adapter);
  CELER_RETURN_IF_ERROR(MakeRoom(bytes));
  Resident made;
  made.adapter = adapter;
  made.bytes = bytes;
  made.used = step_;
  made.slot = static_cast<int>(std::find(taken_.begin(), taken_.end(), false) - taken_.begin());
  CELER_RETURN_IF_ERROR(Upload(*adapter, &made));
  taken_[static_cast<size_t>(made.slot)] = true;
  resident_bytes_ += bytes;
  residents_.emplace(adapter.get(), std::move(made));
  return {};
}

Status CudaLora::Prepare(std::span<const std::shared_ptr<const LoraMix>> mixes,
                         std::span<const int32_t> starts, std::span<const int32_t> logit_rows,
                         UploadRing& ring) {
  ++step_;
  for (auto it = residents_.begin(); it != residents_.end();) {
    const auto next = std::next(it);
    if (it->second.adapter.expired()) CELER_RETURN_IF_ERROR(Evict(it));
    it = next;
  }
  // Those that are here already, first: else they might make room for the others.
  for (const auto& mix : mixes)
    if (mix)
      for (const LoraUse& use : mix->uses())
        if (const auto found = residents_.find(use.adapter.get()); found != residents_.end())
          found->second.used = step_;
  std::vector<const LoraMix*> distinct;
  std::vector<int32_t> mix_of;
  for (size_t s = 0; s + 1 < starts.size(); ++s) {
    const LoraMix* const mix = mixes.empty() ? nullptr : mixes[s].get();
    int32_t number = -1;
    if (mix) {
      auto found = std::find(distinct.begin(), distinct.end(), mix);
      if (found == distinct.end()) {
        found = distinct.insert(found, mix);
        int64_t rank = 0;
        bool plain = true;
        for (const LoraUse& use : mix->uses()) {
          CELER_RETURN_IF_ERROR(Use(use.adapter));
          rank += residents_.at(use.adapter.get()).rank;
          plain = plain && residents_.at(use.adapter.get()).plain;
        }
        plain = plain && rank <= cuda::kPlainRank;
        if (plain ? rank > plain_rank_ : !others_) ++version_;
        if (plain)
          plain_rank_ = std::max(plain_rank_, rank);
        else
          others_ = true;
        CELER_RETURN_IF_ERROR(GrowLow(rank));
      }
      number = static_cast<int32_t>(found - distinct.begin());
    }
    mix_of.insert(mix_of.end(), static_cast<size_t>(starts[s + 1] - starts[s]), number);
  }
  CELER_RETURN_IF_ERROR(Send(mix_of, distinct, &rows_plan_, ring));
  if ((touched_ & Bit(LoraPart::kHead)) == 0) return {};
  std::vector<int32_t> of_rows;
  for (const int32_t token : logit_rows) of_rows.push_back(mix_of[static_cast<size_t>(token)]);
  return Send(logit_rows.empty() ? std::span<const int32_t>(mix_of).first(std::min<size_t>(
                                       mix_of.size(), static_cast<size_t>(logits_plan_.rows)))
                                 : std::span<const int32_t>(of_rows),
              distinct, &logits_plan_, ring);
}

// Tiles first, then uses, at fixed places.
Status CudaLora::Send(std::span<const int32_t> mix_of, std::span<const LoraMix* const> mixes,
                      PlanMemory* plan, UploadRing& ring) {
  CELER_CHECK_LE(std::ssize(mix_of), plan->rows);
  std::vector<DeviceUse> uses;
  std::vector<LowRankTile> kinds(mixes.size() + 1);  // of each mix; the last: of none
  kinds.back().plain = 1;
  for (size_t i = 0; i < mixes.size(); ++i) {
    kinds[i].first_use = static_cast<int32_t>(uses.size());
    bool plain = true;
    for (const LoraUse& use : mixes[i]->uses()) {
      const Resident& resident = residents_.at(use.adapter.get());
      uses.push_back({.slot = resident.slot, .scale = use.scale, .low_at = kinds[i].rank});
      kinds[i].rank += static_cast<int32_t>(resident.rank);
      ++kinds[i].uses;
      plain = plain && resident.plain;
    }
    kinds[i].plain = plain && kinds[i].rank <= cuda::kPlainRank ? 1 : 0;
  }
  std::vector<LowRankTile> tiles;
  std::vector<int32_t> tile_of;               // of each row; in mixtures, whose slots need it
  std::vector<size_t> open(kinds.size(), 0);  // 1 more than the tile of each kind that is not full; 0: none
  for (size_t row = 0; row < mix_of.size(); ++row) {
    const size_t kind = mix_of[row] < 0 ? mixes.size() : static_cast<size_t>(mix_of[row]);
    if (open[kind] == 0) {
      tiles.push_back(kinds[kind]);
      open[kind] = tiles.size();
    }
    LowRankTile& tile = tiles[open[kind] - 1];
    if (model_.config.moe.experts > 0) tile_of.push_back(static_cast<int32_t>(open[kind]) - 1);
    tile.rows[static_cast<size_t>(tile.count++)] = static_cast<int32_t>(row);
    if (tile.count == cuda::kLowRankTile) open[kind] = 0;
  }
  const size_t tile_bytes = tiles.size() * sizeof(LowRankTile), use_bytes = uses.size() * sizeof(DeviceUse),
               of_bytes = tile_of.size() * sizeof(int32_t);
  std::vector<std::byte> bytes(static_cast<size_t>(kTilesAt) + tile_bytes + use_bytes + of_bytes);
  const auto count = static_cast<int32_t>(tiles.size());
  std::memcpy(bytes.data(), &count, sizeof count);
  std::byte* at = bytes.data() + kTilesAt;
  if (tile_bytes > 0) std::memcpy(at, tiles.data(), tile_bytes);
  if (use_bytes > 0) std::memcpy(at + tile_bytes, uses.data(), use_bytes);
  if (of_bytes > 0) std::memcpy(at + tile_bytes + use_bytes, tile_of.data(), of_bytes);
  if (bytes == plan->seen) return {};
  CELER_ASSIGN(std::byte * piece, ring.Begin(std::ssize(bytes)));
  std::memcpy(piece, bytes.data(), bytes.size());
  const cuda::LowRankPlan to = PlanOf(*plan);
  const auto copy = [&](const void* begin, size_t from, size_t size) -> Status {
    if (size == 0) return {};
    return ring.Copy(const_cast<void*>(begin), piece + from, static_cast<int64_t>(size));
  };
  const size_t uses_at = static_cast<size_t>(kTilesAt) + tile_bytes;
  CELER_RETURN_IF_ERROR(copy(to.tile_count, 0, uses_at));
  CELER_RETURN_IF_ERROR(copy(to.uses, uses_at, use_bytes));
  CELER_RETURN_IF_ERROR(copy(TileOf(*plan), uses_at + use_bytes, of_bytes));
  CELER_RETURN_IF_ERROR(ring.End());
  plan->seen = std::move(bytes);
  return {};
}

cuda::LowRankPlan CudaLora::PlanOf(const PlanMemory& plan) const {
  const std::byte* const at = plan.memory.data();
  const std::byte* const uses = at + kTilesAt + static_cast<size_t>(plan.rows) * sizeof(LowRankTile);
  return {.tile_count = reinterpret_cast<const int32_t*>(at),
          .tiles = reinterpret_cast<const LowRankTile*>(at + kTilesAt),
          .uses = reinterpret_cast<const DeviceUse*>(uses),
          .terms = reinterpret_cast<const DeviceTerm*>(terms_.data()),
          .places = static_cast<int>(CudaLoraPlaces::Count(model_.config))};
}

const int32_t* CudaLora::TileOf(const PlanMemory& plan) const {
  return reinterpret_cast<const int32_t*>(PlanOf(plan).uses + plan.rows * kMostUses);
}

bool CudaLora::Touches(std::span<const LoraPart> parts, uint64_t of) const {
  return std::any_of(parts.begin(), parts.end(), [&](LoraPart part) { return (of & Bit(part)) != 0; });
}

cuda::LowRankArgs CudaLora::Args(const Product& p, int rows) const {
  const bool head = p.parts[0] == LoraPart::kHead;
  cuda::LowRankArgs args;
  args.plan = PlanOf(head ? logits_plan_ : rows_plan_);
  if (p.slots) {
    args.plan.tile_count = reinterpret_cast<const int32_t*>(slot_tiles_.data());
    args.plan.tiles = reinterpret_cast<const LowRankTile*>(slot_tiles_.data() + kTilesAt);
    args.plan.late = true;
  }
  args.rows = rows;
  args.most_rank = static_cast<int>(low_rank_);
  args.x = p.x;
  args.x_rows = p.x_rows;
  args.cols = p.cols;
  args.x_stride = p.x_stride > 0 ? p.x_stride : p.cols;
  args.norm = p.norm;
  args.eps = p.eps;
  args.low = reinterpret_cast<float*>(low_.data());
  args.low_stride = kMostMatrices * low_rank_;
  args.plain_low = reinterpret_cast<float*>(plain_low_.data());
  args.plain_room = PlainRoom(model_.config);
  args.most_plain_rank = static_cast<int>(plain_rank_);
  args.others = others_;
  args.count = static_cast<int>(p.parts.size());
  for (size_t i = 0; i < p.parts.size(); ++i) {
    const LoraPlace place = {.part = p.parts[i], .layer = p.layer, .expert = p.slots ? 0 : -1};
    args.matrices[i] = {.place = places_.Of(place),
                        .expert_places = p.slots ? CudaLoraPlaces::kOfExpert : 0,
                        .rows = p.outs[i].rows,
                        .product = p.outs[i].product,
                        .stride = p.outs[i].stride > 0 ? p.outs[i].stride : p.stride,
                        .bias = p.outs[i].bias,
                        .add_to = p.add_to};
  }
  return args;
}

void CudaLora::Shrink(const Product& p, int rows) {
  if (Touches(p.parts, touched_)) fault_.Check(cuda::LaunchLowRankShrink(Args(p, rows), stream_.get()));
}

void CudaLora::Expand(const Product& p, int rows) {
  const bool biased = std::any_of(p.outs.begin(), p.outs.end(), [](const auto& out) { return out.bias; });
  if (!Touches(p.parts, touched_) && !p.add_to && !biased) return;
  const cuda::LowRankArgs args = Args(p, rows);
  fault_.Check(cuda::LaunchLowRankExpand(args, stream_.get()));
  if (Touches(p.parts, wholes_)) fault_.Check(cuda::LaunchLowRankWhole(args, stream_.get()));
}

bool CudaLora::ExpandActivate(const Product& p, int rows, const cuda::LowRankActivation& to) {
  if (!Touches(p.parts, touched_)) return false;
  const cuda::LowRankArgs args = Args(p, rows);
  if (!cuda::LowRankActivates(args)) return false;
  fault_.Check(cuda::LaunchLowRankExpandActivate(args, to, stream_.get()));
  return true;
}

bool CudaLora::TouchesExperts() const {
  return Touches(kExpertParts, touched_);
}

void CudaLora::Route(const cuda::MoePlan& slots, int count) {
  fault_.Check(
      cuda::LaunchLowRankSlots({.tokens = PlanOf(rows_plan_),
                                .tile_of = TileOf(rows_plan_),
                                .slots = slots,
                                .count = count,
                                .tiles = reinterpret_cast<LowRankTile*>(slot_tiles_.data() + kTilesAt),
                                .tile_count = reinterpret_cast<int32_t*>(slot_tiles_.data())},
                               stream_.get()));
}

bool CudaLora::TouchesHeads() const {
  return (touched_ & Bit(LoraPart::kLatentKvB)) != 0;
}

void CudaLora::AddHeads(const Heads& h, int rows) {
  if (!TouchesHeads()) return;
  const DecoderConfig& c = model_.config;
  fault_.Check(
      cuda::LaunchLowRankHeads({.plan = PlanOf(rows_plan_),
                                .rows = rows,
                                .first = h.first,
                                .count = h.count,
                                .place = places_.Of({.part = LoraPart::kLatentKvB, .layer = h.layer}),
                                .heads = static_cast<int>(c.heads),
                                .kv_rank = static_cast<int>(c.latent.kv_rank),
                                .nope_dim = static_cast<int>(c.latent.nope_dim),
                                .value_dim = static_cast<int>(c.latent.value_dim),
                                .keys = h.keys,
                                .x = h.x,
                                .x_row = h.x_row,
                                .x_head = h.x_head,
                                .out = h.out,
                                .out_row = h.out_row,
                                .out_head = h.out_head},
                               stream_.get()));
}

void CudaLora::AddEmbedding(const int32_t* tokens, float* x, int rows) {
  if ((touched_ & Bit(LoraPart::kEmbedding)) == 0) return;
  fault_.Check(cuda::LaunchLowRankEmbed({.plan = PlanOf(rows_plan_),
                                         .rows = rows,
                                         .place = places_.Of({.part = LoraPart::kEmbedding}),
                                         .tokens = tokens,
                                         .table = model_.embedding,
                                         .scale = model_.config.embedding_scale,
                                         .out = x},
                                        stream_.get()));
}

}  // namespace celer
