#include "device/group/thread_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/spin.h"

namespace celer {
namespace {

using Clock = std::chrono::steady_clock;

// What the ranks share. A collective is a meeting, in which all ranks find out that all have come or that the group
// has failed, and then the exchange, which no rank leaves before all have finished it: only then may memory that the
// others read go away.
class Meeting {
 public:
  struct Offer {
    const char* call = "";
    void* data = nullptr;
    int64_t size = 0;
    int root = 0;
  };

  explicit Meeting(const ThreadGroupOptions& options, Meeting* whole = nullptr, int first = 0)
      : options_(options),
        whole_(whole),
        first_(first),
        seats_(static_cast<size_t>(options.ranks)),
        mail_(whole ? 0 : seats_.size() * seats_.size()) {}

  // Of some consecutive ranks; the same one for all of them.
  Meeting* Part(int first, int count) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Meeting>& part = parts_[{first, count}];
    if (!part) {
      ThreadGroupOptions options = options_;
      options.ranks = count;
      part = std::make_unique<Meeting>(options, this, first);
      if (error_) part->FailAlone(*error_);
    }
    return part.get();
  }

  // True if all have come; then Leave() must follow. False if the group has failed, for every rank.
  bool Enter(int rank, const Offer& offer, Communicator::Wait wait) {
    Seat& seat = seats_[static_cast<size_t>(rank)];
    seat.offer = offer;
    const uint64_t all = ++seat.meetings * seats_.size();
    uint64_t seen = state_.load(std::memory_order_relaxed);
    do {
      if (seen & kFailed) return false;
    } while (!state_.compare_exchange_weak(seen, seen + 1, std::memory_order_seq_cst));
    seat.arrived.store(seat.meetings, std::memory_order_relaxed);
    Wake();
    const auto decided = [&] {
      const uint64_t state = state_.load(std::memory_order_seq_cst);
      return (state & ~kFailed) >= all || (state & kFailed);
    };
    const bool watched = wait == Communicator::Wait::kWatchdog;
    if (!WaitUntil(decided, watched ? options_.watchdog : std::chrono::milliseconds::max()))
      Fail(Error::Device(Missing(seat.meetings), " has not come to ", offer.call, " within ",
                         options_.watchdog.count(), " ms"));
    // Nobody is counted after a failure: either all see that all have come, or none.
    return (state_.load(std::memory_order_seq_cst) & ~kFailed) >= all;
  }

  // Ends an exchange, whose work is bounded: waits for the others without a watchdog.
  void Leave(int rank) {
    const uint64_t all = seats_[static_cast<size_t>(rank)].meetings * seats_.size();
    left_.fetch_add(1, std::memory_order_seq_cst);
    Wake();
    WaitUntil([&] { return left_.load(std::memory_order_seq_cst) >= all; }, std::chrono::milliseconds::max());
  }

  // The first failure counts, for the whole group and all of its parts.
  void Fail(const Error& error) {
    if (whole_) return whole_->Fail(error);
    FailAlone(error);
    std::vector<Meeting*> parts;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [ranks, part] : parts_) parts.push_back(part.get());
    }
    for (Meeting* const part : parts) part->FailAlone(*error_);
  }

  void Post(int from, int to, std::span<const std::byte> bytes) {
    Mail& mail = MailOf(from, to);
    {
      const std::lock_guard lock(mail.mutex);
      mail.letters.emplace_back(bytes.begin(), bytes.end());
    }
    mail.posted.fetch_add(1, std::memory_order_seq_cst);
    ReportProgress();
    Wake();
  }

  Status Collect(int from, int to, std::span<std::byte> bytes) {
    Mail& mail = MailOf(from, to);
    seats_[static_cast<size_t>(to)].waits_for.store(from, std::memory_order_relaxed);
    const auto ready = [&] {
      return mail.posted.load(std::memory_order_seq_cst) > mail.taken ||
             (state_.load(std::memory_order_seq_cst) & kFailed);
    };
    uint64_t seen = progress_.load(std::memory_order_relaxed);
    Clock::time_point since = Clock::now();
    while (!WaitUntil(ready, options_.watchdog / 4)) {
      if (const uint64_t now = progress_.load(std::memory_order_relaxed); now != seen) {
        seen = now;
        since = Clock::now();
      } else if (Clock::now() - since >= options_.watchdog) {
        Fail(Error::Device(Culprit(from), " has sent nothing within ", options_.watchdog.count(), " ms"));
      }
    }
    seats_[static_cast<size_t>(to)].waits_for.store(-1, std::memory_order_relaxed);
    CELER_RETURN_IF_ERROR(status());
    std::vector<std::byte> letter;
    {
      const std::lock_guard lock(mail.mutex);
      letter = std::move(mail.letters.front());
      mail.letters.pop_front();
    }
    ++mail.taken;
    if (letter.size() != bytes.size()) {
      Fail(Error::Device("rank ", from, " sends ", letter.size(), " bytes, rank ", to, " expects ",
                         bytes.size()));
      return status();
    }
    std::copy(letter.begin(), letter.end(), bytes.begin());
    return {};
  }

  void ReportProgress() { progress_.fetch_add(1, std::memory_order_relaxed); }

  Status status() const {
    if (!(state_.load(std::memory_order_seq_cst) & kFailed)) return {};
    const std::lock_guard lock(mutex_);
    return *error_;
  }

  const Offer& offer(int rank) const { return seats_[static_cast<size_t>(rank)].offer; }
  int ranks() const { return static_cast<int>(seats_.size()); }
  int first() const { return first_; }  // the rank of the whole group that is rank 0 here

 private:
  static constexpr uint64_t kFailed = uint64_t{1} << 63;

  struct alignas(64) Seat {
    Offer offer;                       // written before the rank enters, read between Enter() and Leave()
    uint64_t meetings = 0;             // the rank's own count
    std::atomic<uint64_t> arrived{0};  // the same for the sentence of the watchdog
    std::atomic<int> waits_for{-1};    // likewise: whose message
  };

  // Messages of one rank to another.
  struct Mail {
    std::mutex mutex;
    std::deque<std::vector<std::byte>> letters;
    std::atomic<uint64_t> posted{0};
    uint64_t taken = 0;  // by the receiver alone
  };
  Mail& MailOf(int from, int to) {
    return mail_[static_cast<size_t>(from) * seats_.size() + static_cast<size_t>(to)];
  }

  std::string Missing(uint64_t meeting) const {
    for (size_t r = 0; r < seats_.size(); ++r)
      if (seats_[r].arrived.load(std::memory_order_relaxed) < meeting)
        return "rank " + std::to_string(first_ + static_cast<int>(r));
    return "a rank";
  }

  // A rank that is waited for may wait for another one.
  std::string Culprit(int rank) const {
    for (size_t hops = 0; hops < seats_.size(); ++hops) {
      const int next = seats_[static_cast<size_t>(rank)].waits_for.load(std::memory_order_relaxed);
      if (next < 0) break;
      rank = next;
    }
    return "rank " + std::to_string(rank);
  }

  void FailAlone(const Error& error) {
    {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = error;
    }
    state_.fetch_or(kFailed, std::memory_order_seq_cst);
    Wake();
  }

  template <class Ready>
  bool WaitUntil(const Ready& ready, std::chrono::milliseconds limit) {
    if (SpinUntil(ready, options_.spin)) return true;
    // Either the rank that changes something sees that one is parked, or this one sees the change: both write before
    // they read, in one total order.
    std::unique_lock lock(mutex_);
    parked_.fetch_add(1, std::memory_order_seq_cst);
    bool is_ready = true;
    if (limit == std::chrono::milliseconds::max())
      changed_.wait(lock, ready);
    else
      is_ready = changed_.wait_for(lock, limit, ready);
    parked_.fetch_sub(1, std::memory_order_relaxed);
    return is_ready;
  }

  void Wake() {
    if (parked_.load(std::memory_order_seq_cst) == 0) return;
    { const std::lock_guard lock(mutex_); }  // it waits, or has not looked yet
    changed_.notify_all();
  }

  ThreadGroupOptions options_;
  Meeting* whole_;  // none: it is the whole group
  int first_;
  std::vector<Seat> seats_;
  std::vector<Mail> mail_;                                         // [from, to], of the whole group
  std::map<std::pair<int, int>, std::unique_ptr<Meeting>> parts_;  // likewise, by first rank and count
  std::atomic<uint64_t> progress_{0};                              // of any rank
  alignas(64) std::atomic<uint64_t> state_{0};  // how often ranks entered, and whether the group has failed
  alignas(64) std::atomic<uint64_t> left_{0};
  alignas(64) std::atomic<int> parked_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> error_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(int rank, std::shared_ptr<Meeting> meeting, bool part = false)
      : Communicator(rank, meeting->ranks()), meeting_(std::move(meeting)), part_(part) {}
  ~ThreadCommunicator() override {
    if (!part_) meeting_->Fail(Error::Cancelled("rank ", rank(), " has ended"));
  }

  Status AllReduceSum(std::span<float> values) override {
    if (size() == 1) return status();
    return Exchange({"all_reduce", values.data(), std::ssize(values)}, Wait::kWatchdog, [&] {
      const GroupPart part = PartOfRank(std::ssize(values), rank(), size());
      constexpr int64_t kAtOnce = 512;
      std::array<float, kAtOnce> sum;
      for (int64_t begin = part.begin; begin < part.end; begin += kAtOnce) {
        const int64_t n = std::min(kAtOnce, part.end - begin);
        std::copy_n(Floats(0) + begin, n, sum.begin());
        for (int r = 1; r < size(); ++r) {
          const float* const from = Floats(r) + begin;
          for (int64_t i = 0; i < n; ++i) sum[static_cast<size_t>(i)] += from[i];
        }
        for (int r = 0; r < size(); ++r) std::copy_n(sum.begin(), n, Floats(r) + begin);
      }
    });
  }

  Status AllGather(std::span<const std::byte> mine, std::span<const int64_t> sizes, std::byte* all) override {
    CELER_CHECK_EQ(std::ssize(sizes), size());
    CELER_CHECK_EQ(std::ssize(mine), sizes[static_cast<size_t>(rank())]);
    int64_t total = 0;
    for (const int64_t bytes : sizes) total += bytes;
    // The others only read it.
    void* const data = const_cast<std::byte*>(mine.data());
    return Exchange({"all_gather", data, total}, Wait::kWatchdog, [&] {
      std::byte* to = all;
      for (int r = 0; r < size(); ++r) {
        const auto bytes = static_cast<size_t>(sizes[static_cast<size_t>(r)]);
        if (bytes > 0) std::memcpy(to, meeting_->offer(r).data, bytes);
        to += bytes;
      }
    });
  }

  Status Broadcast(std::span<std::byte> bytes, int root, Wait wait) override {
    return Exchange({"broadcast", bytes.data(), std::ssize(bytes), root}, wait, [&] {
      if (rank() != root && !bytes.empty())
        std::memcpy(bytes.data(), meeting_->offer(root).data, bytes.size());
    });
  }

  Status Barrier(Wait wait) override {
    return Exchange({"barrier"}, wait, [] {});
  }

  using Communicator::Barrier;
  using Communicator::Broadcast;

  Status Send(std::span<const std::byte> bytes, int to) override {
    CELER_CHECK(!part_ && to >= 0 && to < size() && to != rank());
    CELER_RETURN_IF_ERROR(status());
    meeting_->Post(rank(), to, bytes);
    return {};
  }

  Status Receive(std::span<std::byte> bytes, int from, int) override {
    CELER_CHECK(!part_ && from >= 0 && from < size() && from != rank());
    return meeting_->Collect(from, rank(), bytes);
  }

  void ReportProgress(int) override { meeting_->ReportProgress(); }

  std::unique_ptr<Communicator> Part(int first, int count) override {
    CELER_CHECK(!part_ && first >= 0 && first <= rank() && rank() < first + count && first + count <= size());
    return std::make_unique<ThreadCommunicator>(
        rank() - first, std::shared_ptr<Meeting>(meeting_, meeting_->Part(first, count)), true);
  }

  void Abort(const Error& why) override { meeting_->Fail(why); }
  Status status() const override { return meeting_->status(); }

 private:
  float* Floats(int r) const { return static_cast<float*>(meeting_->offer(r).data); }

  template <class Work>
  Status Exchange(const Meeting::Offer& mine, Wait wait, const Work& work) {
    if (!meeting_->Enter(rank(), mine, wait)) return meeting_->status();
    // Every rank compares the same offers, so that all agree.
    std::optional<Error> differs;
    for (int r = 1; r < size() && !differs; ++r) {
      const Meeting::Offer &first = meeting_->offer(0), &other = meeting_->offer(r);
      if (std::strcmp(first.call, other.call) != 0 || first.size != other.size || first.root != other.root)
        differs =
            Error::Device("rank ", meeting_->first(), " calls ", first.call, " with ", first.size, ", rank ",
                          meeting_->first() + r, " calls ", other.call, " with ", other.size);
    }
    if (!differs) work();
    meeting_->Leave(rank());
    if (!differs) return {};
    meeting_->Fail(*differs);
    return meeting_->status();
  }

  std::shared_ptr<Meeting> meeting_;
  bool part_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadGroup(const ThreadGroupOptions& options) {
  CELER_CHECK_GE(options.ranks, 1);
  const auto meeting = std::make_shared<Meeting>(options);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int r = 0; r < options.ranks; ++r) group.push_back(std::make_unique<ThreadCommunicator>(r, meeting));
  return group;
}

}  // namespace celer
