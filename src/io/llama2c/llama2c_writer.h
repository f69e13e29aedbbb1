// Writes llama2.c checkpoints, as its exporter does: version 0 (f32, for run.c), 1 (f32) and 2 (int8 in groups, for
// runq.c).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/llama2c/llama2c.h"

namespace celer {

// The rows of one tensor, which has the names of Llama2cFile and neighbouring pairs in q and k. `values` holds rows * cols
// numbers.
using Llama2cFill =
    std::function<Status(const std::string& name, int64_t rows, int64_t cols, std::vector<float>* values)>;

// Of version 2: the greatest divisor of the rows' lengths of at most 64, as its exporter has it.
int64_t Llama2cGroup(const ModelShape& shape);
int64_t Llama2cBytes(const Llama2cFile::Config& config);
// Called with the bytes so far.
using Llama2cProgress = std::function<Status(int64_t done)>;

// `config` as Llama2cFile gives it: version, group_size and max_positions, too.
Status WriteLlama2c(const std::filesystem::path& path, const Llama2cFile::Config& config,
                    const Llama2cFill& fill, const Llama2cProgress& progress = {});

}  // namespace celer
