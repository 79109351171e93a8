// Any bytes as npu.json: read, or refused with a sentence; what is read can be used, and no number is -32768.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "error.h"
#include "npu_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    const auto profile = paceline::NpuProfile::parse({reinterpret_cast<const char *>(data), size});
    for (const auto &[kind, rotation] : profile.rotations) {
      std::vector<float> cosines(rotation.head_dim), sines(rotation.head_dim);
      rotation.fill(profile.context_of(1), cosines.data(), sines.data());
    }
    for (const auto &[part, scales] : profile.scales) {
      for (const auto &[port, scale] : scales) {
        for (const float value : {0.0f, -1e30f, 1e30f, scale.number(profile.scale(part, port).integer<int8_t>(1))})
          if (scale.integer<int16_t>(value) < -32767) std::abort();
      }
    }
  } catch (const paceline::Error &) {
  }
  return 0;
}
