// Asynchronous copies to a GPU through a ring of pinned staging buffers: the source may be reused at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "device/buffer.h"
#include "device/stream.h"

namespace celer {

class UploadRing {
 public:
  UploadRing(int device, const Stream& stream) : device_(device), stream_(stream) {}

  Status Reserve(int64_t bytes);  // for each staging buffer
  // A free staging buffer; waits if all are in use.
  Result<std::byte*> Begin(int64_t bytes);
  // From within the piece, in order with the stream.
  Status Copy(void* to, const void* from, int64_t bytes);
  Status CopyRows(void* to, int64_t to_stride, const void* from, int64_t row_bytes, int64_t rows);
  Status End();  // all copies from the piece are queued

  // All of it in one.
  Status Upload(void* to, const void* from, int64_t bytes);

 private:
  struct Piece {
    Buffer memory;
    std::optional<Event> done;
  };

  int device_;
  const Stream& stream_;
  std::array<Piece, 4> pieces_;
  size_t next_ = 0;
  Piece* now_ = nullptr;
};

}  // namespace celer
