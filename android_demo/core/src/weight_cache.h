// A file with a graph's weights as XNNPACK wants them: packed once instead of by each signature and start, and memory
// that the system can take back. XNNPACK checks who wrote such a file, and not whether its bytes are still those, so a
// seal beside it holds what the file system says of the complete file.
#pragma once

#include <cstdint>
#include <string>

#include "kept_file.h"

namespace paceline {

class WeightCache {
 public:
  // Chooses the complete file, or a new name that XNNPACK fills. Throws Error where the disk has no room: XNNPACK ends
  // the process when it fills up.
  WeightCache(const std::string &cache_dir, const std::string &source_sha256, size_t source_bytes);
  ~WeightCache();
  WeightCache(const WeightCache &) = delete;
  const std::string &path() const { return partial_.empty() ? path_ : partial_; }
  // Keeps what was filled, once the graph is compiled.
  void complete();

 private:
  const std::string path_;
  const KeptFile seal_;
  std::string partial_;
};

}  // namespace paceline
