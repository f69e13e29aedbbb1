// A small model in which one token, and no other, leaves the range of f32: its embedding is the only one with
// anything in column 0, which nothing else writes to, and one row of layer 0's gate and up projections
// multiplies that column with 1e20.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "base/source_dir.h"
#include "formats/decode.h"
#include "io/file/test_folder.h"
#include "io/safetensors/safetensors.h"

namespace celer {

class OverflowingModel {
 public:
  static constexpr int32_t kToken = 47;

  OverflowingModel() {
    namespace fs = std::filesystem;
    const fs::path from = std::string(kSourceDir) + "/tests/golden/models/llama3";
    fs::copy_file(from / "config.json", folder_ / "config.json");
    auto model = SafetensorsModel::Open(from);
    if (!model) {
      ADD_FAILURE() << model.error().message();
      return;
    }
    std::deque<std::vector<float>> values;
    std::vector<TensorRecord> records;
    for (const TensorRecord& tensor : model->tensors()) {
      auto& v = values.emplace_back(static_cast<size_t>(*tensor.shape.elements()));
      DecodeRow(tensor.dtype, tensor.bytes.data(), *tensor.shape.elements(), v.data());
      const auto cols = static_cast<size_t>(tensor.shape[tensor.shape.rank() - 1]);
      if (tensor.name == "model.embed_tokens.weight")
        for (size_t row = 0; row < v.size() / cols; ++row) v[row * cols] = row == kToken ? 1.0f : 0.0f;
      if (tensor.name.ends_with("o_proj.weight") || tensor.name.ends_with("down_proj.weight"))
        std::fill_n(v.begin(), cols, 0.0f);
      if (tensor.name == "model.layers.0.mlp.gate_proj.weight" ||
          tensor.name == "model.layers.0.mlp.up_proj.weight")
        v[0] = 1e20f;
      records.push_back({tensor.name, DType::kF32, tensor.shape, std::as_bytes(std::span(v))});
    }
    const Status written = WriteSafetensors(folder_ / "model.safetensors", records);
    EXPECT_TRUE(written) << written.error().message();
  }

  std::string path() const { return folder_.path().string(); }

 private:
  TestFolder folder_;
};

}  // namespace celer
