// CudaDecoder's memory: the plan, the weights, the workspace.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/log.h"
#include "models/cuda_decoder_impl.h"

namespace celer {
namespace {

// Rotated pairs of each head as halves, as DeviceWeights puts the rows.
std::vector<float> Reordered(const float* values, int64_t n, const cuda::HeadOrder& order) {
  std::vector<float> out(values, values + n);
  const int64_t half = order.rope_dim / 2;
  for (int64_t head = 0; order.head_dim > 0 && head < n; head += order.head_dim)
    for (int64_t i = 0; i < half; ++i) {
      out[static_cast<size_t>(head + i)] = values[head + 2 * i];
      out[static_cast<size_t>(head + half + i)] = values[head + 2 * i + 1];
    }
  return out;
}

}  // namespace

std::string CudaMemoryPlan::ToString() const {
  const auto size = [](int64_t bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); };
  return fmt::format("weights {}, KV {} ({} a token), workspace {}, staging {}: {} of {} free", size(weights),
                     size(kv), size(kv_per_token), size(workspace), size(staging), size(total()), size(free));
}

int64_t CudaDecoder::Impl::unpacked_elements() const {
  const auto pad = [](int64_t n) { return (n + 127) / 128 * 128; };
  const DecoderConfig& c = config;
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  return std::max({(q_width + 2 * kv_width) * pad(c.hidden), c.hidden * pad(q_width),
                   2 * c.intermediate * pad(c.hidden), c.hidden * pad(c.intermediate)});
}

// Activations in bf16, of a width, for the products that take them.
int64_t CudaDecoder::Impl::bf16_bytes(int64_t rows, int64_t cols) const {
  return std::max(2 * options.max_tokens * (cols + 128),
                  wide ? cuda::WideActivationBytes(rows, cols + 127) : 0);
}

int64_t CudaDecoder::Impl::workspace_bytes() const {
  const DecoderConfig& c = config;
  const int64_t t = options.max_tokens;
  const int64_t floats =
      t * (c.hidden + 2 * c.heads * c.head_dim + 2 * c.kv_heads * c.head_dim + 2 * ffn_width()) +
      kLogitRows * c.vocab + options.context * c.rope.dim +
      cuda::AttentionPartialFloats(t, static_cast<int>(c.heads), static_cast<int>(c.kv_heads),
                                   KvShape().padded_dim);
  int64_t gemm_bytes = 0;
  if (Unpacks())
    gemm_bytes =
        4 * unpacked_elements() + static_cast<int64_t>(cuda::Gemm::kWorkspaceBytes) + t * 4 * c.intermediate;
  if (!options.exact)
    gemm_bytes += t * 4 * (c.heads + 2 * c.kv_heads) * c.head_dim +
                  bf16_bytes(std::max(t, kLogitRows), std::max(c.hidden, c.heads * c.head_dim)) +
                  bf16_bytes(t, c.intermediate);
  if (wide)
    gemm_bytes += cuda::WideActivationBytes(cuda::kWideJoined, c.heads * c.head_dim + 127) +
                  4 * (cuda::WidePartialFloats() + cuda::WideTickets() + cuda::WideSquaresFloats(c.hidden));
  return floats * 4 + t * (options.context / 16) * 4 + (8 << 20) + gemm_bytes + moe_bytes() + step_bytes() +
         sampling_bytes();
}

int64_t CudaDecoder::Impl::step_bytes() const {
  if (options.launch != StepLaunch::kFused || config.layers == 0) return 0;
  std::vector<cuda::DecodeStepLayer> shapes(static_cast<size_t>(config.layers));
  shapes[0].qkv.kv = KvShape();
  shapes[0].o.a.rows = static_cast<int>(config.hidden);
  shapes[0].gate_up.a.rows = static_cast<int>(config.intermediate);
  const auto padded = [](int64_t cols) { return static_cast<int>((cols + 127) / 128 * 128); };
  shapes[0].qkv.a.padded = shapes[0].gate_up.a.padded = padded(config.hidden);
  shapes[0].o.a.padded = padded(config.heads * config.head_dim);
  shapes[0].down.a.padded = padded(config.intermediate);
  cuda::DecodeStepArgs args;
  args.layers = shapes;
  args.heads = static_cast<int>(config.heads);
  return static_cast<int64_t>(cuda::DecodeStepBytes(args) + cuda::DecodeBatchBytes(args));
}

// For each sequence of a step: counts of tokens and biases by token, and its history in pieces of 4096.
int64_t CudaDecoder::Impl::sampling_bytes() const {
  return kMaxDecode * 4 * (2 * config.vocab + 1 + 4096) + 4 * options.context;
}

std::string CudaMemoryPlan::Remedy(std::span<const std::pair<std::string, int64_t>> lighter_weights,
                                   int64_t narrow_kv_per_token) const {
  const auto tokens = [&](int64_t weight_bytes, int64_t per_token) {
    const int64_t room = free - weight_bytes - workspace - staging;
    return room > 0 ? room / std::max<int64_t>(per_token, 1) / 16 * 16 : 0;
  };
  const int64_t wanted = kv / std::max<int64_t>(kv_per_token, 1), fits = tokens(weights, kv_per_token);
  if (fits >= 16) {
    const bool narrow = narrow_kv_per_token < kv_per_token && tokens(weights, narrow_kv_per_token) >= wanted;
    return fmt::format("--context {} fits for one sequence{}", fits,
                       narrow ? ", all of it with --kv int8" : "");
  }
  for (const auto& [name, bytes] : lighter_weights) {
    if (tokens(bytes, kv_per_token) >= wanted) return fmt::format("--weights {} fits", name);
    if (tokens(bytes, kv_per_token) >= 16)
      return fmt::format("--weights {} --context {} fits", name, tokens(bytes, kv_per_token));
  }
  return "no setting fits; use --device cpu";
}

Status CudaDecoder::Impl::PlanAndCheck(
    const std::function<int64_t(const cuda::DeviceWeights&)>& weight_bytes) {
  CudaMemoryPlan& plan = memory_plan;
  plan.weights = weight_bytes(*weights);
  plan.kv_per_token = kv_bytes_per_token();
  plan.kv = plan.kv_per_token * options.context;
  plan.workspace = workspace_bytes();
  plan.staging = 2 * cuda::DeviceWeights::kStagingBytes;
  // What earlier models of this process left in the pool is free, too.
  CELER_ASSIGN(CachingPool * pool, CudaPool(options.device));
  pool->Trim();
  size_t free = 0, total = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free GPU memory"));
  plan.free = static_cast<int64_t>(free);
  log::Info(
      "cuda:{}: {}; {} tokens of KV would fit", options.device, plan.ToString(),
      std::max<int64_t>(0, (plan.free - plan.total() + plan.kv) / std::max<int64_t>(1, plan.kv_per_token)));
  if (plan.total() <= plan.free) return {};
  std::vector<std::pair<std::string, int64_t>> lighter;
  for (const char* name : {"int8", "int4"}) {
    CELER_ASSIGN(const WeightOptions format, WeightOptions::Parse(name));
    CELER_ASSIGN(const cuda::DeviceWeights store, cuda::DeviceWeights::Create(options.device, format));
    lighter.emplace_back(name, weight_bytes(store));
  }
  cuda::DeviceKv narrow = KvShape();
  narrow.dtype = DType::kI8;
  narrow.padded_dim = cuda::DeviceKv::PaddedDim(DType::kI8, config.head_dim);
  return Error::OutOfMemory("cuda:", options.device, ": ", plan.ToString(), "; ",
                            plan.Remedy(lighter, config.layers * 2 * narrow.block_bytes() / cuda::kKvBlock));
}

Status CudaDecoder::Impl::Allocate() {
  const DecoderConfig& c = config;
  const int64_t t = options.max_tokens, q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  table_width = options.context / 16;
  CELER_ASSIGN(tokens, Own<int32_t>(t));
  CELER_ASSIGN(positions, Own<int32_t>(t));
  CELER_ASSIGN(sequence, Own<int32_t>(t));
  CELER_ASSIGN(logit_rows, Own<int32_t>(t));
  CELER_ASSIGN(table, Own<int32_t>(t * table_width));
  CELER_ASSIGN(seq_start, Own<int32_t>(t + 1));
  CELER_ASSIGN(x, Own<float>(t * c.hidden));
  CELER_ASSIGN(q, Own<float>(t * q_width));
  CELER_ASSIGN(attention, Own<float>(t * q_width));
  CELER_ASSIGN(k, Own<float>(t * kv_width));
  CELER_ASSIGN(v, Own<float>(t * kv_width));
  CELER_ASSIGN(mid, Own<float>(t * ffn_width()));
  CELER_ASSIGN(up, Own<float>(t * ffn_width()));
  CELER_ASSIGN(logits, Own<float>(kLogitRows * c.vocab));
  const cuda::DeviceKv shape = KvShape();
  CELER_ASSIGN(partial, Own<float>(cuda::AttentionPartialFloats(t, static_cast<int>(c.heads), shape.kv_heads,
                                                                shape.padded_dim)));
  if (!options.exact) {
    CELER_ASSIGN(x_bf16, Own<std::byte>(bf16_bytes(std::max(t, kLogitRows), std::max(c.hidden, q_width))));
    CELER_ASSIGN(mid_bf16, Own<std::byte>(bf16_bytes(t, c.intermediate)));
    CELER_ASSIGN(qkv_rows, Own<float>(t * (q_width + 2 * kv_width)));
  }
  if (wide) {
    CELER_ASSIGN(wide_partial, Own<float>(cuda::WidePartialFloats()));
    CELER_ASSIGN(wide_tickets, Own<int32_t>(cuda::WideTickets()));
    CELER_ASSIGN(attention_bf16, Own<std::byte>(cuda::WideActivationBytes(cuda::kWideJoined, q_width + 127)));
    CELER_ASSIGN(wide_squares, Own<float>(cuda::WideSquaresFloats(c.hidden)));
  }
  if (Unpacks()) {
    if (auto made = cuda::Gemm::Create(options.device)) {
      gemm.emplace(std::move(*made));
      CELER_ASSIGN(Stream side, Stream::Create(options.device));
      unpack_stream.emplace(std::move(side));
      for (size_t i = 0; i < 2; ++i) {
        CELER_ASSIGN(unpacked[i], Own<std::byte>(2 * unpacked_elements()));
        CELER_ASSIGN(Event ready, Event::Create(options.device));
        unpack_done[i].emplace(std::move(ready));
        CELER_ASSIGN(Event free, Event::Create(options.device));
        multiply_done[i].emplace(std::move(free));
      }
      CELER_ASSIGN(gate_up_bf16, Own<std::byte>(4 * t * c.intermediate));
    } else {
      log::Info("{}; prompts are computed {} tokens at a time", made.error().message(), kMaxMatvecTokens);
    }
  }
  CELER_RETURN_IF_ERROR(AllocateMoe());
  CELER_ASSIGN(attention_tickets, Own<int32_t>(cuda::AttentionTokens(t) * c.heads));
  CELER_ASSIGN(greedy_tickets, Own<int32_t>(kLogitRows));
  CELER_ASSIGN(greedy_best, Own<uint64_t>(kLogitRows));
  CELER_ASSIGN(host_logits,
               Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(kLogitRows * c.vocab) * 4));
  constexpr size_t kHostRows = cuda::kHostSlots * kMaxDecode + kLogitRows;
  CELER_ASSIGN(host_tokens, Buffer::Allocate(PinnedAllocator(), kHostRows * 4));
  CELER_ASSIGN(host_logprobs, Buffer::Allocate(PinnedAllocator(), kHostRows * sizeof(cuda::SampleLogprobs)));
  CELER_ASSIGN(sample_rows, Own<cuda::SampleRow>(kLogitRows));

  // cos and sin of every position: the step reads them at positions that only the device knows.
  std::vector<int32_t> all(static_cast<size_t>(options.context));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  std::vector<float> cos(all.size() * static_cast<size_t>(c.rope.dim / 2)), sin(cos.size());
  RopeTable(c.rope).Fill(all, cos.data(), sin.data());
  CELER_ASSIGN(float* device_cos, Own<float>(static_cast<int64_t>(cos.size())));
  CELER_ASSIGN(float* device_sin, Own<float>(static_cast<int64_t>(sin.size())));
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpy(device_cos, cos.data(), cos.size() * 4, cudaMemcpyHostToDevice),
                                   "copying rope tables"));
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemcpy(device_sin, sin.data(), sin.size() * 4, cudaMemcpyHostToDevice),
                                   "copying rope tables"));
  rope_cos = device_cos;
  rope_sin = device_sin;

  for (DeviceLayer& layer : layers) {
    layer.kv = shape;
    CELER_ASSIGN(layer.kv.k, Own<std::byte>(table_width * shape.block_bytes()));
    CELER_ASSIGN(layer.kv.v, Own<std::byte>(table_width * shape.block_bytes()));
  }
  for (std::optional<Event>& event : step_done) {
    CELER_ASSIGN(Event made, Event::Create(options.device));
    event.emplace(std::move(made));
  }
  CELER_RETURN_IF_ERROR(PrepareStep());
  // Clearing and copying went to the default stream, which the decoder's own does not wait for, and both
  // return before they are done.
  return CudaStatus(cudaDeviceSynchronize(), "getting the GPU ready");
}

Status CudaDecoder::Impl::PrepareStep() {
  if (options.launch != StepLaunch::kFused) return {};
  for (size_t i = 0; i < layers.size(); ++i) {
    const DeviceLayer& w = layers[i];
    if (w.q_norm || w.sparse()) {
      step_layers.clear();
      return {};
    }
    cuda::DecodeStepLayer layer;
    layer.qkv = QkvArgs(w, Batch(1));
    layer.gate_up = GateUpArgs(w, 1);
    layer.o.a = w.o;
    layer.down.a = w.down;
    layer.window = static_cast<int>(config.Window(static_cast<int64_t>(i)));
    step_layers.push_back(layer);
  }
  step_tokens = cuda::DecodeStepTokens(StepArgs(1));
  if (step_tokens == 0) {
    step_layers.clear();
    return {};
  }
  CELER_ASSIGN(step_memory, Own<std::byte>(static_cast<int64_t>(cuda::DecodeStepBytes(StepArgs(1)))));
  CELER_RETURN_IF_ERROR(
      CudaStatus(cuda::PrepareDecodeStep(StepArgs(1), step_memory), "preparing decode steps"));
  if (!cuda::DecodeBatchRuns(StepArgs(1))) return {};
  CELER_ASSIGN(batch_memory, Own<std::byte>(static_cast<int64_t>(cuda::DecodeBatchBytes(StepArgs(1)))));
  return CudaStatus(cuda::PrepareDecodeBatch(StepArgs(1), batch_memory), "preparing decode steps");
}

Status CheckCapability(int device, const std::string& name, int major, int minor) {
  if (major >= 9) return {};
  return Error::Unsupported("cuda:", device, ": ", name, " has compute capability ", major, ".", minor,
                            ", the kernels need 9.0; use --device cpu");
}

Status CudaDecoder::Impl::Start() {
  cudaDeviceProp properties;
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, options.device), "asking what the GPU is"));
  device_name = properties.name;
  CELER_RETURN_IF_ERROR(CheckCapability(options.device, device_name, properties.major, properties.minor));
  if (options.kv != DType::kF16 && options.kv != DType::kBf16 && options.kv != DType::kI8 &&
      options.kv != DType::kFp8E4M3)
    return Error::Unsupported("keys and values on the GPU are f16, bf16, int8 or fp8, not ",
                              Name(options.kv));
  CELER_RETURN_IF_ERROR(CheckMoe());
  if (KvShape().padded_dim > 256)
    return Error::Unsupported("heads of ", config.head_dim,
                              " do not run on the GPU (256 at most); use --device cpu");
  options.context = (options.context + 15) / 16 * 16;
  CELER_ASSIGN(Stream made, Stream::Create(options.device, true));
  stream.emplace(std::move(made));
  CELER_ASSIGN(turns, GpuTurns::Join(options.device, *stream));
  wide = cuda::WideRuns() && options.wide && !options.exact;
  CELER_ASSIGN(cuda::DeviceWeights store, cuda::DeviceWeights::Create(options.device, options.weights));
  weights.emplace(std::move(store));
  return {};
}

Status CudaDecoder::Impl::LoadFrom(const Decoder& host) {
  using Role = WeightStore::Role;
  const DecoderWeights& w = host.weights();
  const DecoderConfig& c = config;
  CELER_RETURN_IF_ERROR(PlanAndCheck([&](const cuda::DeviceWeights& store) {
    const auto planned = [&](const WeightView& view, Role role) {
      return cuda::DeviceWeights::PlannedBytes(store.Plan(view, role));
    };
    int64_t bytes = planned(w.embedding, Role::kVocabulary);
    if (!c.tied_embeddings) bytes += planned(w.head, Role::kVocabulary);
    const auto expert = [&](const ExpertWeights& e) {
      for (const WeightView* view : {&e.gate, &e.up, &e.down})
        if (*view) bytes += planned(*view, Role::kProjection);
    };
    for (const LayerWeights& l : w.layers) {
      for (const WeightView* view : {&l.q, &l.k, &l.v, &l.o}) bytes += planned(*view, Role::kProjection);
      expert(l.dense);
      for (const ExpertWeights& e : l.experts) expert(e);
      expert(l.shared);
      if (l.router) bytes += router_bytes();
    }
    return bytes;
  }));

  cuda::HeadOrder order;
  if (c.rope.layout == RopeLayout::kInterleaved)
    order = {static_cast<int>(c.head_dim), static_cast<int>(c.rope.dim)};
  const auto vector = [&](const float* values, int64_t n,
                          const cuda::HeadOrder& by = {}) -> Result<const float*> {
    if (!values) return values;
    const std::vector<float> ordered = Reordered(values, n, by);
    return weights->UploadVector(ordered.data(), n);
  };
  const auto one = [&](const WeightView& view, Role role) -> Result<DeviceMatrix> {
    const cuda::MatrixSource source{view, role, {}};
    CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Upload({&source, 1}));
    return made[0];
  };
  CELER_ASSIGN(embedding, one(w.embedding, Role::kVocabulary));
  if (c.tied_embeddings) {
    head = embedding;
  } else {
    CELER_ASSIGN(head, one(w.head, Role::kVocabulary));
  }
  CELER_ASSIGN(norm, vector(w.norm, c.hidden));
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  for (const LayerWeights& l : w.layers) {
    DeviceLayer d;
    const cuda::MatrixSource qkv[] = {
        {l.q, Role::kProjection, order}, {l.k, Role::kProjection, order}, {l.v, Role::kProjection, {}}};
    CELER_ASSIGN(const std::vector<DeviceMatrix> projections, weights->Upload(qkv));
    d.q = projections[0], d.k = projections[1], d.v = projections[2];
    CELER_ASSIGN(d.o, one(l.o, Role::kProjection));
    if (l.router) {
      CELER_RETURN_IF_ERROR(UploadExperts(l, &d));
    } else {
      const cuda::MatrixSource gate_up[] = {{l.dense.gate, Role::kProjection, {}},
                                            {l.dense.up, Role::kProjection, {}}};
      CELER_ASSIGN(const std::vector<DeviceMatrix> ffn, weights->Upload(gate_up));
      d.gate = ffn[0], d.up = ffn[1];
      CELER_ASSIGN(d.down, one(l.dense.down, Role::kProjection));
    }
    CELER_ASSIGN(d.attention_norm, vector(l.attention_norm, c.hidden));
    CELER_ASSIGN(d.ffn_norm, vector(l.ffn_norm, c.hidden));
    CELER_ASSIGN(d.q_bias, vector(l.q_bias, q_width, order));
    CELER_ASSIGN(d.k_bias, vector(l.k_bias, kv_width, order));
    CELER_ASSIGN(d.v_bias, vector(l.v_bias, kv_width));
    CELER_ASSIGN(d.q_norm, vector(l.q_norm, c.head_dim, order));
    CELER_ASSIGN(d.k_norm, vector(l.k_norm, c.head_dim, order));
    layers.push_back(d);
  }
  return weights->Finish();
}

Status CudaDecoder::Impl::LoadRandom() {
  const DecoderConfig& c = config;
  using Role = WeightStore::Role;
  const auto plan_in = [](const cuda::DeviceWeights& store, int64_t rows, int64_t cols,
                          Role role = Role::kProjection) {
    WeightView view;
    view.dtype = DType::kBf16;
    view.rows = rows;
    view.cols = cols;
    return store.Plan(view, role);
  };
  const auto plan = [&](int64_t rows, int64_t cols, Role role = Role::kProjection) {
    return plan_in(*weights, rows, cols, role);
  };
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  CELER_RETURN_IF_ERROR(PlanAndCheck([&](const cuda::DeviceWeights& store) {
    const auto bytes = [&](int64_t rows, int64_t cols) { return plan_in(store, rows, cols).bytes(); };
    const auto ffn = [&](int64_t width) {
      return width > 0 ? bytes(2 * width, c.hidden) + bytes(c.hidden, width) : 0;
    };
    int64_t all = 0;
    for (int64_t i = 0; i < c.layers; ++i) {
      all += bytes(q_width, c.hidden) + bytes(2 * kv_width, c.hidden) + bytes(c.hidden, q_width);
      all += c.IsSparse(i)
                 ? c.moe.experts * ffn(c.moe.intermediate) + ffn(c.moe.shared_intermediate) + router_bytes()
                 : ffn(c.intermediate);
    }
    return all + (c.tied_embeddings ? 1 : 2) * plan_in(store, c.vocab, c.hidden, Role::kVocabulary).bytes();
  }));
  const DeviceMatrix vocabulary = plan(c.vocab, c.hidden, Role::kVocabulary);
  const DeviceMatrix qkv[] = {plan(q_width, c.hidden), plan(kv_width, c.hidden), plan(kv_width, c.hidden)};
  const DeviceMatrix gate_up[] = {plan(c.intermediate, c.hidden), plan(c.intermediate, c.hidden)};
  const DeviceMatrix o = plan(c.hidden, q_width), down = plan(c.hidden, c.intermediate);

  const auto made = [&](std::span<const DeviceMatrix> plans) { return weights->Random(plans); };
  CELER_ASSIGN(const auto table_matrix, made({&vocabulary, 1}));
  embedding = head = table_matrix[0];
  if (!c.tied_embeddings) {
    CELER_ASSIGN(const auto head_matrix, made({&vocabulary, 1}));
    head = head_matrix[0];
  }
  const std::vector<float> ones(static_cast<size_t>(std::max(c.hidden, q_width)), 1.0f);
  const std::vector<float> zeros(ones.size(), 0.0f);
  CELER_ASSIGN(norm, weights->UploadVector(ones.data(), c.hidden));
  for (int64_t i = 0; i < c.layers; ++i) {
    DeviceLayer d;
    CELER_ASSIGN(const auto projections, made(qkv));
    d.q = projections[0], d.k = projections[1], d.v = projections[2];
    CELER_ASSIGN(const auto output, made({&o, 1}));
    d.o = output[0];
    if (c.IsSparse(i)) {
      CELER_RETURN_IF_ERROR(RandomExperts([&](int64_t rows, int64_t cols) { return plan(rows, cols); }, &d));
    } else {
      CELER_ASSIGN(const auto ffn, made(gate_up));
      CELER_ASSIGN(const auto last, made({&down, 1}));
      d.gate = ffn[0], d.up = ffn[1], d.down = last[0];
    }
    d.attention_norm = d.ffn_norm = norm;
    if (c.qkv_bias) {
      CELER_ASSIGN(d.q_bias, weights->UploadVector(zeros.data(), q_width));
      d.k_bias = d.v_bias = d.q_bias;
    }
    if (c.qk_norm) d.q_norm = d.k_norm = norm;
    layers.push_back(d);
  }
  return weights->Finish();
}

}  // namespace celer
