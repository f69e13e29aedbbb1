#include "kernels/network/integer/integer_conv.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace celer {
namespace {

constexpr IntegerVariant kInteger[] = {
// best first; the first that can run here wins
#if defined(__aarch64__)
    {"arm_i8mm", Isa::kArmI8mm, &kIntegerArmI8mm},
    {"arm_dotprod", Isa::kArmDotprod, &kIntegerArmDotprod},
#elif defined(__x86_64__)
    {"x86_vnni", Isa::kVnni, &kIntegerX86Vnni},
    {"x86_avxvnni", Isa::kAvxVnni, &kIntegerX86AvxVnni},
    {"x86_avx2", Isa::kAvx2, &kIntegerX86Avx2},
#endif
    {"portable", Isa::kBaseline, &kIntegerPortable},
};

// Of the rows that stay in the cache while panels of weights are streamed, and of what is written beside
// them: each panel writes a few bytes of every row.
constexpr int64_t kStayBytes = 64 << 10;
constexpr int64_t kStayRows = 64;  // at least: each block reads all weights
constexpr int64_t kLeastRows = 32;
// Below this many multiplications waking the other threads costs more than they save.
constexpr double kSerialWork = 400'000;

int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
int64_t DivideUp(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

// A convolution as GEMMs: of each group, [rows, k] times [k, n].
struct Product {
  int64_t rows = 0, k = 0, k_padded = 0, n = 0, panels = 0, panel_bytes = 0;
  bool direct = false;  // rows lie in the image as they are wanted
};
Product ProductOf(const IntegerConvPlan& plan) {
  const ConvShape& s = plan.shape;
  Product p;
  p.rows = s.batch * s.out_h() * s.out_w();
  p.k = s.channels / s.groups * s.kernel_h * s.kernel_w;
  p.k_padded = RoundUp(p.k, kIntegerStep);
  p.n = s.out_channels / s.groups;
  p.panels = DivideUp(p.n, plan.kernels->cols);
  p.panel_bytes = p.k_padded * plan.kernels->cols;
  p.direct = s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 && s.pad_top == 0 &&
             s.pad_left == 0 && s.pad_bottom == 0 && s.pad_right == 0 && p.k == p.k_padded;
  return p;
}

// Threads take blocks of rows times blocks of panels, group by group.
struct Blocking {
  int64_t row_block = 0, panel_block = 0, tasks = 0;
  int64_t scratch = 0;  // bytes of one thread
  bool serial = false;
};
Blocking ChooseBlocking(const IntegerConvPlan& plan, const Product& p, int threads) {
  Blocking blocking;
  blocking.serial = threads == 1 || plan.shape.flops() / 2 < kSerialWork;
  const int64_t stay = std::max(kStayBytes / (p.k_padded + p.n) / 8 * 8, kStayRows);
  blocking.row_block = std::min(RoundUp(p.rows, 8), stay);
  blocking.panel_block = p.panels;
  const auto tasks = [&] {
    return DivideUp(p.rows, blocking.row_block) * DivideUp(p.panels, blocking.panel_block) *
           plan.shape.groups;
  };
  const int64_t wanted = blocking.serial ? 1 : 4 * threads;
  while (tasks() < wanted && blocking.row_block > kLeastRows)
    blocking.row_block = std::max(RoundUp(blocking.row_block / 2, 8), kLeastRows);
  while (tasks() < wanted && blocking.panel_block > 2)
    blocking.panel_block = DivideUp(blocking.panel_block, 2);
  blocking.tasks = tasks();
  blocking.scratch = p.direct ? 0 : RoundUp(blocking.row_block * p.k_padded + 64, 64);
  return blocking;
}

// Copies that may overrun, up to `room` bytes of the source: what follows is written later or multiplied with
// zeros.
inline void CopyRun(uint8_t* to, const uint8_t* from, int64_t bytes, int64_t room) {
  if (room < RoundUp(bytes, 32)) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t i = 0; i < bytes; i += 32) std::memcpy(to + i, from + i, 32);
}

struct Gather {
  const ConvShape& s;
  const uint8_t* x;
  int64_t group;
  uint8_t pad;
  int64_t k_padded;

  // im2col of output pixels [first, first + rows): rows of k_padded bytes. Behind `to` there are 64 bytes of
  // room.
  void Rows(int64_t first, int64_t rows, uint8_t* to) const {
    const int64_t plane = s.out_h() * s.out_w();
    const uint8_t* const end = x + s.batch * s.in_h * s.in_w * s.channels;
    for (int64_t r = first; r < first + rows; ++r, to += k_padded) {
      const int64_t image = r / plane, oy = r % plane / s.out_w(), ox = r % s.out_w();
      OneRow(x + image * s.in_h * s.in_w * s.channels, end, oy * s.stride_h - s.pad_top,
             ox * s.stride_w - s.pad_left, to);
    }
  }

  void OneRow(const uint8_t* image, const uint8_t* end, int64_t iy, int64_t ix, uint8_t* to) const {
    const int64_t width = s.channels / s.groups, from = group * width;
    const bool whole = s.groups == 1 && s.dilation_w == 1 && ix >= 0 && ix + s.kernel_w <= s.in_w;
    for (int64_t ky = 0; ky < s.kernel_h; ++ky) {
      const int64_t y = iy + ky * s.dilation_h;
      const int64_t run = s.kernel_w * width;
      if (y < 0 || y >= s.in_h) {
        std::memset(to, pad, static_cast<size_t>(run));
      } else if (whole) {
        const uint8_t* const at = image + (y * s.in_w + ix) * s.channels;
        CopyRun(to, at, run, end - at);
      } else {
        for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
          const int64_t column = ix + kx * s.dilation_w;
          const uint8_t* const at = image + (y * s.in_w + column) * s.channels + from;
          if (column < 0 || column >= s.in_w)
            std::memset(to + kx * width, pad, static_cast<size_t>(width));
          else
            CopyRun(to + kx * width, at, width, end - at);
        }
      }
      to += run;
    }
    std::memset(to, 0, static_cast<size_t>(k_padded - s.kernel_h * s.kernel_w * width));
  }
};

Requantize ColumnsFrom(const PackedIntegerConv& packed, int64_t column, const ByteRange& range) {
  const bool sums = !packed.multiplier;
  return {.bias = packed.bias + column,
          .multiplier = sums ? nullptr : packed.multiplier + column,
          .left = sums ? nullptr : packed.left + column,
          .right = sums ? nullptr : packed.right + column,
          .range = range};
}

void RunProduct(const IntegerConvPlan& plan, const PackedIntegerConv& packed, const IntegerConvArgs& args) {
  const ConvShape& s = plan.shape;
  const Product p = ProductOf(plan);
  const Blocking blocking = ChooseBlocking(plan, p, args.pool->size());
  const int64_t panel_blocks = DivideUp(p.panels, blocking.panel_block),
                row_blocks = DivideUp(p.rows, blocking.row_block);
  const int cols = plan.kernels->cols;
  const auto task = [&](int64_t index, std::byte* scratch) {
    const int64_t group = index / (panel_blocks * row_blocks), rest = index % (panel_blocks * row_blocks);
    const int64_t row = rest / panel_blocks * blocking.row_block,
                  panel = rest % panel_blocks * blocking.panel_block;
    IntegerTile tile{.x = args.x + row * s.channels + group * p.k,
                     .x_stride = s.channels,
                     .rows = std::min(blocking.row_block, p.rows - row),
                     .k = p.k_padded,
                     .x_signed = plan.x_signed,
                     .out_stride = s.out_channels};
    if (!p.direct) {
      auto* const to = reinterpret_cast<uint8_t*>(scratch);
      Gather{s, args.x, group, packed.pad, p.k_padded}.Rows(row, tile.rows, to);
      tile.x = to;
      tile.x_stride = p.k_padded;
    }
    for (int64_t i = panel; i < std::min(panel + blocking.panel_block, p.panels); ++i) {
      const int64_t at = row * s.out_channels + group * p.n + i * cols;
      tile.w = packed.weights + (group * p.panels + i) * p.panel_bytes;
      tile.cols = std::min<int64_t>(cols, p.n - i * cols);
      tile.to = ColumnsFrom(packed, (group * p.panels + i) * cols, args.range);
      tile.out = args.out ? args.out + at : nullptr;
      tile.sums = args.sums ? args.sums + at : nullptr;
      plan.kernels->tile(tile);
    }
    if (args.finish) {
      const int64_t column = panel * cols;
      (*args.finish)({row, tile.rows, column, std::min(blocking.panel_block * cols, p.n - column)});
    }
  };
  if (blocking.serial || blocking.tasks == 1) {
    for (int64_t i = 0; i < blocking.tasks; ++i) task(i, args.workspace);
    return;
  }
  std::atomic<int64_t> next{0};
  args.pool->Run([&](int thread) {
    for (int64_t i = next++; i < blocking.tasks; i = next++)
      task(i, args.workspace + thread * blocking.scratch);
  });
}

// ---- depthwise --------------------------------------------------------------------------------------------

constexpr int64_t kMostKernel = 32;  // rows of a depthwise kernel

int64_t DepthwiseScratch(const IntegerConvPlan& plan) {
  const ConvShape& s = plan.shape;
  const int64_t columns = (s.out_w() - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1;
  return columns * DivideUp(s.kernel_h, plan.kernels->depth_rows) * 64;
}

void RunDepthwise(const IntegerConvPlan& plan, const PackedIntegerConv& packed, const IntegerConvArgs& args) {
  const ConvShape& s = plan.shape;
  const int64_t rows = s.batch * s.out_h(), scratch = DepthwiseScratch(plan);
  const auto one = [&](int64_t row, int thread) {
    const int64_t image = row / s.out_h(), iy = row % s.out_h() * s.stride_h - s.pad_top;
    const uint8_t* in[kMostKernel];
    for (int64_t ky = 0; ky < s.kernel_h; ++ky) {
      const int64_t y = iy + ky * s.dilation_h;
      in[ky] = y < 0 || y >= s.in_h ? nullptr : args.x + (image * s.in_h + y) * s.in_w * s.channels;
    }
    plan.kernels->depthwise({.in = in,
                             .in_w = s.in_w,
                             .channels = s.channels,
                             .x_signed = plan.x_signed,
                             .pad = packed.pad,
                             .weights = packed.weights,
                             .kernel_h = s.kernel_h,
                             .kernel_w = s.kernel_w,
                             .stride_w = s.stride_w,
                             .dilation_w = s.dilation_w,
                             .pad_left = s.pad_left,
                             .to = ColumnsFrom(packed, 0, args.range),
                             .out = args.out + row * s.out_w() * s.channels,
                             .out_w = s.out_w(),
                             .scratch = reinterpret_cast<uint8_t*>(args.workspace) + thread * scratch});
  };
  if (args.pool->size() == 1 || s.flops() < kSerialWork / 4) {
    for (int64_t row = 0; row < rows; ++row) one(row, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  args.pool->Run([&](int thread) {
    for (int64_t row = next++; row < rows; row = next++) one(row, thread);
  });
}

void PackDepthwise(const IntegerConvPlan& plan, const int8_t* w, int8_t* to) {
  const ConvShape& s = plan.shape;
  const int64_t depth = plan.kernels->depth_rows, groups = DivideUp(s.kernel_h, depth);
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t ky = 0; ky < s.kernel_h; ++ky)
      for (int64_t kx = 0; kx < s.kernel_w; ++kx)
        to[((((c / kDepthBlock) * groups + ky / depth) * s.kernel_w + kx) * kDepthBlock + c % kDepthBlock) *
               depth +
           ky % depth] = w[(c * s.kernel_h + ky) * s.kernel_w + kx];
}

void PackProduct(const IntegerConvPlan& plan, const int8_t* w, int8_t* to) {
  const ConvShape& s = plan.shape;
  const Product p = ProductOf(plan);
  const int64_t cols = plan.kernels->cols, step = plan.kernels->step, width = s.channels / s.groups;
  const int64_t taps = s.kernel_h * s.kernel_w;
  for (int64_t o = 0; o < s.out_channels; ++o) {
    const int64_t column = o % p.n;
    int8_t* const panel = to + (o / p.n * p.panels + column / cols) * p.panel_bytes;
    for (int64_t c = 0; c < width; ++c)
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t k = tap * width + c;
        panel[(k / step * cols + column % cols) * step + k % step] = w[(o * width + c) * taps + tap];
      }
  }
}

int64_t PackedColumns(const IntegerConvPlan& plan) {
  const ConvShape& s = plan.shape;
  return RoundUp(plan.depthwise() ? s.channels : s.groups * ProductOf(plan).panels * plan.kernels->cols,
                 kColumnPad);
}
int64_t PackedBytes(const IntegerConvPlan& plan) {
  const ConvShape& s = plan.shape;
  const Product p = ProductOf(plan);
  if (!plan.depthwise()) return s.groups * p.panels * p.panel_bytes;
  const int64_t depth = plan.kernels->depth_rows;
  return RoundUp(s.channels, kDepthBlock) * DivideUp(s.kernel_h, depth) * depth * s.kernel_w;
}

}  // namespace

std::span<const IntegerVariant> IntegerVariants() {
  return kInteger;
}

const IntegerKernels& ChosenInteger() {
  static const IntegerKernels& chosen = *Pick<const IntegerKernels*>("integer", kInteger)->run;
  return chosen;
}

std::optional<Multiplier> MultiplierOf(double factor) {
  if (!(factor >= 0) || !std::isfinite(factor)) return std::nullopt;
  if (factor == 0) return Multiplier{};
  int exponent = 0;
  const double fraction = std::frexp(factor, &exponent);  // 0.5 to 1
  auto multiplier = static_cast<int64_t>(std::nearbyint(std::ldexp(fraction, 31)));
  if (multiplier == int64_t{1} << 31) {
    multiplier >>= 1;
    ++exponent;
  }
  if (exponent >= kMostLeft) return std::nullopt;
  Multiplier out;
  out.left = exponent >= 0 ? exponent + 1 : 0;
  out.right = exponent >= 0 ? 1 : -exponent;
  if (out.right > 31) {
    multiplier = out.right > 62 ? 0 : multiplier >> (out.right - 31);
    out.right = 31;
  }
  out.multiplier = static_cast<int32_t>(multiplier);
  return out;
}

std::optional<AddBytes> AddOf(double a_factor, int32_t a_zero, double b_factor, int32_t b_zero,
                              ByteRange range) {
  const double most = std::max(a_factor, b_factor);
  if (!(a_factor >= 0) || !(b_factor >= 0) || !std::isfinite(most) || most == 0) return std::nullopt;
  int exponent = 0;
  std::frexp(most, &exponent);
  const int shift = 15 - exponent;  // the larger factor has 15 bits
  if (shift < 1 || shift > 30) return std::nullopt;
  AddBytes add{.shift = shift, .range = range};
  const auto bits = [&](double f) {
    return static_cast<int32_t>(std::min(std::nearbyint(std::ldexp(f, shift)), 32767.0));
  };
  add.a_factor = bits(a_factor);
  add.b_factor = bits(b_factor);
  add.start = (1 << (shift - 1)) - a_zero * add.a_factor - b_zero * add.b_factor;
  return add;
}

bool CanDoIntegerConv(const ConvShape& s) {
  if (s.groups == 1) return true;
  if (s.groups == s.channels) return s.out_channels == s.channels && s.kernel_h <= kMostKernel;
  return true;
}

IntegerConvPlan PlanIntegerConv(const ConvShape& shape, bool x_signed, const IntegerKernels& kernels) {
  CELER_CHECK(CanDoIntegerConv(shape));
  CELER_CHECK(shape.out_h() > 0 && shape.out_w() > 0);
  return {shape, x_signed, &kernels};
}

ConvShape ProductShape(int64_t rows, int64_t k, int64_t n) {
  return {.batch = 1, .channels = k, .in_h = 1, .in_w = rows, .out_channels = n};
}

int64_t PackedIntegerWords(const IntegerConvPlan& plan) {
  return 4 * PackedColumns(plan) + RoundUp(plan.shape.out_channels, 16) + RoundUp(PackedBytes(plan), 64) / 4;
}

PackedIntegerConv UnpackIntegerConv(const IntegerConvPlan& plan, const int32_t* words, int32_t x_zero,
                                    bool factors) {
  const int64_t columns = PackedColumns(plan);
  PackedIntegerConv out;
  out.bias = words;
  out.multiplier = factors ? words + columns : nullptr;
  out.left = factors ? words + 2 * columns : nullptr;
  out.right = factors ? words + 3 * columns : nullptr;
  out.sums = words + 4 * columns;
  out.weights = reinterpret_cast<const int8_t*>(out.sums + RoundUp(plan.shape.out_channels, 16));
  out.pad = static_cast<uint8_t>(x_zero);
  return out;
}

void PackIntegerConv(const IntegerConvPlan& plan, const IntegerConvWeights& w, int32_t* words) {
  const ConvShape& s = plan.shape;
  const Product p = ProductOf(plan);
  const int64_t k = p.k, n = p.n, columns = PackedColumns(plan);
  std::fill_n(words, PackedIntegerWords(plan), 0);
  int32_t *const bias = words, *const multiplier = words + columns, *const left = words + 2 * columns,
                 *const right = words + 3 * columns, *const sums = words + 4 * columns;
  auto* const weights = reinterpret_cast<int8_t*>(sums + RoundUp(s.out_channels, 16));
  if (plan.depthwise())
    PackDepthwise(plan, w.weights, weights);
  else
    PackProduct(plan, w.weights, weights);
  std::fill_n(right, columns, 1);
  const int32_t offset = plan.x_signed ? plan.kernels->signed_offset : plan.kernels->unsigned_offset;
  for (int64_t o = 0; o < s.out_channels; ++o) {
    int32_t sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += w.weights[o * k + i];
    const int64_t at = plan.depthwise() ? o : o / n * p.panels * plan.kernels->cols + o % n;
    sums[o] = sum;
    bias[at] = (w.bias ? w.bias[o] : 0) - (w.x_zero + offset) * sum;
    if (w.factors.empty()) continue;
    const Multiplier& factor = w.factors[o];
    multiplier[at] = factor.multiplier;
    left[at] = factor.left;
    right[at] = factor.right;
  }
}

bool SumsFit(const ConvShape& s, const IntegerConvWeights& w) {
  const int64_t k = s.channels / s.groups * s.kernel_h * s.kernel_w;
  for (int64_t o = 0; o < s.out_channels; ++o) {
    int64_t size = w.bias ? std::abs(int64_t{w.bias[o]}) : 0;
    for (int64_t i = 0; i < k; ++i) size += int64_t{512} * std::abs(w.weights[o * k + i]);
    if (size > INT32_MAX) return false;
  }
  return true;
}

int64_t IntegerConvWorkspaceBytes(const IntegerConvPlan& plan, int threads) {
  if (plan.depthwise()) return DepthwiseScratch(plan) * threads;
  return ChooseBlocking(plan, ProductOf(plan), threads).scratch * threads;
}

void IntegerConv(const IntegerConvPlan& plan, const PackedIntegerConv& packed, const IntegerConvArgs& args) {
  CELER_CHECK(args.x && args.pool && (args.out || (args.sums && !plan.depthwise())));
  CELER_CHECK(!args.out || packed.multiplier);
  CELER_CHECK(!args.finish || (args.sums && plan.shape.groups == 1));
  if (plan.depthwise()) return RunDepthwise(plan, packed, args);
  RunProduct(plan, packed, args);
}

}  // namespace celer
