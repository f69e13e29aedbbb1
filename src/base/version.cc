#include "celer/version.h"

namespace celer {

std::string_view Version() {
  return CELER_VERSION;  // of the CMakeLists.txt at the top
}

}  // namespace celer
