#include "hub/git_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <memory>

#include "io/json/json.h"

namespace celer::cli {

Result<std::string> GitBlobHash(const std::filesystem::path& path) {
  CELER_ASSIGN(const std::string content, ReadTextFile(path, size_t{256} << 20));
  const std::string head = fmt::format("blob {}", content.size());
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int length = 0;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const bool hashed = context && EVP_DigestInit_ex(context.get(), EVP_sha1(), nullptr) == 1 &&
                      EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1) == 1 &&
                      EVP_DigestUpdate(context.get(), content.data(), content.size()) == 1 &&
                      EVP_DigestFinal_ex(context.get(), digest.data(), &length) == 1;
  std::string hex;  // stays empty where a strict system forbids SHA-1
  for (unsigned int i = 0; hashed && i < length; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace celer::cli
