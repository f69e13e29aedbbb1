#include "quantize/llm/merge_lora.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "formats/decode.h"
#include "io/file/atomic_file.h"
#include "io/file/detect.h"
#include "io/file/disk_space.h"
#include "io/file/printable.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "models/config/part_names.h"
#include "models/load/open_model.h"
#include "models/lora/lora_adapter.h"
#include "models/lora/module_parts.h"
#include "quantize/llm/source_hash.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

struct Change {
  const LoraMatrix* matrix = nullptr;
  float scale = 1;
};

// What one row of W becomes, for adapters whose differences add up.
class Row {
 public:
  Row(int64_t cols, std::span<const Change> changes)
      : changes_(changes), before_(static_cast<size_t>(cols)), change_(before_.size()) {}

  void Apply(int64_t row, std::vector<float>* values) {
    before_ = *values;
    for (const Change& one : changes_) {
      Difference(*one.matrix, row);
      for (size_t c = 0; c < change_.size(); ++c) (*values)[c] += one.scale * change_[c];
    }
  }

 private:
  void Difference(const LoraMatrix& m, int64_t row) {
    const auto cols = std::ssize(change_);
    std::fill(change_.begin(), change_.end(), 0.0f);
    const bool embedding = m.at.place.part == LoraPart::kEmbedding;
    for (int64_t r = 0; r < m.rank; ++r)
      for (int64_t c = 0; c < cols; ++c)
        change_[c] += embedding ? (*m.a)[row * m.rank + r] * m.b[r * cols + c]
                                : m.b[r * m.at.rows + row] * (*m.a)[r * cols + c];
    if (!m.whole.empty()) {
      DecodeRow(m.whole_dtype, m.whole.data() + row * *BytesFor(m.whole_dtype, cols), cols, change_.data());
      for (int64_t c = 0; c < cols; ++c) change_[c] -= before_[c];
    }
    if (m.row_scale.empty()) return;
    for (int64_t c = 0; c < cols; ++c)
      change_[c] = (m.row_scale[row] - 1) * before_[c] + m.row_scale[row] * change_[c];
  }

  std::span<const Change> changes_;
  std::vector<float> before_, change_;
};

class Merger {
 public:
  Merger(const fs::path& path, const DecoderConfig& config, const SafetensorsModel& model, const LoraMix& mix)
      : path_(path), config_(config), model_(model), parts_(config, /*gguf=*/false) {
    for (const LoraUse& use : mix.uses())
      for (const LoraMatrix& m : use.adapter->matrices()) changes_[m.at.place].push_back({&m, use.scale});
    for (const LoraPart part : {LoraPart::kEmbedding, LoraPart::kHead})
      untied_ |= config.tied_embeddings && changes_.contains({.part = part});
  }

  // Whether the head is no longer the embedding.
  bool untied() const { return untied_; }

  // The tensors to write; an error names what cannot be.
  Result<std::vector<TensorSpec>> Plan() {
    std::vector<TensorSpec> specs;
    for (const TensorRecord& record : model_.tensors()) {
      if (untied_ && record.name == kHfNames.head) continue;  // some files store a tied head once more
      specs.push_back({record.name, record.dtype, record.shape});
      const std::vector<ModulePart> parts = parts_.Of(record.name);
      bool touched = false;
      for (const ModulePart& part : parts) {
        const auto found = changes_.find(part.at.place);
        if (found == changes_.end()) continue;
        touched = true;
        written_.insert(part.at.place);
      }
      if (IsBias(record.name))
        for (const ModulePart& part : parts_.Of(WeightOfBias(record.name)))
          if (Shifts(part.at.place)) shifted_.insert(part.at.place);
      if (touched && !CanEncode(record.dtype))
        return Error::Unsupported(path_.string(), ": tensor '", Printable(record.name), "' of type ",
                                  Name(record.dtype), " cannot be written with an adapter added");
    }
    if (untied_) CELER_RETURN_IF_ERROR(AddHead(&specs));
    for (const auto& [place, changes] : changes_) {
      const std::string& module = changes[0].matrix->module;
      if (!written_.contains(place))
        return Error::Unsupported(path_.string(), ": module '", Printable(module),
                                  "' has no tensor of its own that could be written");
      if (Shifts(place) && !shifted_.contains(place))
        return Error::Unsupported(path_.string(), ": module '", Printable(module),
                                  "' gets a bias, and the model has none there; keep the adapter beside it");
    }
    return specs;
  }

  Status Fill(const TensorSpec& spec, const TensorSink& sink) {
    const bool head = untied_ && spec.name == kHfNames.head;
    const TensorRecord& record = head ? *embedding_ : *model_.Find(spec.name);
    std::vector<ModulePart> parts = parts_.Of(spec.name);
    std::erase_if(parts, [&](const ModulePart& part) { return !changes_.contains(part.at.place); });
    const std::vector<ModulePart> biased =
        IsBias(spec.name) ? parts_.Of(WeightOfBias(spec.name)) : std::vector<ModulePart>();
    const bool shifts = std::any_of(biased.begin(), biased.end(),
                                    [&](const ModulePart& part) { return Shifts(part.at.place); });
    Status done;
    if (shifts)
      done = Bias(record, biased, sink);
    else if (parts.empty())
      done = sink(record.bytes);
    else
      done = Matrix(record, parts, sink);
    model_.DropPages(record);
    return done;
  }

 private:
  static bool IsBias(const std::string& name) { return name.ends_with(".bias"); }
  static std::string WeightOfBias(const std::string& name) {
    return name.substr(0, name.size() - std::string_view("bias").size()) + "weight";
  }

  bool Shifts(const LoraPlace& place) const {
    const auto found = changes_.find(place);
    return found != changes_.end() &&
           std::any_of(found->second.begin(), found->second.end(),
                       [](const Change& change) { return !change.matrix->shift.empty(); });
  }

  Status AddHead(std::vector<TensorSpec>* specs) {
    for (const TensorRecord& record : model_.tensors()) {
      const std::vector<ModulePart> parts = parts_.Of(record.name);
      if (parts.size() == 1 && parts[0].at.place.part == LoraPart::kEmbedding) embedding_ = &record;
    }
    if (!embedding_ || !CanEncode(embedding_->dtype))
      return Error::Unsupported(path_.string(),
                                ": the embedding, which is the head as well, cannot be written");
    const std::vector<ModulePart> head = parts_.Of(kHfNames.head);
    if (head.size() != 1 || head[0].at.place.part != LoraPart::kHead)
      return Error::Unsupported(path_.string(), ": models of the type '", config_.architecture,
                                "' keep their head under a name that is not known here");
    written_.insert(head[0].at.place);
    specs->push_back({kHfNames.head, embedding_->dtype, embedding_->shape});
    return {};
  }

  Status Matrix(const TensorRecord& record, const std::vector<ModulePart>& parts, const TensorSink& sink) {
    const int64_t cols = parts[0].at.cols, rows = parts[0].module_rows;
    const bool turned = parts[0].transposed;
    const int64_t all = *record.shape.elements(), width = turned ? rows : cols;
    if (all % (rows * cols) != 0)
      return Error::Corrupt(path_.string(), ": tensor '", Printable(record.name), "' has shape ",
                            record.shape.ToString(), ", expected ", rows, " rows of ", cols);
    std::vector<float> values(static_cast<size_t>(all));
    const int64_t line = *BytesFor(record.dtype, width);
    for (int64_t i = 0; i < all / width; ++i)
      DecodeRow(record.dtype, record.bytes.data() + i * line, width, values.data() + i * width);
    for (const ModulePart& part : parts) {
      const int64_t first = std::max<int64_t>(part.stacked ? part.at.place.expert : 0, 0) * rows * cols;
      Row change(cols, changes_.at(part.at.place));
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t r = 0; r < part.at.rows; ++r) {
        const int64_t at = part.rows(r);
        const auto element = [&](int64_t c) { return first + (turned ? c * rows + at : at * cols + c); };
        for (int64_t c = 0; c < cols; ++c) row[c] = values[element(c)];
        change.Apply(r, &row);
        for (int64_t c = 0; c < cols; ++c) values[element(c)] = row[c];
      }
    }
    std::vector<std::byte> encoded(static_cast<size_t>(line));
    for (int64_t i = 0; i < all / width; ++i) {
      EncodeRow(record.dtype, values.data() + i * width, width, encoded.data());
      CELER_RETURN_IF_ERROR(sink(encoded));
    }
    return {};
  }

  Status Bias(const TensorRecord& record, const std::vector<ModulePart>& parts, const TensorSink& sink) {
    const int64_t size = *record.shape.elements();
    if (!CanEncode(record.dtype) || size != parts[0].module_rows)
      return Error::Unsupported(path_.string(), ": tensor '", Printable(record.name), "' of type ",
                                Name(record.dtype), " and shape ", record.shape.ToString(),
                                " cannot be written with an adapter added");
    std::vector<float> values(static_cast<size_t>(size));
    DecodeRow(record.dtype, record.bytes.data(), size, values.data());
    for (const ModulePart& part : parts) {
      const auto found = changes_.find(part.at.place);
      if (found == changes_.end()) continue;
      const LoraPart p = part.at.place.part;
      const bool scaled = p == LoraPart::kO || p == LoraPart::kDown || p == LoraPart::kStateOut;
      const float factor = scaled ? config_.residual_scale : 1.0f;  // as LoadLora() has it
      for (const Change& change : found->second)
        for (size_t r = 0; r < change.matrix->shift.size(); ++r)
          values[part.rows(static_cast<int64_t>(r))] += change.scale * change.matrix->shift[r] / factor;
    }
    std::vector<std::byte> encoded(record.bytes.size());
    EncodeRow(record.dtype, values.data(), size, encoded.data());
    return sink(encoded);
  }

  const fs::path& path_;
  const DecoderConfig& config_;
  const SafetensorsModel& model_;
  ModuleParts parts_;
  std::map<LoraPlace, std::vector<Change>> changes_;
  std::set<LoraPlace> written_, shifted_;
  bool untied_ = false;
  const TensorRecord* embedding_ = nullptr;
};

Status CheckFolder(const fs::path& model) {
  CELER_ASSIGN(const FileKind kind, DetectFile(model));
  if (kind == FileKind::kHfDirectory) return {};
  return Error::Unsupported(model.string(), ": merge writes a Hugging Face folder out of one, and this is ",
                            Name(kind), "; run it with --lora, or merge into the folder it was made from");
}

}  // namespace

Status MergeLora(const fs::path& model, const LoraMix& mix, const fs::path& out) {
  CELER_RETURN_IF_ERROR(CheckFolder(model));
  CELER_ASSIGN(const nlohmann::json parsed, ReadJsonFile(model / "config.json"));
  const nlohmann::json& text = parsed.contains("text_config") ? parsed["text_config"] : parsed;
  for (const nlohmann::json* const one : {&parsed, &text})
    if (one->is_object() && one->contains("quantization_config"))
      return Error::Unsupported(
          model.string(), ": its weights are quantized, and sums with an adapter are not; ",
          "merge into the model it was made from and quantize that, or run it with --lora");
  CELER_ASSIGN(DecoderConfig config, ReadHfConfig(model / "config.json"));
  CELER_ASSIGN(const SafetensorsModel tensors, SafetensorsModel::Open(model));
  Merger merger(model, config, tensors, mix);
  CELER_ASSIGN(const std::vector<TensorSpec> specs, merger.Plan());
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += *BytesFor(spec.dtype, *spec.shape.elements());
  CELER_RETURN_IF_ERROR(CheckFreeSpace(out, bytes, "give -o a place with more room"));
  CELER_ASSIGN(AtomicFolder folder, AtomicFolder::Create(out));
  CELER_ASSIGN(const std::vector<fs::path> files, FilesBesideWeights(model));
  for (const fs::path& file : files) {
    std::error_code error;
    fs::copy_file(file, folder.path() / file.filename(), error);
    if (error) return Error::Io((out / file.filename()).string(), ": cannot be written: ", error.message());
  }
  nlohmann::ordered_json written = nlohmann::ordered_json(parsed);
  if (merger.untied()) {
    written["tie_word_embeddings"] = false;
    if (written.contains("text_config")) written["text_config"]["tie_word_embeddings"] = false;
  }
  CELER_RETURN_IF_ERROR(WriteWholeFile(folder.path() / "config.json", JsonText(written, 2) + "\n"));
  CELER_RETURN_IF_ERROR(WriteSafetensors(
      folder.path() / "model.safetensors", specs, {{"format", "pt"}},
      [&](const TensorSpec& spec, const TensorSink& sink) { return merger.Fill(spec, sink); }));
  return folder.Commit();
}

}  // namespace celer
