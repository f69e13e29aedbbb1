// What both writers do for one tensor: pass its pieces on and hold them to its size.
#pragma once

#include <filesystem>
#include <optional>

#include "io/file/atomic_file.h"
#include "io/file/tensor_record.h"

namespace celer {

// Bytes of the whole tensor; nullopt on overflow, or when its rows do not fill whole blocks.
std::optional<int64_t> TensorBytes(const TensorSpec& tensor);

Status StreamTensor(AtomicFile& file, const std::filesystem::path& path, const TensorSpec& tensor,
                    const TensorFill& fill);

}  // namespace celer
