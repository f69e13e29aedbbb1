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
//   floats, 1, 3 or 4 channels             grey, RGB or RGBA, from 0 to 1 or from 0 to 255; values a little
//                                          outside are clamped
//   u8, and integers of 3 or 4 channels    as they are, from 0 to 255
//   integers or booleans of 1 channel      a class map, one colour for each class; 0 is black
//   floats, any other number of channels   class scores: the map of their argmax
//
// [1, C, H, W], [C, H, W], [1, H, W, C], [H, W, C] or [H, W]; `flags` says which layout and order of
// channels. An error says why it is no picture.
Result<PixelRows> PixelsOf(const GraphTensor& tensor, const std::string& name, const PictureFlags& flags);

// The first output that is a picture, in the form that the suffix names; says which.
Status WriteOutputPicture(const std::filesystem::path& path, const std::vector<GraphPort>& ports,
                          const std::vector<GraphTensor>& outputs, const PictureFlags& flags);

}  // namespace celer::cli
