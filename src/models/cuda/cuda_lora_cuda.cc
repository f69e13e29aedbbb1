#include "models/cuda/cuda_lora.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/allocator.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "formats/decode.h"
#include "formats/float16.h"
#include "io/file/printable.h"
#include "models/lora/lora_adapter.h"

namespace celer {
namespace {

using cuda::DeviceTerm;
using cuda::DeviceUse;
using cuda::LowRankTile;
using cuda::LowRankType;

constexpr int kSlots = 256;         // adapters in device memory at once
constexpr int64_t kFirstRank = 64;  // room for A x from the start; it grows
constexpr std::array kLayerParts = {LoraPart::kQ,    LoraPart::kK,  LoraPart::kV,   LoraPart::kO,
                                    LoraPart::kGate, LoraPart::kUp, LoraPart::kDown};
constexpr auto kLayerPartCount = static_cast<int64_t>(kLayerParts.size());
constexpr int kMostMatrices = 3;  // of a product

constexpr int64_t Up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
uint64_t Bit(LoraPart part) {
  return uint64_t{1} << static_cast<int>(part);
}

// Numbers that bf16, or f16, holds as they are take half the memory there, and half the time.
bool FitsBf16(const float* values, int64_t n) {
  return std::all_of(values, values + n, [](float v) { return (std::bit_cast<uint32_t>(v) & 0xffff) == 0; });
}

bool FitsF16(const float* values, int64_t n) {
  return std::all_of(values, values + n, [](float v) { return F16ToFloat(FloatToF16(v)) == v; });
}

// What an adapter's arrays become: pieces of one allocation, filled on the host.
class Arena {
 public:
  // The offset of [rows, cols], each row padded to `stride`.
  int64_t Add(const float* values, int64_t rows, int64_t cols, int64_t stride, LowRankType* type) {
    *type = FitsBf16(values, rows * cols)  ? LowRankType::kBf16
            : FitsF16(values, rows * cols) ? LowRankType::kF16
                                           : LowRankType::kF32;
    const int64_t element = *type == LowRankType::kF32 ? 4 : 2;
    const int64_t at = Take(rows * stride * element);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const float value = values[r * cols + c];
        std::byte* const to = bytes_.data() + at + (r * stride + c) * element;
        if (element == 2) {
          const auto half = *type == LowRankType::kBf16
                                ? static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)
                                : FloatToF16(value);
          std::memcpy(to, &half, 2);
        } else {
          std::memcpy(to, &value, 4);
        }
      }
    return at;
  }
  int64_t AddFloats(std::span<const float> values) {
    const int64_t at = Take(static_cast<int64_t>(values.size_bytes()));
    std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return at;
  }
  int64_t Take(int64_t bytes) {
    const int64_t at = Up(std::ssize(bytes_), kLoraAlign);
    bytes_.resize(static_cast<size_t>(at + bytes));
    return at;
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Values by row in the device's order.
std::vector<float> InOrder(std::span<const float> values, std::span<const int32_t> order) {
  std::vector<float> out(values.begin(), values.end());
  for (size_t i = 0; i < order.size(); ++i) out[i] = values[static_cast<size_t>(order[i])];
  return out;
}

}  // namespace

CudaLora::~CudaLora() {
  (void)stream_.Synchronize();  // steps that read it may be queued
}

int64_t CudaLora::PartsOf(const DecoderConfig& config) {
  return config.layers * kLayerPartCount + 2;
}

int64_t CudaLora::PlainRoom(const DecoderConfig& c) {
  const auto of = [](int64_t cols, int matrices) {
    return int64_t{cuda::PlainPieces(cols)} * cuda::PlainWidth(matrices);
  };
  return std::max(of(c.hidden, kMostMatrices), of(std::max(c.intermediate, c.heads * c.head_dim), 1));
}

int CudaLora::PlaceOf(const LoraPlace& place) const {
  const int64_t layers = model_.config.layers * kLayerPartCount;
  if (place.part == LoraPart::kHead) return static_cast<int>(layers);
  if (place.part == LoraPart::kEmbedding) return static_cast<int>(layers) + 1;
  const auto found = std::find(kLayerParts.begin(), kLayerParts.end(), place.part);
  if (found == kLayerParts.end() || place.layer < 0 || place.layer >= model_.config.layers) return -1;
  return static_cast<int>(place.layer * kLayerPartCount + (found - kLayerParts.begin()));
}

// None: the model has no such matrix, or no kernel that an adapter goes with.
const DeviceMatrix* CudaLora::MatrixOf(const LoraPlace& place) const {
  if (PlaceOf(place) < 0) return nullptr;
  if (place.part == LoraPart::kHead) return &model_.head;
  if (place.part == LoraPart::kEmbedding) return &model_.embedding;
  const DeviceLayer& l = model_.layers[static_cast<size_t>(place.layer)];
  const bool dense = !l.sparse();
  switch (place.part) {
    case LoraPart::kQ:
      return &l.q;
    case LoraPart::kK:
      return &l.k;
    case LoraPart::kV:
      return &l.v;
    case LoraPart::kO:
      return &l.o;
    case LoraPart::kGate:
      return dense ? &l.gate : nullptr;
    case LoraPart::kUp:
      return dense ? &l.up : nullptr;
    case LoraPart::kDown:
      return dense ? &l.down : nullptr;
    default:
      return nullptr;
  }
}

int64_t CudaLora::FixedBytes(const DecoderConfig& config, int64_t tokens, int64_t logit_rows) {
  const auto plan = [](int64_t rows) {
    return Up(16, kLoraAlign) +
           rows * static_cast<int64_t>(sizeof(LowRankTile) + kMostUses * sizeof(DeviceUse));
  };
  return kSlots * PartsOf(config) * static_cast<int64_t>(sizeof(DeviceTerm)) + plan(tokens) +
         plan(logit_rows) + 4 * tokens * (kMostMatrices * kFirstRank + PlainRoom(config));
}

Status CudaLora::Allocate(int64_t tokens, int64_t logit_rows) {
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  const auto zeros = [&](int64_t bytes) -> Result<Buffer> {
    CELER_ASSIGN(Buffer made, Buffer::Allocate(*allocator, static_cast<size_t>(bytes)));
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemset(made.data(), 0, made.size()), "clearing GPU memory"));
    return made;
  };
  tokens_ = tokens;
  CELER_ASSIGN(terms_, zeros(kSlots * places() * static_cast<int64_t>(sizeof(DeviceTerm))));
  for (const auto& [plan, rows] : {std::pair(&rows_plan_, tokens), std::pair(&logits_plan_, logit_rows)}) {
    plan->rows = rows;
    CELER_ASSIGN(plan->memory,
                 zeros(Up(16, kLoraAlign) +
                       rows * static_cast<int64_t>(sizeof(LowRankTile) + kMostUses * sizeof(DeviceUse))));
  }
  taken_.assign(kSlots, false);
  CELER_ASSIGN(plain_low_,
               Buffer::Allocate(*allocator, static_cast<size_t>(4 * tokens * PlainRoom(model_.config))));
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
  CELER_ASSIGN(low_, Buffer::Allocate(*allocator, static_cast<size_t>(4 * tokens_ * kMostMatrices * rank)));
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
      const DeviceMatrix* const at = MatrixOf(m.at.place);
      if (!at || !*at)
        return Error::Unsupported(
            "adapter '", adapter.info().name, "' changes '", Printable(m.module), "', and on ", where,
            " adapters change attention, dense MLPs, the embedding and the head; merge it into "
            "the model with celer merge, or use `device` cpu");
      if (at->rows != m.at.rows || at->cols != m.at.cols)
        return Error::Invalid("adapter '", adapter.info().name, "' was loaded for another model: '",
                              Printable(m.module), "' is ", m.at.rows, " x ", m.at.cols, " there and ",
                              at->rows, " x ", at->cols, " here");
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
  return bytes <= memory_ && seen.size() <= kSlots;
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
  while (resident_bytes_ + bytes > memory_ || std::ssize(residents_) >= kSlots) {
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

Status CudaLora::Upload(const LoraAdapter& adapter, Resident* to) {
  Arena arena;
  to->terms.assign(static_cast<size_t>(places()), {});
  std::map<const void*, std::pair<int64_t, LowRankType>> shared;  // of fused modules
  uint64_t touched = 0, wholes = 0;
  // Offsets until the memory is there: 1 more, so that 0 is none.
  const auto pointer = [](int64_t at) {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(at) + 1);
  };
  for (const LoraMatrix& m : adapter.matrices()) {
    const bool embedding = m.at.place.part == LoraPart::kEmbedding;
    const std::vector<int32_t> order = HeadRowOrder(model_.config, m.at.place, m.at.rows);
    DeviceTerm term;
    term.rank = static_cast<int32_t>(m.rank);
    if (m.rank > 0) {
      // Of an embedding a row for each token, which stands at place.rows.
      const int64_t a_rows = embedding ? std::ssize(*m.a) / m.rank : m.rank,
                    a_cols = embedding ? m.rank : m.at.cols,
                    stride = embedding ? m.rank : Up(a_cols, kLoraPad);
      const auto [found, fresh] = shared.try_emplace(m.a.get());
      if (fresh) found->second.first = arena.Add(m.a->data(), a_rows, a_cols, stride, &found->second.second);
      term.a = pointer(found->second.first);
      term.a_type = found->second.second;
      term.a_stride = static_cast<int32_t>(stride);
      const int64_t width = std::ssize(m.b) / m.rank;
      std::vector<float> b;
      b.reserve(m.b.size());
      for (int64_t r = 0; r < m.rank; ++r) {
        const std::vector<float> row = InOrder(
            std::span(m.b).subspan(static_cast<size_t>(r * width), static_cast<size_t>(width)), order);
        b.insert(b.end(), row.begin(), row.end());
      }
      term.b = pointer(arena.Add(b.data(), m.rank, width, width, &term.b_type));
    }
    if (!m.row_scale.empty())
      term.row_scale = reinterpret_cast<const float*>(pointer(arena.AddFloats(InOrder(m.row_scale, order))));
    if (!m.shift.empty()) {
      std::vector<float> shift = InOrder(m.shift, order);
      // These have the residual's scale as they come, and here the residual has none.
      if (m.at.place.part == LoraPart::kO || m.at.place.part == LoraPart::kDown)
        for (float& v : shift) v /= model_.residual_scale;
      term.shift = reinterpret_cast<const float*>(pointer(arena.AddFloats(shift)));
    }
    if (!m.whole.empty()) {
      const int64_t rows = m.at.rows, cols = m.at.cols, row_bytes = *BytesFor(m.whole_dtype, cols);
      const auto row = [&](int64_t r) {
        return m.whole.data() + (order.empty() ? r : order[static_cast<size_t>(r)]) * row_bytes;
      };
      const int64_t stride = Up(cols, kLoraPad);
      if (m.whole_dtype == DType::kF16) {  // as it is: f32 would take twice the bytes
        const int64_t at = arena.Take(2 * rows * stride);
        for (int64_t r = 0; r < rows; ++r)
          std::memcpy(arena.bytes().data() + at + 2 * r * stride, row(r), static_cast<size_t>(row_bytes));
        term.whole = pointer(at);
        term.whole_type = LowRankType::kF16;
      } else {
        std::vector<float> values(static_cast<size_t>(rows * cols));
        for (int64_t r = 0; r < rows; ++r) DecodeRow(m.whole_dtype, row(r), cols, values.data() + r * cols);
        term.whole = pointer(arena.Add(values.data(), rows, cols, stride, &term.whole_type));
      }
      term.whole_stride = static_cast<int32_t>(stride);
      wholes |= Bit(m.at.place.part);
    }
    const auto in_16 = [](LowRankType type) { return type != LowRankType::kF32; };
    const bool bare = m.row_scale.empty() && m.shift.empty() && m.whole.empty();
    to->plain = to->plain && bare && (m.rank == 0 || (in_16(term.a_type) && in_16(term.b_type)));
    touched |= Bit(m.at.place.part);
    to->rank = std::max(to->rank, Up(m.rank, cuda::kLowRankStep));
    to->terms[static_cast<size_t>(PlaceOf(m.at.place))] = term;
  }
  if (arena.bytes().empty()) return {};
  // What had this memory before may still be written on the default stream.
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "making room for an adapter"));
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  CELER_ASSIGN(to->memory, Buffer::Allocate(*allocator, arena.bytes().size()));
  const auto moved = [&](const auto*& p) {
    if (!p) return;
    const auto at = reinterpret_cast<uintptr_t>(p) - 1;
    p = reinterpret_cast<std::remove_reference_t<decltype(p)>>(to->memory.data() + at);
  };
  for (DeviceTerm& term : to->terms)
    moved(term.a), moved(term.b), moved(term.row_scale), moved(term.shift), moved(term.whole);
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(to->memory.data(), arena.bytes().data(), arena.bytes().size(),
                                 cudaMemcpyHostToDevice, stream_.get()),
                 "copying an adapter to the GPU"));
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(terms_.data() + static_cast<size_t>(to->slot) * to->terms.size() * sizeof(DeviceTerm),
                      to->terms.data(), to->terms.size() * sizeof(DeviceTerm), cudaMemcpyHostToDevice,
                      stream_.get()),
      "copying an adapter to the GPU"));
  if ((touched & ~touched_) != 0 || (wholes & ~wholes_) != 0) ++version_;
  touched_ |= touched;
  wholes_ |= wholes;
  log::Info("cuda:{}: adapter '{}' takes {}", device_, adapter.info().name,
            FormatBytes(arena.bytes().size()));
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
  std::vector<size_t> open(kinds.size(), 0);  // 1 more than the tile of each kind that is not full; 0: none
  for (size_t row = 0; row < mix_of.size(); ++row) {
    const size_t kind = mix_of[row] < 0 ? mixes.size() : static_cast<size_t>(mix_of[row]);
    if (open[kind] == 0) {
      tiles.push_back(kinds[kind]);
      open[kind] = tiles.size();
    }
    LowRankTile& tile = tiles[open[kind] - 1];
    tile.rows[static_cast<size_t>(tile.count++)] = static_cast<int32_t>(row);
    if (tile.count == cuda::kLowRankTile) open[kind] = 0;
  }
  const int64_t tiles_at = Up(16, kLoraAlign),
                uses_at = tiles_at + plan->rows * static_cast<int64_t>(sizeof(LowRankTile));
  const size_t tile_bytes = tiles.size() * sizeof(LowRankTile), use_bytes = uses.size() * sizeof(DeviceUse);
  std::vector<std::byte> bytes(static_cast<size_t>(tiles_at) + tile_bytes + use_bytes);
  const auto count = static_cast<int32_t>(tiles.size());
  std::memcpy(bytes.data(), &count, sizeof count);
  if (tile_bytes > 0) std::memcpy(bytes.data() + tiles_at, tiles.data(), tile_bytes);
  if (use_bytes > 0) std::memcpy(bytes.data() + tiles_at + tile_bytes, uses.data(), use_bytes);
  if (bytes == plan->seen) return {};
  CELER_ASSIGN(std::byte * piece, ring.Begin(std::ssize(bytes)));
  std::memcpy(piece, bytes.data(), bytes.size());
  CELER_RETURN_IF_ERROR(ring.Copy(plan->memory.data(), piece, tiles_at + static_cast<int64_t>(tile_bytes)));
  if (use_bytes > 0)
    CELER_RETURN_IF_ERROR(ring.Copy(plan->memory.data() + uses_at, piece + tiles_at + tile_bytes,
                                    static_cast<int64_t>(use_bytes)));
  CELER_RETURN_IF_ERROR(ring.End());
  plan->seen = std::move(bytes);
  return {};
}

cuda::LowRankPlan CudaLora::PlanOf(const PlanMemory& plan) const {
  const std::byte* const at = plan.memory.data();
  const std::byte* const tiles = at + Up(16, kLoraAlign);
  return {.tile_count = reinterpret_cast<const int32_t*>(at),
          .tiles = reinterpret_cast<const LowRankTile*>(tiles),
          .uses = reinterpret_cast<const DeviceUse*>(tiles +
                                                     static_cast<size_t>(plan.rows) * sizeof(LowRankTile)),
          .terms = reinterpret_cast<const DeviceTerm*>(terms_.data()),
          .places = places()};
}

bool CudaLora::Touches(std::span<const LoraPart> parts, uint64_t of) const {
  return std::any_of(parts.begin(), parts.end(), [&](LoraPart part) { return (of & Bit(part)) != 0; });
}

cuda::LowRankArgs CudaLora::Args(const Product& p, int rows) const {
  const bool head = p.parts[0] == LoraPart::kHead;
  cuda::LowRankArgs args;
  args.plan = PlanOf(head ? logits_plan_ : rows_plan_);
  args.rows = rows;
  args.most_rank = static_cast<int>(low_rank_);
  args.x = p.x;
  args.x_rows = p.x_rows;
  args.x_stride = args.cols = p.cols;
  args.norm = p.norm;
  args.eps = p.eps;
  args.low = reinterpret_cast<float*>(low_.data());
  args.low_stride = kMostMatrices * low_rank_;
  args.plain_low = reinterpret_cast<float*>(plain_low_.data());
  args.plain_room = PlainRoom(model_.config);
  args.most_plain_rank = static_cast<int>(plain_rank_);
  args.others = others_;
  args.count = static_cast<int>(p.parts.size());
  for (size_t i = 0; i < p.parts.size(); ++i)
    args.matrices[i] = {.place = PlaceOf({.part = p.parts[i], .layer = p.layer}),
                        .rows = p.outs[i].rows,
                        .product = p.outs[i].product,
                        .stride = p.stride,
                        .bias = p.bias,
                        .add_to = p.add_to};
  return args;
}

void CudaLora::Shrink(const Product& p, int rows) {
  if (Touches(p.parts, touched_)) fault_.Check(cuda::LaunchLowRankShrink(Args(p, rows), stream_.get()));
}

void CudaLora::Expand(const Product& p, int rows) {
  if (!Touches(p.parts, touched_) && !p.add_to && !p.bias) return;
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

void CudaLora::AddEmbedding(const int32_t* tokens, float* x, int rows) {
  if ((touched_ & Bit(LoraPart::kEmbedding)) == 0) return;
  fault_.Check(cuda::LaunchLowRankEmbed({.plan = PlanOf(rows_plan_),
                                         .rows = rows,
                                         .place = PlaceOf({.part = LoraPart::kEmbedding}),
                                         .tokens = tokens,
                                         .table = model_.embedding,
                                         .scale = model_.config.embedding_scale,
                                         .out = x},
                                        stream_.get()));
}

}  // namespace celer
