#include "models/lora/lora.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "base/check.h"
#include "models/lora/lora_adapter.h"

namespace celer {
namespace {

int64_t BytesOnDevice(const std::vector<LoraMatrix>& matrices) {
  const auto up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  int64_t bytes = 0;
  std::set<const void*> seen;
  for (const LoraMatrix& m : matrices) {
    if (m.a && seen.insert(m.a.get()).second)
      bytes += up(4 * (std::ssize(*m.a) + m.rank * (kLoraPad - 1)), kLoraAlign);
    for (const auto* values : {&m.b, &m.row_scale, &m.shift})
      bytes += up(4 * std::ssize(*values), kLoraAlign);
    const int64_t number = m.whole_dtype == DType::kBf16 || m.whole_dtype == DType::kF16 ? 2 : 4;
    if (!m.whole.empty()) bytes += up(m.at.rows * up(m.at.cols, kLoraPad) * number, kLoraAlign);
  }
  return bytes;
}

}  // namespace

LoraAdapter::LoraAdapter(LoraInfo info, std::vector<LoraMatrix> matrices)
    : info_(std::move(info)), matrices_(std::move(matrices)), device_bytes_(BytesOnDevice(matrices_)) {}

int64_t DeviceBytesOf(const LoraAdapter& adapter) {
  return adapter.device_bytes();
}

const LoraInfo& InfoOf(const LoraAdapter& adapter) {
  return adapter.info();
}

Result<std::shared_ptr<const LoraMix>> LoraMix::Make(std::vector<LoraUse> uses) {
  const std::shared_ptr<LoraMix> mix(new LoraMix());
  for (LoraUse& use : uses) {
    CELER_CHECK(use.adapter);
    const LoraInfo& info = InfoOf(*use.adapter);
    if (!std::isfinite(use.scale))
      return Error::Invalid("the scale of adapter '", info.name, "' is ", use.scale,
                            ", expected a finite number");
    if (use.scale == 0) continue;
    mix->key_ += fmt::format("{}{}*{}", mix->key_.empty() ? "" : "+", info.content, use.scale);
    mix->uses_.push_back(std::move(use));
  }
  return mix->uses_.empty() ? nullptr : std::shared_ptr<const LoraMix>(mix);
}

}  // namespace celer
