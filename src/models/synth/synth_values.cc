#include "models/synth/synth_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "formats/decode.h"
#include "models/config/plain_layers.h"
#include "models/config/rope_config.h"
#include "models/load/gguf_keys.h"

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

// What a value is made of: mean + scale * draw. The scales are powers of two, so that the product is exact and no machine
// rounds another way.
struct Spread {
  float mean = 0, scale = 1;
  bool decay = false;  // -exp() of it in GGUF
};

// Norms of plain models are ones, as they were before there were others: a seed keeps its model.
Spread SpreadOf(const std::string& key, bool vector, bool plain) {
  const auto ends = [&](std::string_view word) { return key.ends_with(word); };
  if (ends("A_log")) return {2, 32, true};    // states last for some tokens up to some hundreds
  if (ends("dt_bias")) return {-4.5f, 64};    // steps of a hundredth
  if (ends(".sinks")) return {0, 64};         // beside scores of about one
  if (ends("conv1d.weight")) return {0, 16};  // a kernel has few numbers
  const bool scale = ends("layer_scalar") || ends("per_expert_scale") || ends("router.scale") ||
                     ends("correct_output_scale") || ends("linear_attn.D");
  const bool norm = vector && key.find("norm") != std::string::npos && !ends(".bias");
  if (scale || norm) return {1, plain ? 0.0f : 4.0f};
  return {};
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
  if (!IsKFormat(tensor.spec.dtype)) return false;
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

namespace {

// Where the values of a tensor come from: which part has which row.
class PartRows {
 public:
  PartRows(const SynthModel& model, const SynthTensor& tensor)
      : seed_(model.seed),
        tensor_(tensor),
        file_(tensor.in_file),
        vector_(file_.role == WeightRole::kVector),
        plain_(HasPlainLayers(model.config)) {
    const std::vector<ModelPart>& parts = file_.parts;
    per_matrix_ = parts.size() / static_cast<size_t>(std::max<int64_t>(1, file_.stacked));
    stack_part_ = !vector_ && parts[0].shape.rank() == 3;
    for (size_t p = 0; p < per_matrix_; ++p) {
      const Shape& shape = parts[p].shape;
      const int64_t all = vector_ ? *shape.elements() : shape[shape.rank() - 2];
      rows_.push_back(all / file_.groups);
      group_ += rows_.back();
    }
  }

  // Row `row` of the tensor, whose rows have `cols` elements.
  void Fill(int64_t row, int64_t cols, float* out) const {
    if (vector_) {
      const std::vector<Drawn> parts = PartsOf(0);
      for (int64_t c = 0; c < cols; ++c) Draw(parts, row * cols + c, 0, 1, 1, out + c);
    } else if (file_.transposed) {
      const int64_t height = file_.shape[file_.shape.rank() - 2];  // the parts' columns
      const std::vector<Drawn> parts = PartsOf(row / height);
      for (int64_t c = 0; c < cols; ++c) Draw(parts, c, row % height, height, 1, out + c);
    } else {
      const int64_t rows = group_ * file_.groups;
      Draw(PartsOf(row / rows), row % rows, 0, cols, cols, out);
    }
  }

 private:
  struct Drawn {
    SynthStream stream;
    Spread spread;
  };

  std::vector<Drawn> PartsOf(int64_t matrix) const {
    std::vector<Drawn> parts;
    const size_t first = file_.stacked > 0 ? static_cast<size_t>(matrix) * per_matrix_ : 0;
    for (size_t p = 0; p < per_matrix_; ++p) {
      const ModelPart& part = file_.parts[first + p];
      Spread spread = SpreadOf(part.key, vector_, plain_);
      spread.decay = spread.decay && part.name.starts_with("blk.");
      parts.push_back({SynthStream(seed_, NameOfStream(part, matrix)), spread});
    }
    return parts;
  }

  // `count` elements from column `col` of a row of the parts, whose rows have `width` elements.
  void Draw(const std::vector<Drawn>& parts, int64_t row, int64_t col, int64_t width, int64_t count,
            float* out) const {
    int64_t at = row % group_;
    size_t p = 0;
    for (; at >= rows_[p]; ++p) at -= rows_[p];
    const int64_t in_part = PublishedRow(row / group_ * rows_[p] + at, tensor_.interleave_head);
    parts[p].stream.Fill(in_part * width + col, count, out);
    const Spread& spread = parts[p].spread;
    for (int64_t i = 0; i < count; ++i) {
      out[i] = spread.mean + spread.scale * out[i];
      if (spread.decay) out[i] = -std::exp(out[i]);
      if (file_.minus_one) out[i] -= 1;
    }
  }

  std::string NameOfStream(const ModelPart& part, int64_t matrix) const {
    if (!stack_part_) return part.key;
    const size_t at = part.key.find('#');
    if (at == std::string::npos) return part.name + "#" + std::to_string(matrix);
    return part.key.substr(0, at) + std::to_string(matrix) + part.key.substr(at + 1);
  }

  uint64_t seed_;
  const SynthTensor& tensor_;
  const FileTensor& file_;
  bool vector_, plain_, stack_part_ = false;
  size_t per_matrix_ = 1;
  std::vector<int64_t> rows_;  // of each part in a group
  int64_t group_ = 0;          // rows of a group
};

}  // namespace

void SynthFiller::FillPlain(const SynthTensor& tensor, int64_t first_row, int64_t rows, std::byte* out) {
  const Extent extent = ExtentOf(tensor.spec.shape);
  const DType dtype = tensor.spec.dtype;
  const int64_t row_bytes = BytesFor(dtype, extent.cols).value();
  const RopeConfig& rope = model_.config.rope;
  const std::string& name = tensor.spec.name;
  const bool factors = name == "rope_freqs.weight", longer = name == kGgufLongFactors,
             shorter = name == kGgufShortFactors;
  const std::vector<float> given = factors   ? GgufRopeFactors(rope)
                                   : longer  ? rope.long_factors
                                   : shorter ? rope.short_factors
                                             : std::vector<float>();
  const PartRows source(model_, tensor);
  pool_.ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values = given;
    values.resize(extent.cols);
    for (int64_t r = begin; r < end; ++r) {
      if (given.empty()) source.Fill(first_row + r, extent.cols, values.data());
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
