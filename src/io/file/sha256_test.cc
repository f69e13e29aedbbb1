#include "io/file/sha256.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace celer {
namespace {

std::string Hash(const std::string& text, size_t piece = 0) {
  Sha256 hash;
  const auto bytes = std::as_bytes(std::span(text));
  if (piece == 0) piece = std::max<size_t>(1, bytes.size());
  for (size_t at = 0; at < bytes.size(); at += piece)
    hash.Update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
  return hash.Finish();
}

// The examples of the standard.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(Hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hash(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Lengths around the block and the padding; every way to cut the same text gives the same hash.
TEST(Sha256, PiecesDoNotMatter) {
  for (const size_t length : {1u, 55u, 56u, 63u, 64u, 65u, 119u, 120u, 127u, 128u, 1000u}) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>(i * 37 + 11);
    const std::string whole = Hash(text);
    for (const size_t piece : {1u, 3u, 63u, 64u, 65u, 200u})
      EXPECT_EQ(Hash(text, piece), whole) << length << " " << piece;
  }
}

TEST(Sha256, OfFile) {
  const std::string path = testing::TempDir() + "sha256_" + std::to_string(::getpid());
  std::ofstream(path) << std::string(1'000'000, 'a');
  int64_t seen = 0;
  const auto hash = Sha256File(path, [&](int64_t done) { seen = done; });
  std::filesystem::remove(path);
  ASSERT_TRUE(hash) << hash.error().message();
  EXPECT_EQ(*hash, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(seen, 1'000'000);
  const auto missing = Sha256File(path);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message().find(path), std::string::npos);
}

TEST(Sha256, PipesAndFoldersAreRefused) {
  const std::string path = testing::TempDir() + "sha256_pipe_" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const std::string& no_file : {path, testing::TempDir()}) {
    const auto hash = Sha256File(no_file);
    ASSERT_FALSE(hash) << no_file;
    EXPECT_NE(hash.error().message().find("is not a regular file"), std::string::npos);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace celer
