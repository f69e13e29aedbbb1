// The calibrated methods, layer by layer.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/log.h"
#include "formats/decode.h"
#include "quantize/llm/awq.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/fp8_matrix.h"
#include "quantize/llm/gptq.h"
#include "quantize/llm/layer/layer_worker.h"
#include "quantize/llm/quantize.h"
#include "quantize/llm/smooth_quant.h"
#include "quantize/llm/source_hash.h"
#include "quantize/llm/work_folder.h"

namespace celer {
namespace {

constexpr const char* kGgufParts[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                      "ffn_gate", "ffn_up", "ffn_down"};

// The vectors that AWQ changes, by their names in both containers.
struct VectorNames {
  std::string attention_norm, ffn_norm, v_bias, up_bias;
};
VectorNames NamesOf(bool gguf, int64_t layer) {
  const std::string p = gguf ? fmt::format("blk.{}.", layer) : fmt::format("model.layers.{}.", layer);
  if (gguf) return {p + "attn_norm.weight", p + "ffn_norm.weight", p + "attn_v.bias", p + "ffn_up.bias"};
  return {p + "input_layernorm.weight", p + "post_attention_layernorm.weight", p + "self_attn.v_proj.bias",
          p + "mlp.up_proj.bias"};
}

// Where the time of a layer goes: " read 0.21, look 3.50".
class LapWatch {
 public:
  void Lap(const char* what) {
    const auto now = std::chrono::steady_clock::now();
    text_ += fmt::format("{} {} {:.2f}", text_.empty() ? "" : ",", what,
                         std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }
  const std::string& text() const { return text_; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::string text_;
};

class PartMaker {
 public:
  PartMaker(const Model& model, bool gguf, const QuantizePlan& plan, Method method, LayerWorker& worker,
            ThreadPool& pool)
      : model_(model), gguf_(gguf), plan_(plan), method_(method), worker_(worker), pool_(pool) {}

  Result<QuantizedParts> Run(const QuantizeProgress& progress, WorkFolder* work) {
    const int64_t layers = model_.config().layers, finished = work->finished();
    // All is there: only the output is still to be written.
    if (finished >= layers && (work->has_head() || !HeadBlocks())) return work->Parts(plan_);
    for (int64_t i = 0; i < layers; ++i) {
      parts_ = {};
      watch_ = {};
      layer_.Read(model_, i, pool_);
      model_.DropPages();
      watch_.Lap("read");
      if (i < finished) {
        CELER_RETURN_IF_ERROR(ReplayLayer(i, *work));
        continue;
      }
      CELER_RETURN_IF_ERROR(Layer(i));
      CELER_RETURN_IF_ERROR(work->Save(i, parts_));
      watch_.Lap("keep");
      log::Info("layer {}: seconds to{}", i, watch_.text());
      parts_ = {};  // from here on it is in its file
      if (progress) CELER_RETURN_IF_ERROR(progress(i + 1, layers));
    }
    CELER_RETURN_IF_ERROR(Head(work));
    return work->Parts(plan_);
  }

 private:
  // Resuming: a layer that is finished already; the hidden states go through its quantized form.
  Status ReplayLayer(int64_t index, const WorkFolder& work) {
    CELER_ASSIGN(parts_, work.Load(index, plan_));
    const LayerWeights& weights = model_.weights().layers[index];
    for (int p = 0; p < kProjections; ++p) {
      const std::string name(ViewOf(weights, static_cast<Projection>(p)).name);
      LayerFloats::Matrix& m = layer_.matrices[p];
      if (const auto ints = parts_.ints.find(name); ints != parts_.ints.end())
        ints->second.Decode(m.values.data(), pool_);
      else if (const auto blocks = parts_.blocks.find(name); blocks != parts_.blocks.end())
        DecodeBlocks(plan_.Find(name)->target, blocks->second, &m);
      else if (const auto floats = parts_.floats.find(name); floats != parts_.floats.end())
        m.values.assign(floats->second.begin(), floats->second.end());
    }
    const VectorNames names = NamesOf(gguf_, index);
    const auto take = [&](const std::string& name, std::vector<float>* to) {
      if (const auto found = parts_.floats.find(name); found != parts_.floats.end()) *to = found->second;
    };
    take(names.attention_norm, &layer_.attention_norm);
    take(names.ffn_norm, &layer_.ffn_norm);
    take(names.v_bias, &layer_.v_bias);
    take(names.up_bias, &layer_.up_bias);
    CELER_RETURN_IF_ERROR(worker_.Load(&layer_, index));
    return worker_.Advance();
  }

  Status Layer(int64_t index) {
    const LayerWeights& weights = model_.weights().layers[index];
    std::array<Target, kProjections> targets;
    for (int p = 0; p < kProjections; ++p) {
      const std::string_view name = ViewOf(weights, static_cast<Projection>(p)).name;
      const PlannedTensor* planned = plan_.Find(name);
      if (!planned) return Error::Unsupported(model_.path(), ": '", name, "' is not a tensor of its own");
      targets[p] = planned->target;
    }
    const bool smooth = method_ == Method::kSmooth,
               awq = method_ == Method::kAwq || method_ == Method::kAwqGptq;
    LayerSamples samples;
    CELER_RETURN_IF_ERROR(worker_.Load(&layer_, index));
    CELER_RETURN_IF_ERROR(worker_.Observe(smooth ? &samples : nullptr));
    watch_.Lap("look");
    if (smooth || awq) {
      CELER_ASSIGN(LayerStatistics * statistics, worker_.Statistics());
      const auto alphas =
          smooth ? FoldSmoothScales(model_.config(), targets, samples, &layer_, statistics, pool_)
                 : FoldAwqScales(model_.config(), targets, &layer_, statistics, pool_);
      log::Info("layer {}: alpha {:.2f} {:.2f} {:.2f} {:.2f}", index, alphas[0], alphas[1], alphas[2],
                alphas[3]);
      CELER_RETURN_IF_ERROR(worker_.Load(&layer_, index));
      KeepVectors(index);
      watch_.Lap("scale");
    }
    CELER_RETURN_IF_ERROR(Round(index, targets));
    watch_.Lap("round");
    CELER_RETURN_IF_ERROR(worker_.Advance());
    watch_.Lap("advance");
    return {};
  }

  // The head, if it becomes GGUF blocks.
  const PlannedTensor* HeadBlocks() const {
    const PlannedTensor* planned = plan_.Find(model_.weights().head.name);
    const bool blocks =
        planned && planned->target.kind == Target::Kind::kStored && IsBlockQuantized(planned->target.dtype);
    return blocks ? planned : nullptr;
  }

  // Its rows are many: some at a time.
  Status Head(WorkFolder* work) {
    constexpr int64_t kAtOnce = 4096;
    const WeightView& view = model_.weights().head;
    const PlannedTensor* planned = HeadBlocks();
    if (!planned) return {};
    const DType dtype = planned->target.dtype;
    CELER_ASSIGN(const InputStatistics input, worker_.ObserveHead());
    const std::vector<float> importance = input.MeanSquares();
    std::optional<GptqSolver> solver;
    if (UsesGptq() && GridOf(dtype).levels > 0) {
      CELER_ASSIGN(solver, GptqSolver::Make(input, {}, planned->name, pool_));
    }
    const int64_t bytes = *BytesFor(dtype, view.cols);
    AlignedVector<float> values;
    std::vector<std::byte> out;
    const auto fill = [&](const TensorSpec&, const TensorSink& sink) -> Status {
      for (int64_t row = 0; row < view.rows; row += kAtOnce) {
        const int64_t count = std::min(kAtOnce, view.rows - row);
        values.resize(count * view.cols);
        pool_.ParallelFor(count, 16, [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) DecodeWeightRow(view, row + r, values.data() + r * view.cols);
        });
        if (solver) {
          out = solver->QuantizeBlocks(values.data(), count, dtype, pool_);
        } else {
          out.resize(count * bytes);
          EncodeRows(dtype, values.data(), count, view.cols, importance.data(), out.data());
        }
        CELER_RETURN_IF_ERROR(sink(out));
      }
      return {};
    };
    CELER_RETURN_IF_ERROR(work->SaveHead(*planned, fill));
    model_.DropPages();
    return {};
  }

  bool UsesGptq() const { return method_ == Method::kGptq || method_ == Method::kAwqGptq; }

  void KeepVectors(int64_t index) {
    const VectorNames names = NamesOf(gguf_, index);
    parts_.floats[names.attention_norm] = layer_.attention_norm;
    parts_.floats[names.ffn_norm] = layer_.ffn_norm;
    if (!layer_.v_bias.empty()) parts_.floats[names.v_bias] = layer_.v_bias;
    if (!layer_.up_bias.empty()) parts_.floats[names.up_bias] = layer_.up_bias;
  }

  // Quantizes the layer's matrices and replaces them by their dequantized values.
  Status Round(int64_t index, const std::array<Target, kProjections>& targets) {
    const LayerWeights& weights = model_.weights().layers[index];
    for (int p = 0; p < kProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      CELER_RETURN_IF_ERROR(RoundOne(projection, std::string(ViewOf(weights, projection).name), targets[p]));
    }
    return {};
  }

  Status RoundOne(Projection p, const std::string& name, const Target& target) {
    LayerFloats::Matrix& m = layer_[p];
    if (target.kind == Target::Kind::kKeep)  // with scales folded in it is stored anew, in the type it has
      return method_ == Method::kGptq ? Status() : KeepFolded(name, m);
    if (target.kind == Target::Kind::kInt && UsesGptq()) {
      CELER_ASSIGN(parts_.ints[name], worker_.Gptq(p, target, name));
      return {};
    }
    if (target.kind == Target::Kind::kStored && UsesGptq() && GridOf(target.dtype).levels > 0) {
      CELER_ASSIGN(parts_.blocks[name], worker_.GptqBlocks(p, target.dtype, name));
      DecodeBlocks(target, parts_.blocks[name], &m);
    } else if (target.kind == Target::Kind::kFp8) {
      parts_.blocks[name] = Fp8Matrix::Of(m.values.data(), m.rows, m.cols, pool_).ToBytes();
      DecodeBlocks(target, parts_.blocks[name], &m);
    } else {
      CELER_ASSIGN(const std::vector<float> importance, worker_.MeanSquares(InputOf(p)));
      if (target.kind == Target::Kind::kStored) {
        std::vector<std::byte>& blocks = parts_.blocks[name];
        blocks.resize(m.rows * *BytesFor(target.dtype, m.cols));
        EncodeRows(target.dtype, m.values.data(), m.rows, m.cols, importance.data(), blocks.data());
        DecodeBlocks(target, blocks, &m);
      } else {
        IntTensor& ints = parts_.ints[name];
        ints = RoundToNearest(m.values.data(), m.rows, m.cols, target, importance.data(), kGridCandidates,
                              pool_);
        ints.Decode(m.values.data(), pool_);
      }
    }
    worker_.Changed(p);
    return {};
  }

  void DecodeBlocks(const Target& target, const std::vector<std::byte>& blocks, LayerFloats::Matrix* m) {
    if (target.kind == Target::Kind::kFp8) {
      const Fp8Matrix fp8 = Fp8Matrix::FromBytes(m->rows, m->cols, blocks);
      for (int64_t r = 0; r < m->rows; ++r) fp8.DecodeRow(r, m->values.data() + r * m->cols);
      return;
    }
    const int64_t bytes = *BytesFor(target.dtype, m->cols);
    pool_.ParallelFor(m->rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        DecodeRow(target.dtype, blocks.data() + r * bytes, m->cols, m->values.data() + r * m->cols);
    });
  }

  Status KeepFolded(const std::string& name, const LayerFloats::Matrix& m) {
    const PlannedTensor& planned = *plan_.Find(name);
    if (IsBlockQuantized(planned.dtype) || !CanEncode(planned.dtype))
      return Error::Invalid("'", name, "' is kept as ", Name(planned.dtype), ", and ", Name(method_),
                            " changes it; give it a format with --tensor, or take --method gptq");
    parts_.floats[name] = {m.values.begin(), m.values.end()};
    return {};
  }

  void EncodeRows(DType dtype, const float* w, int64_t rows, int64_t cols, const float* importance,
                  std::byte* out) {
    const int64_t bytes = *BytesFor(dtype, cols);
    pool_.ParallelForDynamic(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) EncodeRow(dtype, w + r * cols, cols, out + r * bytes, importance);
    });
  }

  const Model& model_;
  bool gguf_;
  const QuantizePlan& plan_;
  Method method_;
  LayerWorker& worker_;
  ThreadPool& pool_;
  LayerFloats layer_;
  LayerParts parts_;  // of that layer
  LapWatch watch_;
};

}  // namespace

Result<QuantizedParts> MakeParts(const Model& model, bool gguf, const QuantizePlan& plan, Method method,
                                 const CalibrationText& text, ThreadPool& pool,
                                 const std::filesystem::path& work, const QuantizeProgress& progress,
                                 const Device& device) {
  CELER_ASSIGN(const std::string key, PartsKey(model.path(), plan, method, text, device, pool));
  CELER_ASSIGN(WorkFolder folder, WorkFolder::Open(work, key));
  CELER_ASSIGN(const std::unique_ptr<LayerWorker> worker, MakeLayerWorker(device, model, text, pool));
  return PartMaker(model, gguf, plan, method, *worker, pool).Run(progress, &folder);
}

Result<ImportanceMatrix> CollectImportance(const Model& model, const CalibrationText& text, ThreadPool& pool,
                                           const QuantizeProgress& progress) {
  CELER_ASSIGN(Calibration calibration, Calibration::Make(model, text.tokens, text.window, pool));
  ImportanceMatrix out;
  out.chunks = calibration.windows();
  out.chunk_tokens = text.window;
  const int64_t layers = model.config().layers;
  LayerFloats layer;
  for (int64_t i = 0; i < layers; ++i) {
    layer.Read(model, i, pool);
    model.DropPages();
    CELER_RETURN_IF_ERROR(
        calibration.Advance(layer, i, [&](LayerInput input, const float* x, int64_t tokens, int64_t cols) {
          const std::string prefix = fmt::format("blk.{}.", i);
          std::string first;
          for (int p = 0; p < kProjections; ++p) {
            if (InputOf(static_cast<Projection>(p)) != input) continue;
            const std::string name = prefix + kGgufParts[p] + ".weight";
            if (first.empty()) {
              out.Add(name, x, tokens, cols);
              first = name;
            } else {
              out.Get(name) = out.Get(first);
            }
          }
        }));
    if (progress) CELER_RETURN_IF_ERROR(progress(i + 1, layers));
  }
  const int64_t hidden = model.config().hidden;
  if (!model.config().tied_embeddings) {
    const std::vector<float> squares = HeadStatistics(model, calibration.states(), pool).MeanSquares();
    ImportanceMatrix::Entry& head = out.Get("output.weight");
    head.counts = {static_cast<float>(calibration.tokens())};
    head.sums.resize(hidden);
    for (size_t c = 0; c < head.sums.size(); ++c) head.sums[c] = squares[c] * head.counts[0];
  }
  return out;
}

}  // namespace celer
