#include "models/lora/random_lora.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "models/lora/lora_adapter.h"

namespace celer {
namespace {

constexpr std::array kParts = {LoraPart::kQ,    LoraPart::kK,  LoraPart::kV,   LoraPart::kO,
                               LoraPart::kGate, LoraPart::kUp, LoraPart::kDown};

class Numbers {
 public:
  explicit Numbers(const RandomLora& what) : what_(what), state_(what.seed * 2654435761u + 1) {}
  std::vector<float> Make(int64_t n) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& v : out) {
      state_ = state_ * 1664525u + 1013904223u;
      v = what_.size * (static_cast<float>(state_ >> 8) / static_cast<float>(1 << 23) - 1);
      if (what_.bf16) v = std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0xffff0000u);
    }
    return out;
  }

 private:
  const RandomLora& what_;
  uint32_t state_;
};

}  // namespace

std::shared_ptr<const LoraAdapter> MakeRandomLora(const DecoderConfig& config, const RandomLora& what) {
  Numbers numbers(what);
  const std::span<const LoraPart> parts =
      what.parts.empty() ? std::span<const LoraPart>(kParts) : std::span<const LoraPart>(what.parts);
  std::vector<LoraMatrix> matrices;
  LoraInfo info{.name = what.name,
                .path = "",
                .content = "random:" + what.name + ":" + std::to_string(what.seed),
                .rank = what.rank};
  for (const auto& [place, at] : PlacesByPlace(config)) {
    if (std::find(parts.begin(), parts.end(), place.part) == parts.end()) continue;
    matrices.push_back({.at = at,
                        .module = what.name,
                        .rank = what.rank,
                        .a = std::make_shared<const std::vector<float>>(numbers.Make(what.rank * at.cols)),
                        .b = numbers.Make(what.rank * at.rows)});
    info.bytes += 4 * what.rank * (at.cols + at.rows);
  }
  info.matrices = std::ssize(matrices);
  return std::make_shared<const LoraAdapter>(std::move(info), std::move(matrices));
}

}  // namespace celer
