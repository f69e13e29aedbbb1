// Pictures from files (JPEG, PNG, BMP, GIF, TGA, PNM) for networks, and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/result.h"

namespace celer::cli {

struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb = {};  // row by row, three bytes each

  uint8_t* at(int x, int y) {
    return &rgb[(static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 3];
  }
};

// By the suffix of a name.
bool LooksLikePicture(const std::filesystem::path& path);

Result<Picture> ReadPicture(const std::filesystem::path& path);
Status WritePng(const Picture& picture, const std::filesystem::path& path);

// Linear between pixels, and the mean of those that fall together where it gets smaller.
Picture Resized(const Picture& from, int width, int height);

struct Color {
  uint8_t r, g, b;
};
// A frame with a line of text on it. What lies outside the picture is not drawn.
void DrawBox(Picture* picture, float left, float top, float right, float bottom, Color color,
             const std::string& text);

}  // namespace celer::cli
