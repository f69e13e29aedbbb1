#include "convert/part_order.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "models/config/part_names.h"
#include "models/load/gguf_keys.h"
#include "models/load/tensor_names.h"
#include "models/lora/row_order.h"

namespace celer {
namespace {

bool IsOneOf(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Behind the channels of queries and keys, those of the values: `kernel` numbers each.
std::vector<int32_t> TiledChannels(const RecurrentConfig& r, int64_t elements) {
  const int64_t values = r.value_heads * r.value_dim * r.conv_kernel;
  std::vector<int32_t> order(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) order[i] = static_cast<int32_t>(i);
  if (values > elements) return order;
  const std::vector<int32_t> tiled = TiledRows(r, values);
  for (int64_t i = 0; i < values; ++i)
    order[elements - values + i] = static_cast<int32_t>(elements - values + tiled[i]);
  return order;
}

// Each head's values, which the folder has behind its keys.
std::vector<int32_t> LatentValues(const LatentConfig& l, int64_t heads) {
  std::vector<int32_t> order;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t v = 0; v < l.value_dim; ++v)
      order.push_back(static_cast<int32_t>(h * (l.nope_dim + l.value_dim) + l.nope_dim + v));
  return order;
}

}  // namespace

PartOrder OrderInGguf(const DecoderConfig& config, const ModelPart& part, bool vector) {
  PartOrder order;
  const std::string name = PatternOf(part.key).pattern;
  const PartNames& names = kHfNames;
  const Shape& shape = part.shape;
  const int64_t cols = vector ? shape.elements().value_or(0) : shape[shape.rank() - 1];
  const int64_t rows = vector ? 1 : shape[shape.rank() - 2];
  std::vector<int32_t>* const main = vector ? &order.cols : &order.rows;
  const int64_t count = vector ? cols : rows;
  if (GgufInterleaves(config) && IsOneOf(name, {names.q, names.k, names.q_bias, names.k_bias}))
    *main = InterleavedRows(count, config.head_dim);
  if (TilesInGguf(config)) {
    const RecurrentConfig& r = config.recurrent;
    if (IsOneOf(name, {names.state_v, names.state_z, names.state_b, names.state_a, names.state_dt_bias,
                       names.state_a_log}))
      *main = TiledRows(r, count);
    else if (name == names.state_conv)
      order.cols = TiledChannels(r, cols);
    else if (name == names.state_out)
      order.cols = TiledRows(r, cols);
  }
  order.decay = name == names.state_a_log;
  if (config.IsLatent() && part.name.ends_with("attn_v_b.weight"))
    order.rows = LatentValues(config.latent, config.heads);
  order.turned_keys = config.IsLatent() && part.name.ends_with("attn_k_b.weight");
  return order;
}

float Decay(float log) {
  return static_cast<float>(-std::exp(static_cast<double>(log)));
}

std::vector<int32_t> Inverted(const std::vector<int32_t>& order) {
  std::vector<int32_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int32_t>(i);
  return back;
}

}  // namespace celer
