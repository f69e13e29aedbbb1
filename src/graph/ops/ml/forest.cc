#include "graph/ops/ml/forest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "graph/ops/elements.h"

namespace celer::graph {
namespace {

constexpr int64_t kMostTreeNodes = int64_t{1} << 28;

// A node as a file has it: where it leads by its place among all nodes, or weights if it is a leaf.
template <class T>
struct GivenNode {
  T split = 0;
  int64_t feature = 0;
  TreeMode mode = TreeMode::kLessEqual;
  bool leaf = false, missing_holds = false;
  int64_t yes = 0, no = 0;                  // places; of a leaf nothing
  std::vector<TreeWeight<T>> weights = {};  // of a leaf
  std::vector<T> members = {};              // the condition is that the feature is one of them
};

// Numbers of an attribute that may be a list of floats or a tensor of f32 or f64.
template <class T>
Result<std::vector<T>> Numbers(const Node& node, const std::string& list, const std::string& tensor) {
  std::vector<T> out;
  if (const auto* const given = node.Get<Constant>(tensor)) {
    const TensorView view = given->view();
    if (view.dtype != DType::kF32 && view.dtype != DType::kF64)
      return Error::Invalid(tensor, " is ", Name(view.dtype), "; f32 and f64 are supported");
    DispatchOr(view.dtype, TypeList<float, double>{}, [&]<class V>() {
      for (int64_t i = 0; i < *view.shape.elements(); ++i) out.push_back(static_cast<T>(view.as<V>()[i]));
    });
    return out;
  }
  for (const float number : node.Floats(list)) out.push_back(static_cast<T>(number));
  return out;
}

Status CheckCount(const char* what, size_t count, size_t wanted) {
  if (count == wanted) return {};
  return Error::Invalid(what, " has ", count, " entries for ", wanted);
}

// Trees laid out with siblings side by side. A node that is reached twice is duplicated; a cycle would never
// end, so that a file is refused that makes more nodes than trees could have.
template <class T>
class Layout {
 public:
  Layout(const std::vector<GivenNode<T>>& given, Forest<T>& forest)
      : given_(given), forest_(forest), placed_(given.size()), first_weight_(given.size(), -1) {}

  Status Add(int64_t root) {
    forest_.roots.push_back(static_cast<int32_t>(forest_.nodes.size()));
    forest_.nodes.emplace_back();
    open_.push_back({root, forest_.roots.back()});
    while (!open_.empty()) {
      const auto [from, to] = open_.back();
      open_.pop_back();
      if (static_cast<int64_t>(forest_.nodes.size()) > Most())
        return Error::Invalid("its trees have a cycle, or a node that is shared too often");
      placed_[from] = true;
      Place(static_cast<size_t>(from), to);
    }
    return {};
  }
  // Nodes that no root leads to: they form a cycle.
  int64_t unplaced() const { return std::count(placed_.begin(), placed_.end(), false); }

 private:
  int64_t Most() const {
    return std::min<int64_t>(4 * static_cast<int64_t>(given_.size()) + members_ + 64, kMostTreeNodes);
  }

  void Place(size_t index, int32_t to) {
    const GivenNode<T>& from = given_[index];
    if (from.leaf) {
      int32_t& first = first_weight_[index];  // stored once, however often the leaf is reached
      if (first < 0) {
        first = static_cast<int32_t>(forest_.weights.size());
        forest_.weights.insert(forest_.weights.end(), from.weights.begin(), from.weights.end());
      }
      TreeNode<T>& node = forest_.nodes[to];
      node.next = to;
      node.first = first;
      node.count = static_cast<int32_t>(from.weights.size());
      return;
    }
    if (!from.members.empty()) return PlaceMembers(from, to);
    const int32_t next = Branch(to, from, from.mode, from.split);
    open_.push_back({from.no, next + 1});
    open_.push_back({from.yes, next});
  }
  // One comparison behind the other.
  void PlaceMembers(const GivenNode<T>& from, int32_t to) {
    members_ += 2 * static_cast<int64_t>(from.members.size());
    for (size_t i = 0; i < from.members.size(); ++i) {
      const int32_t next = Branch(to, from, TreeMode::kEqual, from.members[i]);
      open_.push_back({from.yes, next});
      to = next + 1;
    }
    open_.push_back({from.no, to});
  }
  int32_t Branch(int32_t to, const GivenNode<T>& from, TreeMode mode, T split) {
    const auto next = static_cast<int32_t>(forest_.nodes.size());
    forest_.nodes.resize(forest_.nodes.size() + 2);
    forest_.nodes[to] = {.split = split,
                         .feature = static_cast<int32_t>(from.feature),
                         .next = next,
                         .first = 0,
                         .count = 0,
                         .step = 1,
                         .mode = mode,
                         .missing_holds = from.missing_holds};
    return next;
  }

  const std::vector<GivenNode<T>>& given_;
  Forest<T>& forest_;
  std::vector<bool> placed_;           // by node of the file
  std::vector<int32_t> first_weight_;  // likewise
  std::vector<std::pair<int64_t, int32_t>> open_;
  int64_t members_ = 0;
};

// `whole`: a node that no root leads to is an error.
template <class T>
Status Finish(const std::vector<GivenNode<T>>& given, const std::vector<int64_t>& roots, bool whole,
              Forest<T>& forest) {
  for (const GivenNode<T>& node : given) {
    if (node.leaf) continue;
    if (node.feature < 0 || node.feature >= (int64_t{1} << 31) - 1)
      return Error::Invalid("a tree looks at the feature ", node.feature);
    forest.features = std::max(forest.features, node.feature + 1);
  }
  Layout<T> layout(given, forest);
  for (const int64_t root : roots) CELER_RETURN_IF_ERROR(layout.Add(root));
  if (const int64_t lost = layout.unplaced(); whole && lost > 0)
    return Error::Invalid("its trees have a cycle: no root leads to ", lost, " of its ", given.size(),
                          " nodes");
  if (forest.weights.size() > static_cast<size_t>(kMostTreeNodes))
    return Error::Invalid(forest.weights.size(), " weights of leaves");
  for (const TreeWeight<T>& weight : forest.weights)
    if (weight.target < 0 || weight.target >= forest.targets)
      return Error::Invalid("a leaf has target ", weight.target, " of ", forest.targets);
  forest.uniform = true;
  bool first = true;
  for (const TreeNode<T>& node : forest.nodes) {
    if (node.step == 0) continue;
    if (first) forest.mode = node.mode;
    first = false;
    forest.uniform = forest.uniform && node.mode == forest.mode && !node.missing_holds;
  }
  return {};
}

struct ModeName {
  std::string_view name;
  TreeMode mode;
};
constexpr ModeName kModes[] = {{"BRANCH_LEQ", TreeMode::kLessEqual},    {"BRANCH_LT", TreeMode::kLess},
                               {"BRANCH_GTE", TreeMode::kGreaterEqual}, {"BRANCH_GT", TreeMode::kGreater},
                               {"BRANCH_EQ", TreeMode::kEqual},         {"BRANCH_NEQ", TreeMode::kNotEqual}};

struct PairHash {
  size_t operator()(const std::pair<int64_t, int64_t>& key) const {
    return std::hash<int64_t>()(static_cast<uint64_t>(key.first) * 1000003 +
                                static_cast<uint64_t>(key.second));
  }
};
using Places = std::unordered_map<std::pair<int64_t, int64_t>, int64_t, PairHash>;

// class_* or target_*: what leaves say.
template <class T>
Status ReadLeaves(const Node& node, const std::string& prefix, const Places& places,
                  std::vector<GivenNode<T>>& given) {
  const std::vector<int64_t> trees = node.Ints(prefix + "_treeids"), nodes = node.Ints(prefix + "_nodeids"),
                             ids = node.Ints(prefix + "_ids");
  CELER_ASSIGN(const std::vector<T> weights,
               Numbers<T>(node, prefix + "_weights", prefix + "_weights_as_tensor"));
  CELER_RETURN_IF_ERROR(CheckCount("treeids of weights", trees.size(), weights.size()));
  CELER_RETURN_IF_ERROR(CheckCount("nodeids of weights", nodes.size(), weights.size()));
  CELER_RETURN_IF_ERROR(CheckCount("ids of weights", ids.size(), weights.size()));
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto found = places.find({trees[i], nodes[i]});
    if (found == places.end())
      return Error::Invalid("a weight for node ", nodes[i], " of tree ", trees[i], ", which is not there");
    if (ids[i] < 0 || ids[i] >= (int64_t{1} << 31) - 1) return Error::Invalid("a leaf has target ", ids[i]);
    given[static_cast<size_t>(found->second)].weights.push_back({static_cast<int32_t>(ids[i]), weights[i]});
  }
  return {};
}

template <class T>
Result<Forest<T>> OldForest(const Node& node) {
  const std::string prefix = node.op == "TreeEnsembleClassifier" ? "class" : "target";
  const std::vector<int64_t> trees = node.Ints("nodes_treeids"), ids = node.Ints("nodes_nodeids"),
                             features = node.Ints("nodes_featureids"), yes = node.Ints("nodes_truenodeids"),
                             no = node.Ints("nodes_falsenodeids"),
                             missing = node.Ints("nodes_missing_value_tracks_true");
  const std::vector<std::string> modes = node.Texts("nodes_modes");
  CELER_ASSIGN(const std::vector<T> values, Numbers<T>(node, "nodes_values", "nodes_values_as_tensor"));
  const size_t count = ids.size();
  if (count == 0) return Error::Invalid("it has no trees");
  CELER_RETURN_IF_ERROR(CheckCount("nodes_treeids", trees.size(), count));
  CELER_RETURN_IF_ERROR(CheckCount("nodes_featureids", features.size(), count));
  CELER_RETURN_IF_ERROR(CheckCount("nodes_truenodeids", yes.size(), count));
  CELER_RETURN_IF_ERROR(CheckCount("nodes_falsenodeids", no.size(), count));
  CELER_RETURN_IF_ERROR(CheckCount("nodes_modes", modes.size(), count));
  CELER_RETURN_IF_ERROR(CheckCount("nodes_values", values.size(), count));
  if (!missing.empty())
    CELER_RETURN_IF_ERROR(CheckCount("nodes_missing_value_tracks_true", missing.size(), count));
  Places places(count);
  for (size_t i = 0; i < count; ++i)
    if (!places.emplace(std::pair(trees[i], ids[i]), static_cast<int64_t>(i)).second)
      return Error::Invalid("node ", ids[i], " of tree ", trees[i], " is there twice");
  std::vector<GivenNode<T>> given(count);
  std::vector<bool> reached(count, false);
  for (size_t i = 0; i < count; ++i) {
    GivenNode<T>& one = given[i];
    one.split = values[i];
    one.feature = features[i];
    one.missing_holds = !missing.empty() && missing[i] != 0;
    one.leaf = modes[i] == "LEAF";
    if (one.leaf) continue;
    const auto* const mode = std::find_if(std::begin(kModes), std::end(kModes),
                                          [&](const ModeName& m) { return m.name == modes[i]; });
    if (mode == std::end(kModes)) return Error::Invalid("a node with the mode '", modes[i], "'");
    one.mode = mode->mode;
    for (auto [to, from] : {std::pair{&one.yes, yes[i]}, std::pair{&one.no, no[i]}}) {
      const auto found = places.find({trees[i], from});
      if (found == places.end())
        return Error::Invalid("node ", ids[i], " of tree ", trees[i], " leads to node ", from,
                              ", which is not there");
      *to = found->second;
      reached[static_cast<size_t>(found->second)] = true;
    }
  }
  CELER_RETURN_IF_ERROR(ReadLeaves(node, prefix, places, given));
  Forest<T> forest;
  CELER_ASSIGN(forest.base, Numbers<T>(node, "base_values", "base_values_as_tensor"));
  forest.targets = prefix == "class" ? static_cast<int64_t>(node.Ints("classlabels_int64s").size())
                                     : node.Int("n_targets", 1);
  if (forest.targets < 1 || forest.targets > 65535)
    return Error::Invalid(forest.targets, " targets; 1 to 65535 are supported");
  std::vector<int64_t> roots;
  for (size_t i = 0; i < count; ++i)
    if (!reached[i]) roots.push_back(static_cast<int64_t>(i));
  if (roots.empty()) return Error::Invalid("its trees have a cycle: there is no root");
  CELER_RETURN_IF_ERROR(Finish(given, roots, true, forest));
  return forest;
}

// Sets of members follow each other, with something that is not a number between them.
template <class T>
Status ReadMembers(const Node& node, const std::vector<int64_t>& modes, std::vector<GivenNode<T>>& given) {
  CELER_ASSIGN(const std::vector<T> members, Numbers<T>(node, "", "membership_values"));
  size_t at = 0;
  for (size_t i = 0; i < modes.size(); ++i) {
    if (modes[i] != 6) continue;
    for (; at < members.size() && !std::isnan(members[at]); ++at) given[i].members.push_back(members[at]);
    ++at;
    if (given[i].members.empty()) return Error::Invalid("membership_values has too few sets");
  }
  return {};
}

template <class T>
Result<Forest<T>> NewForest(const Node& node) {
  const std::vector<int64_t> features = node.Ints("nodes_featureids"), yes = node.Ints("nodes_truenodeids"),
                             no = node.Ints("nodes_falsenodeids"), yes_leaf = node.Ints("nodes_trueleafs"),
                             no_leaf = node.Ints("nodes_falseleafs"), roots = node.Ints("tree_roots"),
                             leaf_targets = node.Ints("leaf_targetids"),
                             missing = node.Ints("nodes_missing_value_tracks_true");
  CELER_ASSIGN(const std::vector<T> splits, Numbers<T>(node, "", "nodes_splits"));
  CELER_ASSIGN(const std::vector<T> weights, Numbers<T>(node, "", "leaf_weights"));
  const auto* const modes_given = node.Get<Constant>("nodes_modes");
  if (!modes_given || modes_given->dtype != DType::kU8)
    return Error::Invalid("nodes_modes is no tensor of u8");
  const std::vector<int64_t> modes = ReadInts(modes_given->view());
  const size_t count = features.size(), leaves = weights.size();
  for (const auto& [what, size] :
       {std::pair{"nodes_truenodeids", yes.size()}, std::pair{"nodes_falsenodeids", no.size()},
        std::pair{"nodes_trueleafs", yes_leaf.size()}, std::pair{"nodes_falseleafs", no_leaf.size()},
        std::pair{"nodes_splits", splits.size()}, std::pair{"nodes_modes", modes.size()}})
    CELER_RETURN_IF_ERROR(CheckCount(what, size, count));
  CELER_RETURN_IF_ERROR(CheckCount("leaf_targetids", leaf_targets.size(), leaves));
  if (!missing.empty())
    CELER_RETURN_IF_ERROR(CheckCount("nodes_missing_value_tracks_true", missing.size(), count));
  // Leaves stand behind the other nodes.
  std::vector<GivenNode<T>> given(count + leaves);
  for (size_t i = 0; i < leaves; ++i) {
    if (leaf_targets[i] < 0 || leaf_targets[i] >= (int64_t{1} << 31) - 1)
      return Error::Invalid("a leaf has target ", leaf_targets[i]);
    given[count + i].leaf = true;
    given[count + i].weights = {{static_cast<int32_t>(leaf_targets[i]), weights[i]}};
  }
  for (size_t i = 0; i < count; ++i) {
    GivenNode<T>& one = given[i];
    one.split = splits[i];
    one.feature = features[i];
    one.missing_holds = !missing.empty() && missing[i] != 0;
    if (modes[i] > 6) return Error::Invalid("a node with the mode ", modes[i]);
    one.mode = modes[i] < 6 ? kModes[modes[i]].mode : TreeMode::kEqual;
    for (auto [to, from, is_leaf] :
         {std::tuple{&one.yes, yes[i], yes_leaf[i] != 0}, std::tuple{&one.no, no[i], no_leaf[i] != 0}}) {
      if (from < 0 || from >= static_cast<int64_t>(is_leaf ? leaves : count))
        return Error::Invalid("a node leads to ", from, " of ", is_leaf ? leaves : count,
                              is_leaf ? " leaves" : " nodes");
      *to = from + (is_leaf ? static_cast<int64_t>(count) : 0);
    }
  }
  CELER_RETURN_IF_ERROR(ReadMembers(node, modes, given));
  Forest<T> forest;
  forest.targets = node.Int("n_targets", 1);
  if (forest.targets < 1 || forest.targets > 65535)
    return Error::Invalid(forest.targets, " targets; 1 to 65535 are supported");
  if (roots.empty()) return Error::Invalid("it has no trees");
  for (const int64_t root : roots)
    if (root < 0 || root >= static_cast<int64_t>(count))
      return Error::Invalid("a tree begins at node ", root, " of ", count);
  CELER_RETURN_IF_ERROR(Finish(given, roots, false, forest));
  return forest;
}

template <TreeMode kMode, class T>
bool HoldsAs(T x, T split) {
  if constexpr (kMode == TreeMode::kLessEqual) return x <= split;
  if constexpr (kMode == TreeMode::kLess) return x < split;
  if constexpr (kMode == TreeMode::kGreaterEqual) return x >= split;
  if constexpr (kMode == TreeMode::kGreater) return x > split;
  if constexpr (kMode == TreeMode::kEqual) return x == split;
  return x != split;
}

template <class T>
bool Holds(const TreeNode<T>& node, T x) {
  if (node.missing_holds && std::isnan(x)) return true;
  switch (node.mode) {
    case TreeMode::kLessEqual:
      return x <= node.split;
    case TreeMode::kLess:
      return x < node.split;
    case TreeMode::kGreaterEqual:
      return x >= node.split;
    case TreeMode::kGreater:
      return x > node.split;
    case TreeMode::kEqual:
      return x == node.split;
    case TreeMode::kNotEqual:
      return x != node.split;
  }
  return false;
}

// Rows that walk through a tree together: their loads are independent and overlap.
constexpr int64_t kTogether = 8;

// at[i]: where row i is; all of them go on until all are at leaves.
template <class T, class X, class Test>
void WalkTree(const TreeNode<T>* nodes, const X* x, int64_t features, int64_t rows, int32_t* at,
              const Test& test) {
  if (rows == kTogether) {
    int moving = 1;
    while (moving) {
      moving = 0;
      for (int64_t i = 0; i < kTogether; ++i) {
        const TreeNode<T>& node = nodes[at[i]];
        const bool holds = test(node, static_cast<T>(x[i * features + node.feature]));
        at[i] = node.next + (holds ? 0 : node.step);
        moving |= nodes[at[i]].step;
      }
    }
    return;
  }
  for (int64_t i = 0; i < rows; ++i)
    while (nodes[at[i]].step) {
      const TreeNode<T>& node = nodes[at[i]];
      at[i] = node.next + (test(node, static_cast<T>(x[i * features + node.feature])) ? 0 : 1);
    }
}

template <class T>
void Count(const Forest<T>& forest, TreeSum how, int32_t leaf, T* scores, uint8_t* given) {
  const TreeNode<T>& node = forest.nodes[leaf];
  for (int32_t w = node.first; w < node.first + node.count; ++w) {
    const TreeWeight<T>& weight = forest.weights[w];
    T& score = scores[weight.target];
    uint8_t& has = given[weight.target];
    if (how == TreeSum::kMin)
      score = has ? std::min(score, weight.value) : weight.value;
    else if (how == TreeSum::kMax)
      score = has ? std::max(score, weight.value) : weight.value;
    else
      score += weight.value;
    has = 1;
  }
}

template <class T, class X, class Test>
void SumBlock(const Forest<T>& forest, TreeSum how, const X* x, int64_t features, int64_t rows, T* scores,
              uint8_t* given, const Test& test) {
  // A tree's nodes stay in the cache for the rows of a block.
  for (const int32_t root : forest.roots)
    for (int64_t r = 0; r < rows; r += kTogether) {
      const int64_t some = std::min(kTogether, rows - r);
      int32_t at[kTogether];
      std::fill_n(at, kTogether, root);
      WalkTree(forest.nodes.data(), x + r * features, features, some, at, test);
      for (int64_t i = 0; i < some; ++i)
        Count(forest, how, at[i], scores + (r + i) * forest.targets, given + (r + i) * forest.targets);
    }
}

}  // namespace

template <class T>
Result<Forest<T>> ForestOf(const Node& node) {
  return node.op == "TreeEnsemble" ? NewForest<T>(node) : OldForest<T>(node);
}

template <class T, class X>
void SumTrees(const Forest<T>& forest, TreeSum how, const X* x, int64_t features, int64_t rows, T* scores,
              uint8_t* given) {
  constexpr int64_t kBlock = 64;
  for (int64_t r = 0; r < rows; r += kBlock) {
    const int64_t some = std::min(kBlock, rows - r);
    const auto run = [&](const auto& test) {
      SumBlock(forest, how, x + r * features, features, some, scores + r * forest.targets,
               given + r * forest.targets, test);
    };
    if (forest.uniform && forest.mode == TreeMode::kLessEqual)
      run([](const TreeNode<T>& node, T v) { return HoldsAs<TreeMode::kLessEqual>(v, node.split); });
    else if (forest.uniform && forest.mode == TreeMode::kLess)
      run([](const TreeNode<T>& node, T v) { return HoldsAs<TreeMode::kLess>(v, node.split); });
    else
      run([](const TreeNode<T>& node, T v) { return Holds(node, v); });
  }
}

template Result<Forest<float>> ForestOf(const Node& node);
template Result<Forest<double>> ForestOf(const Node& node);
template void SumTrees(const Forest<float>&, TreeSum, const float*, int64_t, int64_t, float*, uint8_t*);
template void SumTrees(const Forest<float>&, TreeSum, const int64_t*, int64_t, int64_t, float*, uint8_t*);
template void SumTrees(const Forest<float>&, TreeSum, const int32_t*, int64_t, int64_t, float*, uint8_t*);
template void SumTrees(const Forest<double>&, TreeSum, const double*, int64_t, int64_t, double*, uint8_t*);

}  // namespace celer::graph
