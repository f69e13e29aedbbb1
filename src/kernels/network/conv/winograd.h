// Winograd's F(4x4, 3x3): what conv.cc calls for it.
#pragma once

#include "kernels/network/conv/conv.h"

namespace celer {

template <class T>
int64_t WinogradPackedFloats(const BasicConvPlan<T>& plan);
template <class T>
void PackWinograd(const BasicConvPlan<T>& plan, const float* weights, T* packed);
template <class T>
int64_t WinogradWorkspaceFloats(const BasicConvPlan<T>& plan, int threads);
template <class T>
void WinogradConv(const BasicConvPlan<T>& plan, const BasicConvArgs<T>& args);

}  // namespace celer
