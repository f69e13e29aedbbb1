#include "engine/speculate/speculation_cost.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

StepTimes Line(double fixed, double per_row, std::initializer_list<int64_t> sizes) {
  StepTimes times;
  for (int i = 0; i < 5; ++i)
    for (const int64_t rows : sizes) times.Add(rows, fixed + per_row * static_cast<double>(rows));
  return times;
}

TEST(StepTimes, AreMeasuredOrBetweenOrBeyond) {
  EXPECT_EQ(StepTimes().Of(3), 0);
  const StepTimes times = Line(10, 2, {1, 5, 9});
  EXPECT_DOUBLE_EQ(times.Of(1), 12);
  EXPECT_DOUBLE_EQ(times.Of(9), 28);
  EXPECT_DOUBLE_EQ(times.Of(3), 16);
  EXPECT_GT(times.Of(19), times.Of(9));
  EXPECT_LT(times.Of(19), 48) << "hopes for the best, so that it is tried";
  EXPECT_GT(Line(10, 2, {4}).Of(5), Line(10, 2, {4}).Of(4)) << "one more row is not free";
  EXPECT_EQ(Line(10, 2, {4}).Of(2), Line(10, 2, {4}).Of(4));
}

TEST(StepTimes, ForgiveWhatWasDisturbed) {
  StepTimes times = Line(10, 2, {1});
  for (int i = 0; i < 3; ++i) times.Add(1, 500);
  EXPECT_DOUBLE_EQ(times.Of(1), 12) << "the median";
  times.Add(9, 9000);
  EXPECT_DOUBLE_EQ(times.Of(9), 9000);
  for (int i = 0; i < 200; ++i) times.Add(1, 12);
  EXPECT_LT(times.Of(9), 50) << "seen once, long ago";
}

TEST(Acceptance, FollowsWhatWasSeenOfLate) {
  Acceptance acceptance(20, 4);
  EXPECT_DOUBLE_EQ(acceptance.Rate(0.3), 0.3);
  for (int i = 0; i < 50; ++i) acceptance.Add(4, false);
  EXPECT_GT(acceptance.Rate(0.3), 0.85);
  for (int i = 0; i < 100; ++i) acceptance.Add(0, true);
  EXPECT_LT(acceptance.Rate(0.3), 0.1);
}

TEST(BestDepths, AreWhatIsFastest) {
  // By trying every depth.
  for (const double per_row : {0.2, 1.0, 3.0, 9.0})
    for (const double rate : {0.05, 0.3, 0.6, 0.9, 1.0}) {
      const StepTimes times = Line(10, per_row, {1, 2, 3, 5, 8, 13, 17});
      const DraftOffer offer{rate, 16};
      const auto best_of = [&](std::initializer_list<int64_t> depths) {
        int64_t found = 0;
        double best = 1.04 / times.Of(1);
        for (const int64_t depth : depths) {
          double tokens = 1, right = 1;
          for (int64_t k = 0; k < depth; ++k) tokens += right *= rate;
          if (const double speed = tokens / times.Of(1 + depth); speed > best * (1 + 1e-12)) {
            best = speed;
            found = depth;
          }
        }
        return found;
      };
      // Whole fours of rows, two, or all there are.
      EXPECT_EQ(BestDepths({&offer, 1}, 1, times)[0], best_of({1, 3, 7, 11, 15, 16}))
          << per_row << " " << rate;
      const int64_t any = best_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
      EXPECT_EQ(BestDepth({&offer, 1}, 1, times, 0), any);
      EXPECT_LE(BestDepth({&offer, 1}, 1, times, 2), any) << "drafting costs something, too";
      EXPECT_EQ(BestDepth({&offer, 1}, 1, times, 100), 0);
    }
}

TEST(BestDepths, GoToThoseWhoseDraftsAreAccepted) {
  const StepTimes times = Line(100, 4, {1, 4, 8, 16});
  const DraftOffer offers[] = {{0.9, 8}, {0.02, 8}, {0.9, 1}, {0, 0}};
  const auto depths = BestDepths(offers, 4, times);
  EXPECT_GT(depths[0], 3);
  EXPECT_EQ(depths[1], 0);
  EXPECT_EQ(depths[2], 1);
  EXPECT_EQ(depths[3], 0);
  EXPECT_EQ(BestDepths(offers, 4, StepTimes()), std::vector<int64_t>(4, 0)) << "nothing is known yet";
}

TEST(PredictGain, FallsWithWhatTheDraftReads) {
  const DraftOffer offer{0.75, 15};
  EXPECT_NEAR(PredictGain(offer, 0.53), 1.75 / 1.78, 1e-9)
      << "int8 of 16 bits: one drafted token, a quarter step more";
  EXPECT_LT(PredictGain(offer, 0.53), kClearlyFaster);
  EXPECT_GT(PredictGain(offer, 0.28), kClearlyFaster) << "int4 of 16 bits";
  EXPECT_GT(PredictGain(offer, 0.05), PredictGain(offer, 0.28));
  EXPECT_LT(PredictGain(offer, 1), 0.8) << "a draft as large as the model";
  EXPECT_EQ(PredictGain({0.75, 0}, 0.1), 0);
}

}  // namespace
}  // namespace celer
