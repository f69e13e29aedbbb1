// CudaDecoder's memory: the plan, the weights, the workspace.
#include <fmt/format.h>

#include <algorithm>

#include "core/cuda_allocator.h"
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

int64_t CudaDecoder::Impl::workspace_bytes() const {
  const DecoderConfig& c = config;
  const int64_t t = options.max_tokens;
  const int64_t floats =
      t * (c.hidden + 2 * c.heads * c.head_dim + 2 * c.kv_heads * c.head_dim + 2 * c.intermediate) +
      kLogitRows * c.vocab + options.context * c.rope.dim +
      cuda::AttentionPartialFloats(kMaxMatvecTokens, static_cast<int>(c.heads), static_cast<int>(c.kv_heads),
                                   padded_dim());
  int64_t gemm_bytes = 0;
  if (!options.exact)
    gemm_bytes = 4 * unpacked_elements() + static_cast<int64_t>(cuda::Gemm::kWorkspaceBytes) +
                 t * (4 * (c.heads + 2 * c.kv_heads) * c.head_dim + 6 * (c.intermediate + 128) +
                      2 * (std::max(c.hidden, c.heads * c.head_dim) + 128));
  return floats * 4 + t * (options.context / 16) * 4 + (8 << 20) + gemm_bytes;
}

template <class T>
Result<T*> CudaDecoder::Impl::Own(int64_t count) {
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(options.device));
  CELER_ASSIGN(Buffer buffer,
               Buffer::Allocate(*allocator, static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)));
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemset(buffer.data(), 0, buffer.size()), "clearing GPU memory"));
  T* data = reinterpret_cast<T*>(buffer.data());
  buffers.push_back(std::move(buffer));
  return data;
}

Status CudaDecoder::Impl::PlanAndCheck(int64_t weight_bytes) {
  CudaMemoryPlan plan;
  plan.weights = weight_bytes;
  plan.kv_per_token = kv_bytes_per_token();
  plan.kv = plan.kv_per_token * options.context;
  plan.workspace = workspace_bytes();
  plan.staging = 2 * cuda::DeviceWeights::kStagingBytes;
  size_t free = 0, total = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for the free GPU memory"));
  plan.free = static_cast<int64_t>(free);
  log::Info(
      "cuda:{}: {}; {} tokens of KV would fit", options.device, plan.ToString(),
      std::max<int64_t>(0, (plan.free - plan.total() + plan.kv) / std::max<int64_t>(1, plan.kv_per_token)));
  if (plan.total() <= plan.free) return {};
  const int64_t room = plan.free - plan.weights - plan.workspace - plan.staging;
  const int64_t fits = room / plan.kv_per_token / 16 * 16;
  if (fits >= 16)
    return Error::OutOfMemory("cuda:", options.device, ": ", plan.ToString(), "; --context ", fits, " fits");
  return Error::OutOfMemory("cuda:", options.device, ": ", plan.ToString(),
                            "; try --weights int4 or int8, or --device cpu");
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
  CELER_ASSIGN(mid, Own<float>(t * c.intermediate));
  CELER_ASSIGN(up, Own<float>(t * c.intermediate));
  CELER_ASSIGN(logits, Own<float>(kLogitRows * c.vocab));
  CELER_ASSIGN(partial, Own<float>(cuda::AttentionPartialFloats(kMaxMatvecTokens, static_cast<int>(c.heads),
                                                                static_cast<int>(c.kv_heads), padded_dim())));
  if (!options.exact) {
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
      CELER_ASSIGN(x_bf16, Own<std::byte>(2 * t * (std::max(c.hidden, q_width) + 128)));
      CELER_ASSIGN(qkv_rows, Own<float>(t * (q_width + 2 * kv_width)));
      CELER_ASSIGN(gate_up_bf16, Own<std::byte>(4 * t * c.intermediate));
      CELER_ASSIGN(mid_bf16, Own<std::byte>(2 * t * (c.intermediate + 128)));
    } else {
      log::Info("{}; prompts are computed {} tokens at a time", made.error().message(), kMaxMatvecTokens);
    }
  }
  CELER_ASSIGN(attention_tickets, Own<int32_t>(kMaxMatvecTokens * c.heads));
  CELER_ASSIGN(greedy_tickets, Own<int32_t>(kLogitRows));
  CELER_ASSIGN(greedy_best, Own<uint64_t>(kLogitRows));
  CELER_ASSIGN(host_logits,
               Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(kLogitRows * c.vocab) * 4));
  CELER_ASSIGN(host_tokens, Buffer::Allocate(PinnedAllocator(), cuda::kHostSlots * kMaxDecode * 4));

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
    const int64_t elements = table_width * c.kv_heads * 16 * padded_dim();
    CELER_ASSIGN(uint16_t * k_memory, Own<uint16_t>(elements));
    CELER_ASSIGN(uint16_t * v_memory, Own<uint16_t>(elements));
    layer.kv = {reinterpret_cast<std::byte*>(k_memory), reinterpret_cast<std::byte*>(v_memory), options.kv,
                static_cast<int>(c.kv_heads),           static_cast<int>(c.head_dim),           padded_dim()};
  }
  for (std::optional<Event>& event : step_done) {
    CELER_ASSIGN(Event made, Event::Create(options.device));
    event.emplace(std::move(made));
  }
  return {};
}

Status CudaDecoder::Impl::Start() {
  cudaDeviceProp properties;
  CELER_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, options.device), "asking what the GPU is"));
  device_name = properties.name;
  if (properties.major < 9)
    return Error::Unsupported("cuda:", options.device, ": ", device_name, " has compute capability ",
                              properties.major, ".", properties.minor,
                              ", the kernels need 9.0; use --device cpu");
  if (options.kv != DType::kF16 && options.kv != DType::kBf16)
    return Error::Unsupported("keys and values on the GPU are f16 or bf16, not ", Name(options.kv));
  if (config.moe.experts > 0)
    return Error::Unsupported("mixtures of experts do not run on the GPU yet; use --device cpu");
  if (padded_dim() > 256)
    return Error::Unsupported("heads of ", config.head_dim,
                              " do not run on the GPU (256 at most); use --device cpu");
  options.context = (options.context + 15) / 16 * 16;
  CELER_ASSIGN(Stream made, Stream::Create(options.device, true));
  stream.emplace(std::move(made));
  CELER_ASSIGN(cuda::DeviceWeights store, cuda::DeviceWeights::Create(options.device, options.weights));
  weights.emplace(std::move(store));
  return {};
}

Status CudaDecoder::Impl::LoadFrom(const Decoder& host) {
  using Role = WeightStore::Role;
  const DecoderWeights& w = host.weights();
  const DecoderConfig& c = config;
  const auto planned = [&](const WeightView& view, Role role) {
    return cuda::DeviceWeights::PlannedBytes(weights->Plan(view, role));
  };
  int64_t bytes = planned(w.embedding, Role::kVocabulary);
  if (!c.tied_embeddings) bytes += planned(w.head, Role::kVocabulary);
  for (const LayerWeights& l : w.layers)
    for (const WeightView* view : {&l.q, &l.k, &l.v, &l.o, &l.dense.gate, &l.dense.up, &l.dense.down})
      bytes += planned(*view, Role::kProjection);
  CELER_RETURN_IF_ERROR(PlanAndCheck(bytes));

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
    const cuda::MatrixSource gate_up[] = {{l.dense.gate, Role::kProjection, {}},
                                          {l.dense.up, Role::kProjection, {}}};
    CELER_ASSIGN(const std::vector<DeviceMatrix> ffn, weights->Upload(gate_up));
    d.gate = ffn[0], d.up = ffn[1];
    CELER_ASSIGN(d.o, one(l.o, Role::kProjection));
    CELER_ASSIGN(d.down, one(l.dense.down, Role::kProjection));
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
  const auto plan = [&](int64_t rows, int64_t cols, Role role = Role::kProjection) {
    WeightView view;
    view.dtype = DType::kBf16;
    view.rows = rows;
    view.cols = cols;
    return weights->Plan(view, role);
  };
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const DeviceMatrix vocabulary = plan(c.vocab, c.hidden, Role::kVocabulary);
  const DeviceMatrix qkv[] = {plan(q_width, c.hidden), plan(kv_width, c.hidden), plan(kv_width, c.hidden)};
  const DeviceMatrix gate_up[] = {plan(c.intermediate, c.hidden), plan(c.intermediate, c.hidden)};
  const DeviceMatrix o = plan(c.hidden, q_width), down = plan(c.hidden, c.intermediate);
  int64_t bytes = (c.tied_embeddings ? 1 : 2) * vocabulary.bytes();
  for (const DeviceMatrix& m : {qkv[0], qkv[1], qkv[2], gate_up[0], gate_up[1], o, down})
    bytes += c.layers * m.bytes();
  CELER_RETURN_IF_ERROR(PlanAndCheck(bytes));

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
    CELER_ASSIGN(const auto ffn, made(gate_up));
    d.gate = ffn[0], d.up = ffn[1];
    CELER_ASSIGN(const auto output, made({&o, 1}));
    CELER_ASSIGN(const auto last, made({&down, 1}));
    d.o = output[0], d.down = last[0];
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
