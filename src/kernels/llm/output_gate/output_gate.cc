#include "kernels/llm/output_gate/output_gate.h"

#include <algorithm>

#include "kernels/shared/simd.h"

namespace celer {
namespace {

using S = Simd;

S::F Gated(S::F x, S::F gate) {
  return S::Div(x, S::Add(S::Set(1), Exp(S::Sub(S::Set(0), gate))));
}

void GateHead(float* x, const float* gate, int64_t n) {
  int64_t i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes) S::Store(x + i, Gated(S::Load(x + i), S::Load(gate + i)));
  if (i < n) StoreSome(x + i, Gated(LoadSome(x + i, n - i), LoadSome(gate + i, n - i)), n - i);
}

}  // namespace

void OutputGate(const OutputGateArgs& args) {
  constexpr int64_t kElements = 2048;  // about 5 us of work per piece
  args.pool->ParallelFor(args.heads, std::max<int64_t>(1, kElements / args.head_dim),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t h = begin; h < end; ++h)
                             GateHead(args.x + h * args.head_dim, args.gate + h * args.stride, args.head_dim);
                         });
}

}  // namespace celer
