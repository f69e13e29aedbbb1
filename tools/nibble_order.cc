// Finds the order of instructions of CELER_NIBBLES (kernels/llm/matmul/cpu/arm/nibble_streams_i8mm.h) on the
// core it runs on, and prints the macros.
//
// How to use it: on a new Arm core, or after a change of what the loop computes, build it (`ninja
// celer_nibble_order`, in a build with tests), leave the machine alone, and run
// `celer_nibble_order 1800` some times with different seeds (`celer_nibble_order 1800 2`). Each run shows how
// many cycles a block takes; put the macros of the best one in place of those in nibble_streams_i8mm.h, run
// celer_kernels_test, and compare `celer bench` on a Q4_0 file with the build before. `celer_nibble_order
// --check` only compares some random orders with a plain loop: do that after a change of this program.
//
// It begins with the best of many random plans, each of which gives every kind of instruction a distance from
// those it depends on. Then it moves single instructions at random, assigns registers anew, and keeps what is
// faster. Weights are in the L2 cache: there differences of 0.01 cycles can be told, and an order that hides
// its latency also does well from memory.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "device/variant.h"
#include "kernels/llm/matmul/cpu/packed.h"

namespace celer {
namespace {

constexpr int kGroups = 4, kVectors = 8, kSums = 4;  // row groups; of each, vectors of weights and of sums
constexpr int kGroupBytes = 144, kXBytes = sizeof(XPairBlock);
constexpr int kUnroll = 4, kBlocks = 64;  // column blocks of the loop's body, and of a row group

// What a block consists of: 8 rows x 32 columns of each of four row groups. Vector k of a group has row pair
// k % 4 and half k / 4 of the columns.
enum class Op : uint8_t {
  kLoadX,        // index 0, 1: activations of a half, low and high step
  kLoadWeights,  // index 0 to 3: two vectors
  kLoadStart,    // index 0 to 3: what a sum begins with
  kLoadScales,
  kDotHigh,  // index 0 to 7, as the next two
  kShift,
  kDotLow,
  kScalesLow,   // f16 to f32, rows 0 to 3
  kScalesHigh,  // rows 4 to 7
  kAddPairs,    // index 0, 1: rows 0 to 3, 4 to 7; as the next
  kScale,
};
struct Instruction {
  Op op;
  int group, index;
};

class Program {
 public:
  Program() {
    for (int i = 0; i < 2; ++i) Add(Op::kLoadX, 0, i);
    for (int g = 0; g < kGroups; ++g) {
      for (int i = 0; i < kVectors / 2; ++i) Add(Op::kLoadWeights, g, i);
      for (int i = 0; i < kSums; ++i) Add(Op::kLoadStart, g, i);
      Add(Op::kLoadScales, g, 0);
      for (int k = 0; k < kVectors; ++k)
        for (const Op op : {Op::kDotHigh, Op::kShift, Op::kDotLow}) Add(op, g, k);
      Add(Op::kScalesLow, g, 0);
      Add(Op::kScalesHigh, g, 0);
      for (int i = 0; i < 2; ++i)
        for (const Op op : {Op::kAddPairs, Op::kScale}) Add(op, g, i);
    }
    for (int g = 0; g < kGroups; ++g) {
      for (int k = 0; k < kVectors; ++k) {
        const int high = At(Op::kDotHigh, g, k), low = At(Op::kDotLow, g, k), shift = At(Op::kShift, g, k);
        Chain({At(Op::kLoadWeights, g, k / 2), high, shift, low});
        for (const int dot : {high, low}) {
          Chain({At(Op::kLoadX, 0, k / 4), dot, At(Op::kAddPairs, g, k % 4 / 2)});
          Chain({At(Op::kLoadStart, g, k % 4), dot});
        }
      }
      Chain({At(Op::kLoadScales, g, 0), At(Op::kScalesLow, g, 0), At(Op::kScalesHigh, g, 0),
             At(Op::kScale, g, 1)});
      Chain({At(Op::kScalesLow, g, 0), At(Op::kScale, g, 0)});
      for (int i = 0; i < 2; ++i) Chain({At(Op::kAddPairs, g, i), At(Op::kScale, g, i)});
    }
  }

  int size() const { return static_cast<int>(all_.size()); }
  const Instruction& operator[](int i) const { return all_[static_cast<size_t>(i)]; }
  int At(Op op, int group, int index) const { return at_[static_cast<size_t>(op)][group][index]; }
  // Pairs of which the first must stand before the second.
  const std::vector<std::pair<int, int>>& before() const { return before_; }

 private:
  void Add(Op op, int group, int index) {
    at_[static_cast<size_t>(op)][group][index] = size();
    all_.push_back({op, group, index});
  }
  void Chain(std::initializer_list<int> steps) {
    for (const int* step = steps.begin(); step + 1 < steps.end(); ++step)
      before_.emplace_back(step[0], step[1]);
  }

  std::vector<Instruction> all_;
  std::vector<std::pair<int, int>> before_;
  int at_[11][kGroups][kVectors] = {};
};

const Program& Block() {
  static const Program program;
  return program;
}

// The body of one block. Instructions that are `ahead` belong to the next one.
struct Order {
  std::vector<int> order;
  std::vector<bool> ahead;  // by instruction
};

// Where an instruction stands if its own block begins at 0; empty if some stands before what it needs.
std::vector<int> Positions(const Order& o) {
  std::vector<int> at(o.order.size());
  const int size = Block().size();
  for (int i = 0; i < size; ++i) {
    const int x = o.order[static_cast<size_t>(i)];
    at[static_cast<size_t>(x)] = i - (o.ahead[static_cast<size_t>(x)] ? size : 0);
  }
  for (const auto& [first, second] : Block().before())
    if (at[static_cast<size_t>(first)] >= at[static_cast<size_t>(second)]) return {};
  // Only the first two streams are read ahead: see the header.
  for (int i = 0; i < size; ++i) {
    const Instruction& in = Block()[i];
    if ((in.op == Op::kLoadWeights || in.op == Op::kLoadScales) && in.group >= 2 &&
        at[static_cast<size_t>(i)] < 0)
      return {};
  }
  return at;
}

struct Registers {
  int x[2][2];  // half; low, high
  int weights[kGroups][kVectors], sums[kGroups][kSums], scales_low[kGroups], scales_high[kGroups];
};

// v8 to v31; v0 to v7 hold the results.
std::optional<Registers> Assign(const std::vector<int>& at) {
  constexpr int kFirst = 8, kCount = 24;
  struct Life {
    int begin, end;
    int* to;
  };
  const Program& block = Block();
  const auto pos = [&](Op op, int g, int i) { return at[static_cast<size_t>(block.At(op, g, i))]; };
  Registers r{};
  std::vector<Life> lives;
  for (int h = 0; h < 2; ++h) {
    int low = INT32_MIN, high = INT32_MIN;
    for (int g = 0; g < kGroups; ++g)
      for (int k = 4 * h; k < 4 * h + 4; ++k) {
        low = std::max(low, pos(Op::kDotLow, g, k));
        high = std::max(high, pos(Op::kDotHigh, g, k));
      }
    lives.push_back({pos(Op::kLoadX, 0, h), low, &r.x[h][0]});
    lives.push_back({pos(Op::kLoadX, 0, h), high, &r.x[h][1]});
  }
  for (int g = 0; g < kGroups; ++g) {
    for (int k = 0; k < kVectors; ++k)
      lives.push_back({pos(Op::kLoadWeights, g, k / 2), pos(Op::kDotLow, g, k), &r.weights[g][k]});
    for (int i = 0; i < kSums; ++i)
      lives.push_back(
          {pos(Op::kLoadStart, g, i), pos(i % 2 ? Op::kAddPairs : Op::kScale, g, i / 2), &r.sums[g][i]});
    lives.push_back({pos(Op::kLoadScales, g, 0), pos(Op::kScale, g, 1), &r.scales_high[g]});
    lives.push_back({pos(Op::kScalesLow, g, 0), pos(Op::kScale, g, 0), &r.scales_low[g]});
  }
  std::ranges::sort(lives, {}, &Life::begin);
  std::array<std::vector<Life>, kCount> taken;
  const int period = block.size();
  for (const Life& life : lives) {
    if (life.end - life.begin >= period) return {};
    int best = -1, shortest = INT32_MAX;  // of the free ones that which became free last
    for (int i = 0; i < kCount; ++i) {
      int idle = period;
      const bool free = std::ranges::all_of(taken[static_cast<size_t>(i)], [&](const Life& other) {
        for (int shift = -2 * period; shift <= 2 * period; shift += period) {
          if (other.end + shift >= life.begin && other.begin + shift <= life.end) return false;
          if (other.end + shift < life.begin) idle = std::min(idle, life.begin - other.end - shift);
        }
        return true;
      });
      if (free && idle < shortest) best = i, shortest = idle;
    }
    if (best < 0) return {};
    taken[static_cast<size_t>(best)].push_back(life);
    *life.to = kFirst + best;
  }
  return r;
}

struct Encoded {
  uint32_t word;
  std::string text;  // `where` stands for the number of the block
};
Encoded Encode(const Instruction& in, const Registers& r, int block, const std::string& where) {
  const auto u = [](int v) { return static_cast<uint32_t>(v); };
  const auto v = [](int n) { return "v" + std::to_string(n); };
  const auto q = [](int n) { return "q" + std::to_string(n); };
  const auto load = [&](int to, std::string base, int reg, int unit) -> Encoded {
    return {0x3DC00000u | u(unit * block / 16) << 10 | u(reg) << 5 | u(to),
            "ldr " + q(to) + ", [%[" + base + "], #" + std::to_string(unit) + " * " + where + "]"};
  };
  const auto pair = [&](int to, int to2, std::string base, int reg, int offset, int unit) -> Encoded {
    return {0xAD400000u | (u((offset + unit * block) / 16) & 127) << 15 | u(to2) << 10 | u(reg) << 5 | u(to),
            "ldp " + q(to) + ", " + q(to2) + ", [%[" + base + "], #" + std::to_string(offset) + " + " +
                std::to_string(unit) + " * " + where + "]"};
  };
  const auto dot = [&](int sum, int w, int x) -> Encoded {
    return {0x4E809C00u | u(x) << 16 | u(w) << 5 | u(sum),
            "usdot " + v(sum) + ".4s, " + v(w) + ".16b, " + v(x) + ".16b"};
  };
  const int g = in.group, i = in.index;
  const std::string stream = "w" + std::to_string(g);
  switch (in.op) {
    case Op::kLoadX:
      return pair(r.x[i][0], r.x[i][1], "x", 4, 32 + 32 * i, kXBytes);
    case Op::kLoadWeights:
      return pair(r.weights[g][2 * i], r.weights[g][2 * i + 1], stream, g, 16 + 32 * i, kGroupBytes);
    case Op::kLoadStart:
      return load(r.sums[g][i], "x", 4, kXBytes);
    case Op::kLoadScales:
      return load(r.scales_high[g], stream, g, kGroupBytes);
    case Op::kDotHigh:
      return dot(r.sums[g][i % 4], r.weights[g][i], r.x[i / 4][1]);
    case Op::kDotLow:
      return dot(r.sums[g][i % 4], r.weights[g][i], r.x[i / 4][0]);
    case Op::kShift: {
      const int w = r.weights[g][i];
      return {0x4F0C5400u | u(w) << 5 | u(w), "shl " + v(w) + ".16b, " + v(w) + ".16b, #4"};
    }
    case Op::kScalesLow:
      return {0x0E217800u | u(r.scales_high[g]) << 5 | u(r.scales_low[g]),
              "fcvtl " + v(r.scales_low[g]) + ".4s, " + v(r.scales_high[g]) + ".4h"};
    case Op::kScalesHigh:
      return {0x4E217800u | u(r.scales_high[g]) << 5 | u(r.scales_high[g]),
              "fcvtl2 " + v(r.scales_high[g]) + ".4s, " + v(r.scales_high[g]) + ".8h"};
    case Op::kAddPairs: {
      const int a = r.sums[g][2 * i], b = r.sums[g][2 * i + 1];
      return {0x6E20D400u | u(b) << 16 | u(a) << 5 | u(a),
              "faddp " + v(a) + ".4s, " + v(a) + ".4s, " + v(b) + ".4s"};
    }
    case Op::kScale: {
      const int sum = r.sums[g][2 * i], scale = i ? r.scales_high[g] : r.scales_low[g];
      return {0x4E20CC00u | u(scale) << 16 | u(sum) << 5 | u(2 * g + i),
              "fmla %[s" + std::to_string(2 * g + i) + "].4s, " + v(sum) + ".4s, " + v(scale) + ".4s"};
    }
  }
  return {};
}

// How the prefetches of a body's nine lines are spread: every line far ahead, every third near.
constexpr int kLines = 9, kFar = 14720, kNear = 2048, kSlots = (kLines + kLines / 3) * kGroups / kUnroll;

// After how many of a block's instructions each slot for a prefetch stands.
int SlotOf(int instructions) {
  const int size = Block().size();
  return std::min(kSlots, (2 * instructions * kSlots + size) / (2 * size));
}

// Machine code: w0 to w3 in x0 to x3, x in x4, the number of blocks in x5.
class Code {
 public:
  Code() {
    void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CELER_CHECK(at != MAP_FAILED);
    words_ = static_cast<uint32_t*>(at);
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { munmap(words_, kBytes); }

  // False if the order is none, or needs too many registers.
  bool Write(const Order& o) {
    const std::vector<int> at = Positions(o);
    if (at.empty()) return false;
    const std::optional<Registers> r = Assign(at);
    if (!r) return false;
    constexpr uint32_t kNop = 0xD503201F, kReturn = 0xD65F03C0;
    int n = 0;
    const auto put = [&](uint32_t word) { words_[n++] = word; };
    for (const int x : o.order)
      if (o.ahead[static_cast<size_t>(x)]) put(Encode(Block()[x], *r, 0, "").word);
    while (n % 16) put(kNop);
    std::vector<uint32_t> prefetches;
    for (uint32_t line = 0; line < kLines; ++line)
      for (uint32_t g = 0; g < kGroups; ++g) {
        const auto prefetch = [&](uint32_t kind, uint32_t ahead) {
          prefetches.push_back(0xF9800000u | (ahead + 64 * line) / 8 << 10 | g << 5 | kind);
        };
        prefetch(4, kFar);
        if (line % 3 == 0) prefetch(2, kNear);
      }
    const int top = n;
    for (int block = 0; block < kUnroll; ++block)
      for (int i = 0, slot = 0; i < Block().size(); ++i) {
        const int x = o.order[static_cast<size_t>(i)];
        put(Encode(Block()[x], *r, block + (o.ahead[static_cast<size_t>(x)] ? 1 : 0), "").word);
        for (; slot < SlotOf(i + 1); ++slot) put(prefetches[static_cast<size_t>(block * kSlots + slot)]);
      }
    const auto add = [](uint32_t reg, uint32_t by) { return 0x91000000u | by << 10 | reg << 5 | reg; };
    for (uint32_t g = 0; g < kGroups; ++g) put(add(g, kGroupBytes * kUnroll));
    put(add(4, kXBytes * kUnroll));
    put(0xF10010A5);  // subs x5, x5, #4
    put(0x54000001u | (static_cast<uint32_t>(top - n) & 0x7FFFF) << 5);
    put(kReturn);
    CELER_CHECK_LE(n * 4, kBytes);
    __builtin___clear_cache(reinterpret_cast<char*>(words_), reinterpret_cast<char*>(words_ + n));
    return true;
  }

  void Run(const uint8_t* w, int64_t stride, const XPairBlock* x, int64_t blocks, float* out) const {
    register const uint8_t* w0 asm("x0") = w;
    register const uint8_t* w1 asm("x1") = w + stride;
    register const uint8_t* w2 asm("x2") = w + 2 * stride;
    register const uint8_t* w3 asm("x3") = w + 3 * stride;
    register const XPairBlock* x4 asm("x4") = x;
    register int64_t left asm("x5") = blocks;
    register float* to asm("x19") = out;
    register const uint32_t* code asm("x20") = words_;
    // clang-format off
    asm volatile(
        "movi v0.2d, #0\n" "movi v1.2d, #0\n" "movi v2.2d, #0\n" "movi v3.2d, #0\n"
        "movi v4.2d, #0\n" "movi v5.2d, #0\n" "movi v6.2d, #0\n" "movi v7.2d, #0\n"
        "blr %[code]\n"
        "stp q0, q1, [%[to]]\n" "stp q2, q3, [%[to], #32]\n" "stp q4, q5, [%[to], #64]\n" "stp q6, q7, [%[to], #96]\n"
        : "+r"(w0), "+r"(w1), "+r"(w2), "+r"(w3), "+r"(x4), "+r"(left)
        : [code] "r"(code), [to] "r"(to)
        : "memory", "cc", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
          "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27",
          "v28", "v29", "v30", "v31");
    // clang-format on
  }

 private:
  static constexpr int kBytes = 16384;
  uint32_t* words_;
};

// Weights of four streams of a few row groups, which fit an L2 cache, and activations.
class Bench {
 public:
  static constexpr int kRounds = 8;
  static constexpr int64_t kRowGroup = kBlocks * kGroupBytes;

  Bench() : weights_(kGroups * kRounds * kRowGroup + 32768), x_(kBlocks + 1) {
    std::mt19937 random(1);
    for (uint8_t& b : weights_) b = static_cast<uint8_t>(random());
    for (int64_t b = 0; b + kGroupBytes <= static_cast<int64_t>(weights_.size()); b += kGroupBytes)
      for (int r = 0; r < 8; ++r) {
        const auto scale = static_cast<__fp16>(static_cast<float>(random() % 2000) / 1000 - 1);
        std::memcpy(&weights_[static_cast<size_t>(b + 2 * r)], &scale, 2);
      }
    for (XPairBlock& b : x_) {
      for (int i = 0; i < 4; ++i) b.start[i] = (i % 2 ? -1.0f : 1.0f) * 12582912.0f / 128;
      for (auto& step : b.q)
        for (int i = 0; i < 16; ++i) step[i / 8][i % 8] = static_cast<int8_t>(random() % 255 - 127);
    }
  }

  // Cycles at 2.6 GHz for 8 rows x 32 columns.
  double Measure(const Code& code) const {
    constexpr int kPasses = 6;
    alignas(64) float out[32];
    const auto start = std::chrono::steady_clock::now();
    for (int p = 0; p < kPasses; ++p)
      for (int i = 0; i < kRounds; ++i)
        code.Run(weights_.data() + i * kRowGroup, kRounds * kRowGroup, x_.data(), kBlocks, out);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return took.count() * 2.6e9 / (kPasses * kRounds * kBlocks * kGroups);
  }

  bool Right(const Code& code) const {
    alignas(64) float got[32], want[32] = {};
    code.Run(weights_.data(), kRounds * kRowGroup, x_.data(), kBlocks, got);
    for (int g = 0; g < kGroups; ++g)
      for (int b = 0; b < kBlocks; ++b) {
        const uint8_t* block = weights_.data() + g * kRounds * kRowGroup + b * kGroupBytes;
        const XPairBlock& x = x_[static_cast<size_t>(b)];
        for (int pair = 0; pair < 4; ++pair) {
          int32_t sums[4];
          std::memcpy(sums, x.start, 16);
          for (int half = 0; half < 2; ++half)
            for (int i = 0; i < 16; ++i) {
              const uint8_t byte = block[16 + 16 * (4 * half + pair) + i];
              const auto& low = x.q[2 * half][i / 8];
              const auto& high = x.q[2 * half + 1][i / 8];
              sums[i / 4] += byte * high[i % 8] + static_cast<uint8_t>(byte << 4) * low[i % 8];
            }
          float floats[4];
          std::memcpy(floats, sums, 16);
          for (int r = 0; r < 2; ++r) {
            __fp16 scale;
            std::memcpy(&scale, block + 2 * (2 * pair + r), 2);
            float& sum = want[8 * g + 2 * pair + r];
            sum = std::fma(floats[2 * r] + floats[2 * r + 1], static_cast<float>(scale), sum);
          }
        }
      }
    return std::memcmp(got, want, sizeof got) == 0;
  }

 private:
  std::vector<uint8_t> weights_;
  std::vector<XPairBlock> x_;
};

// Each kind of instruction at some random distance from what it depends on. A group takes ten units of time.
Order RandomPlan(std::mt19937& random) {
  const auto some = [&](double from, double to) { return std::uniform_real_distribution(from, to)(random); };
  const double load = some(0, 6), shift = some(0.1, 2), low = some(0.1, 3), start = some(0, 7),
               add = some(0.1, 6), scale = some(0.1, 6), scales = some(2, 12), convert = some(1, 6),
               x = some(0, 6);
  const bool twos = random() % 2 == 0;  // two groups in turns
  const double stretch = twos ? 2 : some(0.8, 2.2);
  const Program& block = Block();
  std::vector<double> time(static_cast<size_t>(block.size()));
  const auto at = [&](Op op, int g, int i) -> double& {
    return time[static_cast<size_t>(block.At(op, g, i))];
  };
  constexpr double kGroup = 10;
  double end = 0;
  for (int g = 0; g < kGroups; ++g) {
    const double begin = twos ? g / 2 * 2 * kGroup + g % 2 * kGroup / 8 : g * kGroup;
    for (int k = 0; k < kVectors; ++k) {
      at(Op::kDotHigh, g, k) = begin + k * kGroup / 8 * stretch;
      at(Op::kShift, g, k) = at(Op::kDotHigh, g, k) + shift;
      at(Op::kDotLow, g, k) = at(Op::kShift, g, k) + low;
    }
    for (int i = 0; i < 4; ++i) {
      at(Op::kLoadWeights, g, i) = at(Op::kDotHigh, g, 2 * i) - load;
      at(Op::kLoadStart, g, i) = at(Op::kDotHigh, g, i) - start;
    }
    for (int i = 0; i < 2; ++i) {
      at(Op::kAddPairs, g, i) = at(Op::kDotLow, g, 2 * i + 5) + add;
      at(Op::kScale, g, i) = at(Op::kAddPairs, g, i) + scale;
    }
    end = std::max(end, at(Op::kScale, g, 1));
    at(Op::kLoadScales, g, 0) = at(Op::kScale, g, 0) - scales;
    at(Op::kScalesLow, g, 0) = at(Op::kLoadScales, g, 0) + convert;
    at(Op::kScalesHigh, g, 0) = at(Op::kScalesLow, g, 0) + 0.5;
  }
  for (int i = 0; i < 2; ++i) at(Op::kLoadX, 0, i) = at(Op::kDotHigh, 0, 4 * i) - x;

  Order o;
  o.ahead.resize(time.size());
  for (size_t i = 0; i < time.size(); ++i) {
    o.order.push_back(static_cast<int>(i));
    o.ahead[i] = time[i] <= end - kGroups * kGroup;
    if (o.ahead[i]) time[i] += kGroups * kGroup;
  }
  std::ranges::stable_sort(o.order, {}, [&](int i) { return time[static_cast<size_t>(i)]; });
  return o;
}

// Moves one instruction, perhaps to the other end and into the block before or after.
bool Move(Order* o, std::mt19937& random) {
  const int size = Block().size(), from = static_cast<int>(random() % static_cast<unsigned>(size));
  const int reach = random() % 2 ? 6 : 30;
  int to = from + static_cast<int>(random() % static_cast<unsigned>(2 * reach + 1)) - reach;
  const int x = o->order[static_cast<size_t>(from)];
  if (to < 0 || to >= size) {
    if (o->ahead[static_cast<size_t>(x)] == (to < 0)) return false;
    o->ahead[static_cast<size_t>(x)] = to < 0;
    to += to < 0 ? size : -size;
  }
  o->order.erase(o->order.begin() + from);
  o->order.insert(o->order.begin() + to, x);
  return true;
}

double Median(std::vector<double> v) {
  std::ranges::nth_element(v, v.begin() + static_cast<int64_t>(v.size() / 2));
  return v[v.size() / 2];
}

// Whether `b` is faster, measured in turns until that is clear.
bool Faster(const Bench& bench, const Code& a, const Code& b, double* cycles) {
  std::vector<double> of_a, of_b;
  bench.Measure(b);
  for (int i = 0; i < 25; ++i) {
    of_a.push_back(bench.Measure(a));
    of_b.push_back(bench.Measure(b));
    if (i != 2 && i != 6 && i != 12 && i != 24) continue;
    *cycles = Median(of_b);
    if (*cycles > Median(of_a) - (i == 24 ? 0.006 : 0)) return false;
  }
  return true;
}

void PrintMacro(const char* name, const std::vector<std::string>& parts) {
  std::string line = std::string("#define ") + name;
  for (const std::string& part : parts) {
    if (line.size() + part.size() > 112 || &part == &parts.front()) {
      std::printf("%s \\\n", line.c_str());
      line = " ";
    }
    line += " " + part;
  }
  std::printf("%s\n", line.c_str());
}

void Print(const Order& o) {
  const Registers r = *Assign(Positions(o));
  std::vector<std::string> head, body;
  std::string slots;
  for (int i = 0, slot = 0; i < Block().size(); ++i) {
    const int x = o.order[static_cast<size_t>(i)];
    const bool ahead = o.ahead[static_cast<size_t>(x)];
    const auto quoted = [&](const char* where) {
      return '"' + Encode(Block()[x], r, 0, where).text + "\\n\"";
    };
    if (ahead) head.push_back(quoted("0"));
    body.push_back(quoted(ahead ? "\" v \"" : "\" u \""));
    for (; slot < SlotOf(i + 1); ++slot) {
      body.push_back("p" + std::to_string(slot));
      slots += ", p" + std::to_string(slot);
    }
  }
  PrintMacro("CELER_HEAD", head);
  PrintMacro(("CELER_NIBBLES(u, v" + slots + ")").c_str(), body);
}

int Search(double seconds, uint32_t seed) {
  std::mt19937 random(seed);
  const Bench bench;
  Code codes[2];
  Code *now = &codes[0], *other = &codes[1];
  Order best;
  double cycles = 1e9;
  for (int i = 0; i < 20000; ++i) {
    const Order plan = RandomPlan(random);
    if (!other->Write(plan)) continue;
    bench.Measure(*other);
    const double took = Median({bench.Measure(*other), bench.Measure(*other), bench.Measure(*other)});
    if (took >= cycles) continue;
    best = plan;
    cycles = took;
    std::swap(now, other);
  }
  std::fprintf(stderr, "the best plan takes %.2f cycles\n", cycles);
  const auto start = std::chrono::steady_clock::now();
  double shown = 0;
  for (int64_t tried = 0, kept = 0;; ++tried) {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (passed >= shown) {
      std::fprintf(stderr, "%.0f s: %.2f cycles, %lld of %lld moves kept\n", passed, cycles,
                   static_cast<long long>(kept), static_cast<long long>(tried));
      shown += 10;
    }
    if (passed >= seconds) break;
    Order candidate = best;
    bool moved = true;
    for (unsigned moves = 1 + random() % 3; moved && moves > 0; --moves) moved = Move(&candidate, random);
    double took = 0;
    if (!moved || !other->Write(candidate) || !Faster(bench, *now, *other, &took)) continue;
    best = std::move(candidate);
    cycles = took;
    std::swap(now, other);
    ++kept;
  }
  CELER_CHECK(bench.Right(*now));
  Print(best);
  return 0;
}

int Check() {
  std::mt19937 random(1);
  const Bench bench;
  Code code;
  int compared = 0;
  for (int i = 0; compared < 20 && i < 10000; ++i) {
    Order o = RandomPlan(random);
    if (!code.Write(o)) continue;
    for (int moves = 0; moves < 30; ++moves) {
      Order moved = o;
      if (Move(&moved, random) && code.Write(moved)) o = std::move(moved);
    }
    CELER_CHECK(code.Write(o));
    ++compared;
    if (bench.Right(code)) continue;
    std::fprintf(stderr, "order %d gives another result than the plain loop\n", i);
    return 1;
  }
  std::printf("%d orders compared\n", compared);
  return compared == 20 ? 0 : 1;
}

}  // namespace
}  // namespace celer

int main(int argc, char** argv) {
  if (!celer::RunsHere(celer::Isa::kArmI8mm)) {
    std::fprintf(stderr, "this CPU has no usdot\n");
    return 77;
  }
  if (argc == 2 && std::string_view(argv[1]) == "--check") return celer::Check();
  char* end = nullptr;
  const double seconds = argc == 2 || argc == 3 ? std::strtod(argv[1], &end) : 0;
  if (seconds <= 0 || *end) {
    std::fprintf(stderr, "usage: %s SECONDS [SEED] | --check\n", argv[0]);
    return 2;
  }
  return celer::Search(seconds, argc == 3 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 1);
}
