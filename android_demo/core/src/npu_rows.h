// The KV rows of one sequence as a neural processor reads them: integers, the values transposed, in tensors of a fixed
// size. A call's new rows are copied in as they are, because a slice has the scale of its tensor, and so has every
// reader.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiled_model.h"
#include "kv_cache.h"
#include "npu_profile.h"

namespace paceline {

// Tensors for the rows that a KvCache counts.
class NpuRows : public KvForm {
 public:
  // `part` is whose scales the rows have; its `specs` are those that are kept.
  NpuRows(const Runtime &runtime, KvCache &cache, const NpuProfile &profile, const std::string &part,
          const std::vector<CacheSpec> &specs);
  // Of all contexts that `capacity` rows go through.
  static int64_t bytes(const NpuProfile &profile, const std::vector<CacheSpec> &specs, int window, int capacity);

  const KvCache &cache() const { return cache_; }
  const Runtime &runtime() const { return runtime_; }
  int context() const { return context_; }  // slots of the full caches now
  // The tensor of that name in the context of now, to be read as long as the object is there; null where there is none.
  const Buffer *buffer(const std::string &name) const;

  // Goes to caches of the size where a row is computed, with the rows below it.
  void at(int row);
  // Cuts `count` rows from `start` on where caches of another size begin. Calls `work` with each piece's first row and
  // number of rows, in the context of these.
  void pieces(int start, int count, const std::function<void(int, int)> &work);
  // Copies the first rows of a call's slices, which have memory for `held` rows, to the slots of row `start` and on.
  void write(const std::function<void *(const std::string &)> &slice, int held, int start, int count);
  // Take rows that the CPU's graphs have written, and give them rows: those of the float tensors that the cache has.
  void from_floats(int start, int count);
  void to_floats(int start, int count);
  void move_window(int first, int count) override;

 private:
  struct Held {
    int slots;
    Memory memory;
    Buffer buffer;
  };
  struct Tensor {
    CacheSpec spec;
    int value;                          // 0 for keys [1, K, S, H], 1 for values [1, K, H, S]
    std::vector<float *> floats = {};   // of each kv head the rows [S, H] of the CPU's graphs, if they read them
    std::map<int, Held> by_slots = {};  // all sizes stay, because calls are bound to them
    Held *now = nullptr;
  };

  Held &held(Tensor &tensor, int slots);
  int slot(const Tensor &tensor, int row) const;
  template <typename Work>
  void translate(int start, int count, Work work);

  const Runtime &runtime_;
  KvCache &cache_;
  const NpuProfile &profile_;
  const std::string part_;
  int context_ = 0;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace paceline
