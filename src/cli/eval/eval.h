// The text that `celer eval` and calibration read unless they are given another.
#pragma once

#include <span>
#include <string_view>

#include "base/embedded_file.h"

namespace celer::cli {

// eval_text.txt, the first chapters of Jane Austen's Northanger Abbey (1803), in the public domain.
std::span<const EmbeddedFile> EvalTextFiles();
inline std::string_view EvalText() {
  return EvalTextFiles().front().body;
}

}  // namespace celer::cli
