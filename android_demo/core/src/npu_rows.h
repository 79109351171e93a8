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
  // Of the largest context that `capacity` rows take.
  static int64_t bytes(const NpuProfile &profile, const std::vector<CacheSpec> &specs, int window, int capacity);

  const KvCache &cache() const { return cache_; }
  const Runtime &runtime() const { return runtime_; }
  int context() const { return context_; }  // slots of the full caches now
  const std::map<std::string, Buffer> &buffers() const { return buffers_; }

  // Makes the full caches as large as `rows` rows need. The context, and with it all buffers, may be others then.
  void cover(int rows);
  // Copies the first rows of a call's slices, which have memory for `held` rows, to the slots of row `start` and on.
  void write(const std::function<void *(const std::string &)> &slice, int held, int start, int count);
  // Take rows that the CPU's graphs have written, and give them rows: those of the float tensors that the cache has.
  void from_floats(int start, int count);
  void to_floats(int start, int count);
  void move_window(int first, int count) override;

 private:
  struct Tensor {
    CacheSpec spec;
    int value;  // 0 for keys [1, K, S, H], 1 for values [1, K, H, S]
    int slots = 0;
    Memory memory = {};
    std::vector<float *> floats =
        {};  // of each kv head the rows [S, H] of the CPU's graphs; empty where there are none
  };

  void resize(const std::string &name, Tensor &tensor, int slots);
  int slot(const Tensor &tensor, int row) const;
  template <typename Work>
  void translate(int start, int count, Work work);

  const Runtime &runtime_;
  KvCache &cache_;
  const NpuProfile &profile_;
  const std::string part_;
  int context_ = 0;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Buffer> buffers_;
};

}  // namespace paceline
