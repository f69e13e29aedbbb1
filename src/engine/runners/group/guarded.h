// What a rank does on a thread of its own: its errors are those of the group.
#pragma once

#include <exception>
#include <new>

#include "base/result.h"
#include "device/group/communicator.h"

namespace celer {

// Exceptions of a rank end the group, like its errors.
template <class Work>
Status Guarded(Communicator& group, const Work& work) {
  Status status;
  try {
    status = work();
  } catch (const std::bad_alloc&) {
    status = Error::OutOfMemory("rank ", group.rank(), ": out of memory");
  } catch (const std::exception& error) {
    status = Error::Device("rank ", group.rank(), ": ", error.what());
  }
  if (!status) group.Abort(status.error());
  return status;
}

}  // namespace celer
