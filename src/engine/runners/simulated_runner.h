// A simulated device: for tests of the engine, and for capacity planning (`--simulate`). Its model continues
// a text by a hash of it, so however the engine schedules blocks, batches and chunks, the text must come out
// the same. It checks every step: each slot of its KV records which text was written there, and reading
// anything else is an error.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/runners/runner.h"

namespace celer {

// The simulated model: logits are a hash of the tokens before.
struct HashModel {
  int64_t vocab = 64;
  uint64_t seed = 0;  // another one, another model
  // The logits depend on this many tokens alone, so that a text begins to repeat itself; 0: on all before.
  int64_t order = 0;

  uint64_t Start() const;                                    // of the empty text
  static uint64_t Extend(uint64_t prefix, int32_t token);    // the hash of a text with one more token
  void Logits(uint64_t prefix, std::span<float> row) const;  // [vocab], in [-3, 4]
  void Hidden(uint64_t prefix, std::span<float> row) const;  // [hidden], in [-1, 1]
  int32_t Largest(uint64_t prefix) const;                    // the token with the largest of them
  uint64_t HashOf(std::span<const int32_t> tokens) const;    // what the logits after `tokens` come from
  int32_t Largest(std::span<const int32_t> tokens) const { return Largest(HashOf(tokens)); }
};

class SimulatedRunner : public Runner {
 public:
  struct Options {
    HashModel model = {};  // its vocab is the configuration's
    // Whatever the engine is to know. `kv_blocks`, `kv_host_blocks` and `context` are needed;
    // max_positions is the context if it is 0.
    Info info = {};
    bool runs_ahead = false;  // asynchronous scheduling: steps are queued before the previous ones are taken
    // Checks all positions that a step reads, not the last one alone: a step then costs as much as its texts
    // are long.
    bool verify = true;
    // Seconds of the virtual clock. None: a step takes no time.
    std::function<double(std::span<const Slice>)> step_seconds = {};
    double copy_block_s = 0, swap_block_s = 0;
    std::function<std::vector<OperatorWork>(const StepShape&)> work = {};
  };
  explicit SimulatedRunner(Options options);

  // The virtual clock. A step that is taken moves it on.
  double now() const { return now_; }
  void AdvanceTo(double seconds);  // nothing happens until then; no effect if that is past

  const Info& info() const override { return options_.info; }
  // Errors: a table that does not cover the positions, a block that is not in the pool, two slices that write
  // one block, a token outside the vocabulary.
  Status Queue(std::span<const Slice> slices) override;
  // Errors: a position, or a state, that holds something else than the text of its sequence.
  Result<StepOutput> Take() override;
  // As on a GPU that has begun them, dropped steps still write their slots, with garbage.
  void DropQueued() override;
  // With Options::runs_ahead, after a step that only decodes.
  bool RunsAhead(std::span<const Slice> slices) const override;

  Status CopyBlocks(std::span<const BlockCopy> copies) override;
  Status SwapOut(std::span<const BlockCopy> copies) override;
  Status SwapIn(std::span<const BlockCopy> copies) override;
  Status ClearBlocks(std::span<const int32_t> blocks) override;
  Status CopyStates(std::span<const BlockCopy> copies) override;
  Result<int64_t> BlockBytes() const override { return static_cast<int64_t>(kKvBlockTokens * sizeof(Slot)); }
  Status ReadBlocks(std::span<const int32_t> blocks, std::span<std::byte> out) override;
  Status WriteBlocks(std::span<const int32_t> blocks, std::span<const std::byte> bytes) override;

  std::vector<OperatorWork> Work(const StepShape& shape) const override;
  // Any adapters: another text follows with others.
  Status CheckLora(const LoraMix&) const override { return {}; }
  void set_profile(OpProfile*) override {}
  void set_watch(LayerWatch) override {}

 private:
  // One position of the KV: the text up to there, and its last token. Zeros: nothing was written.
  struct Slot {
    uint64_t prefix;
    int32_t token_and_1;

    int32_t token() const { return token_and_1 - 1; }
  };
  // Zeros that take no memory before they are written: a large machine's KV has more slots than a trace uses.
  class Slots {
   public:
    explicit Slots(int64_t blocks);
    Slot& operator[](int64_t i) { return slots_.get()[i]; }
    const Slot& operator[](int64_t i) const { return slots_.get()[i]; }
    std::span<Slot> Block(int32_t block);

   private:
    struct Unmap {
      void operator()(Slot* slots) const;
      size_t bytes;
    };
    std::unique_ptr<Slot, Unmap> slots_{nullptr, Unmap{0}};
  };
  // A slice, with what it needs of the spans in the step's own vectors.
  struct Part {
    int64_t sequence = 0, position = 0;
    int32_t state = -1, draft_state = -1;
    int64_t certain = 0;
    int64_t first_token = 0, tokens = 0;
    int64_t first_block = 0;  // of the sequence, that is the first of its `blocks`
    int64_t blocks = 0;       // where they begin
    int64_t history = 0, history_size = 0;
    Slice::Rows rows = Slice::Rows::kNone;
    bool keeps_hidden = false;
    Sampler* sampler = nullptr;
    uint64_t start = 0;  // the hash that its text begins with
  };
  struct Step {
    std::vector<Part> parts;
    std::vector<int32_t> tokens, blocks, history;
    double seconds = 0;
    std::vector<std::function<void()>> after;  // block copies and swaps that follow it
  };

  Status Check(std::span<const Slice> slices);
  uint64_t StartOf(const Slice& slice) const;
  static std::function<void()> Copies(std::span<const BlockCopy> copies, Slots& from, Slots& to);
  Status InOrder(double seconds, std::function<void()> block_operation);
  int64_t SlotOf(const Step& step, const Part& part, int64_t position) const;
  Status Verify(const Step& step, const Part& part) const;
  Status VerifyState(const Step& step, const Part& part) const;
  Status Run(const Step& step, const Part& part, StepOutput* output);
  uint64_t HashAt(const Step& step, const Part& part, int64_t position) const;  // for the logits

  Options options_;
  Slots kv_, host_;
  std::deque<Step> queued_;
  std::unordered_map<int64_t, int32_t> chosen_;  // by the step taken last
  std::vector<float> logits_, hidden_, row_;
  std::vector<uint64_t> states_;  // [slots]: the text that the state is of; 0: nothing
  std::vector<int64_t> written_;  // [blocks]: the step that was queued last to write it
  int64_t steps_ = 0;
  double now_ = 0;
};

}  // namespace celer
