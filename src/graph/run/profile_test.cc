// Parts and joins that cost nothing, kernels that write over what they add, and the times of operators.
#include "graph/run/profile.h"

#include <gtest/gtest.h>

#include <cmath>

#include "graph/passes/build_graph.h"

namespace celer::graph {
namespace {

using testing::Build;

Data Waves(const std::vector<int64_t>& dims) {
  Data out = *NewTensor(DType::kF32, Shape(std::span<const int64_t>(dims)));
  for (int64_t i = 0; i < *out.tensor.shape.elements(); ++i)
    out.tensor.as<float>()[i] = std::sin(static_cast<float>(i) * 0.37f);
  return out;
}

std::shared_ptr<const Program> ProgramOf(const Graph& graph) {
  Network network;
  network.graph = graph;
  auto program = Program::Make(std::move(network));
  EXPECT_TRUE(program) << program.error().message();
  return *program;
}

// Two halves, one of which goes through a function, and all of it joined again: as detection networks have
// it. With `batch` of two a part is no longer one piece, so everything is copied, and must be the same.
Build Halves(int64_t batch) {
  Build b({batch, 8, 40, 40});
  const std::string names[] = {"left", "right"};
  const ValueId y = b.Op("Exp", {b.x});
  Node split{.op = "Split", .name = "split", .opset = 18, .inputs = {y}, .attributes = {}};
  split.attributes = {{"axis", int64_t{1}}, {"num_outputs", int64_t{2}}};
  const std::vector<ValueId> halves = b.graph.AddNode(split, names).outputs;
  const ValueId more = b.Op("Sigmoid", {halves[1]});
  const ValueId joined = b.Op("Concat", {halves[0], halves[1], more}, {{"axis", int64_t{1}}});
  const ValueId some = b.Op("Slice", {joined, b.Ints({2}), b.Ints({7}), b.Ints({1})});
  b.Out(b.Op("Relu", {joined}));
  b.Out(b.Op("Tanh", {some}));
  return b;
}

TEST(PlanViews, PartsAndJoinsAreNotCopied) {
  std::vector<std::vector<float>> first_image;
  for (const int64_t batch : {int64_t{1}, int64_t{2}}) {
    Build b = Halves(batch);
    ASSERT_TRUE(b.graph.Sort());
    Session session(ProgramOf(b.graph));
    const auto outputs = session.Run({Waves({batch, 8, 40, 40})});
    ASSERT_TRUE(outputs) << outputs.error().message();
    int views = 0;
    for (size_t n = 0; n < session.plan()->nodes.size(); ++n)
      views += session.plan()->nodes[n].how == PlannedNode::How::kView ? 1 : 0;
    EXPECT_EQ(views, batch == 1 ? 2 : 0);
    // Where the plan has put what is joined.
    const auto offset = [&](const char* op, size_t output) {
      for (const Node& node : session.program().graph().nodes)
        if (node.op == op) return session.plan()->offset[node.outputs[output]];
      return int64_t{-1};
    };
    if (batch == 1) {
      EXPECT_EQ(offset("Split", 0), offset("Concat", 0));
      EXPECT_EQ(offset("Exp", 0), offset("Concat", 0));
      EXPECT_EQ(offset("Sigmoid", 0), offset("Concat", 0) + 8 * 40 * 40 * 4);
      EXPECT_EQ(offset("Slice", 0), offset("Concat", 0) + 2 * 40 * 40 * 4);
    }
    std::vector<std::vector<float>> now;
    for (const Data& data : *outputs)
      now.emplace_back(data.tensor.as<float>(),
                       data.tensor.as<float>() + *data.tensor.shape.elements() / batch);
    if (batch == 1) first_image = now;
    EXPECT_EQ(now, first_image);
  }
}

TEST(PlanViews, AValueThatIsJoinedTwiceIsCopiedOnce) {
  Build b({1, 4, 30, 30});
  const ValueId y = b.Op("Exp", {b.x});
  const ValueId twice = b.Op("Concat", {y, y}, {{"axis", int64_t{1}}});
  const ValueId again = b.Op("Concat", {b.Op("Neg", {y}), twice, b.x}, {{"axis", int64_t{1}}});
  b.Out(again);
  ASSERT_TRUE(b.graph.Sort());
  Session session(ProgramOf(b.graph));
  const Data x = Waves({1, 4, 30, 30});
  const auto outputs = session.Run({x});
  ASSERT_TRUE(outputs) << outputs.error().message();
  const int64_t n = 4 * 30 * 30;
  const float *const in = x.tensor.as<float>(), *const out = (*outputs)[0].tensor.as<float>();
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_NEAR(out[i], -std::exp(in[i]), 1e-5);
    ASSERT_EQ(out[n + i], -out[i]);
    ASSERT_EQ(out[2 * n + i], -out[i]);
    ASSERT_EQ(out[3 * n + i], in[i]);
  }
}

TEST(PlanViews, AResidualIsAddedInPlace) {
  Build b({1, 4, 20, 20});
  const ValueId y = b.Op("Exp", {b.x});
  const ValueId conv = b.Op("Conv", {b.Op("Relu", {b.x}), b.Floats({4, 4, 3, 3})},
                            {{"pads", std::vector<int64_t>{1, 1, 1, 1}}});
  b.Out(b.Op("Add", {conv, y}));
  EXPECT_EQ(b.Fires("fuse-activation"), 1);
  Session session(ProgramOf(b.graph));
  ASSERT_TRUE(session.Run({Waves({1, 4, 20, 20})}));
  int64_t exp = -1, sum = -2;
  for (const Node& node : session.program().graph().nodes) {
    const int64_t at = session.plan()->offset[node.outputs[0]];
    if (node.op == "Exp") exp = at;
    if (node.op == "Conv") sum = at;
  }
  EXPECT_EQ(exp, sum);
}

TEST(Profile, EveryNodeHasItsTimes) {
  Build b({1, 4, 20, 20});
  const ValueId conv = b.Op("Conv", {b.x, b.Floats({6, 4, 3, 3})});
  b.Out(b.Op("Softmax", {b.Op("Reshape", {conv, b.Ints({6, -1})})}));
  ASSERT_TRUE(b.graph.Sort());
  Session session(ProgramOf(b.graph));
  const Data x = Waves({1, 4, 20, 20});
  {
    Profile profile(session);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(session.Run({x}));
    const std::vector<OperatorTime> times = profile.Times();
    ASSERT_EQ(times.size(), 3u);
    for (const OperatorTime& time : times) {
      EXPECT_EQ(time.seconds.size(), 3u);
      EXPECT_GE(time.Median(), 0);
    }
    EXPECT_EQ(times[0].node->op, "Conv");
    EXPECT_EQ(times[0].kernel, "conv");
    EXPECT_EQ(times[0].flops, 2.0 * 6 * 18 * 18 * 4 * 9);
    EXPECT_EQ(times[0].bytes, 4.0 * (4 * 20 * 20 + 6 * 4 * 9 + 6 * 18 * 18));
    EXPECT_EQ(times[1].how, PlannedNode::How::kView);
    EXPECT_EQ(times[2].kernel, "rows");
  }
  ASSERT_TRUE(session.Run({x}));  // nobody listens any more
}

}  // namespace
}  // namespace celer::graph
