#include "engine/runners/group/stage_facts.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>

#include "models/load/shard.h"

namespace celer {
namespace {

// The arithmetic of a matrix, as a number.
constexpr const char* kCompute[] = {"int8", "bf16", "f32"};

class Writer {
 public:
  void Number(int64_t& n) { numbers.push_back(n); }
  void Compute(const char*& name) {
    const auto found = std::find(std::begin(kCompute), std::end(kCompute), std::string_view(name));
    numbers.push_back(found - std::begin(kCompute));
  }
  template <class T>
  void List(std::vector<T>& list) {
    numbers.push_back(std::ssize(list));
  }
  std::vector<int64_t> numbers;
};

class Reader {
 public:
  explicit Reader(std::span<const int64_t> numbers) : left_(numbers) {}
  void Number(int64_t& n) {
    ok_ = ok_ && !left_.empty();
    if (!ok_) return;
    n = left_.front();
    left_ = left_.subspan(1);
  }
  void Compute(const char*& name) {
    int64_t number = 0;
    Number(number);
    ok_ = ok_ && number >= 0 && number < std::ssize(kCompute);
    if (ok_) name = kCompute[number];
  }
  template <class T>
  void List(std::vector<T>& list) {
    int64_t count = 0;
    Number(count);
    ok_ = ok_ && count >= 0 && count <= std::ssize(left_);
    if (ok_) list.resize(static_cast<size_t>(count));
  }
  bool done() const { return ok_ && left_.empty(); }

 private:
  std::span<const int64_t> left_;
  bool ok_ = true;
};

void Pass(auto& to, MatrixSize& m) {
  to.Number(m.rows);
  to.Number(m.cols);
  to.Number(m.bytes);
  to.Compute(m.compute);
}
void Pass(auto& to, StepMatrices::Expert& e) {
  for (MatrixSize* m : {&e.gate, &e.up, &e.down}) Pass(to, *m);
}
void Pass(auto& to, auto& list) requires requires {
  list.begin();
}
{
  to.List(list);
  for (auto& each : list) Pass(to, each);
}
void Pass(auto& to, StepMatrices::Layer& layer) {
  Pass(to, layer.qkv);
  Pass(to, layer.output);
  Pass(to, layer.dense);
  Pass(to, layer.experts);
  Pass(to, layer.shared);
  for (MatrixSize* m : {&layer.router, &layer.shared_gate}) Pass(to, *m);
  Pass(to, layer.beside);
}
void PassAll(auto& to, StageFacts& facts) {
  to.Number(facts.kv_bytes_per_token);
  to.Number(facts.matrices.embedding_row_bytes);
  to.List(facts.matrices.layers);
  for (StepMatrices::Layer& layer : facts.matrices.layers) Pass(to, layer);
  Pass(to, facts.matrices.head);
}

}  // namespace

Result<std::vector<StageFacts>> GatherStages(StageLink& link, const Model& model, int64_t kv_bytes_per_token,
                                             const std::vector<LayerRange>& stages) {
  Writer writer;
  StageFacts own = {
      .config = {}, .matrices = MatricesOf(model.weights()), .kv_bytes_per_token = kv_bytes_per_token};
  PassAll(writer, own);
  CELER_ASSIGN(const auto messages, GatherMessages(link.all(), std::as_bytes(std::span(writer.numbers))));
  DecoderConfig part = model.whole_config();
  if (link.shares() > 1) {
    CELER_ASSIGN(Shard shard, PlanShard(part, {.rank = 0, .size = link.shares()}));
    part = std::move(shard.config);
  }
  std::vector<StageFacts> others;
  for (int stage = 0; stage < link.stages(); ++stage) {
    if (stage == link.stage()) continue;
    const auto rank = static_cast<size_t>(link.FirstRank(stage));
    std::vector<int64_t> numbers(messages[rank].size() / sizeof(int64_t));
    std::memcpy(numbers.data(), messages[rank].data(), numbers.size() * sizeof(int64_t));
    StageFacts& facts = others.emplace_back();
    facts.config = SliceLayers(part, stages[static_cast<size_t>(stage)]);
    Reader reader(numbers);
    PassAll(reader, facts);
    if (!reader.done() || std::ssize(facts.matrices.layers) != facts.config.layers)
      return Error::Corrupt("rank ", rank, " sent sizes of its matrices that are none");
  }
  return others;
}

}  // namespace celer
