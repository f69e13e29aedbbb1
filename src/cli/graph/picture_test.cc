// Pictures that are turned, refused by name, or made of a network's output.
#include "cli/graph/picture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "cli/graph/picture_output.h"
#include "io/file/test_folder.h"
#include "io/npy/npy.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

std::string Slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {(std::istreambuf_iterator<char>(in)), {}};
}

// A JPEG with an EXIF segment behind its first marker.
std::string WithOrientation(const std::string& jpeg, int value, bool little) {
  const auto number = [&](uint32_t v, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(v >> 8 * (little ? i : bytes - 1 - i));
    return out;
  };
  std::string tiff = (little ? "II"s : "MM"s) + number(42, 2) + number(8, 4) + number(2, 2);
  tiff += number(0x010f, 2) + number(2, 2) + number(1, 4) + number(0, 4);  // the maker, which is skipped
  tiff += number(0x0112, 2) + number(3, 2) + number(1, 4) + number(static_cast<uint32_t>(value), 2) + "\0\0"s;
  tiff += number(0, 4);
  const std::string body = "Exif\0\0"s + tiff;
  const auto length = static_cast<uint32_t>(body.size() + 2);
  std::string segment = "\xff\xe1"s + static_cast<char>(length >> 8) + static_cast<char>(length & 255);
  return jpeg.substr(0, 2) + segment + body + jpeg.substr(2);
}

// Whether this build has stb.
bool CanWritePictures(const TestFolder& folder) {
  return static_cast<bool>(WritePixels({1, 1, 1, {0}}, folder / "probe.png"));
}

TEST(Picture, JpegIsTurnedAsExifSays) {
  TestFolder folder;
  if (!CanWritePictures(folder)) GTEST_SKIP() << "built without stb";
  // 32 x 16: dark but for the upper left quarter.
  PixelRows pixels{32, 16, 3, std::vector<uint8_t>(32 * 16 * 3, 10)};
  for (size_t y = 0; y < 8; ++y)
    for (size_t x = 0; x < 16; ++x)
      std::fill_n(pixels.bytes.begin() + static_cast<int64_t>((y * 32 + x) * 3), 3, 240);
  ASSERT_TRUE(WritePixels(pixels, folder / "plain.jpg"));
  const std::string jpeg = Slurp(folder / "plain.jpg");
  struct Case {
    int orientation;
    bool right, lower;  // where the light quarter is then
  };
  for (const Case& c : {Case{1, false, false},
                        {2, true, false},
                        {3, true, true},
                        {4, false, true},
                        {5, false, false},
                        {6, true, false},
                        {7, true, true},
                        {8, false, true}})
    for (const bool little : {true, false}) {
      auto read = ReadPicture(folder.Write("turned.jpg", WithOrientation(jpeg, c.orientation, little)));
      ASSERT_TRUE(read) << read.error().message();
      const int width = c.orientation >= 5 ? 16 : 32, height = c.orientation >= 5 ? 32 : 16;
      ASSERT_EQ(read->width, width) << c.orientation;
      ASSERT_EQ(read->height, height) << c.orientation;
      for (const bool right : {false, true})
        for (const bool lower : {false, true}) {
          const int value =
              read->at(width / 4 + (right ? width / 2 : 0), height / 4 + (lower ? height / 2 : 0))[0];
          EXPECT_EQ(value > 128, right == c.right && lower == c.lower) << c.orientation << right << lower;
        }
    }
  // Nonsense in that segment changes nothing.
  const std::string odd = WithOrientation(jpeg, 6, true);
  for (size_t cut = 2; cut < 60; ++cut) {
    std::string broken = odd;
    broken[cut] = static_cast<char>(broken[cut] ^ 0x7f);
    (void)ReadPicture(folder.Write("odd.jpg", broken));
  }
}

TEST(Picture, WhatIsNotReadIsNamed) {
  TestFolder folder;
  if (!CanWritePictures(folder)) GTEST_SKIP() << "built without stb";
  const std::string png = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\xc3\x50\0\0\xea\x60\x08\x02\0\0\0\0\0\0\0"s;
  for (const auto& [data, says] : {std::pair{"RIFF\x24\0\0\0WEBPVP8 more and more"s, "WebP"s},
                                   {"II*\0\x08\0\0\0 more"s, "TIFF"},
                                   {"MM\0*\0\0\0\x08 more"s, "TIFF"},
                                   {"\0\0\0\x20"s
                                    "ftypavif and more"s,
                                    "AVIF"},
                                   {"\0\0\0\x20"s
                                    "ftypheic and more"s,
                                    "HEIC"},
                                   {png, "50000 x 60000"},
                                   {"no picture at all"s, "not a picture"}}) {
    const auto read = ReadPicture(folder.Write("x.png", data));
    ASSERT_FALSE(read) << says;
    EXPECT_NE(read.error().message().find(says), std::string::npos) << read.error().message();
  }
  EXPECT_TRUE(LooksLikePicture("a.WebP") && LooksLikePicture("a.tiff"));
  EXPECT_FALSE(IsReadablePicture("a.webp"));
}

TEST(Picture, IsWrittenInTheFormThatItsNameSays) {
  TestFolder folder;
  if (!CanWritePictures(folder)) GTEST_SKIP() << "built without stb";
  const PixelRows pixels{3, 2, 3, {255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9, 99, 99, 99, 200, 200, 200}};
  for (const auto& [name, magic] :
       {std::pair{"a.png", "\x89PNG"s}, {"a.jpg", "\xff\xd8\xff"s}, {"a.bmp", "BM"s}, {"a.tga", ""s}}) {
    ASSERT_TRUE(WritePixels(pixels, folder / name));
    EXPECT_TRUE(Slurp(folder / name).starts_with(magic)) << name;
    const auto read = ReadPicture(folder / name);
    ASSERT_TRUE(read) << name << ": " << read.error().message();
    EXPECT_EQ(read->width, 3);
    if (name != "a.jpg"s) {
      EXPECT_EQ(read->rgb, pixels.bytes) << name;
    }
  }
  EXPECT_FALSE(WritePixels({70000, 1, 1, std::vector<uint8_t>(70000)}, folder / "wide.jpg"));
}

GraphTensor TensorOf(const std::string& dtype, std::vector<int64_t> shape, const void* data, size_t bytes) {
  return {dtype, std::move(shape), {static_cast<const std::byte*>(data), bytes}};
}

TEST(OutputPicture, FloatsAreColoursInEitherRange) {
  const std::vector<float> unit = {0, 0.5f, 1.04f, -0.02f, 1, 0, 0, 0, 0, 0, 1, 1};  // [3, 2, 2]
  std::vector<float> bytes;
  for (const float x : unit) bytes.push_back(x * 255);
  const std::vector<uint8_t> wanted = {0, 255, 0, 128, 0, 0, 255, 0, 255, 0, 0, 255};
  for (const std::vector<float>* values : std::initializer_list<const std::vector<float>*>{&unit, &bytes})
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 3, 2, 2}, {3, 2, 2}}) {
      const auto pixels = PixelsOf(TensorOf("f32", shape, values->data(), values->size() * 4), "y", {});
      ASSERT_TRUE(pixels) << pixels.error().message();
      EXPECT_EQ(pixels->channels, 3);
      EXPECT_EQ(pixels->bytes, wanted);
    }
  PictureFlags bgr;
  bgr.channels = "bgr";
  const auto swapped = PixelsOf(TensorOf("f32", {3, 2, 2}, unit.data(), 48), "y", bgr);
  EXPECT_EQ(swapped->bytes[0], wanted[2]);
  EXPECT_EQ(swapped->bytes[2], wanted[0]);
}

TEST(OutputPicture, BytesMasksAndClasses) {
  const uint8_t rgba[] = {1,  2,  3,  4,  5, 6, 7, 8, 9,   10,  11,  12,
                          13, 14, 15, 16, 0, 0, 0, 0, 255, 255, 255, 255};
  const auto last = PixelsOf(TensorOf("u8", {1, 2, 3, 4}, rgba, 24), "y", {});
  ASSERT_TRUE(last) << last.error().message();
  EXPECT_EQ(last->channels, 4);
  EXPECT_EQ(last->width, 3);
  EXPECT_EQ(last->bytes, std::vector<uint8_t>(rgba, rgba + 24));
  const int64_t classes[] = {0, 1, 2, 15};
  const auto map = PixelsOf(TensorOf("i64", {1, 2, 2}, classes, 32), "y", {});
  ASSERT_TRUE(map) << map.error().message();
  EXPECT_EQ(map->bytes, (std::vector<uint8_t>{0, 0, 0, 128, 0, 0, 0, 128, 0, 192, 128, 128}));
  // Scores of two classes: the better one.
  const float scores[] = {9, -3, 1, 2, -9, 4, 1.5f, 1};
  const auto best = PixelsOf(TensorOf("f32", {1, 2, 2, 2}, scores, 32), "y", {});
  ASSERT_TRUE(best) << best.error().message();
  EXPECT_EQ(best->bytes, (std::vector<uint8_t>{0, 0, 0, 128, 0, 0, 128, 0, 0, 0, 0, 0}));
}

TEST(OutputPicture, WhatIsNoneIsRefusedWithItsFigure) {
  const float values[] = {-4, 1, 2, 3, 700, 0, 0, 0, 0, 0, 0, 0};
  for (const auto& [shape, says] : {std::pair{std::vector<int64_t>{1, 3, 2, 2}, "from -4 to 700"},
                                    {{12}, "[H, W]"},
                                    {{1, 12, 1, 1}, "a row of values"},
                                    {{2, 3, 1, 2}, "[H, W]"},
                                    {{1, 12}, "a row of values"}}) {
    const auto pixels = PixelsOf(TensorOf("f32", shape, values, 48), "y", {});
    ASSERT_FALSE(pixels);
    EXPECT_NE(pixels.error().message().find(says), std::string::npos) << pixels.error().message();
  }
  const float nan[] = {0, 0, 0, std::nanf("")};
  EXPECT_FALSE(PixelsOf(TensorOf("f32", {2, 2}, nan, 16), "y", {}));
}

TEST(NpyInput, FortranOrderAndDoublesAreTaken) {
  const std::string header = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }";
  std::string file = "\x93NUMPY\1\0"s + static_cast<char>(header.size()) + "\0"s + header;
  for (const double value : {1.0, 4.0, 2.0, 5.0, 3.0, 6.0})
    file.append(reinterpret_cast<const char*>(&value), 8);
  auto array = ParseNpy(std::as_bytes(std::span(file)), "x.npy");
  ASSERT_TRUE(array) << array.error().message();
  const GraphPort port{.name = "x", .dtype = "f32", .shape = {2, 3}, .dim_names = {}};
  auto floats = AsFloatsOf(port, *array, "x.npy");
  ASSERT_TRUE(floats) << floats.error().message();
  ASSERT_EQ(floats->dtype, DType::kF32);
  float got[6];
  std::memcpy(got, floats->bytes.data(), 24);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(got[i], static_cast<float>(i + 1));
  const double large = 1e300;
  std::memcpy(array->bytes.data(), &large, 8);
  const auto refused = AsFloatsOf(port, *array, "x.npy");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("1e+300"), std::string::npos);
}

}  // namespace
}  // namespace celer::cli
