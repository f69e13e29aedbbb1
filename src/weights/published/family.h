// The families of published checkpoints: one row each in family.cc, one file each beside it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/json/json.h"
#include "weights/published/matrix.h"
#include "weights/tensor_source.h"

namespace celer::published {

struct Family {
  std::string_view method;  // of "quant_method"
  // From the configuration alone: a line for people ("GPTQ, 4 bits, groups of 128"), or an error about what
  // is not supported.
  Result<std::string> (*describe)(const JsonFields& config);
  // All quantized matrices of the file, before Matrix::ChooseFormat().
  Result<Matrices> (*read)(const JsonFields& config, const TensorSource& file);
};

// By "quant_method"; an error names the method and those that are known. `config` is a config.json's
// "quantization_config".
Result<const Family*> FindFamily(const JsonFields& config);

// The line for people.
Result<std::string> Describe(const JsonFields& config);

// The files of this folder.
Result<std::string> DescribeGptq(const JsonFields& config);
Result<Matrices> ReadGptq(const JsonFields& config, const TensorSource& file);
Result<std::string> DescribeAwq(const JsonFields& config);
Result<Matrices> ReadAwq(const JsonFields& config, const TensorSource& file);
Result<std::string> DescribeCompressedTensors(const JsonFields& config);
Result<Matrices> ReadCompressedTensors(const JsonFields& config, const TensorSource& file);
Result<std::string> DescribeFp8(const JsonFields& config);
Result<Matrices> ReadFp8(const JsonFields& config, const TensorSource& file);
Result<std::string> DescribeMxfp4(const JsonFields& config);
Result<Matrices> ReadMxfp4(const JsonFields& config, const TensorSource& file);
Result<std::string> DescribeBitsAndBytes(const JsonFields& config);
Result<Matrices> ReadBitsAndBytes(const JsonFields& config, const TensorSource& file);

}  // namespace celer::published
