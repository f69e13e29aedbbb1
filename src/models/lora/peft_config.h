// adapter_config.json: what PEFT's fields say of how an adapter is applied. A field that changes the meaning and is not
// implemented is an error.
#pragma once

#include <filesystem>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace celer {

class PeftConfig {
 public:
  static Result<PeftConfig> Read(const std::filesystem::path& path);

  int64_t RankOf(const std::string& module) const;  // by `r` and `rank_pattern`
  double ScaleOf(const std::string& module) const;  // by `lora_alpha`, `alpha_pattern`, and the rank
  bool dora() const { return dora_; }
  bool tied() const { return tied_; }
  // Written by a PEFT before 0.19, whose lora_A of stacked experts reads what others call their output.
  bool turned_experts() const { return turned_experts_; }

 private:
  template <class T>
  using Pattern =
      std::vector<std::pair<std::regex, T>>;  // in the file's order: the first that matches counts

  int64_t rank_ = 8;
  double alpha_ = 8;
  bool rank_stabilized_ = false, dora_ = false, tied_ = false, turned_experts_ = false;
  Pattern<int64_t> ranks_;
  Pattern<double> alphas_;
};

}  // namespace celer
