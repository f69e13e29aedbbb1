// One request while it is being worked on.
#pragma once

#include <cstdint>
#include <vector>

#include "celer/engine.h"
#include "engine/sampler.h"

namespace celer {

struct Sequence {
  Sequence(int64_t id_, Request request_)
      : id(id_),
        request(std::move(request_)),
        tokens(request.prompt),
        sampler(request.sampling, request.prompt) {}

  int64_t id;
  Request request;
  std::vector<int32_t> tokens;  // prompt and output
  int64_t computed = 0;         // leading tokens whose keys and values are in the KV
  int64_t reused = 0;           // of those, how many came from a kept request
  std::vector<int32_t> block_table;
  Sampler sampler;

  int64_t output_count() const { return static_cast<int64_t>(tokens.size() - request.prompt.size()); }
  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - computed; }  // 1 when decoding
};

}  // namespace celer
