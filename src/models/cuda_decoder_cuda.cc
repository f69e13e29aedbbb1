#include <algorithm>
#include <cstring>

#include "core/cuda_allocator.h"
#include "models/cuda_decoder_impl.h"

namespace celer {

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
const CudaMemoryPlan& CudaDecoder::plan() const {
  return impl_->memory_plan;
}
int64_t CudaDecoder::buffer_bytes() const {
  int64_t total = 0;
  for (const Buffer& buffer : impl_->buffers) total += static_cast<int64_t>(buffer.size());
  return total;
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
int CudaDecoder::device() const {
  return impl_->options.device;
}
int64_t CudaDecoder::max_logit_rows() const {
  return kLogitRows;
}
bool CudaDecoder::decodes_in_one_kernel() const {
  return !impl_->step_layers.empty();
}
int64_t CudaDecoder::active_bytes() const {
  int64_t total = impl_->head.bytes();
  for (const DeviceLayer& l : impl_->layers) {
    for (const DeviceMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) total += m->bytes();
    if (l.sparse()) total += impl_->router_bytes();
    for (const DeviceMatrix* m : {&l.expert_gate_up.first, &l.expert_gate_up.up, &l.expert_down.first})
      total += impl_->config.moe.per_token * m->bytes();
  }
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
  CELER_ASSIGN(const GpuTurns::Turn turn, d.turns->Take());
  d.BeginMarks(/*captured=*/false);
  d.Run(static_cast<int>(batch.token_count()), static_cast<int>(rows), true);
  d.Mark(Op::kLogits);  // where they end
  d.last_rows = rows;
  CELER_RETURN_IF_ERROR(d.TakeFault("running the model on the GPU"));
  return d.TakeMarks();
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

Status CudaDecoder::Synchronize() {
  return impl_->stream->Synchronize();
}

}  // namespace celer
