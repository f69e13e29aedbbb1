#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

#include "base/check.h"
#include "base/result.h"
#include "celer/limits.h"

namespace celer {
namespace {

constexpr double kMaxParams = 9007199254740992.0;  // 2^53
constexpr double kMaxTokens = 1e12;                // where a search for a crossing gives up
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Head(const LlmShape& s) {
  return double(s.hidden) * double(s.vocab);
}

// Sums over all layers.
template <class Part>
double SumOf(const LlmShape& s, const Part& part) {
  double sum = 0;
  for (const LayerKind& kind : KindsOf(s)) sum += double(kind.count) * part(kind);
  return sum;
}

double LayerParams(const LlmShape& s, double experts) {
  return SumOf(s, [&](const LayerKind& k) { return k.always() + k.expert() * experts; });
}

// Weights that `tokens` tokens, together, make the machine read: every weight once, of the experts only those
// that are needed. lm_head included.
double ParamsRead(const LlmShape& s, double tokens) {
  return LayerParams(s, ExpectedExperts(s, tokens)) + Head(s);
}

double ActiveLayers(const LlmShape& s) {
  return LayerParams(s, double(s.experts_per_token));
}

// Of a prompt of n tokens: query-token pairs, where each query sees itself and those before it in the window.
double Pairs(double n, int64_t window) {
  const double w = double(window);
  return window == 0 || n <= w ? 0.5 * n * (n + 1) : 0.5 * w * (w + 1) + (n - w) * w;
}

double Seen(double context, int64_t window) {
  return window == 0 ? context : std::min(context, double(window));
}

// Bytes of keys, values and states. A state is read and written.
double KvBytes(const LlmSetup& setup, double numbers) {
  return numbers * setup.kv_bits / 8;
}
double StateTraffic(const LlmShape& s) {
  return 2 * StateBytes(s);
}

double RequirePeak(const Machine& machine, const LlmSetup& setup) {
  const std::optional<double> peak = PeakFlops(machine, setup);
  CELER_CHECK(peak.has_value());
  return *peak;
}

// n is real so that crossings can be searched for between whole numbers.
PhaseLimit Prefill(const LlmShape& s, const Machine& m, const LlmSetup& setup, double n, HeadRows head,
                   KvReads kv) {
  const double batch = setup.batch;
  const double head_rows = head == HeadRows::kRough ? n : 1;
  const double attention = SumOf(s, [&](const LayerKind& k) {
    const double pair = k.prompt_pair_macs > 0 ? k.prompt_pair_macs : k.pair_macs;
    return Pairs(n, k.window) * pair + n * k.state_macs;
  });
  const double kv_read = SumOf(s, [&](const LayerKind& k) {
    return (k.kv + k.borrowed_kv) * (kv == KvReads::kOnce ? n : Pairs(n, k.window));
  });
  const double macs = batch * (ActiveLayers(s) * n + Head(s) * head_rows + attention);
  PhaseLimit limit;
  limit.weight_s = ParamsRead(s, batch * n) * setup.weight_bits / 8 / m.read_bytes_per_s;
  limit.kv_s = batch * (KvBytes(setup, kv_read) + StateTraffic(s)) / m.read_bytes_per_s;
  limit.compute_s = 2 * macs / RequirePeak(m, setup);
  return limit;
}

PhaseLimit Decode(const LlmShape& s, const Machine& m, const LlmSetup& setup, double batch, double context) {
  const double kv_read =
      SumOf(s, [&](const LayerKind& k) { return (k.kv + k.borrowed_kv) * Seen(context, k.window); });
  const double attention =
      SumOf(s, [&](const LayerKind& k) { return k.pair_macs * Seen(context, k.window) + k.state_macs; });
  PhaseLimit limit;
  limit.weight_s = ParamsRead(s, batch) * setup.weight_bits / 8 / m.read_bytes_per_s;
  limit.kv_s = batch * (KvBytes(setup, kv_read) + StateTraffic(s)) / m.read_bytes_per_s;
  limit.compute_s = 2 * batch * (ActiveLayers(s) + Head(s) + attention) / RequirePeak(m, setup);
  return limit;
}

// Where f changes sign in [low, high], given that it does.
double Bisect(const std::function<double(double)>& f, double low, double high) {
  const bool low_positive = f(low) > 0;
  for (int i = 0; i < 200 && high - low > 1e-9 * std::max(1.0, low); ++i) {
    const double middle = 0.5 * (low + high);
    ((f(middle) > 0) == low_positive ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// Read minus compute is a n^2 + b n + c when every weight is read whatever n is.
std::optional<TurningPoints> SolveDense(double a, double b, double c) {
  if (a == 0) {
    if (b >= 0) return c < 0 ? std::optional(TurningPoints{0, b > 0 ? -c / b : kInfinity}) : std::nullopt;
    return TurningPoints{std::max(0.0, -c / b), kInfinity};
  }
  const double discriminant = b * b - 4 * a * c;
  if (discriminant < 0) return a > 0 ? std::nullopt : std::optional(TurningPoints{0, kInfinity});
  const double root = std::sqrt(discriminant);
  // The form that does not subtract nearly equal numbers.
  const double q = -0.5 * (b + std::copysign(root, b));
  double low = q / a, high = q != 0 ? c / q : 0;
  if (low > high) std::swap(low, high);
  // Upward parabola: arithmetic binds between the roots. Downward: outside of them, of which only the part
  // above the larger root has positive n (b < 0 whenever a < 0).
  if (a > 0) return TurningPoints{std::max(0.0, low), high};
  return TurningPoints{std::max(0.0, high), kInfinity};
}

// With experts the weights read grow with n as well, so the crossings are searched for on a fine geometric
// grid: the first interval in which arithmetic binds.
std::optional<TurningPoints> SolveByScan(const std::function<double(double)>& read_minus_compute) {
  TurningPoints points{0, kInfinity};
  bool inside = read_minus_compute(1) < 0;
  bool found = inside;
  double previous = 1;
  for (double n = 1.02; n < kMaxTokens; n *= 1.02) {
    const bool now = read_minus_compute(n) < 0;
    if (now != inside) {
      const double crossing = Bisect(read_minus_compute, previous, n);
      if (!now) {
        points.second = crossing;
        return points;
      }
      points.first = crossing;
      found = true;
      inside = true;
    }
    previous = n;
  }
  return found ? std::optional(points) : std::nullopt;
}

}  // namespace

std::vector<LayerKind> KindsOf(const LlmShape& s) {
  if (!s.kinds.empty()) return s.kinds;
  const double hidden = s.hidden, q = double(s.heads) * s.head_dim, kv = double(s.kv_heads) * s.head_dim;
  const double columns = s.experts > 0 ? s.shared_intermediate : s.intermediate;
  const double gated = s.gated_mlp || s.experts > 0 ? 2 : 1;
  LayerKind kind{.count = s.layers,
                 .qkv = hidden * (q + 2 * kv) + (s.qkv_bias ? q + 2 * kv : 0),
                 .o = q * hidden,
                 .up = gated * hidden * columns + hidden * double(s.experts),
                 .down = hidden * columns,
                 .norms = 2 * hidden + (s.qk_norm ? 2 * double(s.head_dim) : 0),
                 .query = q,
                 .kv = 2 * kv,
                 .pair_macs = 2 * q};  // a KV value serves every query head of its group
  if (s.experts > 0) {
    kind.expert_up = (s.gated_mlp ? 2 : 1) * hidden * double(s.intermediate);
    kind.expert_down = hidden * double(s.intermediate);
  }
  return {kind};
}

Status Validate(const LlmShape& s) {
  const std::string who = s.name.empty() ? "model" : "model '" + s.name + "'";
  const struct {
    const char* field;
    int64_t value;
  } positive[] = {{"layers", s.layers},    {"hidden", s.hidden}, {"intermediate", s.intermediate},
                  {"vocab", s.vocab},      {"heads", s.heads},   {"kv_heads", s.kv_heads},
                  {"head_dim", s.head_dim}};
  for (const auto& [field, value] : positive)
    if (value <= 0) return Error::Invalid(who, ": ", field, " is ", value, ", but must be at least 1");
  if (s.heads % s.kv_heads != 0)
    return Error::Invalid(who, ": ", s.heads, " heads cannot be shared evenly by ", s.kv_heads, " KV heads");
  if (s.experts < 0 || s.experts_per_token < 0 || s.shared_intermediate < 0)
    return Error::Invalid(who, ": the number of experts cannot be negative");
  if (s.experts > 0 && (s.experts_per_token < 1 || s.experts_per_token > s.experts))
    return Error::Invalid(who, ": experts_per_token is ", s.experts_per_token, ", but must be 1 to ",
                          s.experts);
  if (s.experts == 0 && (s.experts_per_token > 0 || s.shared_intermediate > 0))
    return Error::Invalid(who, ": experts_per_token or shared_intermediate is set, but experts is 0");
  int64_t counted = s.kinds.empty() ? s.layers : 0;
  for (const LayerKind& kind : s.kinds) counted += kind.count;
  if (counted != s.layers)
    return Error::Invalid(who, ": ", s.layers, " layers, and its kinds of layers are ", counted);
  const double total = LayerParams(s, double(s.experts)) + 2 * Head(s);
  if (!(total < kMaxParams))
    return Error::Invalid(who, ": its shape gives ", total, " parameters, more than 2^53");
  return {};
}

Status Validate(const Machine& m) {
  const std::string who = m.name.empty() ? "machine" : "machine '" + m.name + "'";
  const auto check = [&](const char* what, double value) -> Status {
    if (std::isfinite(value) && value > 0 && value < 1e24) return {};
    return Error::Invalid(who, ": ", what, " is ", value, ", but must be above 0 and finite");
  };
  CELER_RETURN_IF_ERROR(check("memory in bytes", m.memory_bytes));
  CELER_RETURN_IF_ERROR(check("read bandwidth in byte/s", m.read_bytes_per_s));
  if (m.flops.empty()) return Error::Invalid(who, ": no arithmetic peak is known");
  for (const auto& [dtype, peak] : m.flops)
    CELER_RETURN_IF_ERROR(check((dtype + " peak in FLOP/s").c_str(), peak));
  return {};
}

Machine InUnits(Machine machine, Units units) {
  if (units == Units::kSi) return machine;
  constexpr double kGiga = 1073741824.0 / 1e9, kTera = 1099511627776.0 / 1e12;
  machine.read_bytes_per_s *= kGiga;
  machine.read_bytes_per_s_one *= kGiga;
  machine.copy_bytes_per_s *= kGiga;
  machine.host_bytes_per_s *= kGiga;
  for (auto& [dtype, peak] : machine.flops) peak *= kTera;
  return machine;
}

LlmParams CountParams(const LlmShape& s) {
  LlmParams p;
  // Exact: Validate keeps every sum below 2^53.
  p.layers = static_cast<int64_t>(LayerParams(s, double(s.experts)));
  p.layers_active = static_cast<int64_t>(ActiveLayers(s));
  p.lm_head = s.hidden * s.vocab;
  p.embedding = s.tied_embeddings ? 0 : p.lm_head;
  p.norms = static_cast<int64_t>(SumOf(s, [](const LayerKind& k) { return k.norms; })) + s.hidden;
  p.active = p.layers_active + p.lm_head;
  p.resident = p.layers + p.lm_head;
  p.total = p.resident + p.embedding;
  return p;
}

int64_t KvParamsPerToken(const LlmShape& s) {
  return static_cast<int64_t>(SumOf(s, [](const LayerKind& k) { return k.kv; }));
}

int64_t StateParams(const LlmShape& s) {
  return static_cast<int64_t>(SumOf(s, [](const LayerKind& k) { return k.state; }));
}

std::string SetupName(const LlmSetup& setup) {
  std::ostringstream name;
  name << "w" << setup.weight_bits << "kv" << setup.kv_bits;
  return name.str();
}

double WeightBytes(const LlmShape& s, const LlmSetup& setup) {
  return double(CountParams(s).resident) * setup.weight_bits / 8;
}

double KvBytesPerToken(const LlmShape& s, const LlmSetup& setup) {
  return double(KvParamsPerToken(s)) * setup.kv_bits / 8;
}

double StateBytes(const LlmShape& s) {
  return 4 * double(StateParams(s));
}

std::optional<int64_t> KvCapacityTokens(const LlmShape& s, const Machine& m, const LlmSetup& setup,
                                        bool count_embedding) {
  double left = m.memory_bytes - WeightBytes(s, setup);
  left -= double(setup.batch) * StateBytes(s);
  if (count_embedding) left -= double(CountParams(s).embedding) * setup.weight_bits / 8;
  if (left < 0) return std::nullopt;
  return static_cast<int64_t>(std::min(left / KvBytesPerToken(s, setup), 9e18));
}

std::optional<double> PeakFlops(const Machine& m, const LlmSetup& setup) {
  const auto find = [&](const std::string& dtype) {
    const auto it = m.flops.find(dtype);
    return it == m.flops.end() ? std::optional<double>() : std::optional(it->second);
  };
  if (setup.compute != "auto") return find(setup.compute);
  std::optional<double> best = find("f32");
  if (setup.weight_bits > 16) return best;
  for (const char* dtype : {"f16", "bf16"})
    if (const auto peak = find(dtype); peak && (!best || *peak > *best)) best = peak;
  return best;
}

std::string_view BoundText(Bound bound) {
  switch (bound) {
    case Bound::kWeightRead:
      return "reading weights";
    case Bound::kKvRead:
      return "reading KV";
    case Bound::kCompute:
      return "arithmetic";
  }
  return "";
}

PhaseLimit PrefillLimit(const LlmShape& s, const Machine& m, const LlmSetup& setup, int64_t prompt,
                        HeadRows head, KvReads kv) {
  CELER_CHECK_GE(prompt, 1);
  CELER_CHECK_GE(setup.batch, 1);
  return Prefill(s, m, setup, static_cast<double>(prompt), head, kv);
}

std::optional<TurningPoints> PrefillTurningPoints(const LlmShape& s, const Machine& m, const LlmSetup& setup,
                                                  HeadRows head, KvReads kv) {
  CELER_CHECK_GE(setup.batch, 1);
  std::optional<TurningPoints> points;
  if (s.experts > 0 || !s.kinds.empty()) {
    points = SolveByScan([&](double n) {
      const PhaseLimit at = Prefill(s, m, setup, n, head, kv);
      return at.read_s() - at.compute_s;
    });
  } else {
    const double batch = setup.batch;
    const double peak = RequirePeak(m, setup);
    const double pair_s = 2 * batch * SumOf(s, [](const LayerKind& k) { return k.pair_macs; }) /
                          peak;  // arithmetic of one query-context pair
    const double kv_s = batch * KvBytesPerToken(s, setup) / m.read_bytes_per_s;  // reading one token's KV
    const bool rough = head == HeadRows::kRough;
    const double token_s = 2 * batch * (ActiveLayers(s) + (rough ? Head(s) : 0)) / peak;
    const double half_reads = kv == KvReads::kEveryToken ? 0.5 * kv_s : 0;
    const double a = half_reads - 0.5 * pair_s;
    const double b = (kv == KvReads::kEveryToken ? 0.5 * kv_s : kv_s) - 0.5 * pair_s - token_s;
    const double c = ParamsRead(s, 1) * setup.weight_bits / 8 / m.read_bytes_per_s -
                     (rough ? 0 : 2 * batch * Head(s) / peak);
    points = SolveDense(a, b, c);
  }
  if (points && points->second < 1) return std::nullopt;  // no prompt is that short
  return points;
}

PhaseLimit DecodeLimit(const LlmShape& s, const Machine& m, const LlmSetup& setup, int64_t context) {
  CELER_CHECK_GE(context, 1);
  CELER_CHECK_GE(setup.batch, 1);
  return Decode(s, m, setup, static_cast<double>(setup.batch), static_cast<double>(context));
}

DecodeForm DecodeWB(const LlmShape& s, const Machine& m, const LlmSetup& setup) {
  const PhaseLimit one = DecodeLimit(s, m, setup, 1);
  // Without states, what one token takes.
  const double token_s = s.kinds.empty() ? one.kv_s : DecodeLimit(s, m, setup, 2).kv_s - one.kv_s;
  return {1e-3 / token_s, 1e3 * one.read_s()};
}

std::optional<double> DecodeTurningBatch(const LlmShape& s, const Machine& m, const LlmSetup& setup,
                                         int64_t context) {
  CELER_CHECK_GE(context, 1);
  const auto read_minus_compute = [&](double batch) {
    const PhaseLimit at = Decode(s, m, setup, batch, static_cast<double>(context));
    return at.read_s() - at.compute_s;
  };
  if (read_minus_compute(1) <= 0) return 1;
  for (double high = 2; high < kMaxTokens; high *= 2)
    if (read_minus_compute(high) <= 0) return Bisect(read_minus_compute, high / 2, high);
  return std::nullopt;
}

double ExpectedExperts(const LlmShape& s, double tokens) {
  if (s.experts == 0) return 0;
  const double experts = double(s.experts);
  const double missed = std::log1p(-double(s.experts_per_token) / experts);  // -inf when all are chosen
  return experts * -std::expm1(tokens * missed);
}

}  // namespace celer
