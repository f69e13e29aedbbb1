#include "engine/kv/kv_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "celer/version.h"
#include "engine/loop/engine_internals.h"
#include "engine/runners/make_runner.h"
#include "io/file/content_hash.h"
#include "io/file/mapped_file.h"
#include "io/file/sha256.h"
#include "kernels/operators.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWhole = size_t{32} << 20, kStride = size_t{1} << 20, kPage = 4096;

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Of a file: itself, or all parts of a split one. Of a folder: what the model is made of.
std::vector<fs::path> FilesOf(const fs::path& model) {
  std::error_code error;
  const bool folder = fs::is_directory(model, error);
  const std::string name = model.filename().string();
  const size_t of = name.rfind("-of-");  // model-00001-of-00003.gguf
  const bool split = !folder && model.extension() == ".gguf" && of != std::string::npos && of > 6;
  if (!folder && !split) return {model};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder ? model : model.parent_path(), error)) {
    const std::string one = entry.path().filename().string();
    const bool belongs = folder ? entry.path().extension() == ".safetensors" || one == "config.json"
                                : one.starts_with(name.substr(0, of - 5)) && one.ends_with(name.substr(of));
    if (belongs) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Result<std::string> DigestOf(const std::string& model) {
  Sha256 sum;
  if (model.starts_with(kRandomModel)) {
    sum.Update(BytesOf(model));
    return sum.Finish();
  }
  for (const fs::path& path : FilesOf(model)) {
    CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
    const std::span<const std::byte> bytes = file.bytes();
    sum.Update(BytesOf(fmt::format("{}\n", bytes.size())));
    sum.Update(bytes.first(std::min(bytes.size(), kWhole)));
    for (size_t at = kWhole; at < bytes.size(); at += kStride)
      sum.Update(bytes.subspan(at, std::min(kPage, bytes.size() - at)));
    if (bytes.size() > kPage) sum.Update(bytes.last(kPage));
  }
  return sum.Finish();
}

// How a prompt is computed, as far as the bits of its keys and values may depend on it.
std::string KernelsOf(const EngineOptions& options, bool cpu) {
  if (!cpu)
    return fmt::format("{} launch, {} activations{}, row copies {}", Name(options.launch),
                       Name(options.activations), options.deterministic ? ", deterministic" : "",
                       Name(options.row_copies));
  std::string all;
  for (const OperatorInfo& op : KernelOperators())
    for (const VariantInfo& variant : op.variants)
      if (variant.chosen) all += fmt::format("{}{}:{}", all.empty() ? "" : ",", op.name, variant.name);
  return all;
}

}  // namespace

Result<KvIdentity> IdentifyKv(const Engine& engine, const EngineOptions& options) {
  KvIdentity identity;
  CELER_ASSIGN(identity.block_bytes, EngineInternals::TransferBlockBytes(engine));
  const Engine::Info& info = engine.info();
  CELER_ASSIGN(const std::string digest, DigestOf(options.model));
  std::string weights;
  for (const auto& [format, bytes] : info.bytes_by_format)
    weights += fmt::format("{}{} {}", weights.empty() ? "" : ", ", format, bytes);
  // "cuda:0 (NVIDIA H200)" is the same as cuda:1.
  const bool cpu = info.device.starts_with("cpu");
  const size_t name = info.device.find('(');
  identity.fields = {
      {"version", std::string(Version())},
      {"model", fmt::format("{} of {} layers, {}", info.architecture, info.shape.layers, digest)},
      {"weights", weights},
      {"kv", fmt::format("{}, {} tokens and {} bytes a block", Name(options.kv), kKvBlockTokens,
                         identity.block_bytes)},
      {"device", cpu || name == std::string::npos ? std::string("cpu") : info.device.substr(name)},
      {"kernels", KernelsOf(options, cpu)},
      {"checksum", ContentHashIsXxh3() ? "xxh3" : "sha256"}};
  return identity;
}

std::string DifferenceOf(const KvIdentity& theirs, const KvIdentity& own) {
  for (const char* name : {"version", "model", "weights", "kv", "device", "kernels", "checksum"}) {
    const auto a = theirs.fields.find(name), b = own.fields.find(name);
    const std::string there = a == theirs.fields.end() ? "" : a->second,
                      here = b == own.fields.end() ? "" : b->second;
    if (there != here) return fmt::format("its {} is '{}', and here it is '{}'", name, there, here);
  }
  if (theirs.block_bytes != own.block_bytes)
    return fmt::format("its blocks have {} bytes, and here they have {}", theirs.block_bytes,
                       own.block_bytes);
  return theirs == own ? "" : "it names something else besides";
}

KvHash KvPrefix::Hash(int64_t blocks) const {
  const auto count = static_cast<size_t>(blocks * kKvBlockTokens);
  CELER_CHECK_LE(count, tokens.size());
  std::vector<std::byte> all(salt.size() + 1 + count * 4);
  auto at = std::ranges::copy(BytesOf(salt), all.begin()).out + 1;
  for (size_t i = 0; i < count; ++i)
    for (int shift = 0; shift < 32; shift += 8)
      *at++ = static_cast<std::byte>(static_cast<uint32_t>(tokens[i]) >> shift & 0xff);
  return Sha256Of(all);
}

}  // namespace celer
