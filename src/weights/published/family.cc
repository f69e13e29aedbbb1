#include "weights/published/family.h"

#include "io/file/printable.h"

namespace celer::published {
namespace {

// auto-round writes the packings of others under its own name.
Result<const Family*> AutoRound(const JsonFields& config);

constexpr Family kFamilies[] = {
    {"gptq", DescribeGptq, ReadGptq},
    {"awq", DescribeAwq, ReadAwq},
    {"compressed-tensors", DescribeCompressedTensors, ReadCompressedTensors},
    {"fp8", DescribeFp8, ReadFp8},
    {"fbgemm_fp8", DescribeFp8, ReadFp8},
    {"mxfp4", DescribeMxfp4, ReadMxfp4},
    {"bitsandbytes", DescribeBitsAndBytes, ReadBitsAndBytes},
};

const Family* Named(std::string_view method) {
  for (const Family& family : kFamilies)
    if (family.method == method) return &family;
  return nullptr;
}

Result<const Family*> AutoRound(const JsonFields& config) {
  CELER_ASSIGN(const std::string packing, config.GetString("packing_format", "auto_round:auto_gptq"));
  if (packing.find("gptq") != std::string::npos) return Named("gptq");
  if (packing.find("awq") != std::string::npos) return Named("awq");
  if (packing.find("llm_compressor") != std::string::npos) return Named("compressed-tensors");
  return Error::Unsupported(config.where(), ": auto-round's packing '", Printable(packing),
                            "' is not supported; those of auto_gptq, auto_awq and llm_compressor are");
}

}  // namespace

Result<const Family*> FindFamily(const JsonFields& config) {
  std::string method;
  if (config.Has("quant_method")) {
    CELER_ASSIGN(method, config.GetString("quant_method"));
  } else if (config.Has("load_in_4bit") || config.Has("load_in_8bit")) {
    method = "bitsandbytes";  // older files do not name it
  } else {
    return Error::Unsupported(config.where(), " names no 'quant_method'");
  }
  if (method == "auto-round" || method == "intel/auto-round") return AutoRound(config);
  if (const Family* family = Named(method)) return family;
  std::string known = "auto-round";
  for (const Family& family : kFamilies) known += ", " + std::string(family.method);
  return Error::Unsupported(config.where(), ": weights quantized with '", Printable(method, 40),
                            "' are not read; ", known,
                            " are: use such a folder, the model without quantization, or a GGUF file of it");
}

Result<std::string> Describe(const JsonFields& config) {
  CELER_ASSIGN(const Family* family, FindFamily(config));
  return family->describe(config);
}

}  // namespace celer::published
