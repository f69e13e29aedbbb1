// API keys from a file, one per line, compared in constant time.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/http/http.h"

namespace celer::server {

class ApiKeys {
 public:
  ApiKeys() = default;  // no keys: every request is allowed
  // Blanks around a key do not belong to it. Empty lines and lines that begin with # are left out. An error
  // if no key is left.
  static Result<ApiKeys> Load(const std::filesystem::path& file);

  bool Required() const { return !hashes_.empty(); }
  // "Authorization: Bearer KEY", or "x-api-key: KEY" as Anthropic's clients send it.
  bool Allows(const HttpRequest& request) const { return !Required() || Find(KeyOf(request)); }
  static std::string_view KeyOf(const HttpRequest& request);
  // Its number, in the order of the file.
  std::optional<size_t> Find(std::string_view key) const;
  size_t size() const { return hashes_.size(); }

 private:
  using Hash = std::array<unsigned char, 32>;
  static Hash HashOf(std::string_view key);
  std::vector<Hash> hashes_;
};

}  // namespace celer::server
