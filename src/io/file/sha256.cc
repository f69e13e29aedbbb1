#include "io/file/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/check.h"

namespace celer {

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

// OpenSSL's calls fail only without memory, or where a system's policy forbids SHA-256: nothing a caller
// could fix.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CELER_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Update(std::span<const std::byte> bytes) {
  CELER_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int length = 0;
  CELER_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &length) == 1);
  std::string hex;
  for (const unsigned char byte : std::span(digest).first(length)) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::array<std::byte, 32> Sha256Of(std::span<const std::byte> bytes) {
  std::array<std::byte, 32> digest;
  unsigned int length = 0;
  CELER_CHECK(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &length,
                         EVP_sha256(), nullptr) == 1);
  CELER_CHECK_EQ(length, digest.size());
  return digest;
}

Result<std::string> Sha256File(const std::filesystem::path& path,
                               const std::function<void(int64_t done)>& progress) {
  // Opening a pipe would wait for its writer.
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return Error::Invalid(path.string(), ": is not a regular file");
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  if (!file) return Error::Io(path.string(), ": cannot be read: ", std::strerror(errno));
  Sha256 hash;
  std::vector<std::byte> piece(size_t{1} << 20);
  int64_t done = 0;
  for (size_t n; (n = std::fread(piece.data(), 1, piece.size(), file.get())) > 0;) {
    hash.Update(std::span(piece).first(n));
    done += static_cast<int64_t>(n);
    if (progress) progress(done);
  }
  if (std::ferror(file.get())) return Error::Io(path.string(), ": cannot be read: ", std::strerror(errno));
  return hash.Finish();
}

}  // namespace celer
