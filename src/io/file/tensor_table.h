// The tensors of a model file: in their order, and by name.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/file/tensor_record.h"

namespace celer {

class TensorTable {
 public:
  bool Add(TensorRecord tensor) {  // false, and no change: there is one of that name
    if (!index_.emplace(tensor.name, records_.size()).second) return false;
    records_.push_back(std::move(tensor));
    return true;
  }
  const TensorRecord* Find(std::string_view name) const {  // nullptr when there is none
    const auto it = index_.find(std::string(name));
    return it == index_.end() ? nullptr : &records_[it->second];
  }
  const std::vector<TensorRecord>& records() const { return records_; }

 private:
  std::vector<TensorRecord> records_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace celer
