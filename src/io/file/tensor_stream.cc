#include "io/file/tensor_stream.h"

namespace celer {

std::optional<int64_t> TensorBytes(const TensorSpec& tensor) {
  const auto elements = tensor.shape.elements();
  if (!elements) return std::nullopt;
  if (IsBlockQuantized(tensor.dtype)) {
    const int rank = tensor.shape.rank();
    if (rank == 0 || tensor.shape[rank - 1] % Info(tensor.dtype).block != 0) return std::nullopt;
  }
  return BytesFor(tensor.dtype, *elements);
}

Status StreamTensor(AtomicFile& file, const std::filesystem::path& path, const TensorSpec& tensor,
                    const TensorFill& fill) {
  auto left = static_cast<size_t>(TensorBytes(tensor).value());  // the caller has checked it
  const TensorSink sink = [&](std::span<const std::byte> piece) -> Status {
    if (piece.size() > left)
      return Error::Invalid(path.string(), ": tensor '", tensor.name, "' got ", piece.size() - left,
                            " bytes more than its shape ", tensor.shape.ToString(), " needs");
    left -= piece.size();
    return file.Write(piece);
  };
  CELER_RETURN_IF_ERROR(fill(tensor, sink));
  if (left != 0)
    return Error::Invalid(path.string(), ": tensor '", tensor.name, "' lacks ", left, " bytes of its shape ",
                          tensor.shape.ToString());
  return {};
}

}  // namespace celer
