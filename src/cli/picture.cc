#include "cli/picture.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "io/atomic_file.h"
#include "io/mapped_file.h"

#if CELER_WITH_STB
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wcast-align"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wuseless-cast"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wduplicated-branches"
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_MAX_DIMENSIONS 32768
#include <stb/stb_image.h>
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>

#include <stb/stb_easy_font.h>
#pragma GCC diagnostic pop
#endif

namespace celer::cli {

bool LooksLikePicture(const std::filesystem::path& path) {
  std::string suffix = path.extension().string();
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* known : {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tga", ".ppm", ".pgm", ".pnm"})
    if (suffix == known) return true;
  return false;
}

#if CELER_WITH_STB

Result<Picture> ReadPicture(const std::filesystem::path& path) {
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > static_cast<size_t>(1) << 30)
    return Error::Unsupported(path.string(), ": a picture of more than 1 GiB");
  int width = 0, height = 0, channels = 0;
  const auto* const data = reinterpret_cast<const stbi_uc*>(file.bytes().data());
  const auto size = static_cast<int>(file.bytes().size());
  // Asked first, so that a small file cannot ask for gigabytes.
  if (!stbi_info_from_memory(data, size, &width, &height, &channels))
    return Error::Corrupt(path.string(), ": not a picture that can be read (", stbi_failure_reason(),
                          "); JPEG, PNG, BMP, GIF, TGA and PNM are known");
  if (static_cast<int64_t>(width) * height > int64_t{1} << 28)
    return Error::Unsupported(path.string(), ": a picture of ", width, " x ", height,
                              " pixels; make it smaller first");
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(data, size, &width, &height, &channels, 3), stbi_image_free);
  if (!pixels) return Error::Corrupt(path.string(), ": the picture is damaged (", stbi_failure_reason(), ")");
  Picture out{width, height};
  out.rgb.assign(pixels.get(), pixels.get() + static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  return out;
}

Status WritePng(const Picture& picture, const std::filesystem::path& path) {
  std::string png;
  const auto take = [](void* to, void* data, int size) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(data), static_cast<size_t>(size));
  };
  if (!stbi_write_png_to_func(take, &png, picture.width, picture.height, 3, picture.rgb.data(),
                              picture.width * 3))
    return Error::Io(path.string(), ": the picture cannot be written as PNG");
  return WriteWholeFile(path, png);
}

#else

namespace {
Error NoPictures() {
  return Error::Unsupported(
      "this build of celer cannot read or write pictures; build it with stb (Debian: libstb-dev), or give "
      "arrays as .npy");
}
}  // namespace

Result<Picture> ReadPicture(const std::filesystem::path&) {
  return NoPictures();
}
Status WritePng(const Picture&, const std::filesystem::path&) {
  return NoPictures();
}

#endif

namespace {

// Which pixels of one line make pixel `i` of another length, and how much of each.
struct Taps {
  int first = 0;
  std::vector<float> share = {};
};

std::vector<Taps> TapsFor(int from, int to) {
  const double ratio = static_cast<double>(from) / to, reach = std::max(ratio, 1.0);
  std::vector<Taps> out(static_cast<size_t>(to));
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * ratio;
    const int first = std::max(0, static_cast<int>(center - reach)),
              last = std::min(from, static_cast<int>(center + reach) + 1);
    Taps& taps = out[static_cast<size_t>(i)];
    taps.first = first;
    double sum = 0;
    for (int k = first; k < last; ++k) {
      const double share = std::max(0.0, 1 - std::abs((k + 0.5 - center) / reach));
      taps.share.push_back(static_cast<float>(share));
      sum += share;
    }
    for (float& share : taps.share) share = static_cast<float>(share / sum);
  }
  return out;
}

#if CELER_WITH_STB
constexpr int kTextScale = 2;
#endif

}  // namespace

Picture Resized(const Picture& from, int width, int height) {
  if (from.width == width && from.height == height) return from;
  const std::vector<Taps> across = TapsFor(from.width, width), down = TapsFor(from.height, height);
  const auto columns = static_cast<size_t>(width) * 3;
  std::vector<float> rows(static_cast<size_t>(from.height) * columns);
  for (int y = 0; y < from.height; ++y)
    for (int x = 0; x < width; ++x) {
      const Taps& taps = across[static_cast<size_t>(x)];
      float* const to = &rows[static_cast<size_t>(y) * columns + static_cast<size_t>(x) * 3];
      const uint8_t* pixel = &from.rgb[(static_cast<size_t>(y) * static_cast<size_t>(from.width) +
                                        static_cast<size_t>(taps.first)) *
                                       3];
      for (const float share : taps.share)
        for (int c = 0; c < 3; ++c) to[c] += share * static_cast<float>(*pixel++);
    }
  Picture out{width, height};
  out.rgb.resize(static_cast<size_t>(height) * columns);
  for (int y = 0; y < height; ++y) {
    const Taps& taps = down[static_cast<size_t>(y)];
    for (size_t i = 0; i < columns; ++i) {
      float sum = 0;
      for (size_t k = 0; k < taps.share.size(); ++k)
        sum += taps.share[k] * rows[(static_cast<size_t>(taps.first) + k) * columns + i];
      out.rgb[static_cast<size_t>(y) * columns + i] =
          static_cast<uint8_t>(std::clamp(std::lround(sum), 0L, 255L));
    }
  }
  return out;
}

namespace {

void Fill(Picture* picture, int left, int top, int right, int bottom, Color color) {
  for (int y = std::max(top, 0); y < std::min(bottom, picture->height); ++y)
    for (int x = std::max(left, 0); x < std::min(right, picture->width); ++x) {
      uint8_t* const pixel = picture->at(x, y);
      pixel[0] = color.r, pixel[1] = color.g, pixel[2] = color.b;
    }
}

}  // namespace

void DrawBox(Picture* picture, float left, float top, float right, float bottom, Color color,
             [[maybe_unused]] const std::string& text) {
  const auto pixel = [](float v) { return static_cast<int>(std::lround(std::clamp(v, -1e6f, 1e6f))); };
  const int l = pixel(left), t = pixel(top), r = pixel(right), b = pixel(bottom);
  const int line = std::max(2, std::min(picture->width, picture->height) / 200);
  Fill(picture, l, t, r, t + line, color);
  Fill(picture, l, b - line, r, b, color);
  Fill(picture, l, t, l + line, b, color);
  Fill(picture, r - line, t, r, b, color);
#if CELER_WITH_STB
  // The font comes as small rectangles, four corners each.
  struct Corner {
    float x, y, z;
    unsigned char rgba[4];
  };
  std::string ascii;
  for (const char c : text.substr(0, 80)) ascii += c >= 0x20 && c < 0x7f ? c : '?';
  std::vector<Corner> corners(ascii.size() * 80 + 4);
  const int quads = stb_easy_font_print(0, 0, ascii.data(), nullptr, corners.data(),
                                        static_cast<int>(corners.size() * sizeof(Corner)));
  const int width = stb_easy_font_width(ascii.data()) * kTextScale + 6, height = 10 * kTextScale + 4;
  const int y0 = t - height >= 0 ? t - height : t, x0 = std::max(0, std::min(l, picture->width - width));
  Fill(picture, x0, y0, x0 + width, y0 + height, color);
  const bool dark = color.r * 3 + color.g * 6 + color.b < 1400;
  const Color ink = dark ? Color{255, 255, 255} : Color{0, 0, 0};
  for (int i = 0; i < quads; ++i) {
    const Corner &from = corners[static_cast<size_t>(i) * 4], &to = corners[static_cast<size_t>(i) * 4 + 2];
    const auto place = [&](float v, int origin) { return origin + 3 + static_cast<int>(v) * kTextScale; };
    Fill(picture, place(from.x, x0), place(from.y, y0), place(to.x, x0), place(to.y, y0), ink);
  }
#endif
}

}  // namespace celer::cli
