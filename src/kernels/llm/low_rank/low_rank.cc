#include "kernels/llm/low_rank/low_rank.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "device/aligned_vector.h"
#include "kernels/llm/low_rank/adapted.h"
#include "kernels/shared/vec.h"

namespace celer {
namespace {

// Rows of a matrix that one piece of work has: their sums stay in a core's nearest cache.
constexpr int64_t kRows = 64;

// What one term gives the tokens that have it.
struct Job {
  const LowRankTerm* term = nullptr;
  std::vector<int64_t> inputs;  // which ones
  AlignedVector<float> low;     // A x, [inputs, rank]
  AlignedVector<float> whole;   // [inputs, rows]
};

// The terms of one matrix, and the tokens that have some.
class Terms {
 public:
  // `inputs`: what the product reads, [tokens, cols], of the tokens listed.
  Terms(const WeightView& w, const LowRankBatch& added, std::span<const int64_t> rows_of_x,
        const float* inputs, ThreadPool& pool)
      : w_(w), inputs_(inputs), pool_(pool) {
    std::map<const LowRankTerm*, size_t> job_of;
    for (size_t i = 0; i < rows_of_x.size(); ++i) {
      Token token{.input = static_cast<int64_t>(i), .shares = {}};
      for (const LowRankUse& use : added.Of(rows_of_x[i])) {
        const LowRankTerm* const term = use.terms->Find(w);
        if (!term) continue;
        const auto [found, fresh] = job_of.try_emplace(term, jobs_.size());
        if (fresh) jobs_.push_back({.term = term, .inputs = {}, .low = {}, .whole = {}});
        Job& job = jobs_[found->second];
        token.shares.push_back({found->second, std::ssize(job.inputs), use.scale});
        job.inputs.push_back(static_cast<int64_t>(i));
      }
      if (!token.shares.empty()) tokens_.push_back(std::move(token));
    }
    for (Job& job : jobs_) Prepare(&job);
  }

  // Adds to products, of which row i is out + where[i] * stride.
  void AddTo(float* out, std::span<const int64_t> where, int64_t stride) const {
    const int64_t blocks = (w_.rows + kRows - 1) / kRows;
    pool_.ParallelFor(blocks, /*grain=*/1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block)
        for (const Token& token : tokens_) AddBlock(token, block * kRows, out + where[token.input] * stride);
    });
  }

 private:
  struct Share {
    size_t job = 0;
    int64_t at = 0;  // among the job's inputs
    float scale = 1;
  };
  struct Token {
    int64_t input = 0;
    std::vector<Share> shares;  // in the order of its adapters, in which they are added
  };

  void Prepare(Job* job) const {
    const LowRankTerm& term = *job->term;
    const auto count = std::ssize(job->inputs);
    const int64_t cols = w_.cols;
    job->low.resize(static_cast<size_t>(count * term.rank));
    pool_.ParallelFor(term.rank, /*grain=*/4, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t r = begin; r < end; ++r)
          job->low[i * term.rank + r] = vec::Dot(term.a + r * cols, inputs_ + job->inputs[i] * cols, cols);
    });
    if (!term.whole) return;
    AlignedVector<float> x(static_cast<size_t>(count * cols));
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(inputs_ + job->inputs[i] * cols, cols, x.data() + i * cols);
    job->whole.resize(static_cast<size_t>(count * w_.rows));
    PortableProduct({.w = term.whole, .out = job->whole.data(), .out_stride = w_.rows}, x.data(), count,
                    pool_);
  }

  // Rows from `row` on of one token's product.
  void AddBlock(const Token& token, int64_t row, float* out) const {
    const int64_t n = std::min(kRows, w_.rows - row);
    float product[kRows], change[kRows];
    std::copy_n(out + row, n, product);
    for (const Share& share : token.shares) {
      const Job& job = jobs_[share.job];
      const LowRankTerm& term = *job.term;
      std::fill_n(change, n, 0.0f);
      const float* const low = job.low.data() + share.at * term.rank;
      for (int64_t r = 0; r < term.rank; ++r) vec::Axpy(low[r], term.b + r * w_.rows + row, change, n);
      if (!job.whole.empty())
        for (int64_t i = 0; i < n; ++i) change[i] = job.whole[share.at * w_.rows + row + i] - product[i];
      if (term.row_scale)
        for (int64_t i = 0; i < n; ++i)
          change[i] = (term.row_scale[row + i] - 1) * product[i] + term.row_scale[row + i] * change[i];
      if (term.shift) vec::Axpy(1.0f, term.shift + row, change, n);
      vec::Axpy(share.scale, change, out + row, n);
    }
  }

  const WeightView& w_;
  const float* inputs_;
  ThreadPool& pool_;
  std::vector<Job> jobs_;
  std::vector<Token> tokens_;
};

// The inputs of the tokens that have terms, as the product reads them.
struct AdaptedInputs {
  std::vector<int64_t> tokens;  // of the product
  std::vector<int64_t> rows;    // of x
  AlignedVector<float> x;       // [tokens, cols]

  AdaptedInputs(const MatmulArgs& args, const LowRankBatch& added) {
    const int64_t cols = args.outputs[0].w.cols;
    for (int64_t t = 0; t < args.tokens; ++t) {
      const int64_t row = args.x_rows ? args.x_rows[t] : t;
      if (added.Of(row).empty()) continue;
      tokens.push_back(t);
      rows.push_back(row);
    }
    x.resize(rows.size() * static_cast<size_t>(cols));
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* const from = args.x + rows[i] * cols;
      float* const to = x.data() + static_cast<int64_t>(i) * cols;
      if (args.norm)
        NormInputRow(args, from, to);
      else
        std::copy_n(from, cols, to);
    }
  }
};

}  // namespace

const std::vector<LowRankUse>& LowRankBatch::Of(int64_t token) const {
  static const std::vector<LowRankUse> none;
  const int32_t mix = mix_of[static_cast<size_t>(token)];
  return mix < 0 ? none : mixes[static_cast<size_t>(mix)];
}

bool LowRankBatch::Touches(const WeightView& w) const {
  for (const auto& mix : mixes)
    for (const LowRankUse& use : mix)
      if (use.terms->Find(w)) return true;
  return false;
}

void Matmul(const MatmulArgs& args, const LowRankBatch& added) {
  std::vector<bool> touched;
  for (const MatmulOutput& to : args.outputs) touched.push_back(added.Touches(to.w));
  if (args.tokens == 0 || std::find(touched.begin(), touched.end(), true) == touched.end())
    return Matmul(args);

  // Terms are of the bare product: bias and residual are added behind them, in the order of StoreTile().
  std::vector<MatmulOutput> outputs(args.outputs.begin(), args.outputs.end());
  std::vector<AlignedVector<float>> bare(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    MatmulOutput& to = outputs[i];
    if (!touched[i] || (!to.bias && !to.residual)) continue;
    bare[i].resize(static_cast<size_t>(args.tokens * to.w.rows));
    to = {.w = to.w, .out = bare[i].data(), .out_stride = to.w.rows};
  }
  MatmulArgs product = args;
  product.outputs = outputs;
  product.finish = nullptr;
  Matmul(product);

  const AdaptedInputs inputs(args, added);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!touched[i]) continue;
    const MatmulOutput& to = outputs[i];
    Terms(to.w, added, inputs.rows, inputs.x.data(), *args.pool).AddTo(to.out, inputs.tokens, to.out_stride);
    if (bare[i].empty()) continue;
    args.pool->ParallelFor(args.tokens, /*grain=*/4, [&](int64_t begin, int64_t end) {
      StoreTile(args.outputs[i], 0, to.w.rows, begin, end - begin, to.out + begin * to.w.rows, to.w.rows);
    });
  }
  if (!args.finish) return;
  args.pool->ParallelFor(outputs[0].w.rows, kRows, [&](int64_t begin, int64_t end) {
    (*args.finish)(StoredTile(args.outputs, 0, args.tokens, begin, end));
  });
}

void Matmul(MatmulArgs args, const MatmulOutput& output, const LowRankBatch& added) {
  args.outputs = {&output, 1};
  Matmul(args, added);
}

void Embed(const EmbedArgs& args, const LowRankBatch& added) {
  Embed(args);
  if (added.empty()) return;
  const int64_t width = args.table.cols;
  args.pool->ParallelFor(std::ssize(args.tokens), /*grain=*/8, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(width)), change(row.size());
    for (int64_t t = begin; t < end; ++t) {
      float* const out = args.out + t * width;
      std::copy_n(out, width, row.data());
      for (const LowRankUse& use : added.Of(t)) {
        const LowRankTerm* const term = use.terms->embedding();
        if (!term) continue;
        std::fill(change.begin(), change.end(), 0.0f);
        const float* const low = term->a + args.tokens[t] * term->rank;
        for (int64_t r = 0; r < term->rank; ++r)
          vec::Axpy(low[r] * args.scale, term->b + r * width, change.data(), width);
        if (term->whole) {
          DecodeWeightRow(term->whole, args.tokens[t], change.data());
          for (int64_t i = 0; i < width; ++i) change[i] = change[i] * args.scale - row[i];
        }
        vec::Axpy(use.scale, change.data(), out, width);
      }
    }
  });
}

}  // namespace celer
