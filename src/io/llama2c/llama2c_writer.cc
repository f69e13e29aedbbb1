#include "io/llama2c/llama2c_writer.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "io/file/atomic_file.h"

namespace celer {
namespace {

constexpr double kTheta = 10000;  // which the format has as a constant

struct Tensor {
  std::string name;
  int64_t rows = 1, cols = 0;
  bool matrix = false;
};

// In the order of the file.
std::vector<Tensor> Tensors(const Llama2cFile::Config& c) {
  std::vector<Tensor> out;
  const auto each_layer = [&](const char* part, int64_t rows, int64_t cols, bool matrix) {
    for (int64_t i = 0; i < c.layers; ++i)
      out.push_back({"model.layers." + std::to_string(i) + "." + part, rows, cols, matrix});
  };
  const auto embedding = [&] { out.push_back({"model.embed_tokens.weight", c.vocab, c.hidden, true}); };
  const auto norm = [&](const char* part) { each_layer(part, 1, c.hidden, false); };
  const auto final_norm = [&] { out.push_back({"model.norm.weight", 1, c.hidden, false}); };
  const auto attention = [&] {
    each_layer("self_attn.q_proj.weight", c.hidden, c.hidden, true);
    each_layer("self_attn.k_proj.weight", c.kv_dim(), c.hidden, true);
    each_layer("self_attn.v_proj.weight", c.kv_dim(), c.hidden, true);
    each_layer("self_attn.o_proj.weight", c.hidden, c.hidden, true);
  };
  const auto mlp = [&] {
    each_layer("mlp.gate_proj.weight", c.intermediate, c.hidden, true);
    each_layer("mlp.down_proj.weight", c.hidden, c.intermediate, true);
    each_layer("mlp.up_proj.weight", c.intermediate, c.hidden, true);
  };
  if (c.version == 0) {
    embedding();
    norm("input_layernorm.weight");
    attention();
    norm("post_attention_layernorm.weight");
    mlp();
    final_norm();
  } else {
    norm("input_layernorm.weight");
    norm("post_attention_layernorm.weight");
    final_norm();
    embedding();
    attention();
    mlp();
  }
  if (!c.tied_embeddings) out.push_back({"lm_head.weight", c.vocab, c.hidden, true});
  return out;
}

// Cosines and sines of every position, which version 0 has before the head and its readers skip.
std::vector<float> Rotations(const Llama2cFile::Config& c, bool sines) {
  std::vector<float> out;
  for (int64_t position = 0; position < c.max_positions; ++position)
    for (int64_t i = 0; i < c.head_dim / 2; ++i) {
      const double frequency =
          std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
      const double angle = static_cast<double>(position) * frequency;
      out.push_back(static_cast<float>(sines ? std::sin(angle) : std::cos(angle)));
    }
  return out;
}

std::string Header(const Llama2cFile::Config& c) {
  std::string out;
  const auto put = [&](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  if (c.version > 0) {
    put(kLlama2cMagic);
    put(static_cast<int32_t>(c.version));
  }
  const int64_t vocab = c.version == 0 && !c.tied_embeddings ? -c.vocab : c.vocab;
  for (const int64_t value :
       {c.hidden, c.intermediate, c.layers, c.heads, c.kv_heads, vocab, c.max_positions})
    put(static_cast<int32_t>(value));
  if (c.version == 0) return out;
  put(static_cast<uint8_t>(c.tied_embeddings));
  if (c.version == 2) put(static_cast<int32_t>(c.group_size));
  out.resize(kLlama2cHeaderBytes, '\0');
  return out;
}

// Symmetric int8: the largest value of a group becomes 127.
struct Quantized {
  std::vector<int8_t> values;
  std::vector<float> scales;
};
Quantized Quantize(std::span<const float> values, int64_t group) {
  Quantized out;
  out.values.resize(values.size());
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(group)) {
    const auto part = values.subspan(begin, static_cast<size_t>(group));
    float most = 0;
    for (const float value : part) most = std::max(most, std::abs(value));
    const float scale = most / 127.0f;
    out.scales.push_back(scale);
    for (size_t i = 0; i < part.size(); ++i)
      out.values[begin + i] = static_cast<int8_t>(scale > 0 ? std::nearbyint(part[i] / scale) : 0);
  }
  return out;
}

}  // namespace

int64_t Llama2cGroup(const ModelShape& shape) {
  int64_t group = 64;
  while (shape.hidden % group != 0 || shape.intermediate % group != 0) group /= 2;
  return group;
}

int64_t Llama2cBytes(const Llama2cFile::Config& c) {
  auto bytes = static_cast<int64_t>(Header(c).size());
  for (const Tensor& tensor : Tensors(c)) {
    const int64_t count = tensor.rows * tensor.cols;
    bytes += c.version == 2 && tensor.matrix ? count + count / c.group_size * 4 : count * 4;
  }
  return bytes + (c.version == 0 ? c.max_positions * c.head_dim * 4 : 0);
}

Status WriteLlama2c(const std::filesystem::path& path, const Llama2cFile::Config& c, const Llama2cFill& fill,
                    const Llama2cProgress& progress) {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  const std::string header = Header(c);
  CELER_RETURN_IF_ERROR(file.Write(header));
  auto done = static_cast<int64_t>(header.size());
  const auto write = [&](std::span<const std::byte> bytes) -> Status {
    CELER_RETURN_IF_ERROR(file.Write(bytes));
    done += std::ssize(bytes);
    return progress ? progress(done) : Status();
  };
  std::vector<float> values;
  for (const Tensor& tensor : Tensors(c)) {
    if (c.version == 0 && tensor.name == "lm_head.weight")
      for (const bool sines : {false, true})
        CELER_RETURN_IF_ERROR(write(std::as_bytes(std::span<const float>(Rotations(c, sines)))));
    values.resize(static_cast<size_t>(tensor.rows * tensor.cols));
    CELER_RETURN_IF_ERROR(fill(tensor.name, tensor.rows, tensor.cols, &values));
    if (c.version != 2 || !tensor.matrix) {
      CELER_RETURN_IF_ERROR(write(std::as_bytes(std::span<const float>(values))));
      continue;
    }
    const Quantized quantized = Quantize(values, c.group_size);
    CELER_RETURN_IF_ERROR(write(std::as_bytes(std::span<const int8_t>(quantized.values))));
    CELER_RETURN_IF_ERROR(write(std::as_bytes(std::span<const float>(quantized.scales))));
  }
  if (c.version == 0 && c.tied_embeddings)
    for (const bool sines : {false, true})
      CELER_RETURN_IF_ERROR(write(std::as_bytes(std::span<const float>(Rotations(c, sines)))));
  return file.Commit();
}

}  // namespace celer
