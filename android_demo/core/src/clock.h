// Time that only goes forward, in milliseconds.
#pragma once

#include <chrono>

namespace paceline {

inline double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace paceline
