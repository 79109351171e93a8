// A loaded bundle with one sequence: whoever generates takes turns on it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bundle.h"
#include "draft_length.h"
#include "graphs.h"
#include "placement.h"
#include "sampler.h"
#include "tokenizer.h"

namespace paceline {

struct Options {
  std::string library, cache_dir;
  int threads = 0, capacity = 0;
  paceline_backend target_on = PACELINE_CPU, drafter_on = PACELINE_CPU;
  NpuOptions npu;
  int64_t memory_budget = 0;
  Progress progress = [](const char *, double) {};
};

// Threads that a phone's fast cores take: the cores that reach most of the fastest one's clock, at most four.
int fast_cores();

class Model {
 public:
  // Checks memory before anything is loaded. Throws Error.
  Model(Bundle bundle, const Options &options);

  const Manifest &manifest() const { return bundle_.manifest(); }
  const Tokenizer &tokenizer() const { return tokenizer_; }
  const Options &options() const { return options_; }
  int64_t weights_bytes() const;
  int64_t kv_bytes() const;
  const std::string &ran_on() const { return ran_on_; }
  const std::string &fallback() const { return placement_.fallback(); }  // see Placement
  const Sampling &checkpoint_sampling() const { return sampling_; }
  Graphs &graphs() { return *graphs_; }

  // The tokens of a text with exactly one <bos> in front.
  std::vector<int32_t> encode(const std::string &text) const;
  // A conversation as text, up to where the model's answer begins. Throws Error where the bundle does not say how.
  std::string written(const std::vector<std::pair<bool, std::string>> &turns) const;
  // Rolls the sequence back to the rows that `tokens` begin with, and says how many; the last one is always left to
  // compute.
  int keep(const std::vector<int32_t> &tokens);
  // Takes a token of the sequence's text.
  void push(int32_t token) { text_.push_back(token); }
  // Forgets the sequence, after an error that may have come amid a call.
  void reset();
  std::unique_ptr<DraftLength> draft_length(int wanted);

 private:
  Placement placed();
  // The caches of the kind of graphs that are asked for; a target keeps those of all layers, a drafter those that it
  // reads.
  std::vector<CacheSpec> caches(bool of_npu_graphs) const;
  void require_memory() const;
  std::unique_ptr<CompiledModel> load(const std::string &part);
  void load_pair();

  Bundle bundle_;
  Options options_;
  Placement placement_;
  Tokenizer tokenizer_;
  Sampling sampling_;
  std::optional<NpuProfile> profile_;  // where a part may run on an NPU's graphs
  std::optional<Runtime> runtime_;
  Parts parts_;
  std::optional<KvCache> cache_;
  std::optional<Graphs> graphs_;
  std::optional<CallCosts> costs_;
  std::string ran_on_;
  std::vector<int32_t> text_;  // of the sequence so far; the cache holds rows of the first ones
};

}  // namespace paceline
