#include "graphs.h"

#include "npu_calls.h"

namespace paceline {

Graphs::Graphs(const Parts &parts, const Manifest &manifest, const Runtime &runtime, KvCache &cache,
               const Placement &placement, const std::optional<NpuProfile> &profile)
    : views_(runtime, cache), target_on_npu_(placement.on_npu_graphs("target")) {
  // A target writes the rows of all layers, and a drafter alone needs those that it reads.
  if (target_on_npu_) {
    npu_rows_.emplace(runtime, cache, *profile, "target", manifest.caches);
    target_ = std::make_unique<NpuTarget>(parts, manifest, *profile, *npu_rows_);
  } else {
    if (placement.any_npu_graphs()) npu_rows_.emplace(runtime, cache, *profile, "drafter", manifest.drafter_caches);
    target_ = std::make_unique<FloatTarget>(parts, views_, manifest);
  }
  if (placement.on_npu_graphs("drafter")) {
    drafter_ = std::make_unique<NpuDrafter>(parts, manifest, *profile, *npu_rows_);
  } else {
    drafter_ = std::make_unique<FloatDrafter>(parts, views_, manifest);
  }
}

void Graphs::prefill(const int32_t *tokens, int count) {
  cache().make_room(count);
  target_->prefill(tokens, count);
  translate(count);
  cache().commit(count);
}

Verified Graphs::verify(const int32_t *tokens, int count) {
  cache().make_room(count);
  const Verified verified = target_->verify(tokens, count);
  translate(count);
  return verified;
}

// Gives the rows that the target wrote to a drafter on the other kind of graphs.
void Graphs::translate(int count) {
  if (!npu_rows_) return;
  const int start = cache().length();
  if (target_on_npu_) {
    npu_rows_->to_floats(start, count);
  } else {
    npu_rows_->pieces(start, count, [this](int first, int own) { npu_rows_->from_floats(first, own); });
  }
}

}  // namespace paceline
