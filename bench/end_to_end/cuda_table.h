// Speeds of celer_cuda_bench beside the limit and beside other engines, and the table made of them.
#pragma once

#include <cstdint>
#include <string>

#include "celer/engine.h"

struct BenchWork {
  std::string model, weights;
  int64_t prompt = 0, batch = 1, tokens = 0;  // tokens: new ones of each sequence
  celer::Activations activations = celer::Activations::k16Bit;
  bool deterministic = false, no_rows = false;
};

struct Beside {
  double speed = 0;      // tokens per second, all sequences together, as is everything here
  double limit = 0;      // 0: not known
  double peer = 0;       // the best of the other engines; 0: not known
  std::string engine{};  // which one: "SGLang 0.5.14"
};

// The limit is reading weights (of a mixture, the experts that are expected to be needed) and KV once.
Beside BesideDecode(const celer::Engine& engine, const BenchWork& work, double speed, double bytes_per_s);
// The limit is arithmetic at what `celer probe` measured, and unknown where it was not run before.
Beside BesidePrefill(const celer::Engine& engine, const BenchWork& work, double speed);

// A row of Markdown; a file that is not there yet begins with the table's head.
celer::Status AppendToTable(const std::string& path, const BenchWork& work, bool prefill, const Beside& row);
