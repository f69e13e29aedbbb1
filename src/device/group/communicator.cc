#include "device/group/communicator.h"

#include <algorithm>
#include <numeric>

namespace celer {

Status SendMessage(Communicator& group, std::span<const std::byte> message) {
  auto size = static_cast<int64_t>(message.size());
  CELER_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(&size, 1)), group.rank()));
  // Broadcast() writes on the other ranks alone.
  std::byte* const bytes = const_cast<std::byte*>(message.data());
  return group.Broadcast({bytes, message.size()}, group.rank());
}

Result<std::vector<std::byte>> ReceiveMessage(Communicator& group, int root, Communicator::Wait wait) {
  constexpr int64_t kMost = int64_t{1} << 30;
  int64_t size = 0;
  CELER_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(std::span(&size, 1)), root, wait));
  if (size < 0 || size > kMost) {
    const Error error = Error::Corrupt("rank ", root, " announces a message of ", size, " bytes");
    group.Abort(error);
    return error;
  }
  std::vector<std::byte> message(static_cast<size_t>(size));
  CELER_RETURN_IF_ERROR(group.Broadcast(message, root));
  return message;
}

Result<std::vector<int64_t>> GatherNumbers(Communicator& group, int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  const std::vector<int64_t> sizes(all.size(), static_cast<int64_t>(sizeof(int64_t)));
  CELER_RETURN_IF_ERROR(group.AllGather(std::as_bytes(std::span(&mine, 1)), sizes,
                                        std::as_writable_bytes(std::span(all)).data()));
  return all;
}

Result<int64_t> SumOfNumbers(Communicator& group, int64_t mine) {
  CELER_ASSIGN(const std::vector<int64_t> all, GatherNumbers(group, mine));
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

Result<int64_t> LeastOfNumbers(Communicator& group, int64_t mine) {
  CELER_ASSIGN(const std::vector<int64_t> all, GatherNumbers(group, mine));
  return *std::min_element(all.begin(), all.end());
}

Result<std::vector<std::vector<std::byte>>> GatherMessages(Communicator& group,
                                                           std::span<const std::byte> mine) {
  CELER_ASSIGN(const std::vector<int64_t> sizes, GatherNumbers(group, std::ssize(mine)));
  std::vector<std::byte> all(static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})));
  CELER_RETURN_IF_ERROR(group.AllGather(mine, sizes, all.data()));
  std::vector<std::vector<std::byte>> messages;
  auto from = all.begin();
  for (const int64_t size : sizes) {
    messages.emplace_back(from, from + size);
    from += size;
  }
  return messages;
}

GroupPart PartOfRank(int64_t values, int rank, int size) {
  constexpr int64_t kLine = 16;  // floats
  const int64_t lines = (values + kLine - 1) / kLine;
  const auto at = [&](int64_t r) { return std::min(values, lines * r / size * kLine); };
  return {at(rank), at(rank + 1)};
}

}  // namespace celer
