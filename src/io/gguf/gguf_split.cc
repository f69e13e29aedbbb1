// A model in several files: "split.count" says how many, "split.no" which one this is, from 0 on, and their
// names end with "-00001-of-00003.gguf".
#include <fmt/format.h>

#include <system_error>

#include "io/file/printable.h"
#include "io/gguf/gguf.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

std::string Suffix(uint64_t number, uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// nullopt: not there, not a natural number, or too large.
std::optional<uint64_t> Split(const GgufFile& file, std::string_view key) {
  const auto value = file.GetUint(key);
  return value && *value <= 65535 ? value : std::nullopt;
}

}  // namespace

Result<GgufFile> GgufFile::Join(std::vector<GgufFile> parts) {
  GgufFile whole;
  whole.source_ = parts[0].source_;
  whole.version_ = parts[0].version_;
  whole.alignment_ = parts[0].alignment_;
  whole.metadata_ = std::move(parts[0].metadata_);
  whole.keys_ = std::move(parts[0].keys_);
  for (size_t i = 0; i < parts.size(); ++i) {
    GgufFile& part = parts[i];
    const GgufFile& about = i == 0 ? whole : part;
    if (Split(about, "split.no") != i || Split(about, "split.count") != parts.size())
      return Error::Corrupt(
          part.source_, ": is named as part ", i + 1, " of ", parts.size(), " of ", whole.source_,
          ", but its 'split.no' and 'split.count' are those of another; fetch all parts again");
    for (const TensorRecord& tensor : part.tensors())
      if (!whole.tensors_.Add(tensor))
        return Error::Corrupt(part.source_, ": tensor '", Printable(tensor.name),
                              "' is in another part of the model as well; fetch all parts again");
    for (MappedFile& file : part.mapped_) whole.mapped_.push_back(std::move(file));
  }
  const auto tensors = whole.GetUint("split.tensors.count");
  if (tensors && *tensors != whole.tensors().size())
    return Error::Corrupt(whole.source_, ": 'split.tensors.count' is ", *tensors, ", but the ", parts.size(),
                          " parts have ", whole.tensors().size(), " tensors; fetch all parts again");
  return whole;
}

Result<GgufFile> GgufFile::Open(const fs::path& path) {
  CELER_ASSIGN(GgufFile named, OpenOne(path));
  if (!named.Has("split.count")) return named;
  const auto number = Split(named, "split.no"), count = Split(named, "split.count");
  if (!number || !count || *count < 1 || *number >= *count)
    return Error::Corrupt(path.string(),
                          ": 'split.no' and 'split.count' do not name a part of a split model");
  if (*count == 1) return named;

  const std::string name = path.filename().string(), suffix = Suffix(*number, *count);
  const std::string what = fmt::format("is part {} of {} of a split GGUF", *number + 1, *count);
  if (!name.ends_with(suffix))
    return Error::Invalid(path.string(), ": ", what, " and is not named so; give it a name that ends with ",
                          suffix, ", beside the other parts");
  const std::string stem = name.substr(0, name.size() - suffix.size());
  const auto part_path = [&](uint64_t i) { return path.parent_path() / (stem + Suffix(i, *count)); };
  for (uint64_t i = 0; i < *count; ++i) {
    std::error_code ignored;
    if (i != *number && !fs::exists(part_path(i), ignored))
      return Error::NotFound(path.string(), ": ", what, ", and ", stem, Suffix(i, *count),
                             " is not beside it; fetch all ", *count, " parts into one folder");
  }
  std::vector<GgufFile> parts;
  for (uint64_t i = 0; i < *count; ++i) {
    if (i == *number) {
      parts.push_back(std::move(named));
      continue;
    }
    CELER_ASSIGN(GgufFile part, OpenOne(part_path(i)));
    parts.push_back(std::move(part));
  }
  return Join(std::move(parts));
}

}  // namespace celer
