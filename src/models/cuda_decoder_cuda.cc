#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/cuda_allocator.h"
#include "core/cuda_status.h"
#include "core/log.h"
#include "kernels/attention/flash_attention_cuda.h"
#include "kernels/decode_step/decode_step_cuda.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/gate_up/gate_up_cuda.h"
#include "kernels/matmul/gemm_cuda.h"
#include "kernels/matmul/matvec_cuda.h"
#include "kernels/qkv/qkv_cuda.h"
#include "kernels/sample/greedy_cuda.h"
#include "models/cuda_decoder.h"
#include "weights/device_weights.h"

namespace celer {
namespace {

using cuda::DeviceMatrix;
using cuda::Format;
using cuda::kMaxMatvecTokens;

struct DeviceLayer {
  DeviceMatrix q, k, v, o, gate, up, down;
  const float *attention_norm = nullptr, *ffn_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  cuda::DeviceKv kv;
};

constexpr int64_t kLogitRows = 256;

bool SameForm(const DeviceMatrix& a, const DeviceMatrix& b) {
  return a.format == b.format && a.group == b.group && a.padded == b.padded;
}

// CELER_STEP=0: one kernel for each operator instead of one for all layers, to measure what it brings.
bool OneKernel() {
  static const bool on = [] {
    const char* value = std::getenv("CELER_STEP");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return on;
}

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

struct CudaDecoder::Impl {
  DecoderConfig config;
  CudaDecoderOptions options;
  std::string device_name;
  std::optional<cuda::DeviceWeights> weights;
  std::optional<Stream> stream;
  std::vector<Buffer> buffers;
  DeviceMatrix embedding, head;
  const float* norm = nullptr;
  std::vector<DeviceLayer> layers;
  const float *rope_cos = nullptr, *rope_sin = nullptr;

  // The batch on the device, and what the host knows to be there.
  int32_t *tokens = nullptr, *positions = nullptr, *sequence = nullptr, *logit_rows = nullptr,
          *table = nullptr, *seq_start = nullptr;
  int64_t table_width = 0;
  std::vector<int32_t> seen_positions, seen_table;  // of a decode step
  // Pinned memory that copies to the device start from, used in turn.
  struct Upload {
    Buffer memory;
    std::optional<Event> done;
  };
  std::array<Upload, 4> uploads;
  size_t next_upload = 0;

  // Activations [max_tokens, ...].
  float *x = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *attention = nullptr, *mid = nullptr,
        *up = nullptr;
  float *logits = nullptr, *partial = nullptr;
  int32_t *attention_tickets = nullptr, *greedy_tickets = nullptr;
  uint64_t* greedy_best = nullptr;
  // Long pieces: weights as rows of bf16, activations in bf16.
  std::optional<cuda::Gemm> gemm;
  // Two places for unpacked weights: one is filled on a stream of its own while the other is multiplied with.
  std::optional<Stream> unpack_stream;
  std::array<std::byte*, 2> unpacked = {};
  std::array<std::optional<Event>, 2> unpack_done, multiply_done;
  size_t next_unpack = 0, next_multiply = 0;
  void Unpack(std::span<const DeviceMatrix* const> matrices);
  void UnpackPart(int64_t layer, int part);  // of qkv, o, gate and up, down; nothing beyond the last layer
  std::byte *x_bf16 = nullptr, *gate_up_bf16 = nullptr, *mid_bf16 = nullptr;
  float* qkv_rows = nullptr;
  int64_t longest = 0, sequences = 0;  // of the batch that was uploaded last
  Buffer host_logits, host_tokens;     // pinned
  int64_t last_rows = 0;

  std::array<cudaGraphExec_t, kMaxDecode + 1> graphs = {};
  std::array<std::optional<Event>, cuda::kHostSlots> step_done;

  ~Impl() {
    for (cudaGraphExec_t graph : graphs)
      if (graph) cudaGraphExecDestroy(graph);
    if (stream) (void)stream->Synchronize();
  }

  int padded_dim() const { return static_cast<int>((config.head_dim + 7) / 8 * 8); }
  int64_t kv_bytes_per_token() const { return config.layers * 2 * config.kv_heads * padded_dim() * 2; }
  int64_t workspace_bytes() const;

  template <class T>
  Result<T*> Own(int64_t count);
  Status Allocate();
  Status PlanAndCheck(int64_t weight_bytes);
  Status LoadFrom(const Decoder& host);
  Status LoadRandom();
  Status Start();

  Status UploadBatch(const RaggedBatch& batch);
  Result<std::byte*> Pinned(int64_t bytes, Upload** used);
  Status Copy(void* to, const void* from, int64_t bytes);

  void Check(cudaError_t code) {
    if (code != cudaSuccess && fault == cudaSuccess) fault = code;
  }
  cudaError_t fault = cudaSuccess;

  struct Product {
    const DeviceMatrix* a = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    const int32_t* rows = nullptr;
    const float* norm = nullptr;
    const float* bias = nullptr;
    const float* residual = nullptr;
    float* out = nullptr;
    int64_t out_stride = 0;
  };
  void Multiply(const Product& p, int tokens_now);
  void Qkv(const DeviceLayer& w, const cuda::DeviceBatch& batch);
  void Attention(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer);
  void GateUp(const DeviceLayer& w, int tokens_now);
  void Run(int count, int rows, bool gather);
  bool UsesGemm(int count) const { return gemm && count > kMaxMatvecTokens; }
  void LayerByGemm(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer);
  void MultiplyByGemm(std::span<const DeviceMatrix* const> matrices, const std::byte* x_rows,
                      int64_t tokens_now, void* out, bool f32_out, int64_t out_stride, bool add);
  void Check(const Status& status) {
    if (!status && !problem) problem = status.error();
  }
  std::optional<Error> problem;
  Status TakeFault(const char* what) {
    const cudaError_t code = std::exchange(fault, cudaSuccess);
    if (problem) return *std::exchange(problem, std::nullopt);
    return CudaStatus(code, what);
  }
  int64_t unpacked_elements() const;

  // All layers in one kernel, for a few tokens, where the model's shape allows it.
  uint32_t* step_counter = nullptr;
  std::vector<cuda::StepLayer> step_layers;  // empty if the layers are not alike
  static constexpr int kStepTokens = 4;
  std::array<std::byte*, kStepTokens + 1> step_tables =
      {};  // by the number of tokens; null where it cannot run
  cuda::DecodeStepArgs StepFor(const cuda::DeviceBatch& batch) const;
  Status MakeStepTables();
  cuda::MatvecArgs QkvArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const;
  cuda::MatvecArgs GateUpArgs(const DeviceLayer& w, int tokens_now) const;
  cuda::MatvecArgs AddArgs(const DeviceMatrix& m, const float* from, int tokens_now) const;
  cuda::DeviceAttentionArgs AttentionArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch,
                                          int64_t layer) const;
  cuda::DeviceBatch Batch(int count) const {
    return {tokens, positions, sequence, table, static_cast<int>(table_width), count};
  }
};

// ---- memory

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
  CELER_ASSIGN(step_counter, Own<uint32_t>(1));
  CELER_RETURN_IF_ERROR(MakeStepTables());
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

// ---- weights

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

// ---- the forward pass

void CudaDecoder::Impl::Multiply(const Product& p, int tokens_now) {
  // The activations of a few tokens fit into shared memory; a wide matrix takes fewer of them.
  int at_once = kMaxMatvecTokens;
  while (at_once > 1 && !cuda::MatvecFits(p.a->format, p.a->padded, at_once)) --at_once;
  for (int first = 0; first < tokens_now; first += at_once) {
    cuda::MatvecArgs args;
    args.a = *p.a;
    args.tokens = std::min(at_once, tokens_now - first);
    args.x = p.rows ? p.x : p.x + first * p.x_stride;
    args.rows = p.rows ? p.rows + first : nullptr;
    args.x_stride = p.x_stride;
    args.norm = p.norm;
    args.eps = config.norm_eps;
    args.a_bias = p.bias;
    args.out = p.out + first * p.out_stride;
    args.residual = p.residual ? p.residual + first * p.out_stride : nullptr;
    args.out_stride = p.out_stride;
    Check(cuda::LaunchMatvec(args, stream->get()));
  }
}

cuda::MatvecArgs CudaDecoder::Impl::QkvArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const {
  const DecoderConfig& c = config;
  cuda::MatvecArgs args;
  args.epilogue = cuda::Epilogue::kQkv;
  args.a = w.q, args.b = w.k, args.c = w.v;
  args.a_bias = w.q_bias, args.b_bias = w.k_bias, args.c_bias = w.v_bias;
  args.x = x;
  args.x_stride = c.hidden;
  args.tokens = batch.count;
  args.norm = w.attention_norm;
  args.eps = c.norm_eps;
  args.out = q;
  args.out_stride = c.heads * c.head_dim;
  args.batch = batch;
  args.kv = w.kv;
  args.rope_dim = static_cast<int>(c.rope.dim);
  args.rope_cos = rope_cos;
  args.rope_sin = rope_sin;
  return args;
}

cuda::MatvecArgs CudaDecoder::Impl::GateUpArgs(const DeviceLayer& w, int tokens_now) const {
  const DecoderConfig& c = config;
  cuda::MatvecArgs args;
  args.epilogue = cuda::Epilogue::kGateUp;
  args.a = w.gate, args.b = w.up;
  args.x = x;
  args.x_stride = c.hidden;
  args.tokens = tokens_now;
  args.norm = w.ffn_norm;
  args.eps = c.norm_eps;
  args.activation = static_cast<cuda::DeviceActivation>(c.activation);
  args.out = mid;
  args.out_stride = c.intermediate;
  return args;
}

cuda::DeviceAttentionArgs CudaDecoder::Impl::AttentionArgs(const DeviceLayer& w,
                                                           const cuda::DeviceBatch& batch,
                                                           int64_t layer) const {
  const DecoderConfig& c = config;
  cuda::DeviceAttentionArgs args;
  args.batch = batch;
  args.kv = w.kv;
  args.q = q;
  args.heads = static_cast<int>(c.heads);
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  args.window = static_cast<int>(c.Window(layer));
  args.out = attention;
  args.partial = partial;
  args.tickets = attention_tickets;
  args.splits = batch.count <= kMaxMatvecTokens
                    ? cuda::AttentionSplits(static_cast<int>(c.heads), static_cast<int>(c.kv_heads))
                    : 1;
  return args;
}

// out = x + m . from
cuda::MatvecArgs CudaDecoder::Impl::AddArgs(const DeviceMatrix& m, const float* from, int tokens_now) const {
  cuda::MatvecArgs args;
  args.a = m;
  args.x = from;
  args.x_stride = m.cols;
  args.tokens = tokens_now;
  args.out = x;
  args.residual = x;
  args.out_stride = config.hidden;
  return args;
}

Status CudaDecoder::Impl::MakeStepTables() {
  for (size_t i = 0; i < layers.size(); ++i) {
    const DeviceLayer& w = layers[i];
    const DeviceLayer& first = layers[0];
    bool alike = !w.q_norm;
    for (const auto& [a, b] : {std::pair(&w.q, &first.q),
                               {&w.k, &first.k},
                               {&w.v, &first.v},
                               {&w.o, &first.o},
                               {&w.gate, &first.gate},
                               {&w.up, &first.up},
                               {&w.down, &first.down}})
      alike = alike && SameForm(*a, *b);
    if (!alike || !cuda::CanFuseRope(static_cast<int>(config.head_dim), static_cast<int>(config.rope.dim))) {
      step_layers.clear();
      return {};
    }
    step_layers.push_back({w.q.data,         w.k.data,
                           w.v.data,         w.o.data,
                           w.gate.data,      w.up.data,
                           w.down.data,      w.q.scales,
                           w.k.scales,       w.v.scales,
                           w.o.scales,       w.gate.scales,
                           w.up.scales,      w.down.scales,
                           w.attention_norm, w.ffn_norm,
                           w.q_bias,         w.k_bias,
                           w.v_bias,         w.kv.k,
                           w.kv.v,           config.Window(static_cast<int64_t>(i))});
  }
  for (int count = 1; count <= kStepTokens; ++count) {
    const cuda::DecodeStepArgs step = StepFor(Batch(count));
    if (!cuda::CanDecodeStep(step)) continue;
    std::byte*& table_memory = step_tables[static_cast<size_t>(count)];
    CELER_ASSIGN(table_memory,
                 Own<std::byte>(static_cast<int64_t>(cuda::DecodeStepTableBytes(step.layer_count))));
    CELER_RETURN_IF_ERROR(
        CudaStatus(cuda::FillDecodeStepTable(step, table_memory), "preparing a decode step"));
  }
  return {};
}

cuda::DecodeStepArgs CudaDecoder::Impl::StepFor(const cuda::DeviceBatch& batch) const {
  const DeviceLayer& w = layers[0];
  cuda::DecodeStepArgs step;
  step.qkv = QkvArgs(w, batch);
  step.o = AddArgs(w.o, attention, batch.count);
  step.gate_up = GateUpArgs(w, batch.count);
  step.down = AddArgs(w.down, mid, batch.count);
  step.attention = AttentionArgs(w, batch, 0);
  step.layers = step_layers.data();
  step.layer_count = static_cast<int>(step_layers.size());
  step.counter = step_counter;
  return step;
}

void CudaDecoder::Impl::Qkv(const DeviceLayer& w, const cuda::DeviceBatch& batch) {
  const DecoderConfig& c = config;
  const int dim = static_cast<int>(c.head_dim), rope_dim = static_cast<int>(c.rope.dim);
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  if (batch.count <= kMaxMatvecTokens && !w.q_norm && SameForm(w.q, w.k) && SameForm(w.q, w.v) &&
      cuda::CanFuseRope(dim, rope_dim) && cuda::MatvecFits(w.q.format, w.q.padded, batch.count)) {
    return Check(cuda::LaunchMatvec(QkvArgs(w, batch), stream->get()));
  }
  const Product base{.x = x, .x_stride = c.hidden, .norm = w.attention_norm};
  const auto project = [&](const DeviceMatrix& m, const float* bias, float* out, int64_t width) {
    Product p = base;
    p.a = &m, p.bias = bias, p.out = out, p.out_stride = width;
    Multiply(p, batch.count);
  };
  project(w.q, w.q_bias, q, q_width);
  project(w.k, w.k_bias, k, kv_width);
  project(w.v, w.v_bias, v, kv_width);
  cuda::FinishQkvArgs finish;
  finish.batch = batch;
  finish.kv = w.kv;
  finish.q = q, finish.k = k, finish.v = v;
  finish.q_out = q;
  finish.q_stride = q_width, finish.kv_stride = kv_width;
  finish.heads = static_cast<int>(c.heads);
  finish.q_norm = w.q_norm, finish.k_norm = w.k_norm;
  finish.eps = c.norm_eps;
  finish.rope_dim = rope_dim;
  finish.rope_cos = rope_cos, finish.rope_sin = rope_sin;
  Check(cuda::LaunchFinishQkv(finish, stream->get()));
}

// Matrices of one width, below each other.
void CudaDecoder::Impl::Unpack(std::span<const DeviceMatrix* const> matrices) {
  const size_t slot = next_unpack;
  next_unpack ^= 1;
  Check(unpack_stream->WaitFor(*multiply_done[slot]));
  int64_t rows = 0;
  for (const DeviceMatrix* m : matrices) {
    Check(cuda::LaunchUnpack(*m, unpacked[slot] + 2 * rows * m->padded, unpack_stream->get()));
    rows += m->rows;
  }
  Check(unpack_done[slot]->Record(*unpack_stream));
}

void CudaDecoder::Impl::UnpackPart(int64_t layer, int part) {
  if (layer >= config.layers) return;
  const DeviceLayer& w = layers[static_cast<size_t>(layer)];
  const DeviceMatrix* const all[] = {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down};
  constexpr size_t kBegin[] = {0, 3, 4, 6, 7};
  const auto i = static_cast<size_t>(part);
  Unpack(std::span(all).subspan(kBegin[i], kBegin[i + 1] - kBegin[i]));
}

// Multiplies with what was unpacked for these matrices.
void CudaDecoder::Impl::MultiplyByGemm(std::span<const DeviceMatrix* const> matrices, const std::byte* x_rows,
                                       int64_t tokens_now, void* out, bool f32_out, int64_t out_stride,
                                       bool add) {
  int64_t rows = 0;
  for (const DeviceMatrix* m : matrices) rows += m->rows;
  const size_t slot = next_multiply;
  next_multiply ^= 1;
  Check(stream->WaitFor(*unpack_done[slot]));
  Check(gemm->Run(unpacked[slot], x_rows, rows, tokens_now, matrices[0]->padded, out, f32_out, out_stride,
                  add, stream->get()));
  Check(multiply_done[slot]->Record(*stream));
}

// The five operators for many tokens at once.
void CudaDecoder::Impl::LayerByGemm(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer) {
  const DecoderConfig& c = config;
  const int64_t n = batch.count, q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const int64_t qkv_width = q_width + 2 * kv_width;
  const auto to_bf16 = [&](const float* from, int64_t cols, int padded, const float* by) {
    Check(cuda::LaunchToBf16(from, n, static_cast<int>(cols), padded, by, c.norm_eps, x_bf16, stream->get()));
  };
  UnpackPart(layer, 1);
  to_bf16(x, c.hidden, w.q.padded, w.attention_norm);
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  MultiplyByGemm(projections, x_bf16, n, qkv_rows, true, qkv_width, false);
  UnpackPart(layer, 2);
  cuda::FinishQkvArgs finish;
  finish.batch = batch;
  finish.kv = w.kv;
  finish.q = qkv_rows, finish.k = qkv_rows + q_width, finish.v = qkv_rows + q_width + kv_width;
  finish.q_stride = finish.kv_stride = qkv_width;
  finish.q_out = q;
  finish.q_bias = w.q_bias, finish.k_bias = w.k_bias, finish.v_bias = w.v_bias;
  finish.heads = static_cast<int>(c.heads);
  finish.q_norm = w.q_norm, finish.k_norm = w.k_norm;
  finish.eps = c.norm_eps;
  finish.rope_dim = static_cast<int>(c.rope.dim);
  finish.rope_cos = rope_cos, finish.rope_sin = rope_sin;
  Check(cuda::LaunchFinishQkv(finish, stream->get()));
  Attention(w, batch, layer);
  to_bf16(attention, q_width, w.o.padded, nullptr);
  const DeviceMatrix* const output[] = {&w.o};
  MultiplyByGemm(output, x_bf16, n, x, true, c.hidden, true);
  UnpackPart(layer, 3);
  to_bf16(x, c.hidden, w.gate.padded, w.ffn_norm);
  const DeviceMatrix* const gate_up[] = {&w.gate, &w.up};
  MultiplyByGemm(gate_up, x_bf16, n, gate_up_bf16, false, 2 * c.intermediate, false);
  Check(cuda::LaunchActivateBf16(gate_up_bf16, n, static_cast<int>(c.intermediate), w.down.padded,
                                 static_cast<cuda::DeviceActivation>(c.activation), mid_bf16, stream->get()));
  UnpackPart(layer + 1, 0);
  const DeviceMatrix* const down[] = {&w.down};
  MultiplyByGemm(down, mid_bf16, n, x, true, c.hidden, true);
}

void CudaDecoder::Impl::Attention(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer) {
  const DecoderConfig& c = config;
  const cuda::DeviceAttentionArgs args = AttentionArgs(w, batch, layer);
  if (batch.count > kMaxMatvecTokens && longest > 1 && !options.exact &&
      cuda::FlashAttentionRuns(static_cast<int>(c.head_dim)))
    return Check(cuda::LaunchFlashAttention({.base = args,
                                             .seq_start = seq_start,
                                             .sequences = static_cast<int>(sequences),
                                             .longest = static_cast<int>(longest)},
                                            stream->get()));
  Check(cuda::LaunchAttention(args, stream->get()));
}

void CudaDecoder::Impl::GateUp(const DeviceLayer& w, int tokens_now) {
  const DecoderConfig& c = config;
  const auto activation = static_cast<cuda::DeviceActivation>(c.activation);
  if (tokens_now <= kMaxMatvecTokens && SameForm(w.gate, w.up) &&
      cuda::MatvecFits(w.gate.format, w.gate.padded, tokens_now)) {
    return Check(cuda::LaunchMatvec(GateUpArgs(w, tokens_now), stream->get()));
  }
  Product p{.a = &w.gate,
            .x = x,
            .x_stride = c.hidden,
            .norm = w.ffn_norm,
            .out = mid,
            .out_stride = c.intermediate};
  Multiply(p, tokens_now);
  p.a = &w.up, p.out = up;
  Multiply(p, tokens_now);
  Check(cuda::LaunchActivate(mid, up, mid, tokens_now * c.intermediate, activation, stream->get()));
}

// `rows` rows of logits: of the tokens that logit_rows names, or of the first ones.
void CudaDecoder::Impl::Run(int count, int rows, bool gather) {
  const DecoderConfig& c = config;
  const cuda::DeviceBatch batch = Batch(count);
  Check(cuda::LaunchEmbed(
      {.tokens = tokens, .count = count, .table = embedding, .out = x, .reset = step_counter},
      stream->get()));
  if (UsesGemm(count)) {  // both places are free from here on
    next_unpack = next_multiply = 0;
    for (std::optional<Event>& event : multiply_done) Check(event->Record(*stream));
    UnpackPart(0, 0);
  }
  const std::byte* step_table =
      OneKernel() && count <= kStepTokens ? step_tables[static_cast<size_t>(count)] : nullptr;
  if (step_table) Check(cuda::LaunchDecodeStep(StepFor(batch), step_table, stream->get()));
  for (int64_t i = 0; !step_table && i < c.layers; ++i) {
    const DeviceLayer& w = layers[static_cast<size_t>(i)];
    if (UsesGemm(count)) {
      LayerByGemm(w, batch, i);
      continue;
    }
    Qkv(w, batch);
    Attention(w, batch, i);
    Multiply({.a = &w.o,
              .x = attention,
              .x_stride = c.heads * c.head_dim,
              .residual = x,
              .out = x,
              .out_stride = c.hidden},
             count);
    GateUp(w, count);
    Multiply(
        {.a = &w.down, .x = mid, .x_stride = c.intermediate, .residual = x, .out = x, .out_stride = c.hidden},
        count);
  }
  if (rows > 0)
    Multiply({.a = &head,
              .x = x,
              .x_stride = c.hidden,
              .rows = gather ? logit_rows : nullptr,
              .norm = norm,
              .out = logits,
              .out_stride = c.vocab},
             rows);
}

// ---- batches

Result<std::byte*> CudaDecoder::Impl::Pinned(int64_t bytes, Upload** used) {
  Upload& upload = uploads[next_upload];
  next_upload = (next_upload + 1) % uploads.size();
  if (upload.done) CELER_RETURN_IF_ERROR(upload.done->Synchronize());
  if (static_cast<int64_t>(upload.memory.size()) < bytes) {
    CELER_ASSIGN(upload.memory,
                 Buffer::Allocate(PinnedAllocator(), static_cast<size_t>(std::max<int64_t>(bytes, 1 << 16))));
  }
  if (!upload.done) {
    CELER_ASSIGN(Event event, Event::Create(options.device));
    upload.done.emplace(std::move(event));
  }
  *used = &upload;
  return upload.memory.data();
}

Status CudaDecoder::Impl::Copy(void* to, const void* from, int64_t bytes) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream->get()),
      "copying a batch to the GPU");
}

Status CudaDecoder::Impl::UploadBatch(const RaggedBatch& batch) {
  const int64_t count = batch.token_count(), rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t table_count = batch.seqs() * batch.max_blocks;
  sequences = batch.seqs();
  longest = 0;
  for (size_t i = 0; i + 1 < batch.seq_start.size(); ++i)
    longest = std::max<int64_t>(longest, batch.seq_start[i + 1] - batch.seq_start[i]);
  Upload* upload = nullptr;
  CELER_ASSIGN(std::byte * memory, Pinned((4 * count + 1 + rows + table_count) * 4, &upload));
  auto* at = reinterpret_cast<int32_t*>(memory);
  const auto send = [&](int32_t* to, std::span<const int32_t> values) -> Status {
    std::copy(values.begin(), values.end(), at);
    CELER_RETURN_IF_ERROR(Copy(to, at, static_cast<int64_t>(values.size_bytes())));
    at += values.size();
    return {};
  };
  std::vector<int32_t> owner;
  for (int64_t s = 0; s < batch.seqs(); ++s)
    owner.insert(owner.end(),
                 static_cast<size_t>(batch.seq_start[static_cast<size_t>(s + 1)] -
                                     batch.seq_start[static_cast<size_t>(s)]),
                 static_cast<int32_t>(s));
  if (!batch.tokens.empty()) CELER_RETURN_IF_ERROR(send(tokens, batch.tokens));
  CELER_RETURN_IF_ERROR(send(positions, batch.positions));
  CELER_RETURN_IF_ERROR(send(sequence, owner));
  CELER_RETURN_IF_ERROR(send(seq_start, batch.seq_start));
  if (rows > 0) CELER_RETURN_IF_ERROR(send(logit_rows, batch.logit_rows));
  std::copy(batch.block_table.begin(), batch.block_table.end(), at);
  if (table_count > 0)
    CELER_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy2DAsync(table, static_cast<size_t>(table_width) * 4, at,
                          static_cast<size_t>(batch.max_blocks) * 4,
                          static_cast<size_t>(batch.max_blocks) * 4, static_cast<size_t>(batch.seqs()),
                          cudaMemcpyHostToDevice, stream->get()),
        "copying a block table to the GPU"));
  return upload->done->Record(*stream);
}

CudaDecoder::CudaDecoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaDecoder::~CudaDecoder() = default;

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::Make(const Decoder& host,
                                                       const CudaDecoderOptions& options) {
  const CudaDeviceScope scope(options.device);
  auto impl = std::make_unique<Impl>();
  impl->config = host.config();
  impl->options = options;
  CELER_RETURN_IF_ERROR(impl->Start());
  CELER_RETURN_IF_ERROR(impl->LoadFrom(host));
  CELER_RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<CudaDecoder>(new CudaDecoder(std::move(impl)));
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::Random(const DecoderConfig& config,
                                                         const CudaDecoderOptions& options) {
  const CudaDeviceScope scope(options.device);
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  impl->options = options;
  CELER_RETURN_IF_ERROR(impl->Start());
  CELER_RETURN_IF_ERROR(impl->LoadRandom());
  CELER_RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<CudaDecoder>(new CudaDecoder(std::move(impl)));
}

const DecoderConfig& CudaDecoder::config() const {
  return impl_->config;
}
int64_t CudaDecoder::device_bytes() const {
  return impl_->weights->device_bytes();
}
int64_t CudaDecoder::peak_load_bytes() const {
  return impl_->weights->peak_bytes();
}
const std::map<std::string, int64_t>& CudaDecoder::bytes_by_format() const {
  return impl_->weights->bytes_by_format();
}
const std::string& CudaDecoder::device_name() const {
  return impl_->device_name;
}
int64_t CudaDecoder::max_logit_rows() const {
  return kLogitRows;
}
int64_t CudaDecoder::active_bytes() const {
  int64_t total = impl_->head.bytes();
  for (const DeviceLayer& l : impl_->layers)
    for (const DeviceMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) total += m->bytes();
  return total;
}

Status CudaDecoder::Forward(const RaggedBatch& batch) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  const int64_t rows = static_cast<int64_t>(batch.logit_rows.size());
  if (batch.token_count() > d.options.max_tokens || rows > kLogitRows)
    return Error::Invalid("a batch of ", batch.token_count(), " tokens and ", rows,
                          " rows of logits; the GPU was set up for ", d.options.max_tokens, " and ",
                          kLogitRows);
  d.seen_positions.clear();
  CELER_RETURN_IF_ERROR(d.UploadBatch(batch));
  d.Run(static_cast<int>(batch.token_count()), static_cast<int>(rows), true);
  d.last_rows = rows;
  return d.TakeFault("running the model on the GPU");
}

Result<std::span<const float>> CudaDecoder::Logits() {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  const auto floats = static_cast<size_t>(d.last_rows * d.config.vocab);
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(d.host_logits.data(), d.logits, floats * 4, cudaMemcpyDeviceToHost, d.stream->get()),
      "copying logits from the GPU"));
  CELER_RETURN_IF_ERROR(d.stream->Synchronize());
  return std::span<const float>(reinterpret_cast<const float*>(d.host_logits.data()), floats);
}

Status CudaDecoder::DecodeGreedy(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                                 std::span<const int32_t> block_table, int64_t max_blocks) {
  Impl& d = *impl_;
  const CudaDeviceScope scope(d.options.device);
  const auto count = static_cast<int64_t>(positions.size());
  if (count < 1 || count > std::min(kMaxDecode, d.options.max_tokens))
    return Error::Invalid("a decode step of ", count, " sequences; 1 to ", kMaxDecode, " are possible");
  // The device moved its positions on by itself; tokens and tables that it has are not sent again.
  const bool continues =
      std::equal(positions.begin(), positions.end(), d.seen_positions.begin(), d.seen_positions.end());
  const bool same_table = continues && std::equal(block_table.begin(), block_table.end(),
                                                  d.seen_table.begin(), d.seen_table.end());
  if (!continues || !same_table || !tokens.empty()) {
    std::vector<int32_t> starts(static_cast<size_t>(count) + 1);
    for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int32_t>(i);
    CELER_RETURN_IF_ERROR(d.UploadBatch({.tokens = tokens,
                                         .positions = positions,
                                         .seq_start = starts,
                                         .block_table = block_table,
                                         .max_blocks = max_blocks,
                                         .logit_rows = {}}));
    d.seen_table.assign(block_table.begin(), block_table.end());
  }
  d.seen_positions.assign(positions.begin(), positions.end());
  for (int32_t& position : d.seen_positions) ++position;

  cudaGraphExec_t& graph = d.graphs[static_cast<size_t>(count)];
  if (!graph) {
    cudaGraph_t captured = nullptr;
    const auto queue = [&] {
      d.Run(static_cast<int>(count), static_cast<int>(count), false);
      d.Check(cuda::LaunchGreedy({.logits = d.logits,
                                  .rows = static_cast<int>(count),
                                  .vocab = static_cast<int>(d.config.vocab),
                                  .best = d.greedy_best,
                                  .tickets = d.greedy_tickets,
                                  .tokens = d.tokens,
                                  .positions = d.positions,
                                  .host_tokens = reinterpret_cast<int32_t*>(d.host_tokens.data()),
                                  .host_stride = static_cast<int>(kMaxDecode)},
                                 d.stream->get()));
    };
    CELER_RETURN_IF_ERROR(
        CudaStatus(cudaStreamBeginCapture(d.stream->get(), cudaStreamCaptureModeThreadLocal),
                   "capturing a decode step"));
    queue();
    const cudaError_t ended = cudaStreamEndCapture(d.stream->get(), &captured);
    CELER_RETURN_IF_ERROR(d.TakeFault("queueing a decode step"));
    CELER_RETURN_IF_ERROR(CudaStatus(ended, "capturing a decode step"));
    const cudaError_t made = cudaGraphInstantiate(&graph, captured, 0);
    cudaGraphDestroy(captured);
    CELER_RETURN_IF_ERROR(CudaStatus(made, "making a graph of a decode step"));
  }
  CELER_RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(graph, d.stream->get()), "launching a decode step"));
  CELER_RETURN_IF_ERROR(d.step_done[static_cast<size_t>(positions[0] % cuda::kHostSlots)]->Record(*d.stream));
  d.last_rows = count;
  return {};
}

Status CudaDecoder::ChosenTokens(std::span<const int32_t> positions, std::span<int32_t> tokens) {
  Impl& d = *impl_;
  CELER_RETURN_IF_ERROR(d.step_done[static_cast<size_t>(positions[0] % cuda::kHostSlots)]->Synchronize());
  const auto* host = reinterpret_cast<const volatile int32_t*>(d.host_tokens.data());
  for (size_t i = 0; i < positions.size(); ++i)
    tokens[i] = host[positions[i] % cuda::kHostSlots * kMaxDecode + static_cast<int64_t>(i)];
  return {};
}

Status CudaDecoder::Synchronize() {
  return impl_->stream->Synchronize();
}

}  // namespace celer
