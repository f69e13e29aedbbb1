#include "quantize/llm/imatrix.h"

#include <cmath>
#include <cstring>

#include "io/file/atomic_file.h"
#include "io/file/mapped_file.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_writer.h"

namespace celer {
namespace {

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

// Values of an F32 tensor, which may lie at any address.
std::vector<float> Floats(const TensorRecord& tensor) {
  std::vector<float> out(tensor.bytes.size() / sizeof(float));
  std::memcpy(out.data(), tensor.bytes.data(), out.size() * sizeof(float));
  return out;
}

bool AllFiniteNonNegative(const std::vector<float>& values) {
  for (const float value : values)
    if (!std::isfinite(value) || value < 0) return false;
  return true;
}

// Takes numbers from the front of a file's bytes; false once there are none left.
struct Reader {
  std::span<const std::byte> rest;

  bool Take(void* out, size_t bytes) {
    if (rest.size() < bytes) return false;
    std::memcpy(out, rest.data(), bytes);
    rest = rest.subspan(bytes);
    return true;
  }
  bool Count(int32_t* out, int32_t most) { return Take(out, sizeof(*out)) && *out >= 0 && *out <= most; }
  bool Text(std::string* out) {
    int32_t length = 0;
    if (!Count(&length, 1 << 20) || rest.size() < static_cast<size_t>(length)) return false;
    out->assign(reinterpret_cast<const char*>(rest.data()), static_cast<size_t>(length));
    rest = rest.subspan(length);
    return true;
  }
};

}  // namespace

std::string GgufNameOf(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return std::string(name);
  const size_t dot = name.find('.', kPrefix.size());
  if (dot == std::string_view::npos) return std::string(name);
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"self_attn.q_proj.weight", "attn_q.weight"}, {"self_attn.k_proj.weight", "attn_k.weight"},
      {"self_attn.v_proj.weight", "attn_v.weight"}, {"self_attn.o_proj.weight", "attn_output.weight"},
      {"mlp.gate_proj.weight", "ffn_gate.weight"},  {"mlp.up_proj.weight", "ffn_up.weight"},
      {"mlp.down_proj.weight", "ffn_down.weight"}};
  for (const auto& [hf, gguf] : kParts)
    if (name.substr(dot + 1) == hf)
      return "blk." + std::string(name.substr(kPrefix.size(), dot - kPrefix.size())) + "." +
             std::string(gguf);
  return std::string(name);
}

void ImportanceMatrix::Add(const std::string& name, const float* x, int64_t tokens, int64_t cols) {
  Entry& entry = entries_[name];
  entry.sums.resize(cols);
  entry.counts.resize(1);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < cols; ++c) entry.sums[c] += x[t * cols + c] * x[t * cols + c];
  entry.counts[0] += static_cast<float>(tokens);
}

Result<std::vector<float>> ImportanceMatrix::For(std::string_view name, int64_t index, int64_t matrices,
                                                 int64_t cols) const {
  const auto it = entries_.find(GgufNameOf(name));
  if (it == entries_.end()) return std::vector<float>();
  const Entry& entry = it->second;
  if (entry.cols() != cols || static_cast<int64_t>(entry.counts.size()) != matrices)
    return Error::Corrupt(source_, ": '", name, "' has importance for ", entry.counts.size(),
                          " matrices with ", entry.cols(), " columns, the model has ", matrices, " with ",
                          cols, "; make the matrix from this model");
  const float count = entry.counts[index];
  if (!(count > 0)) return std::vector<float>();
  const auto begin = entry.sums.begin() + index * cols;
  std::vector<float> out(begin, begin + cols);
  for (float& value : out) value /= count;
  return out;
}

Result<ImportanceMatrix> ImportanceMatrix::Read(const std::filesystem::path& path) {
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  const bool gguf = file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
  CELER_ASSIGN(ImportanceMatrix out, gguf ? ReadGguf(path) : ReadDat(path));
  out.source_ = path.string();
  for (const auto& [name, entry] : out.entries_)
    if (!AllFiniteNonNegative(entry.sums) || !AllFiniteNonNegative(entry.counts))
      return Error::Corrupt(path.string(), ": '", name,
                            "' has sums of squares that are negative or not finite; make the matrix again");
  if (out.entries_.empty())
    return Error::Corrupt(path.string(), ": holds no importance of any tensor; is it an imatrix?");
  return out;
}

Result<ImportanceMatrix> ImportanceMatrix::ReadGguf(const std::filesystem::path& path) {
  CELER_ASSIGN(const GgufFile file, GgufFile::Open(path));
  ImportanceMatrix out;
  if (const auto names = file.GetStringArray("imatrix.datasets"))
    out.datasets.assign(names->begin(), names->end());
  out.chunks = static_cast<int64_t>(file.GetUint("imatrix.chunk_count").value_or(0));
  out.chunk_tokens = static_cast<int64_t>(file.GetUint("imatrix.chunk_size").value_or(0));
  for (const TensorRecord& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kSums)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSums.size());
    const TensorRecord* counts = file.Find(name + std::string(kCounts));
    if (!counts || tensor.dtype != DType::kF32 || counts->dtype != DType::kF32)
      return Error::Corrupt(path.string(), ": '", tensor.name, "' needs '", name, kCounts,
                            "', both of type F32");
    Entry entry{Floats(tensor), Floats(*counts)};
    if (entry.counts.empty() || entry.sums.size() % entry.counts.size() != 0)
      return Error::Corrupt(path.string(), ": '", tensor.name, "' has ", entry.sums.size(),
                            " values, not a multiple of the ", entry.counts.size(), " counts");
    out.entries_[name] = std::move(entry);
  }
  return out;
}

Status ImportanceMatrix::WriteGguf(const std::filesystem::path& path) const {
  GgufWriter writer;
  writer.SetString("general.type", "imatrix");
  writer.SetStringArray("imatrix.datasets", datasets);
  writer.SetUint32("imatrix.chunk_count", static_cast<uint32_t>(chunks));
  writer.SetUint32("imatrix.chunk_size", static_cast<uint32_t>(chunk_tokens));
  for (const auto& [name, entry] : entries_) {
    const auto matrices = static_cast<int64_t>(entry.counts.size());
    writer.AddTensor({name + std::string(kSums), DType::kF32, {matrices, entry.cols()}});
    writer.AddTensor({name + std::string(kCounts), DType::kF32, {matrices, 1}});
  }
  return writer.Write(path, [&](const TensorSpec& tensor, const TensorSink& sink) {
    const bool sums = tensor.name.ends_with(kSums);
    const size_t name = tensor.name.size() - (sums ? kSums : kCounts).size();
    const Entry& entry = entries_.at(tensor.name.substr(0, name));
    return sink(std::as_bytes(std::span(sums ? entry.sums : entry.counts)));
  });
}

// int32 entries; each: int32 length and name, int32 calls, int32 values, the values: mean square * calls.
// Then int32 chunks, int32 length and name of the dataset.
Result<ImportanceMatrix> ImportanceMatrix::ReadDat(const std::filesystem::path& path) {
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  Reader in{file.bytes()};
  ImportanceMatrix out;
  const auto broken = [&](const char* what) {
    return Error::Corrupt(path.string(), ": is no imatrix: ", what, " at byte ",
                          file.bytes().size() - in.rest.size());
  };
  int32_t entries = 0;
  if (!in.Count(&entries, 1 << 20)) return broken("no number of entries");
  for (int32_t i = 0; i < entries; ++i) {
    std::string name;
    int32_t calls = 0, values = 0;
    if (!in.Text(&name)) return broken("no name");
    if (!in.Count(&calls, INT32_MAX) || !in.Count(&values, 1 << 28) || values == 0) return broken("no size");
    if (in.rest.size() < static_cast<size_t>(values) * sizeof(float)) return broken("too few values");
    Entry entry{std::vector<float>(static_cast<size_t>(values)), {static_cast<float>(std::max(calls, 1))}};
    in.Take(entry.sums.data(), entry.sums.size() * sizeof(float));
    out.entries_[name] = std::move(entry);
  }
  int32_t chunks = 0;
  std::string dataset;
  if (in.Count(&chunks, INT32_MAX)) out.chunks = chunks;
  if (in.Text(&dataset)) out.datasets = {dataset};
  return out;
}

Status ImportanceMatrix::WriteDat(const std::filesystem::path& path) const {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  const auto number = [&](int64_t value) {
    const auto narrow = static_cast<int32_t>(value);
    return file.Write(std::as_bytes(std::span(&narrow, 1)));
  };
  const auto text = [&](std::string_view value) -> Status {
    CELER_RETURN_IF_ERROR(number(static_cast<int64_t>(value.size())));
    return file.Write(value);
  };
  const int64_t calls = std::max<int64_t>(chunks, 1);
  CELER_RETURN_IF_ERROR(number(static_cast<int64_t>(entries_.size())));
  for (const auto& [name, entry] : entries_) {
    CELER_RETURN_IF_ERROR(text(name));
    CELER_RETURN_IF_ERROR(number(calls));
    CELER_RETURN_IF_ERROR(number(static_cast<int64_t>(entry.sums.size())));
    std::vector<float> scaled = entry.sums;
    for (size_t i = 0; i < scaled.size(); ++i) {
      const float count = entry.counts[i / static_cast<size_t>(entry.cols())];
      scaled[i] = count > 0 ? scaled[i] / count * static_cast<float>(calls) : 0.0f;
    }
    CELER_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(scaled))));
  }
  CELER_RETURN_IF_ERROR(number(calls));
  CELER_RETURN_IF_ERROR(text(datasets.empty() ? "" : datasets[0]));
  return file.Commit();
}

Status ImportanceMatrix::Write(const std::filesystem::path& path) const {
  return path.extension() == ".dat" ? WriteDat(path) : WriteGguf(path);
}

}  // namespace celer
