// The one exception of the core: its text is a sentence for the user.
#pragma once

#include <stdexcept>

namespace paceline {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace paceline
