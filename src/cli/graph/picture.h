// Pictures from files (JPEG, PNG, BMP, GIF, TGA, PNM) for networks, and back (PNG, JPEG, BMP, TGA).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace celer::cli {

struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb = {};  // row by row, three bytes each

  uint8_t* at(int x, int y) {
    return &rgb[(static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 3];
  }
};

// By the suffix of a name: of a kind that is read, or of any, WebP and TIFF among them.
bool IsReadablePicture(const std::filesystem::path& path);
bool LooksLikePicture(const std::filesystem::path& path);
// Likewise: PNG, JPEG, BMP or TGA.
bool IsWritablePicture(const std::filesystem::path& path);

// A JPEG is turned as its EXIF orientation says. What cannot be read is named as what it is.
Result<Picture> ReadPicture(const std::filesystem::path& path);
Status WritePicture(const Picture& picture, const std::filesystem::path& path);

// Rows of pixels with 1 (grey), 3 (RGB) or 4 (RGBA) bytes each.
struct PixelRows {
  int64_t width = 0, height = 0;
  int channels = 3;
  std::vector<uint8_t> bytes = {};
};
// In the form that the suffix names; JPEG has no transparency, and leaves it out.
Status WritePixels(const PixelRows& pixels, const std::filesystem::path& path);

// Linear between pixels, and the mean of those that fall together where it gets smaller.
Picture Resized(const Picture& from, int width, int height);

struct Color {
  uint8_t r, g, b;
};
// A frame with a line of text on it. What lies outside the picture is not drawn.
void DrawBox(Picture* picture, float left, float top, float right, float bottom, Color color,
             const std::string& text);

}  // namespace celer::cli
