// The pair's calls on graphs of float32, which read and write the KV rows where they lie: every buffer is made once,
// and inputs are rewritten in place. Masks are those of BUNDLE.md.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "calls.h"
#include "compiled_model.h"
#include "kv_cache.h"
#include "lookup.h"
#include "manifest.h"

namespace paceline {

// The KV tensors as LiteRT buffers: local ones whole, full ones up to a number of slots that grows in steps.
class CacheViews {
 public:
  CacheViews(const Runtime &runtime, KvCache &cache) : runtime_(runtime), cache_(cache) {}
  KvCache &cache() const { return cache_; }
  const Runtime &runtime() const { return runtime_; }
  const std::map<std::string, Buffer> &at(int slots);

 private:
  const Runtime &runtime_;
  KvCache &cache_;
  std::map<int, std::map<std::string, Buffer>> by_slots_;
};

// A signature with memory for all its inputs and outputs; masks and KV tensors change as the context grows.
class BoundCall {
 public:
  BoundCall(const CompiledModel &model, const std::string &signature, CacheViews &views, int rows);

  float *floats(const char *name) const { return arrays_.at(name).as<float>(); }
  int32_t *ints(const char *name) const { return arrays_.at(name).as<int32_t>(); }
  const Buffer &buffer(const char *name) const { return buffers_.at(name); }
  bool has(const char *name) const { return arrays_.count(name) > 0; }
  // Makes masks and KV tensors large enough for `rows` cache rows.
  void cover(int rows);
  // Lets a row of the call see the cache rows below `end`, in local caches the newest `window` of them.
  void show(int row, int end);
  void run() { call_.run(); }

 private:
  void make_mask(CacheKind kind, int slots);

  CacheViews &views_;
  Call call_;
  const int rows_;
  int slots_ = 0;
  std::map<std::string, Memory> arrays_;
  std::map<std::string, Buffer> buffers_;
  std::map<CacheKind, Memory> masks_;
  std::map<CacheKind, std::unique_ptr<Buffer>> mask_buffers_;
};

// A pass over a fixed number of rows; calls with fewer tokens are padded.
class TargetCall {
 public:
  TargetCall(const Parts &parts, CacheViews &views, const Manifest &manifest, int rows);
  // Writes the KV rows of `tokens` at positions `start` and on.
  void run(const int32_t *tokens, int count, int start);
  Verified verified() const { return {bound_.floats("logits"), bound_.floats("activations")}; }

 private:
  const int rows_;
  CacheViews &views_;
  BoundCall bound_;
  Lookup lookup_;
};

class FloatTarget : public Target {
 public:
  FloatTarget(const Parts &parts, CacheViews &views, const Manifest &manifest)
      : parts_(parts), views_(views), manifest_(manifest) {}
  void prefill(const int32_t *tokens, int count) override;
  Verified verify(const int32_t *tokens, int count) override;

 private:
  TargetCall &call(int rows);

  const Parts &parts_;
  CacheViews &views_;
  const Manifest &manifest_;
  std::map<int, TargetCall> calls_;
};

class FloatDrafter : public Drafter {
 public:
  FloatDrafter(const Parts &parts, CacheViews &views, const Manifest &manifest);
  DraftStep run(int32_t token, const float *hidden) override;

 private:
  CacheViews &views_;
  BoundCall bound_;
  const int hidden_size_, offset_;
  Buffer embedded_;
  Lookup lookup_;
  int shown_length_ = -1, shown_start_ = -1;
};

}  // namespace paceline
