// What the golden tests share: where their files are, and whether they may expect the reference's own sums.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/source_dir.h"

namespace celer {

inline const std::filesystem::path kGolden = std::filesystem::path(kSourceDir) / "tests/golden";
inline const std::string kGoldenModel =
    (kGolden / "models/llama3").string();  // for tests of what is around a model

// The reference multiplies in float. With CELER_FORCE=matmul:portable so do these tests; without it they run
// the kernels that a user gets, some of which make activations int8 or bf16, and may prefer another text
// where two are nearly as likely.
inline bool Exact() {
  const char* const force = std::getenv("CELER_FORCE");
  return force != nullptr && std::string_view(force) == "matmul:portable";
}

}  // namespace celer
