// How the tensors of a file become the parts that the loader asks for, where a family's files name or arrange
// them otherwise. A family states it in a function of its row in family.cc, one for Hugging Face files and
// one for GGUF:
//
//   void Phi3HfTensors(const DecoderConfig& c, TensorRules* rules) {
//     const PartNames& to = rules->parts();
//     const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
//     rules->Split("model.layers.%.self_attn.qkv_proj.weight", {{to.q, q}, {to.k, kv}, {to.v, kv}});
//   }
//
// "%" stands for the first number between dots in a name (the layer), "#" for the second (the expert). A rule with the
// numbers themselves goes before one with such signs.
// All rules apply at once, to the names in the file without its prefix: a chain of renames is none. A tensor
// without a rule keeps its name.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/config/part_names.h"

namespace celer {

struct TensorPart {
  std::string name;  // of the part; in stacks of experts "#" may stand for the expert
  int64_t rows = 0;  // of a vector: elements
};

struct TensorRule {
  std::vector<TensorPart> parts;
  // The rows repeat: each group has the rows of all parts, one part after the other. 1: parts are concatenated.
  int64_t groups = 1;
  // The file has [columns, rows], as GPT-2's Conv1D, or [experts, columns, rows].
  bool transposed = false;
  bool elements = false;  // vectors, whatever the shape in the file
  // What is known only to those who write a file (models/load/file_tensors.h).
  bool channels = false;  // the file has [channels, 1, elements]
  bool rare = false;      // most files have the parts themselves

  int64_t RowsOfGroup() const {
    int64_t rows = 0;
    for (const TensorPart& part : parts) rows += part.rows;
    return rows;
  }
  bool renames() const { return parts.size() == 1 && parts[0].rows == 0; }
};

class TensorRules {
 public:
  explicit TensorRules(const PartNames& parts) : parts_(&parts) {}

  const PartNames& parts() const { return *parts_; }  // kHfNames or kGgufNames

  void Rename(const std::string& in_file, const std::string& part) {
    rules_[in_file] = {.parts = {{part, 0}}};
  }

  // One matrix or vector holds the rows of several parts. In `groups` equal groups:
  //   q | k | v, gate | up                     1
  //   per head its q, k, v (NeoX)              heads, with head_dim rows of each part
  //   per kv head its queries, k, v (Falcon)   kv_heads, with heads / kv_heads * head_dim rows of q
  //   gate and up in alternating rows          intermediate, with 1 row of each part
  // A stack of experts [experts, rows, columns] gives matrices of one expert each if the parts' names have a
  // "#", and else stacks.
  void Split(const std::string& in_file, std::vector<TensorPart> parts, int64_t groups = 1) {
    rules_[in_file] = {.parts = std::move(parts), .groups = groups};
  }
  // The same of elements, as of the experts' biases [experts, elements]: gives vectors with one after the other.
  // (A tensor with one dimension is split like this by Split().)
  void SplitElements(const std::string& in_file, std::vector<TensorPart> parts, int64_t groups = 1) {
    rules_[in_file] = {.parts = std::move(parts), .groups = groups, .elements = true};
  }
  // The same of a convolution of channels that each have a kernel of their own: [channels, 1, kernel].
  void SplitChannels(const std::string& in_file, const std::string& part, int64_t kernel) {
    rules_[in_file] = {.parts = {{part, kernel}}, .elements = true, .channels = true};
  }
  // As Split(), of a tensor that some writers make of what other files have as the parts themselves.
  void SplitIfThere(const std::string& in_file, std::vector<TensorPart> parts) {
    rules_[in_file] = {.parts = std::move(parts), .rare = true};
  }
  // The same of a matrix whose columns are the parts' rows; of one part, it is a transposition.
  void SplitTransposed(const std::string& in_file, std::vector<TensorPart> parts, int64_t groups = 1) {
    rules_[in_file] = {.parts = std::move(parts), .groups = groups, .transposed = true};
  }

  // The file has the weight less one. By the name of the part; "%" and "#" as in files.
  void AddOne(const std::string& part) { plus_one_.insert(part); }

  // Of two forms that the loader knows, files of this family have the one without this part.
  void Lacks(const std::string& part) { lacking_.insert(part); }

  // Tensors whose names begin like this are not read. Together they get one warning: "12 tensors are for
  // {what}", "images and audio, which are not supported".
  void Skip(const std::string& prefix, const std::string& what) { skipped_.emplace_back(prefix, what); }

  // A beginning of names in the file, and what stands for it in rules and parts: {"transformer.", ""}. The
  // first that fits applies.
  void Prefix(const std::string& in_file, const std::string& becomes) {
    prefixes_.emplace_back(in_file, becomes);
  }

  bool empty() const { return rules_.empty() && plus_one_.empty() && skipped_.empty() && prefixes_.empty(); }
  const std::map<std::string, TensorRule>& rules() const { return rules_; }
  bool PlusOne(const std::string& part) const { return plus_one_.contains(part); }
  bool IsLacking(const std::string& part) const { return lacking_.contains(part); }
  const std::vector<std::pair<std::string, std::string>>& skipped() const { return skipped_; }
  const std::vector<std::pair<std::string, std::string>>& prefixes() const { return prefixes_; }

 private:
  const PartNames* parts_;
  std::map<std::string, TensorRule> rules_;
  std::set<std::string> plus_one_, lacking_;
  std::vector<std::pair<std::string, std::string>> skipped_, prefixes_;
};

}  // namespace celer
