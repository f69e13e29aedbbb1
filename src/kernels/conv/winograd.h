// The way of Winograd's F(4x4, 3x3): what conv.cc calls for it.
#pragma once

#include "kernels/conv/conv.h"

namespace celer {

int64_t WinogradPackedFloats(const ConvPlan& plan);
void PackWinograd(const ConvPlan& plan, const float* weights, float* packed);
int64_t WinogradWorkspaceFloats(const ConvPlan& plan, int threads);
void WinogradConv(const ConvPlan& plan, const ConvArgs& args);

}  // namespace celer
