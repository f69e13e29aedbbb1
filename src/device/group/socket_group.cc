// Every collective is one or two exchanges: messages to some ranks and from some, all at once, so that no order of
// them can block.
#include "device/group/socket_group.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/group/connections.h"

namespace celer {
namespace {

// Up to here every rank sends all that it has to every other one, and each adds up by itself: one hop instead of two.
constexpr int64_t kOneShotFloats = 16384;

class SocketCommunicator final : public Communicator {
 public:
  SocketCommunicator(std::shared_ptr<Connections> connections, int first, int count, bool part)
      : Communicator(connections->rank() - first, count),
        wire_(std::move(connections)),
        first_(first),
        part_(part) {}
  // Others may still be busy with the last collective, which this rank has done.
  ~SocketCommunicator() override {
    if (!part_ && !wire_->error()) wire_->Tell(MessageKind::kLeave, "");
  }

  Status AllReduceSum(std::span<float> values) override {
    if (wire_->error()) return *wire_->error();
    if (size() == 1 || values.empty()) return {};
    return std::ssize(values) <= kOneShotFloats ? SumOneShot(values) : SumInParts(values);
  }

  Status AllGather(std::span<const std::byte> mine, std::span<const int64_t> sizes, std::byte* all) override {
    CELER_CHECK_EQ(std::ssize(sizes), size());
    CELER_CHECK_EQ(std::ssize(mine), sizes[static_cast<size_t>(rank())]);
    if (wire_->error()) return *wire_->error();
    Begin(MessageKind::kGather);
    std::byte* to = all;
    for (int r = 0; r < size(); ++r) {
      const auto bytes = static_cast<size_t>(sizes[static_cast<size_t>(r)]);
      if (r == rank()) {
        if (bytes > 0) std::memcpy(to, mine.data(), bytes);
      } else {
        Push(r, mine);
        Pull(r, {to, bytes});
      }
      to += bytes;
    }
    return Run(Wait::kWatchdog);
  }

  Status Broadcast(std::span<std::byte> bytes, int root, Wait wait) override {
    CELER_CHECK(root >= 0 && root < size());
    if (wire_->error()) return *wire_->error();
    Begin(MessageKind::kBroadcast);
    if (rank() != root)
      Pull(root, bytes);
    else
      for (int r = 0; r < size(); ++r)
        if (r != root) Push(r, bytes);
    return Run(wait);
  }

  Status Barrier(Wait wait) override {
    if (wire_->error()) return *wire_->error();
    Begin(MessageKind::kBarrier);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) {
        Push(r, {});
        Pull(r, {});
      }
    return Run(wait);
  }

  using Communicator::Barrier;
  using Communicator::Broadcast;

  Status Send(std::span<const std::byte> bytes, int to) override {
    CELER_CHECK(!part_ && to >= 0 && to < size() && to != rank());
    return wire_->Post(to, bytes);
  }

  Status Receive(std::span<std::byte> bytes, int from, int behind) override {
    CELER_CHECK(!part_ && from >= 0 && from < size() && from != rank());
    if (wire_->error()) return *wire_->error();
    SocketMessage message = {.peer = static_cast<size_t>(from),
                             .sends = false,
                             .head = wire_->NextFrom(from, bytes.size()),
                             .receive = bytes};
    return wire_->Run({&message, 1}, wire_->WatchdogFor(behind));
  }

  void ReportProgress(int behind) override { wire_->ReportProgress(behind); }

  std::unique_ptr<Communicator> Part(int first, int count) override {
    CELER_CHECK(!part_ && first >= 0 && first <= rank() && rank() < first + count && first + count <= size());
    return std::make_unique<SocketCommunicator>(wire_, first, count, true);
  }

  void Abort(const Error& why) override { [[maybe_unused]] const Error first = wire_->Fail(why); }
  Status status() const override { return wire_->error() ? Status(*wire_->error()) : Status(); }

 private:
  Status SumOneShot(std::span<float> values) {
    Begin(MessageKind::kReduce);
    const size_t n = values.size();
    scratch_.resize(static_cast<size_t>(size()) * n);
    for (int r = 0; r < size(); ++r) {
      const std::span<float> theirs(scratch_.data() + static_cast<size_t>(r) * n, n);
      if (r == rank()) {
        std::copy(values.begin(), values.end(), theirs.begin());
      } else {
        Push(r, std::as_bytes(values));
        Pull(r, std::as_writable_bytes(theirs));
      }
    }
    CELER_RETURN_IF_ERROR(Run(Wait::kWatchdog));
    AddUp(n, values.data());
    return {};
  }

  Status SumInParts(std::span<float> values) {
    const auto part = [&](int r) {
      const GroupPart p = PartOfRank(std::ssize(values), r, size());
      return values.subspan(static_cast<size_t>(p.begin), static_cast<size_t>(p.end - p.begin));
    };
    const std::span<float> mine = part(rank());
    Begin(MessageKind::kReduce);
    scratch_.resize(static_cast<size_t>(size()) * mine.size());
    for (int r = 0; r < size(); ++r) {
      const std::span<float> theirs(scratch_.data() + static_cast<size_t>(r) * mine.size(), mine.size());
      if (r == rank()) {
        std::copy(mine.begin(), mine.end(), theirs.begin());
      } else {
        Push(r, std::as_bytes(part(r)));
        Pull(r, std::as_writable_bytes(theirs));
      }
    }
    CELER_RETURN_IF_ERROR(Run(Wait::kWatchdog));
    AddUp(mine.size(), mine.data());
    Begin(MessageKind::kSums);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) {
        Push(r, std::as_bytes(mine));
        Pull(r, std::as_writable_bytes(part(r)));
      }
    return Run(Wait::kWatchdog);
  }

  // In the order of the ranks.
  void AddUp(size_t n, float* out) const {
    std::copy_n(scratch_.data(), n, out);
    for (int r = 1; r < size(); ++r) {
      const float* const from = scratch_.data() + static_cast<size_t>(r) * n;
      for (size_t i = 0; i < n; ++i) out[i] += from[i];
    }
  }

  void Begin(MessageKind kind) {
    ++call_;
    kind_ = kind;
    messages_.clear();
  }
  MessageHead HeadFor(size_t bytes) const {
    return {static_cast<uint16_t>(kind_), static_cast<uint16_t>(part_ ? 1 + first_ : 0), call_,
            static_cast<int64_t>(bytes)};
  }
  void Push(int to, std::span<const std::byte> bytes) {
    messages_.push_back({.peer = static_cast<size_t>(first_ + to),
                         .sends = true,
                         .head = HeadFor(bytes.size()),
                         .send = bytes});
  }
  void Pull(int from, std::span<std::byte> bytes) {
    messages_.push_back({.peer = static_cast<size_t>(first_ + from),
                         .sends = false,
                         .head = HeadFor(bytes.size()),
                         .receive = bytes});
  }
  Status Run(Wait wait) {
    return wire_->Run(messages_, wait == Wait::kIdle ? Connections::Patience() : wire_->Watchdog());
  }

  std::shared_ptr<Connections> wire_;
  int first_;
  bool part_;
  uint32_t call_ = 0;
  MessageKind kind_ = MessageKind::kBarrier;
  std::vector<SocketMessage> messages_;
  std::vector<float> scratch_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> JoinSocketGroup(const SocketGroupOptions& options) {
  CELER_ASSIGN(std::vector<Peer> peers, Meet(options));
  return std::unique_ptr<Communicator>(std::make_unique<SocketCommunicator>(
      std::make_shared<Connections>(options, std::move(peers)), 0, options.size, false));
}

}  // namespace celer
