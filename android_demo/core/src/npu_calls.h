// The pair's calls on a neural processor: inputs as integers, a run, and what came out as numbers again.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "lookup.h"
#include "npu_profile.h"
#include "npu_rows.h"

namespace paceline {

// A signature of a part on memory of its own and the KV tensors of the context of now.
class StaticCall {
 public:
  // A target's masks have room for its own rows behind the old slots.
  StaticCall(const CompiledModel &model, const std::string &signature, const NpuProfile &profile,
             const std::string &part, const NpuRows &kept, int rows);

  void *memory(const std::string &name) const { return arrays_.at(name).as<void>(); }
  // Gives an input its numbers, from its place `first` on.
  void put(const std::string &name, const float *numbers, size_t count, size_t first = 0);
  // Appends the first numbers of an output.
  void read(const std::string &name, size_t count, std::vector<float> &numbers) const;
  // Gives a row its position.
  void rotate(int row, int position);
  // Lets a row see the cache rows below `committed` and the call's first rows; in local caches the newest `window` of
  // all.
  void see(int row, int committed, int new_rows);
  void run() { call_.run(); }

 private:
  const NpuProfile &profile_;
  const std::string part_;
  const KvCache &cache_;
  const int rows_, context_;
  Call call_;
  std::map<std::string, Memory> arrays_;
  std::map<std::string, Buffer> buffers_;
};

// Rows of the token tables on memory of their own.
class TokenRows {
 public:
  // Of a target, or of a drafter, which takes no per-layer rows.
  TokenRows(const Parts &parts, const Runtime &runtime, const Manifest &manifest, int rows, bool per_layer);
  // The rows of `tokens`, and behind them those of token 0: output -> numbers, valid until the next call.
  const std::map<std::string, Memory> &of(const int32_t *tokens, int count);

 private:
  void add(const Runtime &runtime, const std::string &output, const Shape &shape);

  std::map<std::string, Memory> arrays_;
  std::map<std::string, Buffer> buffers_;
  std::optional<Lookup> lookup_;
};

class NpuTarget : public Target {
 public:
  NpuTarget(const Parts &parts, const Manifest &manifest, const NpuProfile &profile, NpuRows &kept);
  void prefill(const int32_t *tokens, int count) override;
  // Two calls where larger caches begin in its midst.
  Verified verify(const int32_t *tokens, int count) override;

 private:
  StaticCall &run(const int32_t *tokens, int count, int start);

  const Parts &parts_;
  const Manifest &manifest_;
  const NpuProfile &profile_;
  NpuRows &kept_;
  std::map<int, TokenRows> tokens_;                  // by rows of a call
  std::map<std::pair<int, int>, StaticCall> calls_;  // by context and rows
  std::vector<float> logits_, activations_;
};

class NpuDrafter : public Drafter {
 public:
  NpuDrafter(const Parts &parts, const Manifest &manifest, const NpuProfile &profile, NpuRows &kept);
  DraftStep run(int32_t token, const float *hidden) override;

 private:
  const Parts &parts_;
  const Manifest &manifest_;
  const NpuProfile &profile_;
  NpuRows &kept_;
  TokenRows tokens_;
  std::map<int, StaticCall> calls_;           // by context
  std::map<int, std::pair<int, int>> shown_;  // the same -> where a call's masks were made
  std::vector<float> logits_, state_;
};

}  // namespace paceline
