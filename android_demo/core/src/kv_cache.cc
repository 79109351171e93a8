#include "kv_cache.h"

#include <cstring>

#include "error.h"

namespace paceline {
namespace {

int slots_of(CacheKind kind, int window, int capacity) {
  return kind == CacheKind::kLocal ? local_slots(window) : visible_slots(capacity);
}

}  // namespace

KvCache::KvCache(const std::vector<CacheSpec> &specs, int window, int capacity) : window_(window), capacity_(capacity) {
  for (const CacheSpec &spec : specs) {
    const int slots = slots_of(spec.kind, window, capacity);
    for (const int value : {0, 1}) {
      for (const std::string &name : spec.names(value)) {
        tensors_.push_back({name, spec.kind, spec.head_dim, slots, Memory(sizeof(float) * spec.head_dim * slots)});
      }
    }
  }
}

int64_t KvCache::bytes(const std::vector<CacheSpec> &specs, int window, int capacity) {
  int64_t all = 0;
  for (const CacheSpec &spec : specs) {
    all += int64_t{2} * 4 * spec.kv_heads * spec.head_dim * slots_of(spec.kind, window, capacity);
  }
  return all;
}

void KvCache::require_room(int tokens) const {
  if (length_ + tokens > capacity_) {
    throw Error(std::to_string(length_ + tokens) + " tokens do not fit in a KV cache of capacity " +
                std::to_string(capacity_) + "; shorten the prompt or choose a larger context.");
  }
}

void KvCache::make_room(int tokens) {
  require_room(tokens);
  if (length_ - local_start_ + in_steps(tokens, kShortPrefill) <= local_slots(window_)) return;
  const int start = (length_ - window_) / kRowBlock * kRowBlock;
  const int first = start - local_start_, kept = length_ - start;
  for (CacheTensor &tensor : tensors_) {
    if (tensor.kind != CacheKind::kLocal) continue;
    float *rows = tensor.memory.as<float>();
    const size_t row = tensor.head_dim;
    std::memmove(rows, rows + row * first, sizeof(float) * row * kept);
  }
  for (KvForm *form : forms_) form->move_window(first, kept);
  local_start_ = start;
}

bool KvCache::roll_back(int length) {
  const int oldest = local_start_ == 0 ? 0 : local_start_ + window_;
  if (length < oldest || length > length_) return false;
  length_ = length;
  return true;
}

}  // namespace paceline
