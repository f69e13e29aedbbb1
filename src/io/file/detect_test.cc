#include "io/file/detect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "io/file/test_folder.h"
#include "io/gguf/gguf_test_bytes.h"

namespace celer {
namespace {

using testing::HasSubstr;

std::string DetectErrorOf(const std::filesystem::path& path) {
  const auto kind = DetectFile(path);
  return kind ? std::string(Name(*kind)) : kind.error().message();
}

TEST(Detect, KnownKinds) {
  const TestFolder folder;
  EXPECT_EQ(DetectErrorOf(folder.Write("a.bin", GgufBytes{}.Make())), "GGUF");  // by content, not by name
  EXPECT_EQ(DetectErrorOf(folder.Write("b", Raw<uint64_t>(2) + "{}")), "safetensors");
  folder.Write("hf/config.json", "{}");
  EXPECT_EQ(DetectErrorOf(folder / "hf"), "Hugging Face folder");
  std::string llama2c;
  for (const int32_t field : {2, 1, 1, 1, 1, 1, 1}) llama2c += Raw(field);
  llama2c.resize(28 + 4 * (2 + 2 + 16 + 2 + 6 + 2 + 2));
  EXPECT_EQ(DetectErrorOf(folder.Write("c", llama2c)), "llama2.c");
}

TEST(Detect, PicklesAreNamedAndRefused) {
  const TestFolder folder;
  EXPECT_THAT(DetectErrorOf(folder.Write("pytorch_model.bin", "\x80\x02}q\x00.")), HasSubstr("pickle"));
  EXPECT_THAT(DetectErrorOf(folder.Write("m.pt", "\x80\x05}q\x00.")),
              HasSubstr("can run code and is not loaded"));
  EXPECT_THAT(DetectErrorOf(folder.Write("m.pth", std::string("PK\x03\x04 archive/data.pkl"))),
              HasSubstr("is a zip archive"));
}

TEST(Detect, TheRestSaysWhatIsSupported) {
  const TestFolder folder;
  EXPECT_THAT(DetectErrorOf(folder.Write("notes.txt", "hello, this is text")), HasSubstr("supported are"));
  EXPECT_THAT(DetectErrorOf(folder.Write("x", "y")), HasSubstr("supported are"));
  EXPECT_THAT(DetectErrorOf(folder.path()), HasSubstr("no config.json; supported are"));
  EXPECT_THAT(DetectErrorOf(folder / "none"), HasSubstr("no such file"));
  EXPECT_THAT(DetectErrorOf(folder.Write("e", "")), HasSubstr("is empty"));
  EXPECT_THAT(DetectErrorOf(folder.Write("cut.bin", std::string(64, '\1'))), HasSubstr("n_layers"));
  EXPECT_THAT(DetectErrorOf(folder.Write("bad.safetensors", "<!DOCTYPE html>")), HasSubstr("fetch it again"));
  folder.Write("sub/q4.gguf", "x");
  EXPECT_THAT(DetectErrorOf(folder / "sub"), HasSubstr("sub/q4.gguf"));
}

}  // namespace
}  // namespace celer
