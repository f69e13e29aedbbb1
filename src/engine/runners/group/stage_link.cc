#include "engine/runners/group/stage_link.h"

#include <vector>

#include "base/check.h"

namespace celer {

StageLink::StageLink(Communicator& all, int stages)
    : all_(all), stages_(stages), shares_(all.size() / stages), stage_(0) {
  CELER_CHECK_EQ(shares_ * stages, all.size());
  const int place = all.rank() / shares_;  // 0 is that of the last stage
  stage_ = (place + stages - 1) % stages;
  if (!first()) front_ = FirstRank(stage_ - 1) + share();
  if (!last()) behind_ = FirstRank(stage_ + 1) + share();
  if (stages > 1 && shares_ > 1) part_ = all.Part(place * shares_, shares_);
}

Status StageLink::Receive(std::span<float> x) {
  if (!part_) return all_.Receive(std::as_writable_bytes(x), front_, behind_);
  const GroupPart mine = PartOfRank(std::ssize(x), share(), shares_);
  std::vector<float> part(static_cast<size_t>(mine.end - mine.begin));
  CELER_RETURN_IF_ERROR(all_.Receive(std::as_writable_bytes(std::span(part)), front_, behind_));
  std::vector<int64_t> sizes;
  for (int r = 0; r < shares_; ++r) {
    const GroupPart each = PartOfRank(std::ssize(x), r, shares_);
    sizes.push_back((each.end - each.begin) * static_cast<int64_t>(sizeof(float)));
  }
  return part_->AllGather(std::as_bytes(std::span(part)), sizes, std::as_writable_bytes(x).data());
}

Status StageLink::Send(std::span<const float> x) {
  const GroupPart mine = PartOfRank(std::ssize(x), share(), shares_);
  const auto part = x.subspan(static_cast<size_t>(mine.begin), static_cast<size_t>(mine.end - mine.begin));
  return all_.Send(std::as_bytes(part), behind_);
}

}  // namespace celer
