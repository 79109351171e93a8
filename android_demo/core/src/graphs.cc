#include "graphs.h"

namespace paceline {

Graphs::Graphs(const Parts &parts, const Manifest &manifest, const Runtime &runtime, KvCache &cache)
    : views_(runtime, cache),
      target_(std::make_unique<FloatTarget>(parts, views_, manifest)),
      drafter_(std::make_unique<FloatDrafter>(parts, views_, manifest)) {}

void Graphs::prefill(const int32_t *tokens, int count) {
  cache().make_room(count);
  target_->prefill(tokens, count);
  cache().commit(count);
}

Verified Graphs::verify(const int32_t *tokens, int count) {
  cache().make_room(count);
  return target_->verify(tokens, count);
}

}  // namespace paceline
