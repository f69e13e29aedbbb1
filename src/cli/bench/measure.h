// The measurements of `celer bench`, through the engine that every command uses: token ids in, steps timed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "celer/engine.h"

namespace celer::cli {

struct BenchPlan {
  std::vector<int64_t> prompts = {256};  // tokens of a prompt; empty: no prefill is measured
  std::vector<int64_t> depths = {0};     // tokens in the KV before the first measured step
  std::vector<int64_t> batches = {1};    // sequences that run together
  int64_t tokens = 64;                   // decode steps of a repetition; 0: no decode is measured
  int64_t repeat = 5;
  bool ops = false;  // time the operators too

  int64_t max_batch() const;
  int64_t positions() const;  // that the longest sequence needs
};

// One operator during one repetition, the mean over all of them.
struct BenchOp {
  OperatorWork work;
  double calls = 0;
  double seconds = 0;  // on a GPU that of the operator by itself, see OpsTable
};

struct BenchResult {
  bool prefill = false;
  int64_t length = 0;  // of the prompt, or the depth
  int64_t batch = 1;
  int64_t steps = 1;                 // decode: steps of one repetition; prefill: 1, however many chunks
  std::vector<double> seconds = {};  // of each repetition
  OperatorWork work = {};            // of one repetition
  std::vector<BenchOp> ops = {};     // with BenchPlan::ops

  int64_t tokens() const { return prefill ? batch * length : batch * steps; }  // of one repetition
  double median() const;
  double mean() const;
  double fastest() const;
  double slowest() const;
  std::string Title() const;  // "prefill 256", "decode at 4,096"
};

// From the beginning of Load() to the first token of a prompt, in this process.
struct BenchStart {
  double load_s = 0;
  double first_token_s = 0;
  int64_t prompt = 0;
};

class Bench {
 public:
  // Called before each repetition with words for a progress line.
  using Progress = std::function<void(const std::string&)>;

  // `on_loaded` gets the engine before it does anything.
  static Result<Bench> Load(const EngineOptions& options, const BenchPlan& plan, Progress progress,
                            const std::function<void(Engine&)>& on_loaded = {});

  // Every combination, each warmed up first.
  Result<std::vector<BenchResult>> Run();

  const Engine& engine() const { return *engine_; }
  bool on_gpu() const;
  const BenchStart& start() const { return start_; }

 private:
  Bench(std::unique_ptr<Engine> engine, BenchPlan plan, Progress progress)
      : engine_(std::move(engine)), plan_(std::move(plan)), progress_(std::move(progress)) {}

  std::vector<int32_t> RandomTokens(int64_t count);
  Status Prefill(int64_t prompt, int64_t batch, double* seconds);
  Result<BenchResult> MeasurePrefill(int64_t prompt, int64_t batch);
  Result<BenchResult> MeasureDecode(int64_t depth, int64_t batch);
  Status Repeat(BenchResult* result, const std::function<Status(double*)>& once);

  std::unique_ptr<Engine> engine_;
  BenchPlan plan_;
  Progress progress_;
  BenchStart start_;
  uint64_t random_ = 0;
};

}  // namespace celer::cli
