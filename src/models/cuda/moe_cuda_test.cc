// Experts on the GPU against double precision, at shapes that fill no tile, and in any batch.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "base/device.h"
#include "formats/decode.h"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "kernels/llm/moe/moe.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/cuda/per_device.h"
#include "kernels/shared/test_util.h"
#include "weights/device_weights.h"

namespace celer::cuda {
namespace {

using celer::testing::AllNear;
using celer::testing::RandomFloats;
using testing::OnDevice;

struct HostMatrix {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  WeightView view;
};
HostMatrix MakeHost(const WeightFormatSpec& format, int64_t rows, int64_t cols, uint32_t seed) {
  HostMatrix m;
  const auto values = RandomFloats(rows * cols, seed, 2.0f / std::sqrt(static_cast<float>(cols)));
  const int64_t row_bytes = format.RowBytes(cols), groups = format.GroupsPerRow(cols);
  m.bytes.resize(static_cast<size_t>(rows * row_bytes));
  m.scales.resize(static_cast<size_t>(rows * groups));
  for (int64_t r = 0; r < rows; ++r)
    format.Encode(values.data() + r * cols, cols, m.bytes.data() + r * row_bytes,
                  m.scales.data() + r * groups);
  m.view = {.kind = format.kind,
            .dtype = format.dtype,
            .rows = rows,
            .cols = cols,
            .data = m.bytes.data(),
            .row_bytes = row_bytes,
            .scales = m.scales.data(),
            .group = format.stored()    ? 0
                     : format.group > 0 ? format.group
                                        : cols};
  return m;
}

std::vector<double> Product(const WeightView& w, const std::vector<double>& x) {
  std::vector<float> row(static_cast<size_t>(w.cols));
  std::vector<double> out;
  for (int64_t r = 0; r < w.rows; ++r) {
    DecodeWeightRow(w, r, row.data());
    out.push_back(std::inner_product(row.begin(), row.end(), x.begin(), 0.0));
  }
  return out;
}

struct Shape {
  WeightFormatSpec format;
  int experts, top, hidden, intermediate, tokens;
  bool normalize, shared;
  int form = 0;  // FormOf
  bool biases = false;
  float limit = 0;
  DeviceActivation activation = DeviceActivation::kSilu;
  int parts = 0;  // that a shared expert is cut into

  int all() const { return top + parts; }
};

// One of 128 forms of a router.
RouterForm FormOf(int number, int experts, int top, const float* bias, const float* choice_bias) {
  const auto bit = [&](int i) { return (number >> i & 1) != 0; };
  RouterForm form = {.sigmoid = bit(0),
                     .bias = bit(1) ? bias : nullptr,
                     .choice_bias = bit(2) ? choice_bias : nullptr,
                     .group_by_best_two = bit(4),
                     .normalize = bit(5),
                     .normalize_eps = bit(6) ? 0.25f : 0.0f,
                     .normalize_floor = bit(6) && bit(4),
                     .scale = bit(6) ? 2.5f : 1.0f};
  for (const int groups : {3, 4, 8, 32})
    if (const int used = groups * 2 / 3; bit(3) && experts % groups == 0 && used * (experts / groups) >= top)
      form.groups = groups, form.groups_used = used;
  return form;
}
MoeForm OnGpu(const RouterForm& form, const float* bias, const float* choice_bias) {
  return {.sigmoid = form.sigmoid,
          .group_by_best_two = form.group_by_best_two,
          .normalize = form.normalize,
          .normalize_floor = form.normalize_floor,
          .bias = form.bias ? bias : nullptr,
          .choice_bias = form.choice_bias ? choice_bias : nullptr,
          .groups = static_cast<int>(form.groups),
          .groups_used = static_cast<int>(form.groups_used),
          .normalize_eps = form.normalize_eps,
          .scale = form.scale};
}

double Activated(DeviceActivation kind, double limit, double gate, double up) {
  if (limit > 0) {
    const double g = std::min(gate, limit), u = std::clamp(up, -limit, limit);
    return g / (1 + std::exp(-1.702 * g)) * (u + 1);
  }
  if (kind == DeviceActivation::kRelu2) return std::max(gate, 0.0) * std::max(gate, 0.0) * up;
  return gate / (1 + std::exp(-gate)) * up;
}

class Layer {
 public:
  explicit Layer(const Shape& s) : s_(s) {
    for (int e = 0; e < s.experts + s.parts; ++e) {
      const auto seed = static_cast<uint32_t>(10 * e);
      gate_.push_back(MakeHost(s.format, s.intermediate, s.hidden, seed + 1));
      up_.push_back(MakeHost(s.format, s.intermediate, s.hidden, seed + 2));
      down_.push_back(MakeHost(s.format, s.hidden, s.intermediate, seed + 3));
    }
    norm_ = RandomFloats(s.hidden, 77, 1.0f);
    router_bias_ = RandomFloats(s.experts, 78, 1.0f), choice_bias_ = RandomFloats(s.experts, 79, 0.5f);
    form_ = FormOf(s.form, s.experts, s.top, router_bias_.data(), choice_bias_.data());
    form_.normalize = s.normalize;
    gate_bias_ = RandomFloats(int64_t{s.experts} * s.intermediate, 80, 1.0f);
    up_bias_ = RandomFloats(int64_t{s.experts} * s.intermediate, 81, 1.0f);
    down_bias_ = RandomFloats(int64_t{s.experts} * s.hidden, 82, 1.0f);
  }

  Status Upload() {
    CELER_ASSIGN(DeviceWeights store, DeviceWeights::Create(0, WeightOptions()));
    std::vector<MatrixSource> gate_up, down;
    for (size_t e = 0; e < gate_.size(); ++e) {
      gate_up.push_back({gate_[e].view});
      gate_up.push_back({up_[e].view});
      down.push_back({down_[e].view});
    }
    CELER_ASSIGN(const auto first, store.Upload(gate_up));
    CELER_ASSIGN(const auto second, store.Upload(down));
    CELER_RETURN_IF_ERROR(store.Finish());
    const auto stride = [](const DeviceMatrix& a, const DeviceMatrix& b, ExpertMatrices* m) {
      m->data_stride = b.data - a.data;
      m->scale_stride = a.scales ? b.scales - a.scales : 0;
    };
    gate_up_.first = first[0], gate_up_.up = first[1], down_matrices_.first = second[0];
    if (gate_.size() > 1) {
      stride(first[0], first[2], &gate_up_);
      stride(second[0], second[1], &down_matrices_);
    }
    store_.emplace(std::move(store));
    const auto upload = [&](const std::vector<float>& values) {
      return vectors_.emplace_back(std::make_unique<OnDevice<float>>(values))->get();
    };
    gpu_form_ = OnGpu(form_, upload(router_bias_), upload(choice_bias_));
    if (!s_.biases) return {};
    gate_up_.first_bias = upload(gate_bias_), gate_up_.up_bias = upload(up_bias_);
    down_matrices_.first_bias = upload(down_bias_);
    return {};
  }

  bool CanGroup() const { return MoeGroupedRuns(gate_up_.first, down_matrices_.first); }

  // x after the block.
  std::vector<float> Run(const std::vector<float>& x, const std::vector<float>& logits, int tokens,
                         const std::vector<float>& shared, const std::vector<float>& shared_gate,
                         bool grouped = false) {
    std::vector<float> rows;  // of logits, with the gate's
    for (int t = 0; t < tokens; ++t) {
      const auto begin = logits.begin() + int64_t{t} * s_.experts;
      rows.insert(rows.end(), begin, begin + s_.experts);
      if (s_.parts > 0) rows.push_back(shared_gate[static_cast<size_t>(t)]);
    }
    OnDevice<float> device_x(x), device_logits(rows), norm(norm_), normed(tokens * int64_t{s_.hidden});
    OnDevice<float> mid(tokens * int64_t{s_.all()} * s_.intermediate),
        out(tokens * int64_t{s_.all()} * s_.hidden);
    OnDevice<float> device_shared(shared), gates(shared_gate);
    OnDevice<std::byte> memory(MoePlan::Bytes(tokens, s_.all()), 0);
    const MoePlan plan = MoePlan::In(memory.get(), tokens, s_.all());
    const int job_tokens = grouped ? kGroupedTokens : MoeJobTokens(gate_up_, down_matrices_, tokens);
    EXPECT_GE(job_tokens, 1);
    const int64_t mid_stride = down_matrices_.first.padded;
    OnDevice<std::byte> x_bf16(2 * int64_t{tokens} * gate_up_.first.padded),
        mid_bf16(2 * int64_t{tokens} * s_.all() * mid_stride, 0);
    EXPECT_EQ(cudaSuccess, LaunchMoeRoute({.logits = device_logits.get(),
                                           .logits_stride = s_.parts > 0 ? s_.experts + 1 : 0,
                                           .tokens = tokens,
                                           .experts = s_.experts,
                                           .top = s_.all(),
                                           .shared = s_.parts,
                                           .shared_gate = s_.parts > 0 && s_.shared,
                                           .form = gpu_form_,
                                           .job_tokens = job_tokens,
                                           .x = device_x.get(),
                                           .norm = norm.get(),
                                           .eps = 1e-5f,
                                           .hidden = s_.hidden,
                                           .normed = normed.get(),
                                           .normed_bf16 = grouped ? x_bf16.get() : nullptr,
                                           .bf16_width = grouped ? gate_up_.first.padded : 0,
                                           .plan = plan},
                                          nullptr));
    if (grouped) {
      MoeGroupedArgs product{.w = gate_up_,
                             .gate_up = true,
                             .x = x_bf16.get(),
                             .out = mid_bf16.get(),
                             .out_stride = mid_stride,
                             .activation = s_.activation,
                             .swiglu_limit = s_.limit,
                             .plan = plan};
      EXPECT_EQ(cudaSuccess, LaunchMoeGrouped(product, nullptr));
      product.w = down_matrices_, product.gate_up = false, product.x = mid_bf16.get();
      product.out = out.get(), product.out_stride = s_.hidden;
      EXPECT_EQ(cudaSuccess, LaunchMoeGrouped(product, nullptr));
    } else {
      MoeProductArgs product{.w = gate_up_,
                             .gate_up = true,
                             .x = normed.get(),
                             .out = mid.get(),
                             .activation = s_.activation,
                             .swiglu_limit = s_.limit,
                             .top = s_.all(),
                             .job_tokens = job_tokens,
                             .plan = plan};
      EXPECT_EQ(cudaSuccess, LaunchMoeProduct(product, nullptr));
      product.w = down_matrices_, product.gate_up = false, product.x = mid.get(), product.out = out.get();
      EXPECT_EQ(cudaSuccess, LaunchMoeProduct(product, nullptr));
    }
    EXPECT_EQ(cudaSuccess, LaunchMoeCombine({.out = out.get(),
                                             .tokens = tokens,
                                             .top = s_.all(),
                                             .hidden = s_.hidden,
                                             .plan = plan,
                                             .shared = apart() ? device_shared.get() : nullptr,
                                             .shared_gate = s_.shared ? gates.get() : nullptr,
                                             .x = device_x.get()},
                                            nullptr));
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    return device_x.Read();
  }

  // The shared expert's results come from elsewhere.
  bool apart() const { return s_.shared && s_.parts == 0; }
  bool CanStep() const { return MoeStepRuns(gate_up_, down_matrices_, s_.experts, s_.all(), s_.hidden); }
  // x after the block in one kernel; `router` has a row for the shared expert's gate if there is one. The
  // second time in a row, as a step finds the memory.
  std::vector<float> Step(const std::vector<float>& x, const std::vector<float>& router, int tokens,
                          const std::vector<float>& shared) {
    const int routed = s_.experts + (s_.shared ? 1 : 0);
    OnDevice<float> device_router(router), norm(norm_), device_shared(shared);
    OnDevice<float> logits(int64_t{tokens} * routed), normed(int64_t{tokens} * s_.hidden);
    OnDevice<float> mid(tokens * int64_t{s_.all()} * s_.intermediate),
        out(tokens * int64_t{s_.all()} * s_.hidden);
    OnDevice<std::byte> memory(MoeStepMemory::Bytes(), 0);
    std::vector<float> result;
    for (int i = 0; i < 2; ++i) {
      OnDevice<float> device_x(x);
      MoeStepArgs args{.norm = norm.get(),
                       .router = device_router.get(),
                       .tokens = tokens,
                       .hidden = s_.hidden,
                       .experts = s_.experts,
                       .routed = routed,
                       .top = s_.all(),
                       .shared_experts = s_.parts,
                       .form = gpu_form_,
                       .activation = s_.activation,
                       .swiglu_limit = s_.limit,
                       .shared = apart() ? device_shared.get() : nullptr,
                       .x = device_x.get(),
                       .logits = logits.get(),
                       .normed = normed.get(),
                       .mid = mid.get(),
                       .out = out.get()};
      MoeStepMemory::In(memory.get(), &args);
      EXPECT_EQ(cudaSuccess, LaunchMoeStep(args, gate_up_, down_matrices_, nullptr));
      EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
      const auto got = device_x.Read();
      if (i > 0) {
        EXPECT_EQ(got, result) << "run to run";
      }
      result = got;
    }
    return result;
  }
  // Of a token, from rows of a router.
  std::vector<float> Logits(const float* x, const std::vector<float>& router) const {
    double squares = 0;
    for (int i = 0; i < s_.hidden; ++i) squares += double{x[i]} * x[i];
    std::vector<float> out;
    for (size_t row = 0; row < router.size(); row += static_cast<size_t>(s_.hidden)) {
      double sum = 0;
      for (int i = 0; i < s_.hidden; ++i)
        sum += double{x[i]} * norm_[static_cast<size_t>(i)] * router[row + static_cast<size_t>(i)];
      out.push_back(static_cast<float>(sum / std::sqrt(squares / s_.hidden + 1e-5)));
    }
    return out;
  }

  // What the experts add to a token.
  std::vector<double> Reference(const float* x, std::span<const float> logits, double gate) const {
    double squares = 0;
    for (int i = 0; i < s_.hidden; ++i) squares += double{x[i]} * x[i];
    std::vector<double> normed, sum(static_cast<size_t>(s_.hidden));
    for (int i = 0; i < s_.hidden; ++i)
      normed.push_back(x[i] * norm_[static_cast<size_t>(i)] / std::sqrt(squares / s_.hidden + 1e-5));
    std::vector<Route> routes = RouteToken(logits, s_.top, form_);
    const double shared = s_.shared ? 1 / (1 + std::exp(-gate)) : 1;
    for (int i = 0; i < s_.parts; ++i) routes.push_back({s_.experts + i, static_cast<float>(shared)});
    for (const Route& route : routes) {
      const auto e = static_cast<size_t>(route.expert);
      const auto bias = [&](const std::vector<float>& all, size_t rows, size_t i) {
        return s_.biases ? double{all[e * rows + i]} : 0.0;
      };
      std::vector<double> mid = Product(gate_[e].view, normed);
      const std::vector<double> up = Product(up_[e].view, normed);
      for (size_t i = 0; i < mid.size(); ++i)
        mid[i] = Activated(s_.activation, s_.limit, mid[i] + bias(gate_bias_, mid.size(), i),
                           up[i] + bias(up_bias_, mid.size(), i));
      const std::vector<double> out = Product(down_[e].view, mid);
      for (size_t i = 0; i < out.size(); ++i)
        sum[i] += route.weight * (out[i] + bias(down_bias_, out.size(), i));
    }
    return sum;
  }

 private:
  Shape s_;
  std::vector<HostMatrix> gate_, up_, down_;
  std::vector<float> norm_, router_bias_, choice_bias_, gate_bias_, up_bias_, down_bias_;
  RouterForm form_;
  MoeForm gpu_form_;
  std::vector<std::unique_ptr<OnDevice<float>>> vectors_;
  std::optional<DeviceWeights> store_;
  ExpertMatrices gate_up_, down_matrices_;
};

class MoeCuda : public ::testing::TestWithParam<Shape> {};

TEST_P(MoeCuda, EqualsDoubleAloneAndInCompany) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const Shape s = GetParam();
  Layer layer(s);
  const Status uploaded = layer.Upload();
  ASSERT_TRUE(uploaded) << uploaded.error().message();
  const auto x = RandomFloats(int64_t{s.tokens} * s.hidden, 5, 3.0f);
  auto logits = RandomFloats(int64_t{s.tokens} * s.experts, 6, 4.0f);
  logits[0] = logits[static_cast<size_t>(s.experts - 1)] = 5.0f;  // a tie goes to the lower index
  const auto shared = RandomFloats(int64_t{s.tokens} * s.hidden, 8, 1.0f);
  const auto gates = RandomFloats(s.tokens, 9, 2.0f);
  const auto got = layer.Run(x, logits, s.tokens, shared, gates);
  EXPECT_EQ(got, layer.Run(x, logits, s.tokens, shared, gates)) << "run to run";
  const auto part = [](const std::vector<float>& all, int row, int width) {
    const auto begin = all.begin() + int64_t{row} * width;
    return std::vector<float>(begin, begin + width);
  };
  for (int t = 0; t < s.tokens; t += std::max(1, s.tokens / 9)) {
    SCOPED_TRACE("token " + std::to_string(t));
    const auto mine = part(x, t, s.hidden), mine_logits = part(logits, t, s.experts);
    const auto expected = layer.Reference(mine.data(), mine_logits, gates[static_cast<size_t>(t)]);
    double scale = 0;
    std::vector<double> values;
    for (const double v : expected) scale = std::max(scale, std::abs(v));
    for (int i = 0; i < s.hidden; ++i) {
      const auto at = static_cast<size_t>(t * s.hidden + i);
      double value = double{x[at]} + expected[static_cast<size_t>(i)];
      if (layer.apart()) value += shared[at] / (1 + std::exp(-double{gates[static_cast<size_t>(t)]}));
      values.push_back(value);
    }
    // Activations have 16 bits, twice.
    EXPECT_TRUE(AllNear(part(got, t, s.hidden), values, {.absolute = 3e-4 * scale + 2e-6}));
    const auto alone = layer.Run(mine, mine_logits, 1, part(shared, t, s.hidden), part(gates, t, 1));
    EXPECT_EQ(alone, part(got, t, s.hidden)) << "the rest of the batch changes a token";
  }
}

TEST_P(MoeCuda, InOneKernelEqualsDoubleAloneAndInCompany) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  Shape s = GetParam();
  s.tokens = std::min(s.tokens, kMaxMatvecTokens);
  Layer layer(s);
  const Status uploaded = layer.Upload();
  ASSERT_TRUE(uploaded) << uploaded.error().message();
  // The widest rows have no room beside the ring where a block has 99 KB of shared memory.
  const bool room = s.intermediate < 8192 || SharedLimit() >= 160 * 1024;
  EXPECT_EQ(layer.CanStep(), s.format != WeightFormatSpec::Stored(DType::kF32) && s.hidden % 4 == 0 && room);
  if (!layer.CanStep()) GTEST_SKIP() << "not for f32 weights, rows that are no whole fours, or too wide ones";
  const auto x = RandomFloats(int64_t{s.tokens} * s.hidden, 5, 3.0f);
  const auto router = RandomFloats(int64_t{s.experts + (s.shared ? 1 : 0)} * s.hidden, 6, 1.0f);
  const auto shared = RandomFloats(int64_t{s.tokens} * s.hidden, 8, 1.0f);
  const auto got = layer.Step(x, router, s.tokens, shared);
  const auto part = [&](const std::vector<float>& all, int row) {
    const auto begin = all.begin() + int64_t{row} * s.hidden;
    return std::vector<float>(begin, begin + s.hidden);
  };
  for (int t = 0; t < s.tokens; ++t) {
    SCOPED_TRACE("token " + std::to_string(t));
    const auto mine = part(x, t), mine_shared = part(shared, t), mine_got = part(got, t);
    const auto logits = layer.Logits(mine.data(), router);
    const auto expected =
        layer.Reference(mine.data(), std::span(logits).first(static_cast<size_t>(s.experts)), logits.back());
    double scale = 0;
    std::vector<double> values;
    for (const double v : expected) scale = std::max(scale, std::abs(v));
    for (size_t i = 0; i < mine.size(); ++i) {
      double value = double{mine[i]} + expected[i];
      if (layer.apart()) value += mine_shared[i] / (1 + std::exp(-double{logits.back()}));
      values.push_back(value);
    }
    EXPECT_TRUE(AllNear(mine_got, values, {.absolute = 3e-4 * scale + 2e-6}));
    EXPECT_EQ(layer.Step(mine, router, 1, mine_shared), mine_got) << "the rest of the batch changes a token";
  }
}

TEST_P(MoeCuda, GroupedIsNearDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const Shape s = GetParam();
  Layer layer(s);
  const Status uploaded = layer.Upload();
  ASSERT_TRUE(uploaded) << uploaded.error().message();
  if (!layer.CanGroup()) GTEST_SKIP() << "f32 weights are not multiplied as bf16";
  for (const int tokens : {1, s.tokens, 150}) {
    const auto x = RandomFloats(int64_t{tokens} * s.hidden, 5, 3.0f),
               logits = RandomFloats(int64_t{tokens} * s.experts, 6, 4.0f),
               shared = RandomFloats(int64_t{tokens} * s.hidden, 8, 1.0f),
               gates = RandomFloats(tokens, 9, 2.0f);
    const auto got = layer.Run(x, logits, tokens, shared, gates, true);
    EXPECT_EQ(got, layer.Run(x, logits, tokens, shared, gates, true)) << "run to run";
    for (int t = 0; t < tokens; t += std::max(1, tokens / 9)) {
      SCOPED_TRACE("token " + std::to_string(t) + " of " + std::to_string(tokens));
      const auto expected = layer.Reference(
          x.data() + t * s.hidden,
          std::span(logits).subspan(static_cast<size_t>(t * s.experts), static_cast<size_t>(s.experts)),
          gates[static_cast<size_t>(t)]);
      double scale = 0;
      std::vector<double> values;
      for (const double v : expected) scale = std::max(scale, std::abs(v));
      for (int i = 0; i < s.hidden; ++i) {
        const auto at = static_cast<size_t>(t * s.hidden + i);
        double value = double{x[at]} + expected[static_cast<size_t>(i)];
        if (layer.apart()) value += shared[at] / (1 + std::exp(-double{gates[static_cast<size_t>(t)]}));
        values.push_back(value);
      }
      // Activations, and weights of other formats, are rounded to bf16.
      EXPECT_TRUE(AllNear(std::span(got).subspan(static_cast<size_t>(t * s.hidden), values.size()), values,
                          {.absolute = 2e-2 * scale + 1e-5}));
    }
  }
}

constexpr WeightFormatSpec Of(DType dtype) {
  return WeightFormatSpec::Stored(dtype);
}
constexpr WeightFormatSpec Fp8(int64_t group) {
  return {.kind = WeightKind::kFp8, .group = group};
}
constexpr WeightFormatSpec kBf16 = Of(DType::kBf16);
INSTANTIATE_TEST_SUITE_P(
    Shapes, MoeCuda,
    ::testing::Values(
        Shape{kBf16, 4, 2, 18, 16, 1, true, false}, Shape{kBf16, 3, 1, 64, 24, 5, false, true},
        Shape{kBf16, 8, 2, 512, 1000, 8, true, false}, Shape{kBf16, 64, 8, 320, 96, 7, true, false},
        Shape{kBf16, 64, 8, 256, 96, 65, false, true}, Shape{Of(DType::kF32), 6, 3, 18, 10, 3, true, false},
        Shape{Of(DType::kF16), 5, 5, 130, 77, 13, false, false},
        Shape{Of(DType::kQ8_0), 9, 4, 288, 160, 8, true, false},
        Shape{Of(DType::kQ4_0), 16, 3, 320, 448, 4, true, true},
        Shape{Of(DType::kQ4_K), 7, 2, 512, 256, 6, true, false},
        Shape{Of(DType::kQ6_K), 7, 7, 256, 768, 2, true, false},
        Shape{Of(DType::kQ2_K), 4, 1, 256, 256, 9, true, false},
        Shape{Fp8(0), 9, 4, 292, 160, 8, true, false}, Shape{Fp8(32), 5, 2, 96, 160, 5, true, true},
        Shape{Fp8(128), 16, 3, 256, 384, 13, true, false}, Shape{Fp8(128), 16, 8, 2048, 768, 8, true, false},
        Shape{kBf16, 4, 2, 512, 14336, 8, true, false},
        // gpt-oss
        Shape{Of(DType::kMxfp4), 32, 4, 2880, 96, 8, true, false, 2, true, 7},
        Shape{Of(DType::kMxfp4), 8, 3, 96, 2912, 5, true, false, 2, true, 0.5f},
        Shape{Of(DType::kMxfp4), 5, 2, 320, 160, 13, true, true},
        Shape{kBf16, 6, 4, 132, 77, 6, true, false, 2, true, 0.25f},
        Shape{Of(DType::kQ8_0), 6, 2, 160, 96, 9, true, false, 0, true},
        // DeepSeek V3, Kimi K2, Qwen3-Next, Granite, ERNIE
        Shape{kBf16, 64, 8, 64, 24, 8, true, true, 0x5d}, Shape{kBf16, 384, 8, 36, 16, 3, true, false, 0x45},
        Shape{kBf16, 512, 10, 32, 24, 8, true, true}, Shape{kBf16, 72, 16, 64, 24, 5, true, true},
        Shape{kBf16, 16, 6, 64, 32, 7, true, true, 0x54},
        Shape{kBf16, 8, 2, 64, 40, 4, false, false, 0x49, false, 0, DeviceActivation::kRelu2},
        // Shared experts beside the others, with a gate and without
        Shape{.format = kBf16,
              .experts = 16,
              .top = 3,
              .hidden = 96,
              .intermediate = 72,
              .tokens = 7,
              .normalize = true,
              .shared = true,
              .parts = 4},
        Shape{.format = Of(DType::kQ8_0),
              .experts = 64,
              .top = 6,
              .hidden = 256,
              .intermediate = 96,
              .tokens = 130,
              .normalize = false,
              .shared = false,
              .form = 0x5d,
              .parts = 2},
        Shape{.format = Of(DType::kF32),
              .experts = 4,
              .top = 2,
              .hidden = 18,
              .intermediate = 10,
              .tokens = 9,
              .normalize = true,
              .shared = true,
              .parts = 1}));

TEST(MoeCudaRouter, EqualsDoubleAloneAndInCompany) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  struct RouterCase {
    int tokens, experts, hidden;
  };
  for (const auto& [tokens, experts, hidden] : {RouterCase{1, 8, 4096},
                                                {3, 5, 18},
                                                {8, 129, 2048},
                                                {9, 3, 130},
                                                {70, 61, 2048},
                                                {33, 8, 8192},
                                                {17, 4, 20480}}) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(experts) + " experts, " +
                 std::to_string(hidden));
    const auto x = RandomFloats(int64_t{tokens} * hidden, 1, 3.0f), norm = RandomFloats(hidden, 2, 1.0f),
               router = RandomFloats(int64_t{experts} * hidden, 3, 1.0f);
    OnDevice<float> device_x(x), device_norm(norm), device_router(router);
    const auto run = [&](int first, int count) {
      OnDevice<float> logits(int64_t{count} * experts);
      EXPECT_EQ(cudaSuccess, LaunchMoeRouter({.x = device_x.get() + int64_t{first} * hidden,
                                              .norm = device_norm.get(),
                                              .router = device_router.get(),
                                              .tokens = count,
                                              .experts = experts,
                                              .hidden = hidden,
                                              .logits = logits.get()},
                                             nullptr));
      EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
      return logits.Read();
    };
    const auto got = run(0, tokens);
    for (int t = 0; t < tokens; t += std::max(1, tokens / 8)) {
      double squares = 0;
      for (int i = 0; i < hidden; ++i) squares += std::pow(double{x[static_cast<size_t>(t * hidden + i)]}, 2);
      const double scale = 1 / std::sqrt(squares / hidden + 1e-5);
      for (int e = 0; e < experts; ++e) {
        double sum = 0, magnitude = 0;
        for (int i = 0; i < hidden; ++i) {
          const double term = scale * x[static_cast<size_t>(t * hidden + i)] * norm[static_cast<size_t>(i)] *
                              router[static_cast<size_t>(e * hidden + i)];
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(sum, got[static_cast<size_t>(t * experts + e)], 1e-6 * magnitude + 1e-6);
      }
      if (tokens > 8) continue;
      const auto alone = run(t, 1);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.begin() + int64_t{t} * experts));
    }
  }
}

// Without a launch, so also without a GPU.
TEST(MoeCudaRoute, RefusesWhatItCannotDo) {
  MoeRouteArgs args;
  args.tokens = 1, args.experts = 2, args.top = 3, args.hidden = 8;
  EXPECT_EQ(cudaErrorInvalidValue, LaunchMoeRoute(args, nullptr)) << "more than there are";
  args.top = 0;
  EXPECT_EQ(cudaErrorInvalidValue, LaunchMoeRoute(args, nullptr));
  args.top = 1, args.experts = kMaxExperts + 1;
  EXPECT_EQ(cudaErrorInvalidValue, LaunchMoeRoute(args, nullptr));
  MoeRouterArgs router;
  router.tokens = 1, router.experts = 2, router.hidden = 1 << 20;
  EXPECT_EQ(cudaErrorInvalidValue, LaunchMoeRouter(router, nullptr));
  MoeProductArgs product;
  product.job_tokens = kMaxMatvecTokens + 1;
  EXPECT_EQ(cudaErrorInvalidValue, LaunchMoeProduct(product, nullptr));
  MoeStepArgs step;
  step.tokens = kMaxMatvecTokens + 1, step.top = 1, step.experts = step.routed = 2, step.hidden = 64;
  EXPECT_EQ(cudaErrorInvalidValue, LaunchMoeStep(step, {}, {}, nullptr));
}

// Of equal logits those of lower index, and weights as on the CPU, whatever the number of experts.
TEST(MoeCudaRoute, ChoosesAsTheCpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const auto& [experts, top] : {std::pair{1, 1}, {3, 3}, {8, 2}, {33, 8}, {64, 64}, {256, 8}, {300, 40}})
    for (int number = 0; number < 128; ++number) {
      SCOPED_TRACE(std::to_string(top) + " of " + std::to_string(experts) + ", form " +
                   std::to_string(number));
      constexpr int kTokens = 37, kHidden = 5;
      auto logits = RandomFloats(kTokens * int64_t{experts}, 3, 6.0f);
      for (float& v : logits) v = std::round(v);  // many ties
      const auto bias = RandomFloats(experts, 4, 1.0f), choice_bias = RandomFloats(experts, 5, 0.5f);
      OnDevice<float> device_bias(bias), device_choice_bias(choice_bias);
      const RouterForm form = FormOf(number, experts, top, bias.data(), choice_bias.data());
      const bool spoiled = number % 3 == 0;  // a token has a logit that is no number
      if (spoiled) logits[static_cast<size_t>(experts - 1)] = std::numeric_limits<float>::quiet_NaN();
      OnDevice<float> device_logits(logits), x(RandomFloats(kTokens * kHidden, 1, 1.0f)),
          norm(RandomFloats(kHidden, 2, 1.0f)), normed(kTokens * kHidden);
      OnDevice<std::byte> memory(MoePlan::Bytes(kTokens, top), 0);
      const MoePlan plan = MoePlan::In(memory.get(), kTokens, top);
      ASSERT_EQ(cudaSuccess, LaunchMoeRoute({.logits = device_logits.get(),
                                             .tokens = kTokens,
                                             .experts = experts,
                                             .top = top,
                                             .form = OnGpu(form, device_bias.get(), device_choice_bias.get()),
                                             .job_tokens = 3,
                                             .x = x.get(),
                                             .norm = norm.get(),
                                             .hidden = kHidden,
                                             .normed = normed.get(),
                                             .plan = plan},
                                            nullptr));
      ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
      const auto read = [](auto* from, int64_t n) {
        std::vector<std::remove_pointer_t<decltype(from)>> out(static_cast<size_t>(n));
        cudaMemcpy(out.data(), from, out.size() * sizeof(out[0]), cudaMemcpyDeviceToHost);
        return out;
      };
      const int64_t pairs = kTokens * int64_t{top};
      const auto expert = read(plan.expert, pairs), slot = read(plan.slot, pairs),
                 row = read(plan.row, pairs), counts = read(plan.counts, 2);
      const auto weight = read(plan.weight, pairs);
      std::vector<int> expert_of_slot(static_cast<size_t>(pairs), -1);
      for (int t = 0; t < kTokens; ++t) {
        const auto routes = RouteToken(
            std::span(logits).subspan(static_cast<size_t>(t * experts), static_cast<size_t>(experts)), top,
            form);
        for (int k = 0; k < top; ++k) {
          const auto at = static_cast<size_t>(t * top + k);
          if (spoiled && t == 0) {
            EXPECT_TRUE(std::isnan(weight[at])) << weight[at];
            ASSERT_LT(static_cast<uint32_t>(expert[at]), static_cast<uint32_t>(experts));
          } else {
            EXPECT_EQ(expert[at], routes[static_cast<size_t>(k)].expert) << "token " << t << " rank " << k;
            EXPECT_NEAR(weight[at], routes[static_cast<size_t>(k)].weight, 3e-6);
          }
          ASSERT_LT(static_cast<size_t>(slot[at]), expert_of_slot.size());
          EXPECT_EQ(row[static_cast<size_t>(slot[at])], t);
          expert_of_slot[static_cast<size_t>(slot[at])] = expert[at];
        }
      }
      EXPECT_EQ(counts[1], 0) << "the ticket is ready for the next time";
      const auto jobs = read(plan.jobs, counts[0]);
      int next = 0;
      for (const ExpertJob& job : jobs) {
        EXPECT_EQ(job.begin, next);
        EXPECT_LE(job.count, 3);
        EXPECT_GE(job.count, 1);
        for (int i = 0; i < job.count; ++i)
          EXPECT_EQ(expert_of_slot[static_cast<size_t>(job.begin + i)], job.expert);
        next += job.count;
      }
      EXPECT_EQ(next, pairs);
    }
}

}  // namespace
}  // namespace celer::cuda
