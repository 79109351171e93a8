// Both models on one sequence.
#pragma once

#include <memory>

#include "calls.h"
#include "float_calls.h"

namespace paceline {

class Graphs {
 public:
  Graphs(const Parts &parts, const Manifest &manifest, const Runtime &runtime, KvCache &cache);
  // Writes and commits the rows of at most kPrefillChunk tokens. Throws Error where they do not fit.
  void prefill(const int32_t *tokens, int count);
  // One pass over [pending, draft 1, ..], at most kMostRows; its rows stay invisible until they are committed.
  Verified verify(const int32_t *tokens, int count);
  DraftStep draft(int32_t token, const float *hidden) { return drafter_->run(token, hidden); }
  KvCache &cache() const { return views_.cache(); }

 private:
  CacheViews views_;
  std::unique_ptr<Target> target_;
  std::unique_ptr<Drafter> drafter_;
};

}  // namespace paceline
