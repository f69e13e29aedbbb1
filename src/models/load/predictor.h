// A model's layer for multi-token prediction (MTP), which drafts for it: a decoder layer with keys and values of its own.
// It reads the embedding of a token beside the model's hidden state in front of that token, both normed and projected
// together, and predicts the token behind it.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "device/thread_pool.h"
#include "models/load/model.h"

namespace celer {

// By celer's name. The layers of other families are not read.
bool HasPredictor(std::string_view family);

struct Predictor {
  DecoderConfig config;    // of one layer
  DecoderWeights weights;  // the embedding is the model's, and mostly the head is, too
  WeightView join;         // [hidden, 2 * hidden]: of the embedding, then of the hidden state
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  // They keep what the views above point into, with the model.
  std::unique_ptr<TensorSource> source;
  std::unique_ptr<WeightStore> store;

  int64_t active_bytes() const;
};

// Of the file that `model` was loaded from. The model must outlive it.
Result<Predictor> LoadPredictor(const Model& model, const WeightOptions& weights, ThreadPool& pool);

}  // namespace celer
