// Any "quantization_config" (up to the first zero byte) over any safetensors file (the rest): opened, and a
// row of every matrix decoded.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "weights/published/published_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace celer;
  const auto* const end = static_cast<const uint8_t*>(std::memchr(data, 0, size));
  if (!end) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), static_cast<size_t>(end - data));
  const auto config = ParseJson(text, "fuzz");
  if (!config) return 0;
  auto file = SafetensorsFile::FromBytes(std::as_bytes(std::span(end + 1, data + size)), "fuzz");
  if (!file) return 0;
  auto source = published::PublishedSource::Open(
      std::make_unique<FileTensorSource<SafetensorsFile>>(std::move(*file), "fuzz"), *config, "config.json");
  if (!source) return source.error().message().empty() ? -1 : 0;
  for (const auto& matrix : (*source)->matrices()) {
    std::vector<std::byte> values(matrix->format.RowBytes(matrix->cols));
    std::vector<float> scales(matrix->format.ScaleBytes(matrix->cols) / 4 + 1);
    matrix->Row(matrix->count * matrix->rows - 1, values.data(), scales.data());
  }
  return 0;
}
