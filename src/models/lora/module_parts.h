// Which parts of a model one module of an adapter is: names and fused matrices of other files than the model's own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/config/tensor_rules.h"
#include "models/load/find_rule.h"
#include "models/lora/places.h"

namespace celer {

struct ModulePart {
  PlacedMatrix at;
  RowMap rows;              // where the part's rows are among the module's
  int64_t module_rows = 0;  // of the whole module
  bool transposed = false;  // the file has the module's columns as rows
  bool stacked = false;     // of a tensor with one matrix for each expert
};

class ModuleParts {
 public:
  // `gguf`: names are those of GGUF files.
  ModuleParts(const DecoderConfig& config, bool gguf);

  // Of a tensor's name, "model.layers.0.self_attn.qkv_proj.weight"; none: the model has no such matrix.
  std::vector<ModulePart> Of(const std::string& tensor) const;
  // Of all experts of a layer in one tensor: their gates and ups, or their downs, by the name of the module that
  // holds both.
  std::vector<ModulePart> ExpertsOf(const std::string& module, bool down) const;

 private:
  std::vector<ModulePart> Fused(const std::string& name) const;
  void Add(const std::string& part, const RowMap& rows, std::vector<ModulePart>* out) const;

  const DecoderConfig& config_;
  bool gguf_;
  TensorRules rules_;
  std::map<std::string, PlacedMatrix> places_;
};

}  // namespace celer
