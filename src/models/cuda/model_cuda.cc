// The weights of a model in the memory of a GPU.
#include "models/cuda/model.h"

#include <algorithm>

#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "models/cuda/memory/memory_plan.h"

namespace celer {
namespace {

using Role = WeightStore::Role;

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

// The form that a random matrix has in `store`.
DeviceMatrix PlanRandomMatrix(const cuda::DeviceWeights& store, int64_t rows, int64_t cols,
                              Role role = Role::kProjection) {
  WeightView view;
  view.dtype = DType::kBf16;
  view.rows = rows;
  view.cols = cols;
  return store.PlanMatrix(view, role);
}

// A dense layer's matrices, those of a part one after the other.
std::array<std::pair<DeviceLayer::Part, const DeviceMatrix*>, 7> PartsOf(const DeviceLayer& l) {
  using enum DeviceLayer::Part;
  return {{{kQkv, &l.q},
           {kQkv, &l.k},
           {kQkv, &l.v},
           {kOutput, &l.o},
           {kGateUp, &l.gate},
           {kGateUp, &l.up},
           {kDown, &l.down}}};
}

}  // namespace

int64_t CudaModel::PlannedBytes(const Model& host, const cuda::DeviceWeights& store) {
  const DecoderWeights& w = host.weights();
  const auto planned = [&](const WeightView& view, Role role) {
    return cuda::DeviceWeights::PlannedBytes(store.PlanMatrix(view, role));
  };
  int64_t bytes = planned(w.embedding, Role::kVocabulary);
  if (!host.config().tied_embeddings) bytes += planned(w.head, Role::kVocabulary);
  const auto expert = [&](const ExpertWeights& e) {
    for (const WeightView* view : {&e.gate, &e.up, &e.down})
      if (*view) bytes += planned(*view, Role::kProjection);
  };
  for (const LayerWeights& l : w.layers) {
    for (const WeightView* view : {&l.q, &l.k, &l.v, &l.o}) bytes += planned(*view, Role::kProjection);
    expert(l.dense);
    for (const ExpertWeights& e : l.experts) expert(e);
    expert(l.shared);
    if (l.router) bytes += RouterBytes(host.config());
  }
  return bytes;
}

int64_t CudaModel::PlannedBytes(const DecoderConfig& c, const cuda::DeviceWeights& store) {
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const auto bytes = [&](int64_t rows, int64_t cols) { return PlanRandomMatrix(store, rows, cols).bytes(); };
  const auto ffn = [&](int64_t width) {
    return width > 0 ? bytes(2 * width, c.hidden) + bytes(c.hidden, width) : 0;
  };
  int64_t all = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    all += bytes(q_width, c.hidden) + bytes(2 * kv_width, c.hidden) + bytes(c.hidden, q_width);
    all += c.IsSparse(i)
               ? c.moe.experts * ffn(c.moe.intermediate) + ffn(c.moe.shared_intermediate) + RouterBytes(c)
               : ffn(c.intermediate);
  }
  return all +
         (c.tied_embeddings ? 1 : 2) * PlanRandomMatrix(store, c.vocab, c.hidden, Role::kVocabulary).bytes();
}

Status CudaModel::Load(const Model& host) {
  const DecoderWeights& w = host.weights();
  const DecoderConfig& c = config;
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

Status CudaModel::LoadRandom() {
  const DecoderConfig& c = config;
  const auto plan = [&](int64_t rows, int64_t cols, Role role = Role::kProjection) {
    return PlanRandomMatrix(*weights, rows, cols, role);
  };
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
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

bool CudaModel::CanKeepRows() const {
  const auto fits = [](const DeviceMatrix& m) {
    return m.format == cuda::Format::kBf16 || m.format == cuda::Format::kF16;
  };
  return std::all_of(layers.begin(), layers.end(), [&](const DeviceLayer& l) {
    return !l.sparse() && fits(l.q) && fits(l.k) && fits(l.v) && fits(l.o) && fits(l.gate) && fits(l.up) &&
           fits(l.down);
  });
}

int64_t CudaModel::RowBytes(const DecoderConfig& c) {
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const auto bytes = [](int64_t rows, int64_t cols) {
    return rows * cuda::PaddedRowBytes(cuda::Format::kBf16, cols);
  };
  return c.layers * (bytes(q_width + 2 * kv_width, c.hidden) + bytes(c.hidden, q_width) +
                     bytes(2 * c.intermediate, c.hidden) + bytes(c.hidden, c.intermediate));
}

Status CudaModel::KeepRows(int device, cudaStream_t stream) {
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  for (DeviceLayer& l : layers) {
    CELER_ASSIGN(Buffer buffer,
                 Buffer::Allocate(*allocator, static_cast<size_t>(RowBytes(config) / config.layers)));
    std::byte* to = buffer.data();
    for (const auto& [part, m] : PartsOf(l)) {
      if (!l.rows[part]) l.rows[part] = to;
      CELER_RETURN_IF_ERROR(CudaStatus(cuda::LaunchUnpack(*m, to, stream), "unpacking weights"));
      to += int64_t{m->rows} * m->padded * 2;
    }
    rows_.push_back(std::move(buffer));
  }
  return {};
}

Status CudaModel::CheckCodes(const DecoderConfig& c, Activations activations) {
  const char* const name = CodeName(activations);
  if (c.moe.experts > 0)
    return Error::Unsupported("`activations` ", name,
                              " runs dense models; leave it out for a mixture of experts");
  const int64_t q_width = c.heads * c.head_dim, qkv_width = q_width + 2 * c.kv_heads * c.head_dim;
  for (const int64_t n : {c.hidden, q_width, qkv_width, c.intermediate})
    if (n % 16 != 0)
      return Error::Unsupported("`activations` ", name,
                                " needs widths that are multiples of 16, and this model has one of ", n);
  if (std::max(c.hidden, c.intermediate) > cuda::kMaxCodeColumns)
    return Error::Unsupported("`activations` ", name, " takes up to ", cuda::kMaxCodeColumns,
                              " columns, and this model has ", std::max(c.hidden, c.intermediate));
  return {};
}

int64_t CudaModel::CodeBytes(const DecoderConfig& c) {
  const int64_t rows = (c.heads + 2 * c.kv_heads) * c.head_dim + 2 * c.hidden + 2 * c.intermediate;
  return RowBytes(c) / 2 + c.layers * rows * 4;
}

Status CudaModel::KeepCodes(int device, cuda::Code code, cudaStream_t stream) {
  CELER_ASSIGN(Allocator * allocator, CudaAllocator(device));
  int64_t largest = 0;
  for (const auto& [part, m] : PartsOf(layers[0]))
    largest = std::max(largest, int64_t{m->rows} * m->padded * 2);
  CELER_ASSIGN(Buffer unpacked, Buffer::Allocate(*allocator, static_cast<size_t>(largest)));
  for (DeviceLayer& l : layers) {
    CELER_ASSIGN(Buffer buffer,
                 Buffer::Allocate(*allocator, static_cast<size_t>(CodeBytes(config) / config.layers)));
    std::byte* codes = buffer.data();
    float* scales = reinterpret_cast<float*>(codes + RowBytes(config) / 2 / config.layers);
    for (const auto& [part, m] : PartsOf(l)) {
      if (!l.rows[part]) l.rows[part] = codes, l.row_scales[part] = scales;
      if (code == cuda::Code::kFp8 && cuda::HasRowCodes(*m)) {
        CELER_RETURN_IF_ERROR(
            CudaStatus(cuda::LaunchUnpackCodes(*m, codes, scales, stream), "unpacking weights"));
      } else {
        CELER_RETURN_IF_ERROR(
            CudaStatus(cuda::LaunchUnpack(*m, unpacked.data(), stream), "unpacking weights"));
        CELER_RETURN_IF_ERROR(CudaStatus(
            cuda::LaunchQuantizeRows(code, unpacked.data(), m->rows, m->padded, {codes, scales}, stream),
            "quantizing weights"));
      }
      codes += int64_t{m->rows} * m->padded;
      scales += m->rows;
    }
    rows_.push_back(std::move(buffer));
  }
  return CudaStatus(cudaStreamSynchronize(stream), "quantizing weights");
}

int64_t CudaModel::active_bytes() const {
  int64_t total = head.bytes();
  for (const DeviceLayer& l : layers) {
    for (const DeviceMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) total += m->bytes();
    if (l.sparse()) total += RouterBytes(config);
    for (const DeviceMatrix* m : {&l.expert_gate_up.first, &l.expert_gate_up.up, &l.expert_down.first})
      total += config.moe.experts_per_token * m->bytes();
  }
  return total;
}

StepMatrices CudaModel::Matrices() const {
  const auto size = [](const DeviceMatrix& m) {
    return MatrixSize{.rows = m.rows, .cols = m.cols, .bytes = m.bytes()};
  };
  StepMatrices step;
  step.embedding_row_bytes = embedding.row_bytes;
  step.head = size(head);
  for (const DeviceLayer& l : layers) {
    StepMatrices::Layer layer;
    layer.qkv = {size(l.q), size(l.k), size(l.v)};
    layer.output = size(l.o);
    if (l.sparse()) {
      layer.shared = {size(l.gate), size(l.up), size(l.down)};
      layer.router = {
          .rows = config.moe.experts, .cols = config.hidden, .bytes = RouterBytes(config), .compute = "f32"};
      layer.experts.assign(
          static_cast<size_t>(config.moe.experts),
          {size(l.expert_gate_up.first), size(l.expert_gate_up.up), size(l.expert_down.first)});
    } else {
      layer.dense = {size(l.gate), size(l.up), size(l.down)};
    }
    step.layers.push_back(std::move(layer));
  }
  return step;
}

}  // namespace celer
