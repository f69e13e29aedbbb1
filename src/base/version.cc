#include "celer/version.h"

namespace celer {

std::string_view Version() {
  return CELER_VERSION;  // of project() in CMakeLists.txt
}

}  // namespace celer
