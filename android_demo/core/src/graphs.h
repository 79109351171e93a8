// The pair's graphs bound to one KV cache: every buffer is made once, and inputs are rewritten in place.
// Names, shapes and masks are those of runtime/paceline/signatures.py and BUNDLE.md.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiled_model.h"
#include "kv_cache.h"
#include "manifest.h"

namespace paceline {

using Parts = std::map<std::string, std::unique_ptr<CompiledModel>>;  // target, drafter, embedder, per_layer_embedder

// Compares what files hold with what the calls below will ask of them. Throws Error, naming file, signature and tensor.
void require_signatures(const Manifest &manifest, const Parts &parts);

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

// What the target says of the rows of a call; valid until the next one.
struct Verified {
  const float *logits, *activations;  // [T, V], [T, D]
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
  Memory tokens_;
  Buffer token_ids_;
  std::vector<Call> lookups_;
};

struct DraftStep {
  int32_t token;
  float probability;   // that the drafter gives it, among the tokens it scored
  const float *state;  // [D], the next step's hidden; valid until the next step
};

class DrafterCall {
 public:
  DrafterCall(const Parts &parts, CacheViews &views, const Manifest &manifest);
  DraftStep run(int32_t token, const float *hidden);

 private:
  CacheViews &views_;
  BoundCall bound_;
  const int hidden_size_, offset_;
  Memory token_;
  Buffer token_id_, embedded_;
  Call lookup_;
  int shown_length_ = -1, shown_start_ = -1;
};

// Both models on one sequence.
class Graphs {
 public:
  Graphs(const Parts &parts, const Manifest &manifest, const Runtime &runtime, KvCache &cache);
  // Writes and commits the rows of at most kPrefillChunk tokens. Throws Error where they do not fit.
  void prefill(const int32_t *tokens, int count);
  // One pass over [pending, draft 1, ..], at most kMostRows; its rows stay invisible until they are committed.
  Verified verify(const int32_t *tokens, int count);
  DraftStep draft(int32_t token, const float *hidden) { return drafter_.run(token, hidden); }
  KvCache &cache() const { return views_.cache(); }

 private:
  TargetCall &call(int rows);

  const Parts &parts_;
  const Manifest &manifest_;
  CacheViews views_;
  std::map<int, TargetCall> calls_;
  DrafterCall drafter_;
};

}  // namespace paceline
