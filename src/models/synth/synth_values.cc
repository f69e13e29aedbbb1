#include "models/synth/synth_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/decode.h"
#include "models/cpu/rope.h"

namespace celer {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;

// Enough that rows of four blocks choose among 2^56 combinations: no two rows of a model are likely to be
// equal.
constexpr int64_t kPoolBlocks = int64_t{1} << 14;
constexpr int64_t kPoolMinBlocksPerRow = 4;

// The sum of eight bytes has a standard deviation of sqrt(8 (256^2 - 1) / 12) = 209.0215.
constexpr float kStep = 0.02f / 209.0215f;

// A counter becomes 64 well-mixed bits: two rounds of multiply and fold, the constants of splitmix64.
inline uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

inline uint64_t Draw(uint64_t key, int64_t index) {
  return Mix(key + static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u);
}

inline int ByteSum(uint64_t x) {
  constexpr uint64_t kEven = 0x00ff00ff00ff00ffu;
  const uint64_t pairs = (x & kEven) + (x >> 8 & kEven);  // four lanes of at most 510
  return static_cast<int>((pairs * 0x0001000100010001u) >> 48);
}

// FNV-1a.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

struct Extent {
  int64_t rows, cols;  // all outer dimensions together, and the innermost
};

Extent ExtentOf(const Shape& shape) {
  Extent extent{1, shape[shape.rank() - 1]};
  for (int i = 0; i + 1 < shape.rank(); ++i) extent.rows *= shape[i];
  return extent;
}

// GGUF's "llama" has the two halves of a head interleaved: row 2i + j of a head is row j * head/2 + i
// elsewhere.
int64_t PublishedRow(int64_t row, int64_t head) {
  if (head == 0) return row;
  const int64_t in_head = row % head;
  return row - in_head + in_head % 2 * (head / 2) + in_head / 2;
}

// What GGUF divides the frequencies by, where config.json has Llama 3.1's scaling.
std::vector<float> RopeFactors(const RopeConfig& rope) {
  RopeConfig plain = rope;
  plain.scaling = RopeConfig::Scaling::kNone;
  const RopeTable before(plain), after(rope);
  std::vector<float> factors;
  for (size_t i = 0; i < before.frequencies().size(); ++i)
    factors.push_back(before.frequencies()[i] / after.frequencies()[i]);
  return factors;
}

bool IsKFormat(DType dtype) {
  return Info(dtype).block == 256;
}

}  // namespace

SynthStream::SynthStream(uint64_t seed, std::string_view name) : key_(Mix(Mix(seed + 1) ^ Hash(name))) {}

uint64_t SynthStream::Bits(int64_t index) const {
  return Draw(key_, index);
}

void SynthStream::Fill(int64_t first, int64_t n, float* out) const {
  const uint64_t key = key_;
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(ByteSum(Draw(key, first + i)) - 1020) * kStep;
}

SynthFiller::SynthFiller(const SynthModel& model, ThreadPool& pool, SynthProgress progress, int64_t total)
    : model_(model), pool_(pool), progress_(std::move(progress)), total_(total) {}

// Quantizing to a K format is a search, far slower than drawing the values. So large matrices are
// made of blocks that are drawn and quantized once, and each row takes its own random choice of them.
bool SynthFiller::UsesPool(const SynthTensor& tensor) const {
  if (tensor.values != SynthTensor::Values::kNormal || !IsKFormat(tensor.spec.dtype)) return false;
  const Extent extent = ExtentOf(tensor.spec.shape);
  const int64_t per_row = extent.cols / Info(tensor.spec.dtype).block;
  return per_row >= kPoolMinBlocksPerRow && per_row * extent.rows > kPoolBlocks / 8;
}

Status SynthFiller::Fill(const SynthTensor& tensor, const TensorSink& sink) {
  const Extent extent = ExtentOf(tensor.spec.shape);
  const int64_t row_bytes = BytesFor(tensor.spec.dtype, extent.cols).value();
  const int64_t at_once = std::max<int64_t>(1, kPieceBytes / row_bytes);
  piece_.resize(std::min(at_once, extent.rows) * row_bytes);
  const bool from_pool = UsesPool(tensor);
  for (int64_t row = 0; row < extent.rows; row += at_once) {
    const int64_t rows = std::min(at_once, extent.rows - row);
    if (from_pool)
      FillFromPool(tensor, row, rows, piece_.data());
    else
      FillPlain(tensor, row, rows, piece_.data());
    CELER_RETURN_IF_ERROR(sink(std::span(piece_).first(static_cast<size_t>(rows * row_bytes))));
    done_ += rows * row_bytes;
    if (progress_) CELER_RETURN_IF_ERROR(progress_(done_, total_));
  }
  return {};
}

void SynthFiller::FillPlain(const SynthTensor& tensor, int64_t first_row, int64_t rows, std::byte* out) {
  const Extent extent = ExtentOf(tensor.spec.shape);
  const DType dtype = tensor.spec.dtype;
  const int64_t row_bytes = BytesFor(dtype, extent.cols).value();
  const int64_t part_rows = extent.rows / static_cast<int64_t>(tensor.parts.size());
  const std::vector<float> factors =
      tensor.values == SynthTensor::Values::kRopeFactors ? RopeFactors(model_.rope) : std::vector<float>();
  pool_.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values(extent.cols, 1.0f);
    for (int64_t r = begin; r < end; ++r) {
      if (tensor.values == SynthTensor::Values::kNormal) {
        const int64_t row = first_row + r;
        const SynthStream stream(model_.seed, tensor.parts[row / part_rows]);
        const int64_t published = PublishedRow(row % part_rows, tensor.interleave_head);
        stream.Fill(published * extent.cols, extent.cols, values.data());
      } else if (tensor.values == SynthTensor::Values::kRopeFactors) {
        values = factors;
      }
      EncodeRow(dtype, values.data(), extent.cols, out + r * row_bytes);
    }
  });
}

void SynthFiller::FillFromPool(const SynthTensor& tensor, int64_t first_row, int64_t rows, std::byte* out) {
  const DType dtype = tensor.spec.dtype;
  const auto block_bytes = static_cast<size_t>(Info(dtype).block_bytes);
  const int64_t block = Info(dtype).block;
  if (blocks_.empty()) {
    blocks_.resize(static_cast<size_t>(kPoolBlocks) * block_bytes);
    const SynthStream stream(model_.seed, "blocks");
    pool_.ParallelFor(kPoolBlocks, 16, [&](int64_t begin, int64_t end) {
      std::vector<float> values(block);
      for (int64_t b = begin; b < end; ++b) {
        stream.Fill(b * block, block, values.data());
        EncodeRow(dtype, values.data(), block, blocks_.data() + static_cast<size_t>(b) * block_bytes);
      }
    });
  }
  const int64_t per_row = ExtentOf(tensor.spec.shape).cols / block;
  const SynthStream choice(model_.seed, tensor.spec.name);
  pool_.ParallelFor(rows * per_row, 256, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const uint64_t chosen = choice.Bits(first_row * per_row + b) % kPoolBlocks;
      std::memcpy(out + static_cast<size_t>(b) * block_bytes, blocks_.data() + chosen * block_bytes,
                  block_bytes);
    }
  });
}

}  // namespace celer
