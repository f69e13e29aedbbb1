// ONNX files written field by field, so that any field can lie.
#include "graph/load/load_onnx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "graph/run/program.h"
#include "graph/run/session.h"
#include "io/file/test_folder.h"

namespace celer::graph {
namespace {

using testing::HasSubstr;

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}
std::string Int(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}
std::string Bytes(int field, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string FloatBytes(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}
std::string Tensor(const std::string& name, std::initializer_list<int64_t> dims, int type,
                   const std::string& rest) {
  std::string out;
  for (const int64_t dim : dims) out += Int(1, static_cast<uint64_t>(dim));
  return out + Int(2, static_cast<uint64_t>(type)) + Bytes(8, name) + rest;
}
std::string Value(const std::string& name, std::initializer_list<int64_t> dims) {
  std::string shape;
  for (const int64_t dim : dims) shape += Bytes(1, Int(1, static_cast<uint64_t>(dim)));
  return Bytes(1, name) + Bytes(2, Bytes(1, Int(1, 1) + Bytes(2, shape)));
}
std::string NodeBytes(const std::string& op, std::initializer_list<std::string> in, const std::string& out) {
  std::string text;
  for (const std::string& name : in) text += Bytes(1, name);
  return text + Bytes(2, out) + Bytes(4, op);
}
std::string Model(const std::string& graph, uint64_t opset = 17) {
  return Int(1, 8) + Bytes(7, graph) + Bytes(8, Int(2, opset));
}
// y = x + w, with w as `tensor` has it
std::string Sum(const std::string& tensor) {
  return Model(Bytes(1, NodeBytes("Add", {"x", "w"}, "y")) + Bytes(5, tensor) + Bytes(11, Value("x", {2})) +
               Bytes(12, Value("y", {2})));
}
std::string Message(const std::string& bytes) {
  const auto network = LoadOnnx(std::as_bytes(std::span(bytes)), "m.onnx");
  return network ? "" : network.error().message();
}

TEST(LoadOnnx, RunsASum) {
  for (const std::string& data : {Bytes(9, FloatBytes({10, 20})), Bytes(4, FloatBytes({10, 20}))}) {
    const std::string bytes = Sum(Tensor("w", {2}, 1, data));
    auto network = LoadOnnx(std::as_bytes(std::span(bytes)), "m.onnx");
    ASSERT_TRUE(network) << network.error().message();
    auto program = Program::Make(std::move(*network));
    ASSERT_TRUE(program) << program.error().message();
    Session session(*program);
    Data x = *NewTensor(DType::kF32, Shape{2});
    x.tensor.as<float>()[0] = 1;
    x.tensor.as<float>()[1] = 2;
    const auto out = session.Run({x});
    ASSERT_TRUE(out) << out.error().message();
    EXPECT_EQ((*out)[0].tensor.as<float>()[0], 11);
    EXPECT_EQ((*out)[0].tensor.as<float>()[1], 22);
  }
}

TEST(LoadOnnx, WeightsThatLieAreRefused) {
  EXPECT_THAT(Message(Sum(Tensor("w", {2}, 1, Bytes(9, "abc")))),
              HasSubstr("tensor 'w': 3 bytes of data, but [2] of FLOAT are 8"));
  EXPECT_THAT(Message(Sum(Tensor("w", {3}, 1, Bytes(4, FloatBytes({1}))))), HasSubstr("1 elements, but [3]"));
  EXPECT_THAT(Message(Sum(Tensor("w", {1 << 30}, 1, Bytes(4, FloatBytes({1}))))),
              HasSubstr("fewer elements than the"));
  EXPECT_THAT(Message(Sum(Tensor("w", {-2}, 1, ""))), HasSubstr("a dimension of -2"));
  EXPECT_THAT(Message(Sum(Tensor("w", {1L << 40, 1L << 40}, 1, ""))), HasSubstr("too many elements"));
  EXPECT_THAT(Message(Sum(Tensor("w", {1, 1, 1, 1, 1, 1, 1, 1, 1}, 1, ""))), HasSubstr("9 dimensions"));
  EXPECT_THAT(Message(Sum(Tensor("w", {2}, 8, Bytes(6, "a")))), HasSubstr("1 strings for [2]"));
  EXPECT_THAT(Message(Sum(Tensor("w", {2}, 99, ""))), HasSubstr("type 99"));
}

TEST(LoadOnnx, BrokenFilesAreOneSentence) {
  EXPECT_THAT(Message("not a model at all"), HasSubstr("m.onnx: "));
  EXPECT_THAT(Message(""), HasSubstr("holds no graph"));
  const std::string whole = Sum(Tensor("w", {2}, 1, Bytes(9, FloatBytes({1, 2}))));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(Message(whole.substr(0, size)).find('\n'), std::string::npos);
  std::string deep;
  for (int i = 0; i < 60; ++i) deep = Bytes(1, Bytes(5, Bytes(6, deep)));
  EXPECT_THAT(Message(Model(deep)), HasSubstr("nest more than 32 deep"));
}

TEST(LoadOnnx, GraphsThatLieAreRefused) {
  const std::string in = Bytes(11, Value("x", {2})), out = Bytes(12, Value("y", {2}));
  EXPECT_THAT(Message(Model(Bytes(1, NodeBytes("Relu", {"z"}, "y")) + in + out)),
              HasSubstr("Relu reads 'z', which nothing makes"));
  EXPECT_THAT(Message(Model(Bytes(1, NodeBytes("Add", {"x", "y"}, "y")) + in + out)), HasSubstr("cycle"));
  EXPECT_THAT(Message(Model(Bytes(1, NodeBytes("Relu", {"x"}, "y")) + Bytes(1, NodeBytes("Neg", {"x"}, "y")) +
                            in + out)),
              HasSubstr("'y' has two producers"));
  EXPECT_THAT(Message(Model(in + out)), HasSubstr("the output 'y' has no producer"));
  EXPECT_THAT(Message(Model(Bytes(1, NodeBytes("Relu", {"x"}, "y")) + in + out, 99)),
              HasSubstr("opset 99; up to"));
}

// f(a) = Relu(Neg(a)), called twice
std::string Function(const std::string& body) {
  return Bytes(
      25, Bytes(1, "f") + Bytes(4, "a") + Bytes(5, "b") + body + Bytes(9, Int(2, 17)) + Bytes(10, "own"));
}
TEST(LoadOnnx, FunctionsAreExpanded) {
  const std::string call = Bytes(7, "own"), in = Bytes(11, Value("x", {2})), out = Bytes(12, Value("y", {2}));
  const std::string graph =
      Bytes(1, NodeBytes("f", {"x"}, "t") + call) + Bytes(1, NodeBytes("f", {"t"}, "y") + call) + in + out;
  const std::string bytes = Model(graph) + Function(Bytes(7, NodeBytes("Neg", {"a"}, "n")) +
                                                    Bytes(7, NodeBytes("Relu", {"n"}, "b")));
  const auto network = LoadOnnx(std::as_bytes(std::span(bytes)), "m.onnx");
  ASSERT_TRUE(network) << network.error().message();
  EXPECT_EQ(network->graph.nodes.size(), 4u);
  EXPECT_THAT(Message(Model(graph) + Function(Bytes(7, NodeBytes("f", {"a"}, "b") + call))),
              HasSubstr("perhaps itself"));
}

std::string Entry(const std::string& key, const std::string& value) {
  return Bytes(13, Bytes(1, key) + Bytes(2, value));
}
TEST(LoadOnnx, ExternalDataStaysInTheFolder) {
  TestFolder folder;
  folder.Write("secret.bin", "12345678");
  folder.Write("model/w.bin", "xxxx" + FloatBytes({10, 20}));
  const auto load = [&](const std::string& entries) {
    return LoadOnnx(folder.Write("model/m.onnx", Sum(Tensor("w", {2}, 1, entries + Int(14, 1)))));
  };
  const auto good = load(Entry("location", "w.bin") + Entry("offset", "4") + Entry("length", "8"));
  ASSERT_TRUE(good) << good.error().message();
  EXPECT_FALSE(load(Entry("location", "../secret.bin")));
  EXPECT_FALSE(load(Entry("location", (folder.path() / "secret.bin").string())));
  std::filesystem::create_symlink(folder.path() / "secret.bin", folder.path() / "model/link.bin");
  EXPECT_FALSE(load(Entry("location", "link.bin")));
  EXPECT_THAT(load(Entry("location", "w.bin") + Entry("offset", "99")).error().message(),
              HasSubstr("begins at byte 99"));
  EXPECT_THAT(load(Entry("location", "w.bin") + Entry("length", "99")).error().message(),
              HasSubstr("leads out of"));
  EXPECT_THAT(load(Entry("location", "w.bin") + Entry("length", "-1")).error().message(),
              HasSubstr("is not a number"));
}

}  // namespace
}  // namespace celer::graph
