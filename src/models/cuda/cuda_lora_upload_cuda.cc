// An adapter into the memory of a GPU.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "base/log.h"
#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "formats/decode.h"
#include "formats/float16.h"
#include "models/cuda/cuda_lora.h"
#include "models/lora/lora_adapter.h"

namespace celer {
namespace {

using cuda::DeviceTerm;
using cuda::LowRankType;

constexpr int64_t Up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}
constexpr int64_t ElementBytes(LowRankType type) {
  return type == LowRankType::kF32 ? 4 : 2;
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
    const int64_t element = ElementBytes(*type);
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

// Offsets until the memory is there: 1 more, so that 0 is none.
std::byte* AsPointer(int64_t at) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(at) + 1);
}
template <class T>
void Move(const T*& p, const std::byte* memory) {
  if (p) p = reinterpret_cast<const T*>(memory + (reinterpret_cast<uintptr_t>(p) - 1));
}

// One adapter's arrays and terms, on the host.
class Packer {
 public:
  explicit Packer(const CudaModel& model) : model_(model) {}

  DeviceTerm Add(const LoraMatrix& m) {
    const std::vector<int32_t> order = HeadRowOrder(model_.config, m.at.place, m.at.rows);
    DeviceTerm term;
    term.rank = static_cast<int32_t>(m.rank);
    if (m.rank > 0) AddPair(m, order, &term);
    if (!m.row_scale.empty()) term.row_scale = AddFloats(InOrder(m.row_scale, order));
    if (!m.shift.empty()) {
      std::vector<float> shift = InOrder(m.shift, order);
      // These have the residual's scale as they come, and here the residual has none.
      const LoraPart part = m.at.place.part;
      if (part == LoraPart::kO || part == LoraPart::kDown || part == LoraPart::kStateOut)
        for (float& v : shift) v /= model_.residual_scale;
      term.shift = AddFloats(shift);
    }
    if (!m.whole.empty()) AddWhole(m, order, &term);
    return term;
  }
  std::vector<std::byte>& bytes() { return arena_.bytes(); }

 private:
  const float* AddFloats(std::span<const float> values) {
    return reinterpret_cast<const float*>(AsPointer(arena_.AddFloats(values)));
  }

  void AddPair(const LoraMatrix& m, const std::vector<int32_t>& order, DeviceTerm* term) {
    // Of an embedding a row for each token, which stands at place.rows.
    const bool embedding = m.at.place.part == LoraPart::kEmbedding;
    const int64_t a_rows = embedding ? std::ssize(*m.a) / m.rank : m.rank,
                  a_cols = embedding ? m.rank : m.at.cols, stride = embedding ? m.rank : Up(a_cols, kLoraPad);
    const auto [found, fresh] = shared_.try_emplace(m.a.get());
    if (fresh) found->second.first = arena_.Add(m.a->data(), a_rows, a_cols, stride, &found->second.second);
    term->a = AsPointer(found->second.first);
    term->a_type = found->second.second;
    term->a_stride = static_cast<int32_t>(stride);
    const int64_t width = std::ssize(m.b) / m.rank;
    std::vector<float> b;
    b.reserve(m.b.size());
    for (int64_t r = 0; r < m.rank; ++r) {
      const std::vector<float> row =
          InOrder(std::span(m.b).subspan(static_cast<size_t>(r * width), static_cast<size_t>(width)), order);
      b.insert(b.end(), row.begin(), row.end());
    }
    term->b = AsPointer(arena_.Add(b.data(), m.rank, width, width, &term->b_type));
    term->b_stride = static_cast<int32_t>(width);
  }

  void AddWhole(const LoraMatrix& m, const std::vector<int32_t>& order, DeviceTerm* term) {
    const int64_t rows = m.at.rows, cols = m.at.cols, row_bytes = *BytesFor(m.whole_dtype, cols),
                  stride = Up(cols, kLoraPad);
    const auto row = [&](int64_t r) {
      return m.whole.data() + (order.empty() ? r : order[static_cast<size_t>(r)]) * row_bytes;
    };
    term->whole_stride = static_cast<int32_t>(stride);
    if (m.whole_dtype == DType::kF16) {  // as it is: f32 would take twice the bytes
      const int64_t at = arena_.Take(2 * rows * stride);
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(bytes().data() + at + 2 * r * stride, row(r), static_cast<size_t>(row_bytes));
      term->whole = AsPointer(at);
      term->whole_type = LowRankType::kF16;
      return;
    }
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) DecodeRow(m.whole_dtype, row(r), cols, values.data() + r * cols);
    term->whole = AsPointer(arena_.Add(values.data(), rows, cols, stride, &term->whole_type));
  }

  const CudaModel& model_;
  Arena arena_;
  std::map<const void*, std::pair<int64_t, LowRankType>> shared_;  // of fused modules
};

// A term of all rows and columns, as that of some of them.
DeviceTerm Cut(DeviceTerm term, const CudaLoraPlaces::Piece& piece) {
  const auto skip = [](const void*& p, int64_t bytes) {
    if (p) p = static_cast<const std::byte*>(p) + bytes;
  };
  skip(term.a, piece.col * ElementBytes(term.a_type));
  skip(term.b, piece.row * ElementBytes(term.b_type));
  skip(term.whole, (piece.row * term.whole_stride + piece.col) * ElementBytes(term.whole_type));
  if (term.row_scale) term.row_scale += piece.row;
  if (term.shift) term.shift += piece.row;
  if (piece.col > 0) term.shift = nullptr;  // what the pieces give is added up
  return term;
}

}  // namespace

Status CudaLora::Upload(const LoraAdapter& adapter, Resident* to) {
  Packer packer(model_);
  to->terms.assign(static_cast<size_t>(CudaLoraPlaces::Count(model_.config)), {});
  uint64_t touched = 0, wholes = 0;
  for (const LoraMatrix& m : adapter.matrices()) {
    const DeviceTerm term = packer.Add(m);
    for (const CudaLoraPlaces::Piece& piece : places_.PiecesOf(m.at.place)) {
      to->terms[static_cast<size_t>(piece.place)] = Cut(term, piece);
      touched |= Bit(piece.part);
      if (term.whole) wholes |= Bit(piece.part);
    }
    const auto in_16 = [](LowRankType type) { return type != LowRankType::kF32; };
    const bool bare = m.row_scale.empty() && m.shift.empty() && m.whole.empty();
    to->plain = to->plain && bare && (m.rank == 0 || (in_16(term.a_type) && in_16(term.b_type)));
    to->rank = std::max(to->rank, Up(m.rank, cuda::kLowRankStep));
  }
  std::vector<std::byte>& bytes = packer.bytes();
  // What had this memory before may still be written on the default stream.
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(nullptr), "making room for an adapter"));
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device_));
  CELER_ASSIGN(to->memory, Buffer::Allocate(*allocator, std::max<size_t>(bytes.size(), 1)));
  const std::byte* const memory = to->memory.data();
  for (DeviceTerm& term : to->terms) {
    Move(term.a, memory), Move(term.b, memory), Move(term.whole, memory);
    Move(term.row_scale, memory), Move(term.shift, memory);
  }
  const auto copy = [&](std::byte* at, const void* from, size_t size) {
    return CudaStatus(cudaMemcpyAsync(at, from, size, cudaMemcpyHostToDevice, stream_.get()),
                      "copying an adapter to the GPU");
  };
  if (!bytes.empty()) CELER_RETURN_IF_ERROR(copy(to->memory.data(), bytes.data(), bytes.size()));
  const size_t terms_bytes = to->terms.size() * sizeof(DeviceTerm);
  CELER_RETURN_IF_ERROR(
      copy(terms_.data() + static_cast<size_t>(to->slot) * terms_bytes, to->terms.data(), terms_bytes));
  if ((touched & ~touched_) != 0 || (wholes & ~wholes_) != 0) ++version_;
  touched_ |= touched;
  wholes_ |= wholes;
  log::Info("cuda:{}: adapter '{}' takes {}", device_, adapter.info().name, FormatBytes(bytes.size()));
  return {};
}

}  // namespace celer
