// Both models on one sequence.
#pragma once

#include <memory>
#include <optional>

#include "calls.h"
#include "float_calls.h"
#include "npu_rows.h"
#include "placement.h"

namespace paceline {

class Graphs {
 public:
  // The rows of the float tensors in `cache` are kept whoever writes them; `profile` is there where a part runs on an
  // NPU's graphs.
  Graphs(const Parts &parts, const Manifest &manifest, const Runtime &runtime, KvCache &cache,
         const Placement &placement, const std::optional<NpuProfile> &profile);
  // Writes and commits the rows of at most kPrefillChunk tokens. Throws Error where they do not fit.
  void prefill(const int32_t *tokens, int count);
  // One pass over [pending, draft 1, ..], at most kMostRows; its rows stay invisible until they are committed.
  Verified verify(const int32_t *tokens, int count);
  DraftStep draft(int32_t token, const float *hidden) { return drafter_->run(token, hidden); }
  KvCache &cache() const { return views_.cache(); }

 private:
  void translate(int count);

  CacheViews views_;
  const bool target_on_npu_;
  std::optional<NpuRows> npu_rows_;
  std::unique_ptr<Target> target_;
  std::unique_ptr<Drafter> drafter_;
};

}  // namespace paceline
