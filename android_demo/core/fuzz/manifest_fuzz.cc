// Any bytes as a manifest: read, or refused with a sentence.
#include <cstdint>
#include <string_view>

#include "error.h"
#include "manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    const paceline::Manifest manifest = paceline::Manifest::parse({reinterpret_cast<const char *>(data), size});
    for (const paceline::CacheSpec &spec : manifest.caches) spec.names(0);
  } catch (const paceline::Error &) {
  }
  return 0;
}
