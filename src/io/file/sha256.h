// SHA-256 (OpenSSL's), to check that a fetched file is the right one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX; its headers stay out of ours

namespace celer {

class Sha256 {
 public:
  Sha256();
  void Update(std::span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits. Ends the computation: nothing may follow.
  std::string Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::array<std::byte, 32> Sha256Of(std::span<const std::byte> bytes);

// Reads 1 MiB at a time; `progress` gets the bytes read so far.
Result<std::string> Sha256File(const std::filesystem::path& path,
                               const std::function<void(int64_t done)>& progress = {});

}  // namespace celer
