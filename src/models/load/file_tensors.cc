#include "models/load/file_tensors.h"

#include <algorithm>
#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "models/config/family.h"
#include "models/config/part_names.h"
#include "models/config/rope_config.h"
#include "models/load/model_loader.h"
#include "models/load/request_list.h"
#include "models/load/tensor_names.h"

namespace celer {
namespace {

// Rules from parts to the tensors of a file.
class FileNames {
 public:
  struct Place {
    const std::string* in_file;
    const TensorRule* rule;
  };

  explicit FileNames(const TensorRules& rules) : rules_(rules) {
    for (const auto& [in_file, rule] : rules.rules())
      if (!rule.rare)
        for (const TensorPart& part : rule.parts) places_.try_emplace(part.name, Place{&in_file, &rule});
  }

  // Where the part is, if not in a tensor of its name.
  const Place* Find(const std::string& part, const PatternName& name) const {
    auto found = places_.find(part);  // a rule of one layer
    if (found == places_.end()) found = places_.find(name.pattern);
    return found == places_.end() ? nullptr : &found->second;
  }
  bool Knows(const std::string& part) const { return Find(part, PatternOf(part)) != nullptr; }
  const TensorRules& rules() const { return rules_; }

  // With the prefix that rules leave away. Heads stand outside of what has an empty one.
  std::string WithPrefix(const std::string& name, const std::string& part) const {
    const bool head = part == kHfNames.head || part == kHfNames.head_bias;
    for (const auto& [in_file, becomes] : rules_.prefixes())
      if (name.starts_with(becomes) && !(becomes.empty() && head))
        return in_file + name.substr(becomes.size());
    return name;
  }

 private:
  const TensorRules& rules_;
  std::unordered_map<std::string, Place> places_;
};

Result<std::vector<TensorRequest>> Requests(const DecoderConfig& config, ModelContainer container,
                                            const FileNames& names) {
  const bool gguf = container == ModelContainer::kGguf;
  RequestList list([&](const std::string& name) { return !names.rules().IsLacking(PatternOf(name).pattern); },
                   [&](const std::string& name) { return names.Knows(name); });
  const auto read = ReadDecoder(config, gguf, gguf ? kGgufNames.embedding : kHfNames.embedding, list);
  if (!read) return read.error();
  return list.Take();
}

TensorRules RulesFor(const Family& family, const DecoderConfig& config, bool gguf) {
  TensorRules rules(gguf ? kGgufNames : kHfNames);
  if (const auto arrange = gguf ? family.gguf_tensors : family.hf_tensors) arrange(config, &rules);
  return rules;
}

// The name without its last number: "altup.0.weight" and "layers.3.experts.0.up.weight" lose their 0.
std::string StackName(const std::string& name) {
  size_t end = name.size();
  while (end > 0) {
    const size_t dot = name.rfind('.', end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    const std::string_view word = std::string_view(name).substr(begin, end - begin);
    if (!word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos)
      return name.substr(0, begin) + "#" + name.substr(end);
    if (begin == 0) break;
    end = dot;
  }
  return name;
}

bool IsStack(const TensorRequest& request) {
  return !request.vector && request.part.shape.rank() == 3;
}

// Both containers are asked for the same parts in the same order, except that one may have stacks where the other has
// matrices: those of several stacks, one matrix of each in turn or one stack after the other.
void SetKeys(std::span<const TensorRequest> hf, std::vector<TensorRequest>* gguf) {
  size_t at = 0;
  for (size_t i = 0; i < gguf->size() && at < hf.size();) {
    TensorRequest& request = (*gguf)[i];
    const Shape& shape = request.part.shape;
    // A table, or its rows.
    if (request.vector && shape.rank() == 2 && hf[at].part.shape.rank() == 1) {
      request.part.key = StackName(hf[at].part.key);
      at += static_cast<size_t>(shape[0]);
      ++i;
      continue;
    }
    if (!IsStack(request) || hf[at].part.shape != Shape{shape[1], shape[2]}) {
      request.part.key = hf[at++].part.key;
      ++i;
      continue;
    }
    std::vector<TensorRequest*> stacks;
    size_t matrices = 0;
    const int64_t count = shape[0];
    for (; i < gguf->size() && IsStack((*gguf)[i]) && (*gguf)[i].part.shape[0] == count; ++i) {
      stacks.push_back(&(*gguf)[i]);
      matrices += static_cast<size_t>(count);
    }
    std::vector<std::string> keys;  // in the order of the stacks
    for (size_t m = 0; m < matrices && at < hf.size(); ++m, ++at)
      if (const std::string key = StackName(hf[at].part.key);
          std::find(keys.begin(), keys.end(), key) == keys.end())
        keys.push_back(key);
    for (size_t s = 0; s < stacks.size() && s < keys.size(); ++s) stacks[s]->part.key = keys[s];
  }
}

Shape VectorShape(const FileTensor& tensor, const TensorRule& rule) {
  int64_t elements = 0;
  for (const ModelPart& part : tensor.parts) elements += part.shape.elements().value_or(0);
  if (!rule.elements) return {elements};
  const int64_t inner = rule.RowsOfGroup() * rule.groups;
  if (rule.channels) return {elements / inner, 1, inner};
  return {elements / inner, inner};
}

Shape MatrixShape(const FileTensor& tensor, const TensorRule& rule) {
  const Shape& first = tensor.parts[0].shape;
  const int64_t rows = rule.RowsOfGroup() * rule.groups, cols = first[first.rank() - 1];
  const int64_t count = tensor.stacked > 0 ? tensor.stacked : first.rank() == 3 ? first[0] : 0;
  const int64_t outer = rule.transposed ? cols : rows, inner = rule.transposed ? rows : cols;
  return count > 0 ? Shape{count, outer, inner} : Shape{outer, inner};
}

class Lister {
 public:
  Lister(const FileNames& names, std::vector<TensorRequest> requests, const WeightPlan::Roles& roles,
         bool gguf)
      : names_(names), requests_(std::move(requests)), roles_(roles), gguf_(gguf) {
    for (const TensorRequest& request : requests_) by_name_.try_emplace(request.part.name, &request);
  }

  std::vector<FileTensor> Run() {
    for (const TensorRequest& request : requests_) Add(request);
    return std::move(tensors_);
  }

 private:
  void Add(const TensorRequest& request) {
    if (done_.contains(request.part.name)) return;
    const PatternName name = PatternOf(request.part.name);
    const FileNames::Place* const place = names_.Find(request.part.name, name);
    FileTensor tensor;
    tensor.name =
        names_.WithPrefix(place ? NameOf(*place->in_file, name) : request.part.name, request.part.name);
    tensor.optional = request.optional;
    tensor.minus_one = names_.rules().PlusOne(name.pattern);
    tensor.role = RoleOf(request);
    if (!place || place->rule->renames()) {
      tensor.parts.push_back(request.part);
      tensor.shape = request.part.shape;
      // Converters to GGUF write one row as a vector.
      if (gguf_ && tensor.role == WeightRole::kRouter && tensor.shape.rank() == 2 && tensor.shape[0] == 1)
        tensor.shape = {tensor.shape[1]};
    } else {
      const TensorRule& rule = *place->rule;
      CollectParts(rule, *place->in_file, name, &tensor);
      tensor.transposed = rule.transposed;
      tensor.shape = request.vector ? VectorShape(tensor, rule) : MatrixShape(tensor, rule);
      tensor.groups = request.vector ? *tensor.shape.elements() / rule.RowsOfGroup() : rule.groups;
    }
    for (const ModelPart& part : tensor.parts) done_.insert(part.name);
    tensors_.push_back(std::move(tensor));
  }

  void CollectParts(const TensorRule& rule, const std::string& in_file, const PatternName& name,
                    FileTensor* tensor) const {
    const bool stack =
        rule.parts[0].name.find('#') != std::string::npos && in_file.find('#') == std::string::npos;
    for (int64_t e = 0; e == 0 || stack; ++e) {
      const auto first = by_name_.find(NameOf(rule.parts[0].name, name, stack ? e : -1));
      if (stack && first == by_name_.end()) break;
      for (const TensorPart& part : rule.parts)
        if (const auto found = by_name_.find(NameOf(part.name, name, stack ? e : -1));
            found != by_name_.end())
          tensor->parts.push_back(found->second->part);
      tensor->stacked += stack;
    }
  }

  WeightRole RoleOf(const TensorRequest& request) const {
    if (request.vector) return WeightRole::kVector;
    const auto found = roles_.find(request.part.name);
    return found == roles_.end() ? WeightRole::kProjection : found->second;
  }

  const FileNames& names_;
  std::vector<TensorRequest> requests_;
  const WeightPlan::Roles& roles_;
  bool gguf_;
  std::unordered_map<std::string, const TensorRequest*> by_name_;
  std::unordered_set<std::string> done_;
  std::vector<FileTensor> tensors_;
};

FileTensor RopeVector(const char* name, const RopeConfig& rope) {
  const Shape shape = {rope.dim / 2};
  return {.name = name, .shape = shape, .role = WeightRole::kVector, .parts = {{name, name, shape}}};
}

}  // namespace

Result<std::vector<FileTensor>> FileTensors(const DecoderConfig& given, ModelContainer container) {
  DecoderConfig config = given;
  if (config.family == "llama" && config.moe.experts > 0)
    config.family = "mixtral";  // one architecture in GGUF
  const Family& family = *FindFamily(config.family);
  const TensorRules hf_rules = RulesFor(family, config, false);
  const FileNames hf_names(hf_rules);
  CELER_ASSIGN(std::vector<TensorRequest> hf, Requests(config, ModelContainer::kHf, hf_names));
  if (container == ModelContainer::kHf) {
    const WeightPlan::Roles roles = DecoderRoles(config, false, kHfNames.embedding);
    return Lister(hf_names, std::move(hf), roles, false).Run();
  }
  const Family* const in_gguf = GgufFamily(family);
  if (!in_gguf)
    return Error::Unsupported("models of the type '", family.model_type,
                              "' have no architecture in GGUF that is read here");
  const TensorRules rules = RulesFor(*in_gguf, config, true);
  const FileNames names(rules);
  CELER_ASSIGN(std::vector<TensorRequest> requests, Requests(config, ModelContainer::kGguf, names));
  SetKeys(hf, &requests);
  const WeightPlan::Roles roles = DecoderRoles(config, true, kGgufNames.embedding);
  std::vector<FileTensor> tensors = Lister(names, std::move(requests), roles, true).Run();
  // What stands in config.json is a tensor here.
  const RopeConfig& rope = config.rope;
  if (rope.scaling == RopeConfig::Scaling::kLlama3 || rope.turning_pairs > 0 || !rope.freq_factors.empty())
    tensors.push_back(RopeVector("rope_freqs.weight", rope));
  if (rope.scaling == RopeConfig::Scaling::kLongRope)
    for (const char* name : {kGgufLongFactors, kGgufShortFactors}) tensors.push_back(RopeVector(name, rope));
  return tensors;
}

}  // namespace celer
