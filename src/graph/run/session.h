// Runs a program. A session keeps its memory from run to run; several sessions may share one program, each on
// its own thread.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "device/buffer.h"
#include "device/thread_pool.h"
#include "graph/run/memory_plan.h"
#include "graph/run/program.h"

namespace celer::graph {

class Session {
 public:
  // The pool outlives the session.
  explicit Session(std::shared_ptr<const Program> program, ThreadPool& pool = DefaultThreadPool());

  const Program& program() const { return *program_; }

  // Inputs by the order of the graph's inputs. Outputs are views that hold until the next run, by the order
  // of the graph's outputs.
  Result<std::vector<Data>> Run(std::vector<Data> inputs);

  // Called after each node of the main graph with what it made; for comparing and timing.
  using Observer =
      std::function<void(const Node& node, const std::vector<const Data*>& outputs, double seconds)>;
  void Observe(Observer observer) { observer_ = std::move(observer); }

  // The plan of the last run.
  const MemoryPlan* plan() const { return plans_.empty() ? nullptr : &plans_.front(); }

 private:
  Result<MemoryPlan*> PlanFor(const std::vector<Data>& inputs);
  Status Attach(MemoryPlan& plan);

  std::shared_ptr<const Program> program_;
  ThreadPool& pool_;
  Observer observer_;
  std::list<MemoryPlan> plans_;  // the last used first; bounded
  Buffer arena_;
};

}  // namespace celer::graph
