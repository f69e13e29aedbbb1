// Prints the table of docs/formats.md: the types that weights have in a GGUF file, and what celer does with them.
#include <cctype>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "formats/codec.h"
#include "formats/decode.h"
#include "weights/device_form.h"

namespace celer {
namespace {

std::string Bits(DType dtype) {
  char text[16];
  std::snprintf(text, sizeof text, "%.4g", BitsPerElement(dtype));
  return text;
}

std::string Upper(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string ProductsOnACpu(const Codec& codec) {
  if (codec.bits == 0 || codec.unpack || codec.group >= 32) return "packed";
  return "row by row";
}

void PrintRow(DType dtype) {
  const DTypeInfo& info = Info(dtype);
  const Codec& codec = *FindCodec(dtype);
  const std::string group = codec.bits > 0 ? std::to_string(codec.group) : "–";
  const WeightFormatSpec stored = WeightFormatSpec::Stored(dtype);
  std::cout << "| " << Upper(info.name) << " (" << info.gguf_type << ") | " << Bits(dtype) << " | "
            << info.block << " | " << group << " | "
            << (CanEncode(dtype) ? "`" + std::string(info.name) + "`" : "no") << " | "
            << ProductsOnACpu(codec) << " | " << cuda::FormatName(cuda::DeviceForm(stored, 256, 256))
            << " |\n";
}

}  // namespace
}  // namespace celer

int main() {
  std::cout << "| type | bits per weight | columns of a block | columns of a scale | `celer quantize` | "
               "products on a CPU | "
               "on a GPU |\n|---|---|---|---|---|---|---|\n";
  for (const celer::DType dtype : celer::WeightTypes()) celer::PrintRow(dtype);
  for (const celer::DType dtype : celer::ReadOnlyBlockTypes()) celer::PrintRow(dtype);
}
