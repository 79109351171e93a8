// Numbers as integers and back: value = (integer - zero point) x scale. The same roundings as
// runtime/paceline/npu/scales.py.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "litert.h"

namespace paceline {

// The smallest integer that numbers become, and that hides a slot in a mask; of sixteen bits its negative is the
// largest.
template <typename Integer>
constexpr Integer least() {
  using Limits = std::numeric_limits<Integer>;
  return sizeof(Integer) == 1 ? Limits::min() : static_cast<Integer>(-Limits::max());
}

struct Scale {
  float scale;     // of one step, above 0
  int zero_point;  // the integer that is 0

  // The nearest integer, ties to the even one; what is out of range becomes the last one.
  template <typename Integer>
  Integer integer(float value) const {
    using Limits = std::numeric_limits<Integer>;
    const float steps = std::nearbyint(value / scale) + static_cast<float>(zero_point);
    if (steps >= Limits::max()) return Limits::max();
    return steps > least<Integer>() ? static_cast<Integer>(steps) : least<Integer>();
  }

  template <typename Integer>
  float number(Integer integer) const {
    return (static_cast<float>(integer) - static_cast<float>(zero_point)) * scale;
  }
};

// Calls `work` with a tensor's memory as what it holds: integers of eight or sixteen bits.
template <typename Work>
auto with_integers(int32_t element, void *memory, Work work) {
  return element == litert::kInt8 ? work(static_cast<int8_t *>(memory)) : work(static_cast<int16_t *>(memory));
}

}  // namespace paceline
