// Any LoRA adapter on a small model with experts. After an even byte a GGUF file; after an odd one a folder of PEFT's:
// adapter_config.json up to the first zero byte, then adapter_model.safetensors.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "device/thread_pool.h"
#include "io/file/atomic_file.h"
#include "models/lora/lora.h"
#include "models/synth/synth.h"

namespace {

using namespace celer;
namespace fs = std::filesystem;

struct Place {
  Place() : folder(fs::temp_directory_path() / ("celer_lora_fuzz_" + std::to_string(getpid()))) {
    fs::create_directories(folder / "adapter");
    const auto config = nlohmann::ordered_json::parse(R"({
      "model_type": "qwen3_moe", "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 8,
      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_experts": 2,
      "num_experts_per_tok": 1, "norm_topk_prob": true, "vocab_size": 257, "max_position_embeddings": 64})");
    const auto made = MakeSynthModel("tiny", config, DType::kF32, 1);
    if (!made || !WriteSynthHf(*made, folder / "model", DefaultThreadPool())) std::abort();
  }
  ~Place() {
    std::error_code error;
    fs::remove_all(folder, error);
  }
  fs::path folder;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Place place;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  fs::path adapter = place.folder / "adapter.gguf";
  if (data[0] % 2 == 0) {
    if (!WriteWholeFile(adapter, text)) return -1;
  } else {
    adapter = place.folder / "adapter";
    const size_t end = std::min(text.find('\0'), text.size());
    const std::string_view tensors = end < text.size() ? text.substr(end + 1) : std::string_view();
    if (!WriteWholeFile(adapter / "adapter_config.json", text.substr(0, end)) ||
        !WriteWholeFile(adapter / "adapter_model.safetensors", tensors))
      return -1;
  }
  const auto loaded = LoadLora("fuzz", adapter, place.folder / "model", DefaultThreadPool());
  return loaded || loaded.error().message().size() > 20 ? 0 : -1;  // a sentence
}
