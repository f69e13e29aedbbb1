// A GGUF file with the same metadata and other tensors.
#include <algorithm>
#include <array>
#include <cstring>

#include "formats/decode.h"
#include "io/file/disk_space.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_writer.h"
#include "quantize/llm/quantize.h"

namespace celer {
namespace {

constexpr int64_t kPieceFloats = int64_t{4} << 20;  // values that are converted at once
constexpr std::string_view kNoSpace = "give -o a place with more room";

// What the new file says itself, and how a split one is numbered.
bool IsReplaced(std::string_view key) {
  return key == "general.alignment" || key == "general.file_type" || key == "general.quantization_version" ||
         key.starts_with("split.") || key.starts_with("quantize.");
}

// The type that most values have.
std::optional<DType> MostCommonType(const QuantizePlan& plan, bool dequantized) {
  std::map<DType, int64_t> values;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.shape.rank() < 2) continue;
    const bool keep = tensor.target.kind == Target::Kind::kKeep;
    values[keep          ? tensor.dtype
           : dequantized ? DType::kF32
                         : tensor.target.dtype] += tensor.rows() * tensor.cols();
  }
  const auto most = std::max_element(values.begin(), values.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == values.end() ? std::nullopt : std::optional(most->first);
}

class Filler {
 public:
  Filler(const TensorSource& file, const QuantizePlan& plan, const WriteOptions& options, int64_t total,
         ThreadPool& pool)
      : file_(file), plan_(plan), options_(options), total_(total), pool_(pool) {}

  Status Fill(const TensorSpec& spec, const TensorSink& sink) {
    const PlannedTensor& tensor = *plan_.Find(spec.name);
    const TensorRecord& record = *file_.Find(spec.name);
    if (const auto* parts = options_.parts) {
      if (const TensorRecord* made = parts->Floats(spec.name)) {
        std::vector<float> values(made->bytes.size() / sizeof(float));
        std::memcpy(values.data(), made->bytes.data(), made->bytes.size());
        parts->DropPages(*made);
        return Floats(spec, values, sink);
      }
      if (const TensorRecord* made = parts->Blocks(spec.name)) {
        CELER_RETURN_IF_ERROR(Blocks(tensor, made->bytes, sink));
        parts->DropPages(*made);
        return {};
      }
    }
    if (tensor.target.kind == Target::Kind::kKeep) {
      CELER_RETURN_IF_ERROR(sink(record.bytes));
      return Done(static_cast<int64_t>(record.bytes.size()));
    }
    CELER_RETURN_IF_ERROR(Convert(tensor, spec, record, sink));
    file_.DropPages(record);
    return {};
  }

 private:
  Status Floats(const TensorSpec& spec, const std::vector<float>& values, const TensorSink& sink) {
    std::vector<std::byte> out(static_cast<size_t>(*BytesFor(spec.dtype, *spec.shape.elements())));
    EncodeRow(spec.dtype, values.data(), static_cast<int64_t>(values.size()), out.data());
    CELER_RETURN_IF_ERROR(sink(out));
    return Done(static_cast<int64_t>(out.size()));
  }

  // As they are, or as f32.
  Status Blocks(const PlannedTensor& tensor, std::span<const std::byte> blocks, const TensorSink& sink) {
    if (!options_.dequantized) {
      CELER_RETURN_IF_ERROR(sink(blocks));
      return Done(static_cast<int64_t>(blocks.size()));
    }
    const int64_t cols = tensor.cols(), rows = tensor.rows(), bytes = *BytesFor(tensor.target.dtype, cols);
    const int64_t at_once = std::clamp<int64_t>(kPieceFloats / cols, 1, rows);
    std::vector<float> values(static_cast<size_t>(at_once * cols));
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t count = std::min(at_once, rows - row);
      DecodeRow(tensor.target.dtype, blocks.data() + row * bytes, count * cols, values.data());
      const auto out = std::as_bytes(std::span(values).first(count * cols));
      CELER_RETURN_IF_ERROR(sink(out));
      CELER_RETURN_IF_ERROR(Done(static_cast<int64_t>(out.size())));
    }
    return {};
  }

  // Row by row through floats; experts of one tensor have an importance each.
  Status Convert(const PlannedTensor& tensor, const TensorSpec& spec, const TensorRecord& record,
                 const TensorSink& sink) {
    const int64_t cols = tensor.cols(), all = tensor.rows();
    const int64_t matrices = tensor.shape.rank() > 2 ? tensor.shape[0] : 1, rows = all / matrices;
    const int64_t at_once = std::clamp<int64_t>(kPieceFloats / cols, 1, rows);
    const DType target = tensor.target.dtype;
    const auto target_bytes = *BytesFor(target, cols), out_bytes = *BytesFor(spec.dtype, cols);
    std::vector<float> values(static_cast<size_t>(at_once * cols));
    std::vector<std::byte> out(static_cast<size_t>(at_once * out_bytes));
    for (int64_t m = 0; m < matrices; ++m) {
      std::vector<float> importance;
      if (options_.importance) {
        CELER_ASSIGN(importance, options_.importance->For(tensor.name, m, matrices, cols));
      }
      const float* weights = importance.empty() ? nullptr : importance.data();
      for (int64_t row = 0; row < rows; row += at_once) {
        const int64_t count = std::min(at_once, rows - row), first = m * rows + row;
        CELER_RETURN_IF_ERROR(ReadRows(file_, record, first, first + count, values.data(), pool_));
        pool_.ParallelForDynamic(count, 16, [&](int64_t begin, int64_t end) {
          std::vector<std::byte> block(static_cast<size_t>(target_bytes));
          for (int64_t r = begin; r < end; ++r) {
            float* x = values.data() + r * cols;
            std::byte* to = out.data() + r * out_bytes;
            EncodeRow(target, x, cols, options_.dequantized ? block.data() : to, weights);
            if (!options_.dequantized) continue;
            DecodeRow(target, block.data(), cols, x);
            EncodeRow(spec.dtype, x, cols, to);
          }
        });
        CELER_RETURN_IF_ERROR(sink(std::span(out).first(count * out_bytes)));
        CELER_RETURN_IF_ERROR(Done(count * out_bytes));
      }
    }
    return {};
  }

  Status Done(int64_t bytes) {
    done_ += bytes;
    return options_.progress ? options_.progress(std::min(done_, total_), total_) : Status();
  }

  const TensorSource& file_;
  const QuantizePlan& plan_;
  const WriteOptions& options_;
  int64_t total_, done_ = 0;
  ThreadPool& pool_;
};

}  // namespace

Status WriteQuantizedGguf(const std::filesystem::path& model, const QuantizePlan& plan,
                          const std::filesystem::path& out, const WriteOptions& options, ThreadPool& pool) {
  CELER_ASSIGN(GgufFile opened, GgufFile::Open(model));
  const FileTensorSource<GgufFile> source(std::move(opened), model.string());
  const GgufFile& file = source.file();
  GgufWriter writer(file.alignment());
  for (const GgufValue& value : file.metadata())
    if (!IsReplaced(value.key)) writer.Copy(value);
  if (const auto most = MostCommonType(plan, options.dequantized))
    if (const auto type = GgufFileType(*most)) writer.SetUint32("general.file_type", *type);
  writer.SetUint32("general.quantization_version", 2);
  if (const ImportanceMatrix* importance = options.importance) {
    writer.SetString("quantize.imatrix.file",
                     std::filesystem::path(importance->source()).filename().string());
    if (!importance->datasets.empty()) writer.SetString("quantize.imatrix.dataset", importance->datasets[0]);
    writer.SetUint32("quantize.imatrix.entries_count", static_cast<uint32_t>(importance->entries().size()));
    writer.SetUint32("quantize.imatrix.chunks_count", static_cast<uint32_t>(importance->chunks));
  }
  for (const PlannedTensor& tensor : plan.tensors) {
    const bool keep = tensor.target.kind == Target::Kind::kKeep;
    writer.AddTensor({tensor.name,
                      keep                  ? tensor.dtype
                      : options.dequantized ? DType::kF32
                                            : tensor.target.dtype,
                      tensor.shape});
  }
  const int64_t bytes = writer.FileBytes();
  CELER_RETURN_IF_ERROR(CheckFreeSpace(out, bytes, kNoSpace));
  Filler filler(source, plan, options, bytes, pool);
  return writer.Write(
      out, [&](const TensorSpec& spec, const TensorSink& sink) { return filler.Fill(spec, sink); });
}

}  // namespace celer
