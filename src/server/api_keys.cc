#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <sstream>

#include "core/check.h"
#include "io/json.h"

namespace celer::server {

ApiKeys::Hash ApiKeys::HashOf(std::string_view key) {
  Hash hash{};
  CELER_CHECK_EQ(EVP_Digest(key.data(), key.size(), hash.data(), nullptr, EVP_sha256(), nullptr), 1);
  return hash;
}

Result<ApiKeys> ApiKeys::Load(const std::filesystem::path& file) {
  CELER_ASSIGN(const std::string text, ReadTextFile(file, size_t{1} << 20));
  ApiKeys keys;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r' || line.back() == '\t'))
      line.pop_back();
    if (!line.empty() && line[0] != '#') keys.hashes_.push_back(HashOf(line));
  }
  if (keys.hashes_.empty()) return Error::Invalid(file.string(), ": no key in it; write one per line");
  return keys;
}

bool ApiKeys::Allows(const HttpRequest& request) const {
  if (!Required()) return true;
  std::string_view key = request.Header("x-api-key");
  constexpr std::string_view kBearer = "Bearer ";
  if (const std::string_view given = request.Header("authorization"); given.starts_with(kBearer))
    key = given.substr(kBearer.size());
  // Equal lengths and all keys, always: the time says neither which key nor how much of it was right.
  const Hash hash = HashOf(key);
  int allowed = 0;
  for (const Hash& known : hashes_)
    allowed |= CRYPTO_memcmp(hash.data(), known.data(), hash.size()) == 0 ? 1 : 0;
  return allowed != 0;
}

}  // namespace celer::server
