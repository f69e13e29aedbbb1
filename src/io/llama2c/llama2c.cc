#include "io/llama2c/llama2c.h"

#include <bit>
#include <cstring>

#include "base/safe_math.h"

namespace celer {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and mapped as they are");

constexpr size_t kLegacyHeaderBytes = 7 * sizeof(int32_t);
constexpr int kMaxLayers = 4096;

template <class T>
T Load(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

}  // namespace

Status Llama2cFile::ReadHeader(std::span<const std::byte> bytes, size_t* data_start) {
  if (bytes.size() < kLegacyHeaderBytes)
    return Error::Corrupt(source_, ": ", bytes.size(), " bytes are too few for a llama2.c header");
  size_t at = 0;
  *data_start = kLegacyHeaderBytes;
  if (Load<uint32_t>(bytes, 0) == kLlama2cMagic) {
    if (bytes.size() < kLlama2cHeaderBytes)
      return Error::Corrupt(source_, ": ", bytes.size(), " bytes, but the header alone has ",
                            kLlama2cHeaderBytes);
    config_.version = Load<int32_t>(bytes, 4);
    if (config_.version != 1 && config_.version != 2)
      return Error::Unsupported(source_, ": llama2.c version ", config_.version, "; 1 and 2 are supported");
    at = 8;
    *data_start = kLlama2cHeaderBytes;
  }
  const struct {
    const char* name;
    int64_t* value;
  } fields[] = {{"dim", &config_.hidden},           {"hidden_dim", &config_.intermediate},
                {"n_layers", &config_.layers},      {"n_heads", &config_.heads},
                {"n_kv_heads", &config_.kv_heads},  {"vocab_size", &config_.vocab},
                {"seq_len", &config_.max_positions}};
  for (const auto& field : fields) {
    *field.value = Load<int32_t>(bytes, at);
    at += sizeof(int32_t);
  }
  if (config_.version > 0) {
    const auto shared = Load<uint8_t>(bytes, at);
    if (shared > 1)
      return Error::Corrupt(source_, ": 'shared_classifier' is ", int{shared}, ", expected 0 or 1");
    config_.tied_embeddings = shared == 1;
    if (config_.version == 2) config_.group_size = Load<int32_t>(bytes, at + 1);  // packed: not aligned
  } else {
    config_.tied_embeddings = config_.vocab > 0;
    if (config_.vocab < 0 && config_.vocab != INT32_MIN) config_.vocab = -config_.vocab;
  }
  for (const auto& field : fields)
    if (*field.value <= 0)
      return Error::Corrupt(source_, ": '", field.name, "' is ", *field.value, "; no llama2.c file has that");
  if (config_.layers > kMaxLayers)
    return Error::Corrupt(source_, ": 'n_layers' is ", config_.layers, ", at most ", kMaxLayers,
                          " are accepted");
  if (config_.hidden % config_.heads != 0)
    return Error::Corrupt(source_, ": 'dim' ", config_.hidden, " is no multiple of 'n_heads' ",
                          config_.heads);
  config_.head_dim = config_.hidden / config_.heads;
  if (config_.head_dim % 2 != 0)
    return Error::Corrupt(source_, ": heads of ", config_.head_dim, " elements cannot be rotated in pairs");
  if (config_.heads % config_.kv_heads != 0)
    return Error::Corrupt(source_, ": 'n_heads' ", config_.heads, " is no multiple of 'n_kv_heads' ",
                          config_.kv_heads);
  if (config_.version == 2) {
    // A group may not run over the end of a row, or a row could not be used by itself.
    const int group = config_.group_size;
    if (group <= 0 || config_.hidden % group != 0 || config_.intermediate % group != 0)
      return Error::Corrupt(source_, ": 'group_size' is ", group, ", which does not divide 'dim' ",
                            config_.hidden, " and 'hidden_dim' ", config_.intermediate);
  }
  return {};
}

namespace {

// Cuts the file into tensors in the order of the format.
class Cutter {
 public:
  Cutter(std::span<const std::byte> data, const Llama2cFile::Config& config, TensorTable* out)
      : left_(data), config_(config), out_(out) {}

  void Skip(int64_t rows, int64_t cols) { Take(rows, cols, sizeof(float)); }

  void Float(const std::string& name, const Shape& shape) {
    const int64_t rows = shape.rank() == 2 ? shape[0] : 1;
    const auto bytes = Take(rows, shape[shape.rank() - 1], sizeof(float));
    if (good()) out_->Add({name, DType::kF32, shape, bytes});
  }

  void Matrix(const std::string& name, int64_t rows, int64_t cols) {
    if (config_.version != 2) return Float(name, {rows, cols});
    const auto values = Take(rows, cols, sizeof(int8_t));
    const int64_t groups = cols / config_.group_size;
    const auto scales = Take(rows, groups, sizeof(float));
    if (!good()) return;
    out_->Add({name, DType::kI8, {rows, cols}, values});
    out_->Add({name + ".scales", DType::kF32, {rows, groups}, scales});
  }

  // The same part of every layer, one layer after another.
  template <class F>
  void EachLayer(const F& cut) {
    for (int layer = 0; layer < config_.layers && good(); ++layer)
      cut("model.layers." + std::to_string(layer) + ".");
  }

  bool good() const { return missing_ == 0 && !overflow_; }
  bool overflow() const { return overflow_; }
  int64_t missing() const { return missing_; }  // bytes that the file lacks for the tensor it ends in
  size_t left() const { return left_.size(); }

 private:
  std::span<const std::byte> Take(int64_t rows, int64_t cols, size_t width) {
    const auto elements = CheckedMul(rows, cols);
    const auto bytes = elements ? CheckedMul(*elements, static_cast<int64_t>(width)) : std::nullopt;
    if (!bytes) overflow_ = true;
    if (!good()) return {};
    if (static_cast<uint64_t>(*bytes) > left_.size()) {
      missing_ = *bytes - static_cast<int64_t>(left_.size());
      return {};
    }
    const auto taken = left_.first(*bytes);
    left_ = left_.subspan(*bytes);
    return taken;
  }

  std::span<const std::byte> left_;
  const Llama2cFile::Config& config_;
  TensorTable* out_;
  int64_t missing_ = 0;
  bool overflow_ = false;
};

}  // namespace

Status Llama2cFile::MapTensors(std::span<const std::byte> bytes, size_t data_start) {
  const int64_t dim = config_.hidden, hidden = config_.intermediate, kv_dim = config_.kv_dim();
  Cutter cut(bytes.subspan(data_start), config_, &tensors_);
  const auto embedding = [&] { cut.Matrix("model.embed_tokens.weight", config_.vocab, dim); };
  const auto attention_norms = [&] {
    cut.EachLayer([&](const std::string& layer) { cut.Float(layer + "input_layernorm.weight", {dim}); });
  };
  const auto ffn_norms = [&] {
    cut.EachLayer(
        [&](const std::string& layer) { cut.Float(layer + "post_attention_layernorm.weight", {dim}); });
  };
  const auto final_norm = [&] { cut.Float("model.norm.weight", {dim}); };
  const auto matrices = [&](const char* name, int64_t rows, int64_t cols) {
    cut.EachLayer([&](const std::string& layer) { cut.Matrix(layer + name, rows, cols); });
  };
  const auto attention = [&] {
    matrices("self_attn.q_proj.weight", dim, dim);
    matrices("self_attn.k_proj.weight", kv_dim, dim);
    matrices("self_attn.v_proj.weight", kv_dim, dim);
    matrices("self_attn.o_proj.weight", dim, dim);
  };
  const auto mlp = [&] {
    matrices("mlp.gate_proj.weight", hidden, dim);
    matrices("mlp.down_proj.weight", dim, hidden);
    matrices("mlp.up_proj.weight", hidden, dim);
  };

  if (config_.version == 0) {
    embedding();
    attention_norms();
    attention();
    ffn_norms();
    mlp();
    final_norm();
    cut.Skip(config_.max_positions, config_.head_dim / 2);  // cosines and sines of the rope: computed again
    cut.Skip(config_.max_positions, config_.head_dim / 2);
  } else {
    attention_norms();
    ffn_norms();
    final_norm();
    embedding();
    attention();
    mlp();
  }
  if (!config_.tied_embeddings) cut.Matrix("lm_head.weight", config_.vocab, dim);

  const auto describe = [&] {
    return " for dim " + std::to_string(dim) + ", hidden_dim " + std::to_string(hidden) + ", " +
           std::to_string(config_.layers) + " layers and a vocabulary of " + std::to_string(config_.vocab);
  };
  if (cut.overflow())
    return Error::Corrupt(source_, ": the header asks for more than 2^63 bytes", describe());
  if (cut.missing() > 0)
    return Error::Corrupt(source_, ": the file of ", bytes.size(), " bytes is cut short", describe(),
                          "; fetch it again");
  if (cut.left() > 0)
    return Error::Corrupt(source_, ": ", cut.left(), " bytes too many", describe(),
                          "; it is no llama2.c file, or a damaged one");
  return {};
}

Result<Llama2cFile> Llama2cFile::FromBytes(std::span<const std::byte> bytes, std::string source) {
  Llama2cFile out;
  out.source_ = std::move(source);
  size_t data_start = 0;
  CELER_RETURN_IF_ERROR(out.ReadHeader(bytes, &data_start));
  CELER_RETURN_IF_ERROR(out.MapTensors(bytes, data_start));
  return out;
}

Result<Llama2cFile> Llama2cFile::Open(const std::filesystem::path& path) {
  CELER_ASSIGN(MappedFile file, MappedFile::Open(path));
  CELER_ASSIGN(Llama2cFile out, FromBytes(file.bytes(), path.string()));
  out.file_ = std::move(file);
  return out;
}

void Llama2cFile::DropPages(const TensorRecord& tensor) const {
  if (file_) file_->DropPages(tensor.bytes);
}

}  // namespace celer
