// Einsum: sums of products, written as "bij,bjk->bik".
#include <map>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "io/file/printable.h"

namespace celer::graph {
namespace {

// Letters are themselves; the dimensions behind an ellipsis are numbered '\1', '\2', ... from the right.
struct Sum {
  std::vector<std::string> inputs;
  std::string output, summed;
  std::map<char, int64_t> size;
};
Result<std::string> Expanded(const std::string& term, int rank) {
  const size_t dots = term.find("...");
  if (dots == std::string::npos) return term;
  const int letters = static_cast<int>(term.size()) - 3;
  if (rank < letters) return Error::Invalid("'", term, "' for ", rank, " dimensions");
  std::string between;
  for (int i = rank - letters; i > 0; --i) between += static_cast<char>(i);
  return term.substr(0, dots) + between + term.substr(dots + 3);
}
Result<Sum> Parse(const OpInputs& c) {
  std::string text;
  for (const char ch : c.node.Text("equation", ""))
    if (ch != ' ') text += ch;
  for (const char ch : text)
    if (!std::isalpha(static_cast<unsigned char>(ch)) &&
        std::string_view(",.->").find(ch) == std::string::npos)
      return Error::Invalid("'", Printable(text), "' is no equation");
  const size_t arrow = text.find("->");
  const std::string left = text.substr(0, arrow);
  std::vector<std::string> terms(1);
  for (const char ch : left) {
    if (ch == ',')
      terms.emplace_back();
    else
      terms.back() += ch;
  }
  if (terms.size() != c.inputs())
    return Error::Invalid("'", text, "' has ", terms.size(), " terms for ", c.inputs(), " inputs");
  Sum sum;
  int most_dots = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    CELER_RETURN_IF_ERROR(CheckSameType(c, i));
    CELER_ASSIGN(const std::string term, Expanded(terms[i], c.shape(i).rank()));
    if (term.size() != static_cast<size_t>(c.shape(i).rank()))
      return Error::Invalid("'", terms[i], "' for ", c.shape(i).ToString());
    for (size_t d = 0; d < term.size(); ++d) {
      const char ch = term[d];
      if (ch >= 32 && !std::isalpha(static_cast<unsigned char>(ch)))
        return Error::Invalid("'", text, "' is no equation");
      if (ch < 32) most_dots = std::max<int>(most_dots, ch);
      const int64_t n = c.shape(i)[static_cast<int>(d)];
      auto [at, fresh] = sum.size.emplace(ch, n);
      if (!fresh && at->second != n) {
        if (at->second == 1)
          at->second = n;
        else if (n != 1)
          return Error::Invalid("in '", text, "' a letter is ", at->second, " and ", n);
      }
    }
    sum.inputs.push_back(term);
  }
  if (arrow != std::string::npos) {
    std::string right = text.substr(arrow + 2);
    const size_t dots = right.find("...");
    if (dots != std::string::npos) {
      CELER_ASSIGN(right, Expanded(right, static_cast<int>(right.size()) - 3 + most_dots));
    }
    sum.output = right;
  } else {
    for (int i = most_dots; i > 0; --i) sum.output += static_cast<char>(i);
    for (const auto& [ch, n] : sum.size) {
      int uses = 0;
      for (const std::string& term : sum.inputs)
        uses += static_cast<int>(std::count(term.begin(), term.end(), ch));
      if (ch >= 32 && uses == 1) sum.output += ch;
    }
  }
  for (const char ch : sum.output)
    if (!sum.size.contains(ch) || std::count(sum.output.begin(), sum.output.end(), ch) != 1)
      return Error::Invalid("the result of '", text, "' has a letter that is not in its terms, or one twice");
  for (const auto& [ch, n] : sum.size)
    if (sum.output.find(ch) == std::string::npos) sum.summed += ch;
  if (sum.size.size() > 16) return Error::Unsupported("an equation of ", sum.size.size(), " letters");
  return sum;
}
Status InferEinsum(InferContext& c) {
  CELER_ASSIGN(const Sum sum, Parse(c));
  // All products can be counted.
  int64_t products = 1;
  for (const auto& [ch, n] : sum.size)
    if (__builtin_mul_overflow(products, std::max<int64_t>(n, 1), &products))
      return Error::Invalid("its equation has too many products");
  std::vector<int64_t> dims;
  for (const char ch : sum.output) dims.push_back(sum.size.at(ch));
  return c.Set(0, c.dtype(0), dims);
}
// For each element of the result a loop over the letters that it lacks.
Status Einsum(KernelContext& c) {
  CELER_ASSIGN(const Sum sum, Parse(c));
  const std::string letters = sum.output + sum.summed;
  std::vector<int64_t> size;
  for (const char ch : letters) size.push_back(sum.size.at(ch));
  // How far each letter moves in each input; a dimension of one is not walked, a letter that is there twice
  // is twice.
  std::vector<std::vector<int64_t>> stride(c.inputs(), std::vector<int64_t>(letters.size(), 0));
  for (size_t i = 0; i < c.inputs(); ++i) {
    int64_t step = 1;
    for (int d = c.shape(i).rank() - 1; d >= 0; --d) {
      if (c.shape(i)[d] != 1) stride[i][letters.find(sum.inputs[i][d])] += step;
      step *= c.shape(i)[d];
    }
  }
  const size_t kept = sum.output.size();
  const int64_t inner = Product(size, kept, size.size());
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    using W = Compute<T>;
    Parallel(c.pool, c.out_elements(0), inner * static_cast<int64_t>(c.inputs()) * 4,
             [&](int64_t begin, int64_t end) {
               std::vector<int64_t> base(c.inputs()), at(c.inputs()), index(letters.size());
               for (int64_t o = begin; o < end; ++o) {
                 std::fill(base.begin(), base.end(), 0);
                 int64_t rest = o;
                 for (size_t k = kept; k-- > 0;) {
                   for (size_t i = 0; i < base.size(); ++i) base[i] += rest % size[k] * stride[i][k];
                   rest /= size[k];
                 }
                 at = base;
                 std::fill(index.begin(), index.end(), 0);
                 W total = 0;
                 for (int64_t s = 0; s < inner; ++s) {
                   W product = 1;
                   for (size_t i = 0; i < at.size(); ++i)
                     product = WrapMul<W>(product, Wide(c.in(i).as<T>()[at[i]]));
                   total = WrapAdd<W>(total, product);
                   for (size_t k = letters.size(); k-- > kept;) {
                     for (size_t i = 0; i < at.size(); ++i) at[i] += stride[i][k];
                     if (++index[k] < size[k]) break;
                     for (size_t i = 0; i < at.size(); ++i) at[i] -= stride[i][k] * size[k];
                     index[k] = 0;
                   }
                 }
                 c.out(0).as<T>()[o] = static_cast<T>(total);
               }
             });
  });
  return {};
}
double EinsumFlops(const InferContext& c) {
  const auto sum = Parse(c);
  double flops = 2;
  if (sum)
    for (const auto& [ch, n] : sum->size) flops *= static_cast<double>(n);
  return flops;
}

constexpr Operator kRows[] = {
    {"Einsum", 12, {1, -1}, {1, 1}, kNumbers, InferEinsum, Einsum, Operator::kPlain, EinsumFlops},
};

}  // namespace

std::span<const Operator> EinsumOperators() {
  return kRows;
}

}  // namespace celer::graph
