// Networks that run while they are quantized, and the samples they see.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "graph/run/program.h"
#include "graph/run/session.h"
#include "io/npy/npy.h"

namespace celer::ptq {

// Samples by number; one is in memory at a time.
struct Samples {
  int64_t count = 0;
  // An array for each input of the network, in order.
  std::function<Result<std::vector<NpyArray>>(int64_t index)> get = {};
  std::function<std::string(int64_t index)> name = {};  // for errors
};

using Progress = std::function<Status(const char* what, int64_t done, int64_t total)>;

class Runner {
 public:
  // `optimize`: by all passes; else every node runs as it stands, and can be observed.
  static Result<Runner> Make(graph::Network network, bool optimize);

  graph::Session& session() { return *session_; }
  // Outputs hold until the next run.
  Result<std::vector<graph::Data>> Run(const std::vector<NpyArray>& sample);

 private:
  std::unique_ptr<graph::Session> session_;
};

// The elements of an f32 tensor; empty if it is something else.
std::span<const float> FloatsIn(const graph::Data* data);

}  // namespace celer::ptq
