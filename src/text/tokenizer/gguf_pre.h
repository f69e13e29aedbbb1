// The pre-tokenizer of a GGUF file's byte-level BPE: the file holds only its name (tokenizer.ggml.pre).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace celer {

struct GgufPre {
  std::vector<std::string_view> names;
  std::vector<std::string> regexes;  // applied in turn; each isolates its matches
  bool ignore_merges = false;
  bool add_bos = false;           // unless the file says
  std::string_view written = {};  // the name that files get here; by default the first
};

const std::vector<GgufPre>& GgufPres();

// nullptr for a name that is not known.
const GgufPre* FindGgufPre(std::string_view name);

}  // namespace celer
