// Any text as a PNNX network. Behind a line of "=BIN=" its weights may follow, as they stand in the archive.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "graph/load/fuzz_network.h"
#include "graph/load/load_pnnx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace celer;
  constexpr std::string_view kMark = "=BIN=\n";
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t mark = all.find(kMark);
  const std::string_view text = all.substr(0, mark);
  std::optional<StoreZip> weights;
  if (mark != std::string_view::npos) {
    auto zip = StoreZip::Parse(std::as_bytes(std::span(all.substr(mark + kMark.size()))), "fuzz.bin");
    if (!zip) return zip.error().message().empty() ? -1 : 0;
    weights = std::move(*zip);
  }
  const auto file = graph::ParsePnnx(text, weights ? &*weights : nullptr, "fuzz.param");
  if (!file) return file.error().message().empty() ? -1 : 0;
  if (graph::PrintPnnx(*file).empty()) return -1;
  auto network = graph::ToNetwork(*file);
  if (!network) return network.error().message().empty() ? -1 : 0;
  return graph::FuzzRun(std::move(*network));
}
