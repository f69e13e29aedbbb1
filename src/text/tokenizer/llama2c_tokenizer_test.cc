#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/source_dir.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/tokenizer.h"

namespace celer {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;
namespace fs = std::filesystem;

template <class T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string File(int32_t longest = 27) {
  std::string out;
  Put(out, longest);
  const auto add = [&](const std::string& token, float score) {
    Put(out, score);
    Put(out, static_cast<int32_t>(token.size()));
    out += token;
  };
  add("<unk>", 0);
  add("\n<s>\n", 0);
  add("\n</s>\n", 0);
  for (int byte = 0; byte < 256; ++byte) add(ByteTokenName(static_cast<unsigned char>(byte)), 0);
  for (const char* token : {"ab", " ab", " ", "a", "b"}) add(token, -1);  // from 259 on
  return out;
}

Result<std::unique_ptr<Tokenizer>> Load(const std::string& bytes, int vocab_size) {
  const fs::path path =
      fs::path(testing::TempDir()) / ("celer_tokenizer_" + std::to_string(getpid()) + ".bin");
  std::ofstream(path, std::ios::binary) << bytes;
  auto t = Tokenizer::FromLlama2c(path, vocab_size);
  fs::remove(path);
  return t;
}

TEST(Llama2cTokenizer, EncodesAsRunC) {
  for (const int vocab_size : {264, 0}) {
    auto t = Load(File(), vocab_size);
    ASSERT_TRUE(t) << t.error().message();
    EXPECT_EQ((*t)->Encode("ab ab"), (Ids{1, 260, 260}));
    EXPECT_EQ((*t)->Encode(""), Ids{1});
    EXPECT_EQ((*t)->Encode("\u20AC"), (Ids{1, 261, 3 + 0xE2, 3 + 0x82, 3 + 0xAC}));
    EXPECT_EQ((*t)->Decode((*t)->Encode(" ab\n\xFF")), " ab\n\uFFFD");
    EXPECT_EQ((*t)->vocab_size(), 264);
    EXPECT_EQ((*t)->bos_id(), 1);
    EXPECT_EQ((*t)->eos_id(), 2);
    EXPECT_EQ((*t)->Piece(260), " ab");
    EXPECT_TRUE((*t)->IsSpecial(2));
    EXPECT_EQ((*t)->Encode("<s>", {.add_special = false, .parse_special = false}).size(), 4u);
  }
}

TEST(Llama2cTokenizer, HostileFiles) {
  const auto message = [](const std::string& bytes, int vocab_size) {
    const auto t = Load(bytes, vocab_size);
    return t ? std::string("none") : t.error().message();
  };
  EXPECT_THAT(message(File(), 265), HasSubstr("ends at token 264 of 265"));
  EXPECT_THAT(message(File(3), 264), HasSubstr("token 0 has 5 bytes"));
  EXPECT_THAT(message("abc", 0), HasSubstr("not a llama2.c tokenizer"));
  std::string bytes;
  Put(bytes, int32_t{100});
  EXPECT_THAT(message(bytes, 0), HasSubstr("only 0 tokens"));
  Put(bytes, 0.0f);
  Put(bytes, int32_t{-1});
  EXPECT_THAT(message(bytes, 1), HasSubstr("-1 bytes"));
  bytes.resize(4);
  Put(bytes, NAN);
  Put(bytes, int32_t{0});
  EXPECT_THAT(message(bytes, 1), HasSubstr("NaN"));
  const std::string whole = File();
  for (size_t cut = 1; cut < whole.size(); cut += 11) EXPECT_FALSE(Load(whole.substr(0, cut), 264));
}

TEST(Llama2cTokenizer, Stories260K) {
  const fs::path folder = fs::path(kSourceDir) / ".." / "shared" / "data" / "stories260K";
  if (!fs::exists(folder / "tok512.bin")) GTEST_SKIP() << (folder / "tok512.bin").string() << " is not there";
  auto t = Tokenizer::FromLlama2c(folder / "tok512.bin", 512);
  ASSERT_TRUE(t) << t.error().message();
  std::ifstream in(folder / "expected_greedy_200.txt", std::ios::binary);
  const std::string story{std::istreambuf_iterator<char>(in), {}};
  const Ids ids = (*t)->Encode(story);
  EXPECT_LT(ids.size(), story.size());
  EXPECT_EQ((*t)->Decode(ids), story);
}

}  // namespace
}  // namespace celer
