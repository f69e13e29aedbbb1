// Where the checkout is that a test program was built from, for tests that read its files.
#pragma once

namespace celer {

extern const char* const kSourceDir;

}  // namespace celer
