// How long each node of a network takes, over as many runs as there are while it is attached.
//
//   Profile profile(session);
//   for (int i = 0; i < 20; ++i) session.Run(inputs);
//   for (const OperatorTime& time : profile.Times()) ...
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "graph/run/session.h"

namespace celer::graph {

struct OperatorTime {
  const Node* node = nullptr;
  std::string_view kernel = {};      // what ran it: the name of a fast kernel, or "reference"
  PlannedNode::How how = {};         // kFolded and kView take no time
  double flops = 0;                  // multiplications and additions, counted as two
  double bytes = 0;                  // inputs, constants and outputs, each once
  std::vector<double> seconds = {};  // by run

  double Median() const;
};

// One at a time per session: it takes the session's observer, and gives it back empty.
class Profile {
 public:
  explicit Profile(Session& session);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // By node of the main graph, with what the plan of the last run knows about it.
  std::vector<OperatorTime> Times() const;

 private:
  Session& session_;
  std::vector<std::vector<double>> seconds_;
};

}  // namespace celer::graph
