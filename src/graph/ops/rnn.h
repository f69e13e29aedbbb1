// Recurrent networks: what the reference and the fast kernels read from a node.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/ir/operator.h"

namespace celer::graph {

// A function of one number by its name in ONNX.
struct GateFunction {
  std::string name;
  float alpha, beta;
  float operator()(float x) const {
    if (name == "sigmoid") return 1 / (1 + std::exp(-x));
    if (name == "tanh") return std::tanh(x);
    if (name == "relu") return x > 0 ? x : 0;
    if (name == "affine") return alpha * x + beta;
    if (name == "leakyrelu") return x >= 0 ? x : alpha * x;
    if (name == "thresholdedrelu") return x >= alpha ? x : 0;
    if (name == "scaledtanh") return alpha * std::tanh(beta * x);
    if (name == "hardsigmoid") return std::clamp(alpha * x + beta, 0.0f, 1.0f);
    if (name == "elu") return x >= 0 ? x : alpha * std::expm1(x);
    if (name == "softsign") return x / (1 + std::abs(x));
    return std::log1p(std::exp(x));  // softplus
  }
};

// x, w, r, bias, lengths, initial h (, initial c, peepholes): what the three kinds have in common.
struct Recurrent {
  int64_t steps, batch, input, hidden, directions;
  int gates;
  bool batch_first;
  std::string direction;
  std::vector<GateFunction> activations;  // for each direction, `per` of them
  size_t per;
  float clip;
};
// Of an RNN, a GRU or an LSTM, whichever the node is.
Result<Recurrent> RecurrentOf(const OpInputs& c);

}  // namespace celer::graph
