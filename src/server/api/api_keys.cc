#include "server/api/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <sstream>

#include "base/check.h"
#include "io/json/json.h"
#include "server/http/http_head.h"

namespace celer::server {
namespace {

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

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
    const std::string_view key = Trimmed(line);
    if (!key.empty() && key[0] != '#') keys.hashes_.push_back(HashOf(key));
  }
  if (keys.hashes_.empty()) return Error::Invalid(file.string(), ": no key in it; write one per line");
  return keys;
}

std::string_view ApiKeys::KeyOf(const HttpRequest& request) {
  std::string_view key = request.Header("x-api-key");
  constexpr std::string_view kBearer = "bearer ";  // the name of a scheme is case-insensitive
  const std::string_view given = request.Header("authorization");
  if (LowerCase(given.substr(0, kBearer.size())) == kBearer) key = given.substr(kBearer.size());
  return Trimmed(key);
}

std::optional<size_t> ApiKeys::Find(std::string_view key) const {
  // Constant-time comparison: hashes of equal length, against all keys, without an early exit.
  const Hash hash = HashOf(key);
  size_t found = hashes_.size();
  for (size_t i = 0; i < hashes_.size(); ++i) {
    const bool equal = CRYPTO_memcmp(hash.data(), hashes_[i].data(), hash.size()) == 0;
    found = equal ? i : found;
  }
  if (found == hashes_.size()) return std::nullopt;
  return found;
}

}  // namespace celer::server
