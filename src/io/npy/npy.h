// NumPy's files: .npy with one array, .npz with several by name (a zip whose entries are stored, not
// compressed).
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/shape.h"

namespace celer {

struct NpyArray {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;  // row-major
};

// Little-endian arrays of numbers and booleans. Those in Fortran order are put into C order.
Result<NpyArray> ReadNpy(const std::filesystem::path& path);
Result<NpyArray> ParseNpy(std::span<const std::byte> bytes, const std::string& source);

// The same in place: `bytes` outlive the result, and need not be aligned for the type.
struct NpyView {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
  bool fortran = false;  // the first dimension is the innermost one; RowMajor() turns it round
};
Result<NpyView> ViewNpy(std::span<const std::byte> bytes, const std::string& source);
NpyArray RowMajor(const NpyView& view);  // a copy in C order

// An array of strings ("<U7" or "|S7").
struct NpyTexts {
  Shape shape;
  std::vector<std::string> texts;
};
Result<NpyTexts> ReadNpyTexts(const std::filesystem::path& path);

struct NpzEntry {
  std::string name;  // without .npy
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
  std::string descr =
      {};  // NumPy's name of the type, where it is none of ours; then `dtype` is not looked at
};
// Strings as NumPy has them; `storage` holds their characters and outlives the entry.
NpzEntry TextEntry(std::string name, const Shape& shape, std::span<const std::string> texts,
                   std::vector<std::byte>* storage);
// bf16 and fp8, which NumPy does not have, are refused.
Status WriteNpz(const std::filesystem::path& path, std::span<const NpzEntry> entries);
Status WriteNpy(const std::filesystem::path& path, const NpzEntry& entry);

}  // namespace celer
