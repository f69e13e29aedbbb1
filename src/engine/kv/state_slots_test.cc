#include "engine/kv/state_slots.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(StateSlots, TakesAndFrees) {
  StateSlots slots(2);
  const int32_t a = slots.Take(), b = slots.Take();
  EXPECT_NE(a, b);
  EXPECT_EQ(slots.free(), 0);
  EXPECT_EQ(slots.Take(), StateSlots::kNone);
  EXPECT_EQ(slots.AddSnapshot(5), StateSlots::kNone);
  slots.Free(a);
  EXPECT_EQ(slots.free(), 1);
  EXPECT_EQ(slots.Take(), a);
  EXPECT_FALSE(StateSlots(0).any());
}

TEST(StateSlots, EvictsTheSnapshotUsedLeastRecently) {
  StateSlots slots(3);
  const int32_t own = slots.Take(), seven = slots.AddSnapshot(7), eight = slots.AddSnapshot(8);
  EXPECT_EQ(slots.snapshots(), 2);
  EXPECT_EQ(slots.free(), 2);
  EXPECT_EQ(slots.AddSnapshot(8), StateSlots::kNone);  // it is there already
  EXPECT_EQ(slots.UseSnapshot(7), seven);
  EXPECT_EQ(slots.AddSnapshot(9), eight);
  EXPECT_FALSE(slots.HasSnapshot(8));
  EXPECT_TRUE(slots.HasSnapshot(7));
  EXPECT_EQ(slots.Take(), seven);  // a sequence goes before any snapshot
  EXPECT_FALSE(slots.HasSnapshot(7));
  slots.Free(own);
  EXPECT_EQ(slots.AddSnapshot(10), own);
  EXPECT_TRUE(slots.HasSnapshot(9));
}

}  // namespace
}  // namespace celer
