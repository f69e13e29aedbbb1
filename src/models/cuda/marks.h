// Where the time of a step goes: with a profile, an event in front of every operator.
#pragma once

#include <vector>

#include "device/stream.h"
#include "models/cuda/fault.h"
#include "models/op_profile.h"

namespace celer {

class CudaMarks {
 public:
  CudaMarks(int device, CudaFault& fault) : device_(device), fault_(fault) {}

  void set_profile(OpProfile* profile) { profile_ = profile; }
  bool on() const { return profile_ != nullptr; }

  // `captured`: the stream is being captured in a graph.
  void Begin(const Stream& stream, bool captured);
  // `op` begins here. A last call says where the one before ends.
  void Mark(Op op) {
    if (profile_) Record(op);
  }
  Status Take();  // waits for the stream, and adds to the profile

 private:
  void Record(Op op);

  int device_;
  CudaFault& fault_;
  OpProfile* profile_ = nullptr;
  const Stream* stream_ = nullptr;
  bool captured_ = false;
  std::vector<Event> events_;
  std::vector<Op> ops_;  // the operator that begins at each event; the first two events measure themselves
};

}  // namespace celer
