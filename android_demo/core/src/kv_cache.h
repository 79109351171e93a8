// The KV rows of one sequence: one buffer a tensor, which every graph of the pair reads and writes where it lies.
// The rules are those of runtime/paceline/kv_cache.py: full caches hold every row, local ones the newest `window` rows
// and some slack, whose rows move to the front by whole blocks, so that no row's result depends on where its window
// lies.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "manifest.h"
#include "memory.h"

namespace paceline {

constexpr int kPrefillChunk = 128, kShortPrefill = 16, kMostRows = 8;
constexpr int kVerifyRows[] = {1, 2, 4, kMostRows};  // of the signatures; a call with fewer tokens is padded
constexpr int kRowBlock = 64;                        // slots; a softmax sums in this rhythm
constexpr int kGrowthSlots = 256;                    // a full cache is seen in multiples of this

constexpr int in_steps(int count, int step) { return (count + step - 1) / step * step; }
constexpr int local_slots(int window) { return in_steps(window + kRowBlock - 1 + kPrefillChunk, kRowBlock); }
// Slots of a full cache that are enough for `rows` rows and for those that a call of fixed size writes beyond them.
constexpr int visible_slots(int rows) { return in_steps(rows + kShortPrefill - 1, kGrowthSlots); }

// One tensor, of one kv head: [1, 1, slots, H] float32.
struct CacheTensor {
  std::string name;
  CacheKind kind;
  int head_dim, slots;
  Memory memory;
};

// What else holds the same rows, such as those of a neural processor.
class KvForm {
 public:
  virtual ~KvForm() = default;
  // Moves the rows in `count` slots of the local caches, from slot `first` on, to their front.
  virtual void move_window(int first, int count) = 0;
};

class KvCache {
 public:
  KvCache(const std::vector<CacheSpec> &specs, int window, int capacity);
  static int64_t bytes(const std::vector<CacheSpec> &specs, int window, int capacity);

  int length() const { return length_; }            // committed rows; those at and above it are never visible
  int local_start() const { return local_start_; }  // position of the row in slot 0 of the local caches
  int capacity() const { return capacity_; }
  int window() const { return window_; }
  std::vector<CacheTensor> &tensors() { return tensors_; }
  // Moves rows in `form`, too, from now on.
  void add(KvForm &form) { forms_.push_back(&form); }

  // Throws Error where `tokens` more rows do not fit; changes nothing.
  void require_room(int tokens) const;
  // Prepares for a call that writes `tokens` rows, at most kPrefillChunk, behind the committed ones.
  void make_room(int tokens);
  void commit(int rows) { length_ += rows; }
  // Forgets the rows at and above `length`; false where a local cache has lost rows before it.
  bool roll_back(int length);
  void reset() { length_ = local_start_ = 0; }

 private:
  std::vector<CacheTensor> tensors_;
  std::vector<KvForm *> forms_;
  const int window_, capacity_;
  int length_ = 0, local_start_ = 0;
};

}  // namespace paceline
