#include "loadtest/http/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>

#include "io/json/json.h"

namespace celer::cli {

Result<std::string> Gunzip(std::string_view packed, const std::string& source, size_t max_bytes) {
  z_stream stream{};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) return Error::OutOfMemory(source, ": no memory to unpack it");
  std::string text;
  std::array<char, 1 << 16> part;
  const auto corrupt = [&](const char* why) {
    inflateEnd(&stream);
    return Error::Corrupt(source, ": cannot be unpacked: ", why);
  };
  // A file may hold several gzip streams, one after the other.
  while (!packed.empty()) {
    if (inflateReset(&stream) != Z_OK) return corrupt("zlib cannot start");
    for (int state = Z_OK; state != Z_STREAM_END;) {
      const size_t now = std::min<size_t>(packed.size(), std::numeric_limits<uInt>::max());
      stream.next_in =
          reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));  // NOLINT: it is not written
      stream.avail_in = static_cast<uInt>(now);
      stream.next_out = reinterpret_cast<Bytef*>(part.data());
      stream.avail_out = part.size();
      state = inflate(&stream, Z_NO_FLUSH);
      packed.remove_prefix(now - stream.avail_in);
      text.append(part.data(), part.size() - stream.avail_out);
      if (text.size() > max_bytes) {
        inflateEnd(&stream);
        return Error::Corrupt(source, ": more than ", max_bytes,
                              " bytes unpacked, which is the most accepted");
      }
      if (state == Z_BUF_ERROR || (state == Z_OK && packed.empty() && stream.avail_out > 0))
        return corrupt("the file ends early");
      if (state != Z_OK && state != Z_STREAM_END) return corrupt(stream.msg ? stream.msg : "not gzip");
    }
  }
  inflateEnd(&stream);
  return text;
}

Result<std::string> ReadMaybeGzip(const std::filesystem::path& path, size_t max_bytes) {
  CELER_ASSIGN(std::string text, ReadTextFile(path, max_bytes));
  if (!text.starts_with("\x1f\x8b")) return text;
  return Gunzip(text, path.string(), max_bytes);
}

}  // namespace celer::cli
