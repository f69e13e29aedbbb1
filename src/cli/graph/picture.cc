#include "cli/graph/picture.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "io/file/atomic_file.h"
#include "io/file/mapped_file.h"

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

namespace {

bool HasSuffix(const std::filesystem::path& path, std::initializer_list<std::string_view> known) {
  std::string suffix = path.extension().string();
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(known.begin(), known.end(), suffix) != known.end();
}

}  // namespace

bool IsReadablePicture(const std::filesystem::path& path) {
  return HasSuffix(path, {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tga", ".ppm", ".pgm", ".pnm"});
}

bool LooksLikePicture(const std::filesystem::path& path) {
  return IsReadablePicture(path) ||
         HasSuffix(path, {".webp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd"});
}

bool IsWritablePicture(const std::filesystem::path& path) {
  return HasSuffix(path, {".png", ".jpg", ".jpeg", ".bmp", ".tga"});
}

#if CELER_WITH_STB

namespace {

constexpr int kMostPixelsAcross = STBI_MAX_DIMENSIONS;
constexpr int64_t kMostPixels = int64_t{1} << 28;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What a file is by its first bytes, among those that stb does not read.
const char* UnreadableKind(std::string_view data) {
  using namespace std::string_view_literals;
  const std::string_view brand = data.size() >= 12 ? data.substr(8, 4) : std::string_view();
  if (data.starts_with("RIFF"sv) && brand == "WEBP"sv) return "WebP";
  if (data.starts_with("II*\0"sv) || data.starts_with("MM\0*"sv)) return "TIFF";
  if (data.size() >= 12 && data.substr(4, 4) == "ftyp"sv) {
    if (brand == "avif"sv || brand == "avis"sv) return "AVIF";
    if (brand == "heic"sv || brand == "heix"sv || brand == "hevc"sv || brand == "mif1"sv || brand == "msf1"sv)
      return "HEIC";
  }
  if (data.starts_with("\xff\x0a"sv) || data.starts_with("\0\0\0\x0cJXL "sv)) return "JPEG XL";
  if (data.starts_with("\0\0\0\x0cjP  "sv)) return "JPEG 2000";
  if (data.starts_with("%PDF"sv)) return "PDF";
  return nullptr;
}

uint32_t BigEndian(std::string_view data, size_t at, int bytes) {
  uint32_t out = 0;
  for (int i = 0; i < bytes; ++i) out = out << 8 | static_cast<uint8_t>(data[at + static_cast<size_t>(i)]);
  return out;
}

// Of PNG, whose size stb does not tell if it is too large for it.
struct PngSize {
  uint32_t width = 0, height = 0;
};
PngSize PngDimensions(std::string_view data) {
  using namespace std::string_view_literals;
  if (!data.starts_with("\x89PNG\r\n\x1a\n"sv) || data.size() < 24 || data.substr(12, 4) != "IHDR"sv)
    return {};
  return {BigEndian(data, 16, 4), BigEndian(data, 20, 4)};
}

Error TooLarge(const std::filesystem::path& path, int64_t width, int64_t height) {
  return Error::Unsupported(path.string(), ": a picture of ", width, " x ", height, " pixels; at most ",
                            kMostPixelsAcross, " in a direction and ", kMostPixels,
                            " in all are read: make it smaller first");
}

// Tag 0x0112 of the first directory in the TIFF inside a JPEG's APP1 segment: 1 to 8, and 1 if there is none.
int OrientationIn(std::string_view tiff) {
  const bool little = tiff.starts_with("II");
  if (tiff.size() < 8 || (!little && !tiff.starts_with("MM"))) return 1;
  const auto number = [&](size_t at, int bytes) {
    uint32_t out = 0;
    for (int i = 0; i < bytes; ++i) {
      const auto byte = static_cast<uint8_t>(tiff[at + static_cast<size_t>(little ? bytes - 1 - i : i)]);
      out = out << 8 | byte;
    }
    return out;
  };
  const size_t directory = number(4, 4);
  if (directory > tiff.size() || tiff.size() - directory < 2) return 1;
  const size_t entries = number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + i * 12;
    if (at + 12 > tiff.size()) return 1;
    if (number(at, 2) != 0x0112) continue;
    const uint32_t value = number(at + 8, 2);
    return number(at + 2, 2) == 3 && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

int ExifOrientation(std::string_view data) {
  using namespace std::string_view_literals;
  if (!data.starts_with("\xff\xd8"sv)) return 1;
  constexpr uint8_t kApp1 = 0xe1, kScan = 0xda, kEnd = 0xd9;
  for (size_t at = 2; at + 4 <= data.size();) {
    const auto marker = static_cast<uint8_t>(data[at + 1]);
    if (static_cast<uint8_t>(data[at]) != 0xff || marker == kScan || marker == kEnd) return 1;
    const size_t length = BigEndian(data, at + 2, 2);
    if (length < 2 || length > data.size() - at - 2) return 1;
    const std::string_view segment = data.substr(at + 4, length - 2);
    if (marker == kApp1 && segment.starts_with("Exif\0\0"sv)) return OrientationIn(segment.substr(6));
    at += 2 + length;
  }
  return 1;
}

// As it is meant to be looked at: EXIF says how the camera was held.
Picture ApplyOrientation(Picture from, int orientation) {
  if (orientation <= 1) return from;
  const int w = from.width, h = from.height;
  const bool swapped = orientation >= 5;
  Picture out{swapped ? h : w, swapped ? w : h};
  out.rgb.resize(from.rgb.size());
  for (int y = 0; y < out.height; ++y)
    for (int x = 0; x < out.width; ++x) {
      int from_x = swapped ? y : x, from_y = swapped ? x : y;
      if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8)
        from_x = w - 1 - from_x;
      if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7)
        from_y = h - 1 - from_y;
      std::memcpy(out.at(x, y), from.at(from_x, from_y), 3);
    }
  return out;
}

}  // namespace

Result<Picture> ReadPicture(const std::filesystem::path& path) {
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() > static_cast<size_t>(1) << 30)
    return Error::Unsupported(path.string(), ": a picture of more than 1 GiB");
  const std::string_view content = TextOf(file.bytes());
  if (const char* const kind = UnreadableKind(content))
    return Error::Unsupported(path.string(), ": is a ", kind,
                              " file, which is not read; convert it to PNG or JPEG first");
  if (const PngSize png = PngDimensions(content);
      png.width > kMostPixelsAcross || png.height > kMostPixelsAcross)
    return TooLarge(path, png.width, png.height);
  int width = 0, height = 0, channels = 0;
  const auto* const data = reinterpret_cast<const stbi_uc*>(file.bytes().data());
  const auto size = static_cast<int>(file.bytes().size());
  // Asked first, so that a small file cannot ask for gigabytes.
  if (!stbi_info_from_memory(data, size, &width, &height, &channels))
    return Error::Corrupt(path.string(), ": not a picture that can be read (", stbi_failure_reason(),
                          "); JPEG, PNG, BMP, GIF, TGA and PNM are known");
  if (static_cast<int64_t>(width) * height > kMostPixels) return TooLarge(path, width, height);
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(data, size, &width, &height, &channels, 3), stbi_image_free);
  if (!pixels) return Error::Corrupt(path.string(), ": the picture is damaged (", stbi_failure_reason(), ")");
  Picture out{width, height};
  out.rgb.assign(pixels.get(), pixels.get() + static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  return ApplyOrientation(std::move(out), ExifOrientation(content));
}

Status WritePixels(const PixelRows& pixels, const std::filesystem::path& path) {
  const bool jpeg = HasSuffix(path, {".jpg", ".jpeg"}), tga = HasSuffix(path, {".tga"});
  const int64_t across = jpeg || tga ? 65535 : kMostPixels;  // sizes of two bytes
  if (pixels.width < 1 || pixels.height < 1 || pixels.width > across || pixels.height > across ||
      pixels.width > kMostPixels / pixels.height)
    return Error::Unsupported(path.string(), ": a picture of ", pixels.width, " x ", pixels.height,
                              " pixels cannot be written there; write an .npy");
  const auto width = static_cast<int>(pixels.width), height = static_cast<int>(pixels.height);
  std::string out;
  const auto take = [](void* to, void* data, int size) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(data), static_cast<size_t>(size));
  };
  constexpr int kJpegQuality = 95;
  const int n = pixels.channels;
  const uint8_t* const data = pixels.bytes.data();
  const int done = jpeg  ? stbi_write_jpg_to_func(take, &out, width, height, n, data, kJpegQuality)
                   : tga ? stbi_write_tga_to_func(take, &out, width, height, n, data)
                   : HasSuffix(path, {".bmp"})
                       ? stbi_write_bmp_to_func(take, &out, width, height, n, data)
                       : stbi_write_png_to_func(take, &out, width, height, n, data, width * n);
  if (!done) return Error::Io(path.string(), ": the picture cannot be written");
  return WriteWholeFile(path, out);
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
Status WritePixels(const PixelRows&, const std::filesystem::path&) {
  return NoPictures();
}

#endif

Status WritePicture(const Picture& picture, const std::filesystem::path& path) {
  return WritePixels({picture.width, picture.height, 3, picture.rgb}, path);
}

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
    Taps& taps = out[i];
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
      const Taps& taps = across[x];
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
    const Taps& taps = down[y];
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
