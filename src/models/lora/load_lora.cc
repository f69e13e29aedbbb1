// From an adapter's files to matrices of low rank at places of a model.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "formats/decode.h"
#include "io/file/printable.h"
#include "models/config/family.h"
#include "models/load/open_model.h"
#include "models/lora/adapter_file.h"
#include "models/lora/lora_adapter.h"
#include "models/lora/lora_limits.h"
#include "models/lora/module_parts.h"
#include "models/lora/row_order.h"

namespace celer {
namespace {

using Floats = std::vector<float>;

class LoraLoader {
 public:
  LoraLoader(const AdapterFile& file, const DecoderConfig& config, const std::filesystem::path& model,
             ThreadPool& pool)
      : file_(file), config_(config), model_path_(model), pool_(pool), parts_(config, file.gguf) {}

  Result<std::vector<LoraMatrix>> Run() {
    CELER_RETURN_IF_ERROR(CheckArchitecture());
    for (const auto& [name, module] : file_.modules) CELER_RETURN_IF_ERROR(Module(name, module));
    CELER_RETURN_IF_ERROR(TieSaved());
    return std::move(matrices_);
  }

 private:
  Status CheckArchitecture() const {
    if (!file_.gguf) return {};
    const Family& family = *FindFamily(config_.family);
    const std::string known = std::string(" ") + (family.gguf ? family.gguf : "llama") + " ";
    if (known.find(" " + file_.architecture + " ") != std::string::npos) return {};
    return Error::Invalid(file_.path, ": the adapter is for a model of the architecture '",
                          Printable(file_.architecture, 40), "', and ", model_path_.string(), " is '",
                          config_.family, "'");
  }

  Status Module(const std::string& name, const LoraModule& module) {
    std::vector<ModulePart> parts = parts_.Of(name + ".weight");
    if (parts.empty()) parts = parts_.Of("model." + name + ".weight");  // of a class without a head
    if (parts.empty() && module.a) {
      CELER_ASSIGN(const bool experts, StackedExperts(name, module));
      if (experts) return {};
    }
    if (parts.empty())
      return Error::Unsupported(
          file_.path, ": module '", Printable(name), "' is none of the products of ", model_path_.string(),
          " that an adapter can change here; the adapter is of another model, or changes norms");
    if (module.base) CELER_RETURN_IF_ERROR(CheckBase(name, *module.base, parts));
    if (!module.a && !module.weight && !module.bias) return {};
    for (const ModulePart& part : parts) {
      if (part.at.place.part == LoraPart::kUnused) continue;
      if (part.stacked) {
        CELER_RETURN_IF_ERROR(OfStack(name, module, part));
        continue;
      }
      LoraMatrix matrix{.at = part.at, .module = name};
      const bool embedding = part.at.place.part == LoraPart::kEmbedding;
      const bool plain = embedding || part.at.place.part == LoraPart::kLatentKvB;
      CELER_RETURN_IF_ERROR(CheckForm(name, module, embedding, plain));
      if (module.a)
        CELER_RETURN_IF_ERROR(embedding ? EmbeddingPair(module, &matrix) : Pair(module, part, &matrix));
      if (module.weight) CELER_RETURN_IF_ERROR(Whole(module, part, &matrix));
      CELER_RETURN_IF_ERROR(Shifts(module, part, &matrix));
      if (module.magnitude) CELER_RETURN_IF_ERROR(Magnitude(*module.magnitude, part, &matrix));
      CELER_RETURN_IF_ERROR(Keep(std::move(matrix)));
    }
    return {};
  }

  // What is `plain`, not a product with a bias behind it, takes A and B alone, or whole weights if it is an embedding.
  Status CheckForm(const std::string& name, const LoraModule& module, bool embedding, bool plain) const {
    const char* what = nullptr;
    if (module.a && module.embedding != embedding) what = "lora_A and lora_B of another kind of layer";
    if (plain && module.magnitude) what = "DoRA";
    if (plain && (module.b_bias || module.bias)) what = "a bias";
    if (plain && module.weight && !embedding) what = "weights as a whole";
    if (!what) return {};
    return Error::Unsupported(file_.path, ": module '", Printable(name), "' has ", what,
                              ", which is not implemented for it");
  }

  // PEFT writes the model's own embedding beside an adapter's matrices, and reads it instead of the model's.
  Status CheckBase(const std::string& name, const TensorRecord& record,
                   const std::vector<ModulePart>& parts) {
    const PlacedMatrix& at = parts[0].at;
    if (parts.size() != 1 || record.shape != Shape{at.rows, at.cols})
      return Error::Unsupported(file_.path, ": tensor '", Printable(record.name), "' has shape ",
                                record.shape.ToString(), ", and the model's has ",
                                Shape{at.rows, at.cols}.ToString(), "; module '", Printable(name),
                                "' was resized, which is not implemented");
    CELER_ASSIGN(const Floats saved, Read(record, record.shape));
    CELER_ASSIGN(const Model* model, Base());
    const WeightView w = MatrixAt(model->weights(), at.place);
    const bool plain = w.dtype == DType::kF32 || w.dtype == DType::kF16 || w.dtype == DType::kBf16;
    const bool comparable = at.place.part == LoraPart::kEmbedding || at.place.part == LoraPart::kHead;
    if (!comparable || w.kind != WeightView::Kind::kStored || !plain || w.rows != at.rows) return {};
    Floats row(static_cast<size_t>(at.cols));
    for (int64_t i = 0; i < at.rows; ++i) {
      DecodeWeightRow(w, i, row.data());
      float most = 0, apart = 0;
      for (int64_t c = 0; c < at.cols; ++c) {
        most = std::max(most, std::abs(row[c]));
        apart = std::max(apart, std::abs(row[c] - saved[i * at.cols + c]));
      }
      if (apart <= 0.01f * most) continue;  // twice what bf16 rounds
      return Error::Unsupported(file_.path, ": row ", i, " of tensor '", Printable(record.name),
                                "' is another one than the model's; an adapter on weights that were changed "
                                "as a whole is not implemented");
    }
    return {};
  }

  Error Misfit(const TensorRecord& record, const Shape& expected) const {
    return Error::Corrupt(file_.path, ": tensor '", Printable(record.name), "' has shape ",
                          record.shape.ToString(), ", expected ", expected.ToString(), " for ",
                          model_path_.string());
  }

  // All its numbers; dimensions of 1 do not count.
  Result<Floats> Read(const TensorRecord& record, const Shape& expected) const {
    std::vector<int64_t> has, wants;
    for (int i = 0; i < record.shape.rank(); ++i)
      if (record.shape[i] != 1) has.push_back(record.shape[i]);
    for (int i = 0; i < expected.rank(); ++i)
      if (expected[i] != 1) wants.push_back(expected[i]);
    if (has != wants) return Misfit(record, expected);
    const int64_t cols = expected[expected.rank() - 1], rows = *expected.elements() / cols;
    const auto row_bytes = BytesFor(record.dtype, cols);
    const DType d = record.dtype;  // integers without scales are no weights
    const bool integers = d == DType::kI8 || d == DType::kU8 || d == DType::kI16 || d == DType::kI32 ||
                          d == DType::kI64 || d == DType::kBool;
    if (!CanDecode(d) || !row_bytes || integers)
      return Error::Unsupported(file_.path, ": tensor '", Printable(record.name), "' of type ",
                                Name(record.dtype), " holds no weights that are read");
    Floats out(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r)
      DecodeRow(record.dtype, record.bytes.data() + r * *row_bytes, cols, out.data() + r * cols);
    for (const float x : out)
      if (!std::isfinite(x))
        return Error::NotFinite(file_.path, ": tensor '", Printable(record.name), "' has a ", x);
    return out;
  }

  Result<int64_t> RankOf(const LoraModule& module) const {
    const Shape& a = module.a->shape;
    const int64_t rank = a.rank() >= 2 ? a[a.rank() - 2] : 0;
    if (rank < 1 || rank > kMostLoraRank)
      return Error::Corrupt(file_.path, ": tensor '", Printable(module.a->name), "' has shape ", a.ToString(),
                            ", expected a rank of 1 to ", kMostLoraRank);
    return rank;
  }

  // A and B of a product, from tensors [rank, cols] and [module's rows, rank].
  Status Pair(const LoraModule& module, const ModulePart& part, LoraMatrix* out) {
    CELER_ASSIGN(const int64_t rank, RankOf(module));
    CELER_ASSIGN(Floats a, Read(*module.a, {rank, part.at.cols}));
    CELER_ASSIGN(const Floats b, Read(*module.b, {part.module_rows, rank}));
    FillPair(std::move(a), b, rank, module.scale, part, out);
    return {};
  }

  void FillPair(Floats a, const Floats& b, int64_t rank, double scale, const ModulePart& part,
                LoraMatrix* out) {
    const std::vector<int32_t> cols = ColumnOrder(config_, part.at, file_.gguf);
    if (!cols.empty())
      for (int64_t r = 0; r < rank; ++r) Reorder(cols, a.data() + r * part.at.cols);
    out->rank = rank;
    out->a = std::make_shared<const Floats>(std::move(a));
    const int64_t rows = part.at.rows;
    out->b.resize(static_cast<size_t>(rank * rows));
    const std::vector<int32_t> order = RowOrder(config_, part.at, file_.gguf);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = part.rows(order.empty() ? row : order[row]);
      for (int64_t r = 0; r < rank; ++r)
        out->b[r * rows + row] = static_cast<float>(scale * double{b[from * rank + r]});
    }
  }

  static void Reorder(const std::vector<int32_t>& order, float* row) {
    const Floats before(row, row + order.size());
    for (size_t i = 0; i < order.size(); ++i) row[i] = before[order[i]];
  }

  Status EmbeddingPair(const LoraModule& module, LoraMatrix* out) {
    const int64_t vocab = out->at.rows, width = out->at.cols;
    const Shape& shape = module.b->shape;
    const int64_t rank = shape.rank() == 2 ? shape[1] : 0;
    if (rank < 1 || rank > kMostLoraRank) return Misfit(*module.b, {width, 1});
    CELER_ASSIGN(Floats a, Read(*module.a, file_.gguf ? Shape{vocab, rank} : Shape{rank, vocab}));
    CELER_ASSIGN(const Floats b, Read(*module.b, {width, rank}));
    if (!file_.gguf) {
      Floats by_token(a.size());
      for (int64_t r = 0; r < rank; ++r)
        for (int64_t t = 0; t < vocab; ++t) by_token[t * rank + r] = a[r * vocab + t];
      a = std::move(by_token);
    }
    out->rank = rank;
    out->a = std::make_shared<const Floats>(std::move(a));
    out->b.resize(static_cast<size_t>(rank * width));
    for (int64_t i = 0; i < width; ++i)
      for (int64_t r = 0; r < rank; ++r)
        out->b[r * width + i] = static_cast<float>(module.scale * double{b[i * rank + r]});
    return {};
  }

  // The module's own weights, in the place of the model's.
  Status Whole(const LoraModule& module, const ModulePart& part, LoraMatrix* out) {
    const int64_t rows = part.module_rows, cols = part.at.cols;
    CELER_ASSIGN(const Floats all,
                 Read(*module.weight, part.transposed ? Shape{cols, rows} : Shape{rows, cols}));
    const std::vector<int32_t> row_order = RowOrder(config_, part.at, file_.gguf),
                               column_order = ColumnOrder(config_, part.at, file_.gguf);
    const bool stored = module.weight->dtype == DType::kBf16 || module.weight->dtype == DType::kF16;
    out->whole_dtype = stored ? module.weight->dtype : DType::kF32;
    const int64_t row_bytes = *BytesFor(out->whole_dtype, cols);
    out->whole.resize(static_cast<size_t>(part.at.rows * row_bytes));
    Floats row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < part.at.rows; ++r) {
      const int64_t from = part.rows(row_order.empty() ? r : row_order[r]);
      for (int64_t c = 0; c < cols; ++c)
        row[c] = part.transposed ? all[c * rows + from] : all[from * cols + c];
      if (!column_order.empty()) Reorder(column_order, row.data());
      EncodeRow(out->whole_dtype, row.data(), cols, out->whole.data() + r * row_bytes);
    }
    return {};
  }

  // The part's elements of a vector of the module's.
  Result<Floats> Vector(const TensorRecord& record, const ModulePart& part) const {
    CELER_ASSIGN(const Floats all, Read(record, {part.module_rows}));
    const std::vector<int32_t> order = RowOrder(config_, part.at, file_.gguf);
    Floats out(static_cast<size_t>(part.at.rows));
    for (int64_t row = 0; row < part.at.rows; ++row)
      out[row] = all[part.rows(order.empty() ? row : order[row])];
    return out;
  }

  Status Shifts(const LoraModule& module, const ModulePart& part, LoraMatrix* out) {
    // The decoder scales what these products read, and their biases when it loads them.
    const LoraPart p = part.at.place.part;
    const bool scaled = p == LoraPart::kO || p == LoraPart::kDown || p == LoraPart::kStateOut;
    const float factor = scaled ? config_.residual_scale : 1.0f;
    if (module.bias) {
      CELER_ASSIGN(const Floats bias, Vector(*module.bias, part));
      CELER_ASSIGN(const Model* model, Base());
      const float* const old = BiasAt(model->weights(), part.at.place);
      out->shift.resize(bias.size());
      for (size_t i = 0; i < bias.size(); ++i) out->shift[i] = factor * bias[i] - (old ? old[i] : 0);
    }
    if (module.b_bias) {
      CELER_ASSIGN(const Floats bias, Vector(*module.b_bias, part));
      out->shift.resize(bias.size());
      for (size_t i = 0; i < bias.size(); ++i)
        out->shift[i] += factor * static_cast<float>(module.scale * double{bias[i]});
    }
    return {};
  }

  // DoRA: the magnitude of each row over the norm of the adapted row.
  Status Magnitude(const TensorRecord& record, const ModulePart& part, LoraMatrix* out) {
    CELER_ASSIGN(const Floats magnitude, Vector(record, part));
    CELER_ASSIGN(const Model* model, Base());
    const WeightView w = MatrixAt(model->weights(), part.at.place);
    out->row_scale.resize(magnitude.size());
    pool_.ParallelFor(part.at.rows, /*grain=*/16, [&](int64_t begin, int64_t end) {
      Floats row(static_cast<size_t>(part.at.cols));
      for (int64_t i = begin; i < end; ++i) {
        DecodeWeightRow(w, i, row.data());
        AddRow(*out, i, row.data());
        double squares = 0;
        for (const float x : row) squares += double{x} * x;
        out->row_scale[i] = static_cast<float>(magnitude[i] / std::sqrt(squares));
      }
    });
    for (const float x : out->row_scale)
      if (!std::isfinite(x))
        return Error::NotFinite(file_.path, ": module '", Printable(out->module),
                                "' makes a row of zeros, whose DoRA magnitude has no direction");
    return {};
  }

  static void AddRow(const LoraMatrix& m, int64_t row, float* to) {
    for (int64_t r = 0; r < m.rank; ++r) {
      const float b = m.b[r * m.at.rows + row];
      for (int64_t c = 0; c < m.at.cols; ++c) to[c] += b * (*m.a)[r * m.at.cols + c];
    }
  }

  // One expert's of a stack, or all of them of a place that is one.
  Status OfStack(const std::string& name, const LoraModule& module, const ModulePart& part) {
    const int64_t experts = config_.moe.experts;
    if (!module.a || module.b_bias || module.bias || module.magnitude)
      return Error::Unsupported(file_.path, ": module '", Printable(name),
                                "' stacks experts; only lora_A and lora_B are implemented for it");
    const Shape &a = module.a->shape, &b = module.b->shape;
    if (a.rank() != 3 || a[0] != experts || a[1] < 1 || a[1] > kMostLoraRank)
      return Misfit(*module.a, {experts, 1, part.at.cols});
    const int64_t rank = a[1];
    if (b.rank() != 3) return Misfit(*module.b, {experts, part.module_rows, rank});
    CELER_ASSIGN(const Floats all_a, Read(*module.a, {experts, rank, part.at.cols}));
    CELER_ASSIGN(const Floats all_b, Read(*module.b, {experts, part.module_rows, rank}));
    const int64_t a_size = rank * part.at.cols, b_size = rank * part.module_rows;
    const int64_t one = part.at.place.expert;
    for (int64_t e = one < 0 ? 0 : one; e < (one < 0 ? experts : one + 1); ++e) {
      LoraMatrix matrix{.at = part.at, .module = name};
      matrix.at.place.expert = e;
      FillPair(Floats(all_a.begin() + e * a_size, all_a.begin() + (e + 1) * a_size),
               Floats(all_b.begin() + e * b_size, all_b.begin() + (e + 1) * b_size), rank, module.scale, part,
               &matrix);
      CELER_RETURN_IF_ERROR(Keep(std::move(matrix)));
    }
    return {};
  }

  // PEFT's target_parameters: lora_A [experts * rank, in] with each expert's ranks together, lora_B [out, rank *
  // experts] with each rank's experts together. The names say which of two parameters it is by nesting alone: shapes
  // decide. False if `name` is none of experts.
  Result<bool> StackedExperts(const std::string& name, const LoraModule& module) {
    constexpr std::string_view kInner = ".base_layer";
    const bool inner = name.ends_with(kInner);
    const std::string outer = inner ? name.substr(0, name.size() - kInner.size()) : name;
    if (!outer.ends_with(".experts") || config_.moe.experts == 0) return false;
    if (module.magnitude || module.b_bias)
      return Error::Unsupported(file_.path, ": module '", Printable(name), "' has ",
                                module.magnitude ? "DoRA" : "a bias",
                                ", which is not implemented for experts");
    const Shape &a = module.a->shape, &b = module.b->shape;
    const int64_t experts = config_.moe.experts;
    if (a.rank() != 2 || b.rank() != 2 || a[0] != b[1] || a[0] % experts != 0 || a[0] < experts ||
        a[0] / experts > kMostLoraRank)
      return Misfit(*module.a, {experts, a.rank() == 2 ? a[1] : 1});
    // Of modules that are wrapped twice, the inner one is the first parameter.
    for (const bool down : {!inner && file_.modules.contains(name + std::string(kInner)),
                            inner || !file_.modules.contains(name + std::string(kInner))}) {
      const std::vector<ModulePart> parts = parts_.ExpertsOf(outer, down);
      if (parts.empty()) continue;
      const int64_t in = parts[0].at.cols, out = parts[0].module_rows;
      const bool square = in == out && file_.turned_experts && !parts[0].transposed;
      const bool straight = a[1] == in && b[0] == out && !square, turned = a[1] == out && b[0] == in;
      if (!straight && !turned) continue;
      CELER_ASSIGN(const Floats all_a, Read(*module.a, a));
      CELER_ASSIGN(const Floats all_b, Read(*module.b, b));
      for (const ModulePart& part : parts)
        CELER_RETURN_IF_ERROR(
            ExpertPair(name, down ? module.down_scale : module.scale, all_a, all_b, part, !straight));
      return true;
    }
    return Misfit(*module.a, {experts, config_.hidden});
  }

  Status ExpertPair(const std::string& name, double scale, const Floats& all_a, const Floats& all_b,
                    const ModulePart& part, bool turned) {
    const int64_t in = part.at.cols, out = part.module_rows, a_cols = turned ? out : in,
                  b_rows = turned ? in : out;
    const int64_t experts = config_.moe.experts, rank = std::ssize(all_a) / a_cols / experts,
                  e = part.at.place.expert;
    Floats a(static_cast<size_t>(rank * in)), b(static_cast<size_t>(out * rank));
    for (int64_t r = 0; r < rank; ++r) {
      const float* const from_a = all_a.data() + (e * rank + r) * a_cols;
      for (int64_t c = 0; c < a_cols; ++c) (turned ? b[c * rank + r] : a[r * in + c]) = from_a[c];
      for (int64_t row = 0; row < b_rows; ++row)
        (turned ? a[r * in + row] : b[row * rank + r]) = all_b[row * rank * experts + r * experts + e];
    }
    LoraMatrix matrix{.at = part.at, .module = name};
    FillPair(std::move(a), b, rank, scale, part, &matrix);
    return Keep(std::move(matrix));
  }

  Status Keep(LoraMatrix matrix) {
    if (!places_.insert(matrix.at.place).second)
      return Error::Corrupt(file_.path, ": module '", Printable(matrix.module),
                            "' changes weights that another module changes as well");
    matrices_.push_back(std::move(matrix));
    return {};
  }

  // Of a model whose head is its embedding, and an adapter that says they stay one.
  Status TieSaved() {
    if (!file_.tied || !config_.tied_embeddings) return {};
    for (const auto& [from, to] : {std::pair(LoraPart::kEmbedding, LoraPart::kHead),
                                   std::pair(LoraPart::kHead, LoraPart::kEmbedding)}) {
      const auto is = [](LoraPart part) {
        return [part](const LoraMatrix& m) { return m.at.place.part == part; };
      };
      const auto found = std::find_if(matrices_.begin(), matrices_.end(), is(from));
      if (found == matrices_.end() || std::any_of(matrices_.begin(), matrices_.end(), is(to))) continue;
      if (found->whole.empty())
        return Error::Unsupported(file_.path, ": 'ensure_weight_tying' is true, and module '",
                                  Printable(found->module),
                                  "' has lora_A and lora_B; only saved weights can be "
                                  "those of the embedding and of the head");
      LoraMatrix other = *found;
      other.at.place.part = to;
      matrices_.push_back(std::move(other));
    }
    return {};
  }

  // The model's own weights, which norms and biases need.
  Result<const Model*> Base() {
    if (!base_) {
      CELER_ASSIGN(Model model, Model::Load(model_path_, {.pack = false}, pool_));
      base_.emplace(std::move(model));
    }
    return &*base_;
  }

  const AdapterFile& file_;
  const DecoderConfig& config_;
  const std::filesystem::path& model_path_;
  ThreadPool& pool_;
  ModuleParts parts_;
  std::optional<Model> base_;
  std::set<LoraPlace> places_;
  std::vector<LoraMatrix> matrices_;
};

int64_t BytesOf(const std::vector<LoraMatrix>& matrices) {
  std::set<const void*> counted;
  int64_t bytes = 0;
  for (const LoraMatrix& m : matrices) {
    bytes += static_cast<int64_t>((m.b.size() + m.row_scale.size() + m.shift.size()) * sizeof(float) +
                                  m.whole.size());
    if (m.a && counted.insert(m.a.get()).second) bytes += static_cast<int64_t>(m.a->size() * sizeof(float));
  }
  return bytes;
}

}  // namespace

Result<std::shared_ptr<const LoraAdapter>> LoadLora(const std::string& name,
                                                    const std::filesystem::path& path,
                                                    const std::filesystem::path& model, ThreadPool& pool) {
  CELER_ASSIGN(const AdapterFile file, OpenAdapter(path));
  CELER_ASSIGN(Opened opened, OpenModel(model, /*keep_fp8=*/false));
  if (!opened.gguf) ResolveTiedHead(*opened.source, &opened.config);
  CELER_ASSIGN(std::vector<LoraMatrix> matrices, LoraLoader(file, opened.config, model, pool).Run());
  LoraInfo info{.name = name,
                .path = file.path,
                .content = file.content,
                .bytes = BytesOf(matrices),
                .rank = 0,
                .matrices = std::ssize(matrices)};
  for (const LoraMatrix& m : matrices) info.rank = std::max(info.rank, m.rank);
  return std::make_shared<const LoraAdapter>(std::move(info), std::move(matrices));
}

}  // namespace celer
