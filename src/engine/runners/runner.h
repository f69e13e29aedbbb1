// A device that runs a model. The engine hands it steps and takes their outputs, and knows nothing else about
// where the model lives: a CPU, a GPU, or several of them behind one Runner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/limits.h"
#include "engine/sample/sampler.h"
#include "kernels/llm/kv_block.h"
#include "models/config/decoder_config.h"
#include "models/layer_watch.h"
#include "models/op_profile.h"

namespace celer {

class LoraMix;  // models/lora/lora.h

// Consecutive tokens of one sequence: the part of a prompt, or the last token of a text that goes on.
struct Slice {
  // Placeholder for the token that the step queued before this one samples for the same sequence.
  static constexpr int32_t kChosenBefore = -1;
  enum class Rows : uint8_t {
    kNone,        // a prompt that goes on in a later step
    kSample,      // a token is chosen after the last one, by `sampler`
    kLast,        // the logits after the last one
    kAll,         // the logits after each one; with a draft_state from the last certain one on
    kHidden,      // the hidden state of each one, after the last norm
    kLastHidden,  // of the last one
  };

  int64_t sequence = 0;
  std::span<const int32_t> tokens = {};
  int64_t position = 0;  // of the first of them
  // Of a model with recurrent layers: the slot that holds the sequence's state after all tokens before `position`, and
  // then the one after these.
  int32_t state = -1;
  // Likewise, of drafted tokens, which may be rejected: only the first `certain` tokens change that state, and the others
  // leave theirs in this slot. -1: none are drafted.
  int32_t draft_state = -1;
  int64_t certain = 0;
  std::span<const int32_t> block_table = {};  // blocks for all positions up to the last of them
  Rows rows = Rows::kSample;
  // Rope scaling that depends on the length of a text takes it to be this long from its first token on. 0: up
  // to the last token here.
  int64_t prompt_length = 0;
  // With kSample. Take() lets it accept the token.
  Sampler* sampler = nullptr;
  std::span<const int32_t> history = {};  // prompt and output as far as they are known; penalties count them
  std::shared_ptr<const LoraMix> lora =
      {};                     // adapters of this sequence, which CheckLora() has passed; may be none
  bool keeps_hidden = false;  // the hidden state of each token is wanted besides
  // Of a predictor (TakePredictor): [tokens, hidden], the model's hidden state in front of each token.
  std::span<const float> before = {};

  int64_t count() const { return static_cast<int64_t>(tokens.size()); }
  // Tokens whose logits are needed, and whose hidden states are: always the last ones.
  int64_t row_count() const {
    return rows == Rows::kSample || rows == Rows::kLast ? 1
           : rows != Rows::kAll                         ? 0
           : draft_state >= 0 && certain > 0            ? count() - certain + 1
                                                        : count();
  }
  int64_t hidden_count() const {
    return rows == Rows::kHidden || keeps_hidden ? count() : rows == Rows::kLastHidden ? 1 : 0;
  }
};

struct StepOutput {
  std::vector<Sampler::Choice> choices;  // of the slices with kSample, in their order
  // [rows, vocab] of the slices with kLast and kAll, in their order. Valid until the next call.
  std::span<const float> logits;
  // [rows, hidden] of the slices with kHidden, kLastHidden and keeps_hidden, likewise. All numbers of a row are NaN if the
  // last layer's output is not finite.
  std::span<const float> hidden;
};

class Runner {
 public:
  virtual ~Runner() = default;

  struct Info {
    DecoderConfig config;
    std::string device;  // "cpu", "cuda:0 (NVIDIA H200)"
    int threads = 0;
    int64_t context = 0;       // tokens of the longest sequence
    int64_t weight_bytes = 0;  // read by one decode step
    std::map<std::string, int64_t> bytes_by_format;
    int64_t kv_bytes_per_token = 0;
    int64_t kv_blocks = 0;       // of the pool
    int64_t kv_host_blocks = 0;  // where Swap() puts them
    int64_t state_slots = 0;     // for states of sequences; 0: the model has no recurrent layers
    bool drafts_states = false;  // it takes Slice::draft_state
    // Of several devices that share the layers: what each reads of weight_bytes.
    struct Part {
      std::string device;
      int64_t weight_bytes = 0;
    };
    std::vector<Part> parts = {};
    int64_t crossings = 0;  // from one device to another, of each decode step; there and back for experts
    // That set_watch() shows; those in front of it are watched together, as the one before it.
    int64_t first_layer = 0;
  };
  virtual const Info& info() const = 0;

  // A sentence if sequences cannot run with these adapters here. Asked before a request is taken: a slice with adapters
  // that did not pass is a programmer's mistake.
  virtual Status CheckLora(const LoraMix&) const {
    return Error::Unsupported("LoRA adapters do not run on ", info().device,
                              "; merge them into the model with celer merge");
  }

  // Queues a step. It may be queued before the one in front of it is taken: its slices then say kChosenBefore
  // for tokens that are not known yet. Only the samplers must live until it is taken or dropped.
  virtual Status Queue(std::span<const Slice> slices) = 0;
  // Waits for the step queued first among those not taken.
  virtual Result<StepOutput> Take() = 0;
  // Discards steps that were queued and not taken. Their keys and values may still be written, before those
  // of any step queued later.
  virtual void DropQueued() = 0;
  // Whether asynchronous scheduling pays: the device can continue with the next step without waiting for the
  // host, if it is queued before this one is taken.
  virtual bool RunsAhead(std::span<const Slice> slices) const = 0;

  // Blocks of the pool, in order with the steps.
  virtual Status CopyBlocks(std::span<const BlockCopy> copies) = 0;
  virtual Status SwapOut(std::span<const BlockCopy> copies) = 0;    // from the pool to host blocks
  virtual Status SwapIn(std::span<const BlockCopy> copies) = 0;     // from host blocks to the pool
  virtual Status ClearBlocks(std::span<const int32_t> blocks) = 0;  // zeros
  // Slots of states, likewise.
  virtual Status CopyStates(std::span<const BlockCopy>) {
    return Error::Unsupported("the device keeps no states of sequences");
  }

  // Blocks of the pool as bytes, one block behind the other, which an engine with the same model, format and kernels may
  // put into its own pool (server/kv_transfer). Read: what the steps taken so far have written. Written: in order with the
  // steps. An error: they are not all in this runner's hands.
  virtual Result<int64_t> BlockBytes() const { return NotTransferred(); }
  virtual Status ReadBlocks(std::span<const int32_t>, std::span<std::byte>) { return NotTransferred(); }
  virtual Status WriteBlocks(std::span<const int32_t>, std::span<const std::byte>) {
    return NotTransferred();
  }

  // Gives the memory of all blocks, and of what can be read from the model's file again, back to the system until it is
  // used. The contents of the blocks are lost; what is read of them meanwhile is finite.
  virtual Status DiscardKv() { return {}; }

  // Once, where options.speculation asks for it: the model's layers for multi-token prediction, which draft (draft_model.h).
  // It uses this runner's weights, so that this one must outlive it.
  virtual std::unique_ptr<Runner> TakePredictor() { return nullptr; }

  // The least that a step of this shape must read and compute, for the operators that the model has.
  virtual std::vector<OperatorWork> Work(const StepShape& shape) const = 0;
  // Adds up each operator's time there, until set to nullptr again. No step may be queued.
  virtual void set_profile(OpProfile* profile) = 0;
  // Sees every layer of the steps from now on; empty ends it.
  virtual void set_watch(LayerWatch watch) = 0;

 protected:
  Error NotTransferred() const {
    return Error::Unsupported("keys and values on ", info().device,
                              " are in several places, and KV transfer takes them from one alone");
  }
};

}  // namespace celer
