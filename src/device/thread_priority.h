// How much of a busy machine a thread gets.
#pragma once

namespace celer {

// For work that others need not wait for: while all cores are busy, this thread gets about a tenth of one. It
// cannot be raised again.
void LowerThreadPriority();

}  // namespace celer
