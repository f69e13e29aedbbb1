#include "engine/cost/step_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "limits/roofline.h"
#include "models/op_profile.h"

namespace celer {
namespace {

OperatorWork Times(OperatorWork work, double bytes, double flops) {
  work.bytes *= bytes;
  for (auto& [type, count] : work.flops) count *= flops;
  return work;
}

OperatorWork TakeOut(std::vector<OperatorWork>& work, Op op) {
  const auto it = std::find_if(work.begin(), work.end(), [&](const auto& w) { return w.name == Name(op); });
  if (it == work.end()) return {.name = Name(op)};
  OperatorWork found = std::move(*it);
  work.erase(it);
  return found;
}

double OperatorSeconds(const RooflineLimit& limit, const Efficiency& e) {
  const double read = limit.memory_s / e.read, compute = limit.compute_s / e.arithmetic;
  return std::max(read, compute) + (1 - e.overlap) * std::min(read, compute);
}

}  // namespace

AttendedKeys CountAttendedKeys(const SliceShape& s, int64_t window) {
  const int64_t end = s.position + s.tokens;
  // The queries that see everything before them, then those that see a whole window.
  const int64_t open = window == 0 ? s.tokens : std::clamp<int64_t>(window - s.position, 0, s.tokens);
  const auto n = static_cast<double>(open);
  return {n * static_cast<double>(s.position) + n * (n + 1) / 2 +
              static_cast<double>(s.tokens - open) * static_cast<double>(window),
          static_cast<double>(end - (window == 0 ? 0 : std::max<int64_t>(0, s.position + 1 - window)))};
}

StepCost::StepCost(const DecoderConfig& config, Count count) : count_(std::move(count)) {
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.HasAttention(i)) {
      ++layers_by_window_[config.Window(i)];
      ++layers_;
    }
  layers_ = std::max<int64_t>(1, layers_);
  std::vector<OperatorWork> one = count_({.sequences = 1, .tokens = 1, .position = 0});
  logits_ = TakeOut(one, Op::kLogits);
  attention_ = TakeOut(one, Op::kAttention);
}

const std::vector<OperatorWork>& StepCost::Dense(int64_t tokens) const {
  const auto [it, is_new] = dense_.try_emplace(tokens);
  if (is_new) {
    it->second = count_({.sequences = 1, .tokens = tokens, .position = 0});
    TakeOut(it->second, Op::kLogits);
    TakeOut(it->second, Op::kAttention);
  }
  return it->second;
}

OperatorWork StepCost::Logits(int64_t rows) const {
  return Times(logits_, rows > 0 ? 1 : 0, static_cast<double>(rows));
}

OperatorWork StepCost::Attention(std::span<const SliceShape> slices) const {
  AttendedKeys sum;
  for (const auto& [window, layers] : layers_by_window_)
    for (const SliceShape& slice : slices) {
      const AttendedKeys one = CountAttendedKeys(slice, window);
      sum.pairs += static_cast<double>(layers) * one.pairs;
      sum.keys += static_cast<double>(layers) * one.keys;
    }
  const auto layers = static_cast<double>(layers_);
  return Times(attention_, sum.keys / layers, sum.pairs / layers);
}

OperatorWork StepCost::DecodeAttention(const SliceShape& tokens) const {
  double pairs = 0;
  for (const auto& [window, layers] : layers_by_window_)
    pairs += static_cast<double>(layers) * CountAttendedKeys(tokens, window).pairs;
  pairs /= static_cast<double>(layers_);
  return Times(attention_, pairs, pairs);
}

std::vector<OperatorWork> StepCost::Work(std::span<const SliceShape> slices) const {
  int64_t tokens = 0, rows = 0;
  for (const SliceShape& slice : slices) {
    tokens += slice.tokens;
    rows += slice.rows;
  }
  std::vector<OperatorWork> work = Dense(tokens);
  work.push_back(Attention(slices));
  work.push_back(Logits(rows));
  return work;
}

namespace {

// The matrices that a model of a configuration has.
class Sizes {
 public:
  Sizes(const DecoderConfig& config, const WeightOptions& weights) : c_(config), weights_(weights) {}

  StepMatrices All() const {
    StepMatrices all;
    all.head = Matrix(c_.vocab, c_.hidden, WeightRole::kVocabulary);
    all.embedding_row_bytes = 2 * (c_.hidden + c_.layers * c_.per_layer_dim);
    for (int64_t i = 0; i < c_.layers; ++i) all.layers.push_back(Layer(i));
    return all;
  }

 private:
  MatrixSize Matrix(int64_t rows, int64_t cols, WeightRole role = WeightRole::kProjection) const {
    if (rows == 0 || cols == 0) return {};
    const WeightFormatSpec format = PlanFormat(weights_, WeightFormatSpec::Stored(DType::kBf16), cols, role);
    const int64_t row = format.RowBytes(cols) + format.ScaleBytes(cols);
    const bool wide = format.stored() && format.dtype == DType::kF32;
    return {.rows = rows, .cols = cols, .bytes = rows * row, .compute = wide ? "f32" : "auto"};
  }

  StepMatrices::Expert Ffn(int64_t columns) const {
    return {.gate = Matrix(c_.gated_mlp ? columns : 0, c_.hidden),
            .up = Matrix(columns, c_.hidden),
            .down = Matrix(c_.hidden, columns)};
  }

  StepMatrices::Layer Layer(int64_t i) const {
    StepMatrices::Layer layer;
    if (c_.HasMixer(i) && c_.IsRecurrent(i))
      Recurrent(&layer);
    else if (c_.HasMixer(i) && c_.IsLatent())
      Latent(&layer);
    else if (c_.HasMixer(i))
      Attention(i, &layer);
    const MoeConfig& moe = c_.moe;
    if (c_.HasFfn(i) && (!c_.IsSparse(i) || moe.beside_dense)) layer.dense = Ffn(c_.Intermediate(i));
    if (c_.HasFfn(i) && c_.IsSparse(i)) {
      layer.experts.assign(static_cast<size_t>(moe.experts), Ffn(moe.intermediate));
      layer.router = Matrix(moe.experts, c_.hidden, WeightRole::kRouter);
      layer.shared = Ffn(moe.shared_intermediate);
    }
    for (const int64_t width : {c_.per_layer_dim, c_.laurel_rank})
      layer.beside.insert(layer.beside.end(), {Matrix(width, c_.hidden), Matrix(c_.hidden, width)});
    return layer;
  }

  void Attention(int64_t i, StepMatrices::Layer* layer) const {
    const int64_t q = c_.heads * c_.HeadDim(i);
    const int64_t kv = c_.KvFrom(i) == i ? c_.KvHeads(i) * c_.HeadDim(i) : 0;
    layer->qkv = {Matrix(c_.output_gate ? 2 * q : q, c_.hidden), Matrix(kv, c_.hidden),
                  Matrix(c_.ValuesAreKeys(i) ? 0 : kv, c_.hidden)};
    layer->output = Matrix(c_.hidden, q);
  }

  void Latent(StepMatrices::Layer* layer) const {
    const LatentConfig& l = c_.latent;
    const int64_t q = c_.heads * (l.nope_dim + l.rope_dim);
    layer->qkv = {Matrix(l.q_rank, c_.hidden), Matrix(q, l.q_rank > 0 ? l.q_rank : c_.hidden),
                  Matrix(l.kv_rank + l.rope_dim, c_.hidden), Matrix(c_.heads * l.kv_rank, l.nope_dim),
                  Matrix(c_.heads * l.value_dim, l.kv_rank)};
    layer->output = Matrix(c_.hidden, c_.heads * l.value_dim);
  }

  void Recurrent(StepMatrices::Layer* layer) const {
    const RecurrentConfig& r = c_.recurrent;
    const int64_t keys = r.key_heads * r.key_dim, values = r.value_heads * r.value_dim;
    layer->qkv = {Matrix(2 * keys + 2 * values, c_.hidden)};
    const int64_t routers = r.kind == RecurrentKind::kMamba2 ? r.value_heads : 2 * r.value_heads;
    layer->qkv.push_back(Matrix(routers, c_.hidden, WeightRole::kRouter));
    layer->output = Matrix(c_.hidden, values);
  }

  const DecoderConfig& c_;
  const WeightOptions& weights_;
};

}  // namespace

StepMatrices MatricesOf(const DecoderConfig& config, const WeightOptions& weights) {
  return Sizes(config, weights).All();
}

StepMatrices MatricesOf(const LlmShape& shape, const WeightOptions& weights) {
  return MatricesOf(FromLlmShape(shape), weights);
}

int64_t BytesOf(const StepMatrices& matrices) {
  const auto expert = [](const StepMatrices::Expert& e) { return e.gate.bytes + e.up.bytes + e.down.bytes; };
  int64_t sum = matrices.head.bytes;
  for (const StepMatrices::Layer& layer : matrices.layers) {
    for (const MatrixSize& m : layer.qkv) sum += m.bytes;
    for (const MatrixSize& m : layer.beside) sum += m.bytes;
    for (const StepMatrices::Expert& e : layer.experts) sum += expert(e);
    sum += layer.output.bytes + layer.router.bytes + layer.shared_gate.bytes + expert(layer.dense) +
           expert(layer.shared);
  }
  return sum;
}

Result<Efficiency> Efficiency::Parse(std::string_view text) {
  Efficiency e;
  const auto wrong = [&](std::string_view part, const char* expected) {
    return Error::Invalid("efficiency '", part, "': expected ", expected,
                          ", as in read=0.8,arithmetic=0.6,overlap=0.5,step=100us,row=0us");
  };
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const size_t equals = part.find('=');
    if (equals == part.npos) return wrong(part, "a name and a value");
    const std::string_view name = part.substr(0, equals), value = part.substr(equals + 1);
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const std::string_view unit = value.substr(end - value.data());
    if (error != std::errc() || !std::isfinite(number) || number < 0)
      return wrong(part, "a number from 0 on");
    if (name == "step" || name == "row") {
      constexpr double kLongest = 10;
      const double scale = unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : unit == "s" ? 1 : 0;
      if (scale == 0 || number * scale > kLongest) return wrong(part, "us, ms or s, at most 10s");
      (name == "step" ? e.step_s : e.row_s) = number * scale;
      continue;
    }
    if (!unit.empty() || number > 1) return wrong(part, "a share from 0 to 1");
    if (name == "overlap")
      e.overlap = number;
    else if (name != "read" && name != "arithmetic")
      return wrong(part, "read, arithmetic, overlap, step or row");
    else if (number == 0)
      return wrong(part, "more than 0");
    else
      (name == "read" ? e.read : e.arithmetic) = number;
  }
  return e;
}

std::string Efficiency::ToString() const {
  return fmt::format("read={:.3g},arithmetic={:.3g},overlap={:.3g},step={:.3g}us,row={:.3g}us", read,
                     arithmetic, overlap, 1e6 * step_s, 1e6 * row_s);
}

StepTime::StepTime(StepCost cost, Machine machine, Efficiency efficiency)
    : cost_(std::move(cost)), machine_(std::move(machine)), efficiency_(efficiency) {}

double StepTime::Operator(const OperatorWork& work) const {
  return OperatorSeconds(LimitOf(work, machine_), efficiency_);
}

double StepTime::Plain(std::span<const SliceShape> slices) const {
  int64_t tokens = 0, rows = 0;
  for (const SliceShape& slice : slices) {
    tokens += slice.tokens;
    rows += slice.rows;
  }
  const auto [dense, is_new] = dense_s_.try_emplace(tokens);
  if (is_new)
    for (const OperatorWork& work : cost_.Dense(tokens)) dense->second += Operator(work);
  return efficiency_.step_s + dense->second + Operator(cost_.Attention(slices)) +
         Operator(cost_.Logits(rows)) + static_cast<double>(rows) * efficiency_.row_s;
}

StepTime::Likeness StepTime::LikenessOf(std::span<const SliceShape> slices) {
  double prompts = 0, decodes = 0, keys = 0;
  for (const SliceShape& slice : slices) {
    const bool decode = slice.tokens == 1 && slice.position > 0;
    (decode ? decodes : prompts) += static_cast<double>(slice.tokens);
    keys += static_cast<double>(slice.position);
  }
  // A thousand keys make steps about as different as twice the tokens do.
  constexpr double kKeys = 1000;
  return {std::log2(1 + prompts), std::log2(1 + decodes),
          std::log2(1 + keys / kKeys / std::max(1.0, prompts / 128))};
}

void StepTime::Correct(std::span<const MeasuredStep> steps) {
  corrections_.clear();
  std::vector<Correction> corrections;
  for (const MeasuredStep& step : steps)
    corrections.push_back({LikenessOf(step.slices), std::log(step.seconds / Plain(step.slices))});
  corrections_ = std::move(corrections);
}

double StepTime::Seconds(std::span<const SliceShape> slices) const {
  const double plain = Plain(slices);
  if (corrections_.empty()) return plain;
  // Inverse distances, to the fourth power: the nearest decide.
  constexpr double kNear = 1e-6;
  const Likeness where = LikenessOf(slices);
  double sum = 0, weights = 0;
  for (const Correction& correction : corrections_) {
    double distance = 0;
    for (size_t i = 0; i < where.size(); ++i) distance += std::pow(where[i] - correction.where[i], 2);
    const double weight = 1 / (distance * distance + kNear);
    sum += weight * correction.log_factor;
    weights += weight;
  }
  return plain * std::exp(sum / weights);
}

MeasuredWork WorkOf(const StepCost& cost, const MeasuredStep& step) {
  MeasuredWork measured{.work = cost.Work(step.slices), .seconds = step.seconds};
  for (const SliceShape& slice : step.slices) measured.rows += static_cast<double>(slice.rows);
  return measured;
}

Efficiency FitEfficiency(const StepCost& cost, const Machine& machine, std::span<const MeasuredStep> steps) {
  std::vector<MeasuredWork> work;
  for (const MeasuredStep& step : steps) work.push_back(WorkOf(cost, step));
  return FitEfficiency(machine, work);
}

Efficiency FitEfficiency(const Machine& machine, std::span<const MeasuredWork> steps) {
  CELER_CHECK(!steps.empty());
  struct Sample {
    std::vector<RooflineLimit> limits;
    double rows = 0, seconds = 0;
  };
  std::vector<Sample> samples;
  for (const MeasuredWork& step : steps) {
    Sample sample{.limits = {}, .rows = step.rows, .seconds = step.seconds};
    for (const OperatorWork& work : step.work) sample.limits.push_back(LimitOf(work, machine));
    samples.push_back(std::move(sample));
  }
  const auto error = [&](const Efficiency& e) {
    double sum = 0;
    for (const Sample& s : samples) {
      double seconds = e.step_s + s.rows * e.row_s;
      for (const RooflineLimit& limit : s.limits) seconds += OperatorSeconds(limit, e);
      sum += std::pow(std::log(seconds / s.seconds), 2);
    }
    return sum;
  };

  // Five numbers and a smooth error: one after the other, in smaller and smaller steps.
  struct Knob {
    double Efficiency::*value;
    double low, high;
  };
  constexpr std::array<Knob, 5> kKnobs = {{{&Efficiency::read, 0.01, 1},
                                           {&Efficiency::arithmetic, 0.01, 1},
                                           {&Efficiency::overlap, 0, 1},
                                           {&Efficiency::step_s, 0, 0.1},
                                           {&Efficiency::row_s, 0, 0.01}}};
  Efficiency best;
  double least = error(best);
  for (double step = 0.5; step > 1e-3;) {
    bool better = false;
    for (const Knob& knob : kKnobs)
      for (const double direction : {-1.0, 1.0}) {
        Efficiency tried = best;
        double& value = tried.*knob.value;
        // Relative, with a little to leave zero by.
        value = std::clamp(value + direction * step * (value + 1e-3 * knob.high), knob.low, knob.high);
        if (const double now = error(tried); now < least) {
          least = now;
          best = tried;
          better = true;
        }
      }
    if (!better) step /= 2;
  }
  return best;
}

}  // namespace celer
