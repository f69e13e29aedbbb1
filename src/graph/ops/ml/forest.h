// Tree ensembles as one flat array of nodes, and their scores for rows of features.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/aligned_vector.h"
#include "graph/ir/operator.h"

namespace celer::graph {

enum class TreeMode : uint8_t { kLessEqual, kLess, kGreaterEqual, kGreater, kEqual, kNotEqual };

// Siblings lie side by side, so that a step is an addition and branch-free. A leaf is its own successor: rows
// that are done wait there for the others.
template <class T>
struct TreeNode {
  T split = 0;
  int32_t feature = 0;
  int32_t next = 0;   // where the condition holds; `step` behind it where it does not
  int32_t first = 0;  // of a leaf's weights
  int32_t count = 0;  // of them
  uint8_t step = 0;   // 1; 0 in a leaf
  TreeMode mode = TreeMode::kLessEqual;
  bool missing_holds = false;  // a feature that is not a number counts as if the condition held
};

template <class T>
struct TreeWeight {
  int32_t target = 0;
  T value = 0;
};

template <class T>
struct Forest {
  std::vector<TreeNode<T>> nodes;
  std::vector<int32_t> roots;
  std::vector<TreeWeight<T>> weights;
  std::vector<T> base;  // added to the targets
  int64_t targets = 1;
  int64_t features = 0;  // the least that a row must have
  bool uniform = false;  // all nodes have the mode of the first, and missing features hold nowhere
  TreeMode mode = TreeMode::kLessEqual;
};

enum class TreeSum : uint8_t { kSum, kAverage, kMin, kMax };

// Of TreeEnsembleClassifier and TreeEnsembleRegressor, or of TreeEnsemble. Everything is checked.
template <class T>
Result<Forest<T>> ForestOf(const Node& node);

// What the trees say of rows [begin, end): [rows, targets] in `scores`, without the base, and in `given` for
// how many trees said something.
template <class T, class X>
void SumTrees(const Forest<T>& forest, TreeSum how, const X* x, int64_t features, int64_t rows, T* scores,
              uint8_t* given);

}  // namespace celer::graph
