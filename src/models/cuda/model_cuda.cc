// The weights of a model in the memory of a GPU.
#include "models/cuda/model.h"

#include <algorithm>

#include "device/cuda_allocator.h"
#include "device/cuda_status.h"
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "models/config/plain_layers.h"
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

// The order of the heads' rows in a layer. Layers that do not rotate have the same one, for the sake of their norms.
cuda::HeadOrder OrderOf(const DecoderConfig& c, int64_t layer) {
  const RopeConfig& rope = c.local_rope && c.Window(layer) > 0 ? *c.local_rope : c.rope;
  if (rope.layout != RopeLayout::kInterleaved) return {};
  return {static_cast<int>(c.head_dim), static_cast<int>(rope.dim)};
}

// How many weights the norm of queries or keys has.
int64_t QkNormWidth(const DecoderConfig& c, int64_t heads) {
  return c.qk_norm_span == QkNormSpan::kHead ? c.head_dim : heads * c.head_dim;
}

// The form that a random matrix has in `store`.
DeviceMatrix PlanRandomMatrix(const cuda::DeviceWeights& store, int64_t rows, int64_t cols,
                              Role role = Role::kProjection, DType stored = DType::kBf16) {
  WeightView view;
  view.dtype = stored;
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

std::vector<int32_t> HeadRowOrder(const DecoderConfig& config, const LoraPlace& place, int64_t rows) {
  if (place.part != LoraPart::kQ && place.part != LoraPart::kK) return {};
  const cuda::HeadOrder order = OrderOf(config, place.layer);
  if (order.head_dim == 0) return {};
  std::vector<float> rows_in(static_cast<size_t>(rows));  // exact: there are fewer rows than 2^24
  for (size_t i = 0; i < rows_in.size(); ++i) rows_in[i] = static_cast<float>(i);
  const std::vector<float> ordered = Reordered(rows_in.data(), rows, order);
  return {ordered.begin(), ordered.end()};
}

void CudaModel::Configure(const DecoderConfig& of_file) {
  config = of_file;
  general = !HasPlainLayers(of_file);
  residual_scale = of_file.residual_scale;
  branch_eps = of_file.norm_eps;
  config.residual_scale = 1;
  config.embedding_scale /= residual_scale;
  config.norm_eps /= residual_scale * residual_scale;
}

int64_t CudaModel::PlannedBytes(const Model& host, const cuda::DeviceWeights& store,
                                const std::vector<bool>& experts_elsewhere) {
  const DecoderWeights& w = host.weights();
  const auto planned = [&](const WeightView& view, Role role) {
    return view ? cuda::DeviceWeights::PlannedBytes(store.PlanMatrix(view, role)) : 0;
  };
  int64_t bytes = planned(w.embedding, Role::kVocabulary);
  if (!host.config().tied_embeddings) bytes += planned(w.head, Role::kVocabulary);
  bytes += planned(w.positions, Role::kTable);
  for (size_t i = 0; i < w.layers.size(); ++i) {
    const LayerBytes layer = PlannedLayer(host, w.layers[i], store);
    bytes += layer.all - (!experts_elsewhere.empty() && experts_elsewhere[i] ? layer.experts : 0);
  }
  return bytes;
}

CudaModel::LayerBytes CudaModel::PlannedLayer(const Model& host, const LayerWeights& l,
                                              const cuda::DeviceWeights& store) {
  const auto planned = [&](const WeightView& view) {
    return view ? cuda::DeviceWeights::PlannedBytes(store.PlanMatrix(view, Role::kProjection)) : 0;
  };
  const auto expert = [&](const ExpertWeights& e) {
    return planned(e.gate) + planned(e.up) + planned(e.down);
  };
  const RecurrentWeights& r = l.recurrent;
  LayerBytes bytes;
  for (const WeightView* view : {&l.q, &l.k, &l.v, &l.o, &r.q, &r.k, &r.v, &r.z, &r.b, &r.a, &r.out})
    bytes.all += planned(*view);
  bytes.all += LatentBytes(l.latent, store) + expert(l.dense);
  if (!l.router) return bytes;
  for (const ExpertWeights& e : l.experts) bytes.experts += expert(e);
  const std::vector<ExpertWeights> shared = CutShared(l, host.config().moe, store);
  for (const ExpertWeights& e : shared) bytes.experts += expert(e);
  if (shared.empty()) bytes.experts += expert(l.shared);
  bytes.experts += RouterBytes(host.config()) + ExpertBiasBytes(host.config(), host.config().moe.experts);
  bytes.all += bytes.experts;
  return bytes;
}

int64_t CudaModel::PlannedBytes(const DecoderConfig& c, const cuda::DeviceWeights& store) {
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const auto bytes = [&](int64_t rows, int64_t cols, DType stored = DType::kBf16) {
    return PlanRandomMatrix(store, rows, cols, Role::kProjection, stored).bytes();
  };
  const auto ffn = [&](int64_t width, DType stored = DType::kBf16) {
    if (width == 0) return int64_t{0};
    return bytes((c.gated_mlp ? 2 : 1) * width, c.hidden, stored) + bytes(c.hidden, width, stored);
  };
  int64_t all = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.IsRecurrent(i)) {
      for (const auto& [rows, cols] : RecurrentShapes(c)) all += bytes(rows, cols);
    } else if (c.IsLatent()) {
      all += LatentBytes(c, store) + bytes(c.hidden, c.heads * c.latent.value_dim);
    } else {
      all += bytes((c.output_gate ? 2 : 1) * q_width, c.hidden) + bytes(2 * kv_width, c.hidden) +
             bytes(c.hidden, q_width);
    }
    if (!c.IsSparse(i)) {
      all += ffn(c.intermediate);
      continue;
    }
    const int64_t shared = SharedExperts(c.moe);
    all += (c.moe.experts + shared) * ffn(c.moe.intermediate, RandomExpertType(c)) + RouterBytes(c) +
           ExpertBiasBytes(c, c.moe.experts);
    if (shared == 0) all += ffn(c.moe.shared_intermediate);
  }
  const auto table = [&](int64_t rows, Role role) {
    return rows > 0 ? PlanRandomMatrix(store, rows, c.hidden, role).bytes() : 0;
  };
  return all + (c.tied_embeddings ? 1 : 2) * table(c.vocab, Role::kVocabulary) +
         table(c.position_rows, Role::kTable);
}

Status CudaModel::Load(const Model& host) {
  const DecoderWeights& w = host.weights();
  const DecoderConfig& c = config;
  const auto vector = [&](const float* values, int64_t n,
                          const cuda::HeadOrder& by = {}) -> Result<const float*> {
    if (!values) return values;
    const std::vector<float> ordered = Reordered(values, n, by);
    return weights->UploadVector(ordered.data(), n);
  };
  const auto one = [&](const WeightView& view, Role role) -> Result<DeviceMatrix> {
    const cuda::MatrixSource source{view, role, {}};
    if (!view) return DeviceMatrix();
    CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Upload({&source, 1}));
    return made[0];
  };
  CELER_ASSIGN(embedding, one(w.embedding, Role::kVocabulary));
  if (c.tied_embeddings && w.head) {
    head = embedding;
  } else {
    CELER_ASSIGN(head, one(w.head, Role::kVocabulary));
  }
  if (w.positions) {
    CELER_ASSIGN(positions, one(w.positions, Role::kTable));
  }
  CELER_ASSIGN(norm, vector(w.norm, c.hidden));
  CELER_ASSIGN(norm_bias, vector(w.norm_bias, c.hidden));
  CELER_ASSIGN(embedding_norm, vector(w.embedding_norm, c.hidden));
  CELER_ASSIGN(embedding_norm_bias, vector(w.embedding_norm_bias, c.hidden));
  CELER_ASSIGN(head_bias, vector(w.head_bias, c.vocab));
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerWeights& l = w.layers[static_cast<size_t>(i)];
    DeviceLayer d;
    CELER_RETURN_IF_ERROR(UploadLayer(l, i, &d));
    layers.push_back(d);
  }
  return weights->Finish();
}

Status CudaModel::UploadLayer(const LayerWeights& l, int64_t i, DeviceLayer* d) {
  const DecoderConfig& c = config;
  CELER_RETURN_IF_ERROR(c.IsLatent() ? UploadLatent(l, d) : UploadAttention(l, i, d));
  CELER_RETURN_IF_ERROR(UploadRecurrent(l, d));
  if (l.router && ExpertsElsewhere(static_cast<size_t>(i))) {
    d->experts_elsewhere = true;
  } else if (l.router) {
    CELER_RETURN_IF_ERROR(UploadExperts(l, d));
  } else {
    CELER_RETURN_IF_ERROR(UploadFfn(l, d));
  }
  const auto norm_of = [&](const float* from, const float** to) -> Status {
    CELER_ASSIGN(*to, weights->UploadVector(from, c.hidden));
    return {};
  };
  CELER_RETURN_IF_ERROR(norm_of(l.attention_norm, &d->attention_norm));
  CELER_RETURN_IF_ERROR(norm_of(l.attention_norm_bias, &d->attention_norm_bias));
  CELER_RETURN_IF_ERROR(norm_of(l.attention_post_norm, &d->attention_post_norm));
  CELER_RETURN_IF_ERROR(norm_of(l.ffn_norm, &d->ffn_norm));
  CELER_RETURN_IF_ERROR(norm_of(l.ffn_norm_bias, &d->ffn_norm_bias));
  return norm_of(l.ffn_post_norm, &d->ffn_post_norm);
}

Result<const float*> CudaModel::UploadUnscaled(const float* values, int64_t n) {
  if (!values) return values;
  std::vector<float> unscaled(values, values + n);
  for (float& value : unscaled) value /= residual_scale;
  return weights->UploadVector(unscaled.data(), n);
}

Status CudaModel::UploadAttention(const LayerWeights& l, int64_t layer, DeviceLayer* d) {
  const DecoderConfig& c = config;
  const cuda::HeadOrder order = OrderOf(c, layer);
  const auto vector = [&](const float* values, int64_t n,
                          const cuda::HeadOrder& by = {}) -> Result<const float*> {
    if (!values) return values;
    const std::vector<float> ordered = Reordered(values, n, by);
    return weights->UploadVector(ordered.data(), n);
  };
  const int64_t kv_width = c.kv_heads * c.head_dim;
  if (l.q && l.k && l.v) {
    const cuda::MatrixSource qkv[] = {
        {l.q, Role::kProjection, order}, {l.k, Role::kProjection, order}, {l.v, Role::kProjection, {}}};
    CELER_ASSIGN(const std::vector<DeviceMatrix> projections, weights->Upload(qkv));
    d->q = projections[0], d->k = projections[1], d->v = projections[2];
  }
  if (l.o) {
    const cuda::MatrixSource o{l.o, Role::kProjection, {}};
    CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Upload({&o, 1}));
    d->o = made[0];
  }
  CELER_ASSIGN(d->q_bias, vector(l.q_bias, l.q.rows, order));
  CELER_ASSIGN(d->k_bias, vector(l.k_bias, kv_width, order));
  CELER_ASSIGN(d->v_bias, vector(l.v_bias, kv_width));
  CELER_ASSIGN(d->o_bias, UploadUnscaled(l.o_bias, c.hidden));
  const int64_t q_norm = QkNormWidth(c, c.heads), k_norm = QkNormWidth(c, c.kv_heads);
  CELER_ASSIGN(d->q_norm, vector(l.q_norm, q_norm, order));
  CELER_ASSIGN(d->k_norm, vector(l.k_norm, k_norm, order));
  CELER_ASSIGN(d->q_norm_bias, vector(l.q_norm_bias, q_norm, order));
  CELER_ASSIGN(d->k_norm_bias, vector(l.k_norm_bias, k_norm, order));
  CELER_ASSIGN(d->sinks, vector(l.sinks, c.heads));
  return {};
}

Status CudaModel::UploadFfn(const LayerWeights& l, DeviceLayer* d) {
  const DecoderConfig& c = config;
  std::vector<cuda::MatrixSource> gate_up;
  if (l.dense.gate) gate_up.push_back({l.dense.gate, Role::kProjection, {}});
  gate_up.push_back({l.dense.up, Role::kProjection, {}});
  CELER_ASSIGN(const std::vector<DeviceMatrix> made, weights->Upload(gate_up));
  if (l.dense.gate) d->gate = made[0];
  d->up = made.back();
  const cuda::MatrixSource down{l.dense.down, Role::kProjection, {}};
  CELER_ASSIGN(const std::vector<DeviceMatrix> last, weights->Upload({&down, 1}));
  d->down = last[0];
  const auto vector = [&](const float* values, int64_t n) -> Result<const float*> {
    if (!values) return values;
    return weights->UploadVector(values, n);
  };
  CELER_ASSIGN(d->gate_bias, vector(l.gate_bias, c.intermediate));
  CELER_ASSIGN(d->up_bias, vector(l.up_bias, c.intermediate));
  CELER_ASSIGN(d->down_bias, UploadUnscaled(l.down_bias, c.hidden));
  return {};
}

Status CudaModel::LoadRandom() {
  const DecoderConfig& c = config;
  const auto plan = [&](int64_t rows, int64_t cols, Role role = Role::kProjection) {
    return PlanRandomMatrix(*weights, rows, cols, role);
  };
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const DeviceMatrix vocabulary = plan(c.vocab, c.hidden, Role::kVocabulary);
  const DeviceMatrix qkv[] = {plan((c.output_gate ? 2 : 1) * q_width, c.hidden), plan(kv_width, c.hidden),
                              plan(kv_width, c.hidden)};
  const std::vector<DeviceMatrix> gate_up(c.gated_mlp ? 2 : 1, plan(c.intermediate, c.hidden));
  const DeviceMatrix o = plan(c.hidden, c.IsLatent() ? c.heads * c.latent.value_dim : q_width),
                     down = plan(c.hidden, c.intermediate);

  const auto made = [&](std::span<const DeviceMatrix> plans) { return weights->Random(plans); };
  CELER_ASSIGN(const auto table_matrix, made({&vocabulary, 1}));
  embedding = head = table_matrix[0];
  if (!c.tied_embeddings) {
    CELER_ASSIGN(const auto head_matrix, made({&vocabulary, 1}));
    head = head_matrix[0];
  }
  const int64_t widest = std::max({c.hidden, q_width, c.intermediate, c.vocab});
  const std::vector<float> values(static_cast<size_t>(widest), 1.0f), none(values.size(), 0.0f);
  CELER_ASSIGN(const float* const ones, weights->UploadVector(values.data(), std::max(c.hidden, q_width)));
  CELER_ASSIGN(const float* const zeros, weights->UploadVector(none.data(), widest));
  const auto if_any = [](bool has, const float* vector) { return has ? vector : nullptr; };
  const bool biased_norms = c.norm == NormKind::kLayer && c.norm_bias;
  norm = ones;
  norm_bias = if_any(biased_norms, zeros);
  embedding_norm = if_any(c.embedding_norm, ones);
  embedding_norm_bias = if_any(c.embedding_norm && biased_norms, zeros);
  head_bias = if_any(c.head_bias, zeros);
  if (c.position_rows > 0) {
    const DeviceMatrix rows = plan(c.position_rows, c.hidden, Role::kTable);
    CELER_ASSIGN(const auto table, made({&rows, 1}));
    positions = table[0];
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    DeviceLayer d;
    if (c.IsRecurrent(i)) {
      CELER_RETURN_IF_ERROR(
          RandomRecurrent([&](int64_t rows, int64_t cols) { return plan(rows, cols); }, &d));
    } else {
      if (c.IsLatent()) {
        CELER_RETURN_IF_ERROR(RandomLatent(ones, &d));
      } else {
        CELER_ASSIGN(const auto projections, made(qkv));
        d.q = projections[0], d.k = projections[1], d.v = projections[2];
      }
      CELER_ASSIGN(const auto output, made({&o, 1}));
      d.o = output[0];
    }
    if (c.IsSparse(i)) {
      CELER_RETURN_IF_ERROR(RandomExperts(
          [&](int64_t rows, int64_t cols, DType stored) {
            return PlanRandomMatrix(*weights, rows, cols, Role::kProjection, stored);
          },
          &d));
    } else {
      CELER_ASSIGN(const auto ffn, made(gate_up));
      CELER_ASSIGN(const auto last, made({&down, 1}));
      if (c.gated_mlp) d.gate = ffn[0];
      d.up = ffn.back(), d.down = last[0];
      d.gate_bias = if_any(c.mlp_bias && c.gated_mlp, zeros);
      d.up_bias = d.down_bias = if_any(c.mlp_bias, zeros);
    }
    d.attention_norm = d.ffn_norm = if_any(c.pre_norm, ones);
    d.attention_norm_bias = d.ffn_norm_bias = if_any(c.pre_norm && biased_norms, zeros);
    d.attention_post_norm = d.ffn_post_norm = if_any(c.post_norm, ones);
    d.q_bias = d.k_bias = d.v_bias = if_any(c.qkv_bias, zeros);
    d.o_bias = if_any(c.o_bias, zeros);
    d.q_norm = d.k_norm = if_any(c.qk_norm, ones);
    d.sinks = if_any(c.attention_sinks, zeros);
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
    const DeviceLatent& latent = l.latent;
    for (const DeviceMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) total += m->bytes();
    for (const DeviceMatrix* m : {&latent.q_a, &latent.q_b, &latent.kv_a, &latent.k_b, &latent.v_b})
      total += m->bytes();
    for (const DeviceMatrix* m : l.recurrent.Inputs()) total += m->bytes();
    total += l.recurrent.out.bytes();
    if (l.router) total += RouterBytes(config) + ExpertBiasBytes(config, config.moe.experts_per_token);
    for (const DeviceMatrix* m : {&l.expert_gate_up.first, &l.expert_gate_up.up, &l.expert_down.first})
      total += (config.moe.experts_per_token + l.shared_experts) * m->bytes();
  }
  return total;
}

StepMatrices CudaModel::Matrices() const {
  const auto size = [](const DeviceMatrix& m) {
    return MatrixSize{.rows = m.rows, .cols = m.cols, .bytes = m.bytes()};
  };
  // Of the experts that a shared one is cut into: their rows, and the columns of down.
  // What the experts that a shared one is cut into are together.
  const auto joined = [&](const DeviceLayer& l) {
    const auto times = [&](MatrixSize m, int64_t MatrixSize::*side) {
      m.*side *= l.shared_experts, m.bytes *= l.shared_experts;
      return m;
    };
    return StepMatrices::Expert{times(size(l.expert_gate_up.first), &MatrixSize::rows),
                                times(size(l.expert_gate_up.up), &MatrixSize::rows),
                                times(size(l.expert_down.first), &MatrixSize::cols)};
  };
  StepMatrices step;
  step.embedding_row_bytes = embedding.row_bytes;
  step.head = size(head);
  for (const DeviceLayer& l : layers) {
    StepMatrices::Layer layer;
    const DeviceLatent& latent = l.latent;
    layer.qkv = {size(l.q), size(l.k), size(l.v)};
    if (latent.kv_a)
      layer.qkv = {size(latent.q_a), size(latent.q_b), size(latent.kv_a), size(latent.k_b), size(latent.v_b)};
    layer.output = size(l.o);
    if (l.recurrent.out) {
      layer.qkv.clear();
      for (const DeviceMatrix* m : l.recurrent.Inputs()) layer.qkv.push_back(size(*m));
      layer.output = size(l.recurrent.out);
    }
    if (l.experts_elsewhere) {
      // They are counted where they run.
    } else if (l.sparse()) {
      if (l.shared_experts > 0)
        layer.shared = joined(l);
      else
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
