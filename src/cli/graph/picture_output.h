// The output of a network as a picture: of super-resolution, of a mask, or of classes for each pixel.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/graph.h"
#include "cli/graph/inputs.h"
#include "cli/graph/picture.h"

namespace celer::cli {

// What one output shows:
//
//   floats of 1, 3 or 4 channels     grey, RGB or RGBA, from 0 to 1 or from 0 to 255; what lies a little
//   outside
//                                    is cut off
//   u8, and other whole numbers with 3 or 4 channels    as they are, from 0 to 255
//   whole numbers or booleans of 1 channel    a map of classes, one colour for each; 0 is black
//   floats of any other number of channels    scores of classes: the map of the best ones
//
// [1, C, H, W], [C, H, W], [1, H, W, C], [H, W, C] or [H, W]; `flags` says which layout and order of
// channels. An error says why it is no picture.
Result<PixelRows> PixelsOf(const GraphTensor& tensor, const std::string& name, const PictureFlags& flags);

// The first output that is a picture, in the form that the suffix names; says which.
Status WriteOutputPicture(const std::filesystem::path& path, const std::vector<GraphPort>& ports,
                          const std::vector<GraphTensor>& outputs, const PictureFlags& flags);

}  // namespace celer::cli
