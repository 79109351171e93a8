#include "model.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

#include "costs.h"
#include "error.h"
#include "json.h"
#include "npu_signatures.h"
#include "signatures.h"
#include "weight_cache.h"

namespace paceline {
namespace {

constexpr int kDefaultCapacity = 4096, kMostThreads = 64, kDefaultThreads = 4;
constexpr double kFast = 0.6;  // of the fastest core's clock; a guess that takes middle cores and leaves small ones
constexpr int64_t kSharedDrafterBytes = 16 << 20;  // a draft step of a smaller one is too short for several threads
// LiteRT, logits, masks and XNNPACK's scratch memory; with it the sum for E2B is 1.35 GB, and 1.31 GB were resident.
constexpr int64_t kBesides = 96 << 20;

// What the checkpoint asks for; unknown fields are ignored, and absent ones are off.
Sampling sampling_of(const Json &config) {
  Sampling made;
  const Json *sampled = config.find("do_sample"), *temperature = config.find("temperature");
  if (sampled && sampled->flag()) made.temperature = temperature ? static_cast<float>(temperature->number()) : 1;
  if (const Json *top_k = config.find("top_k")) made.top_k = static_cast<int>(top_k->integer(0, INT32_MAX));
  if (const Json *top_p = config.find("top_p")) made.top_p = top_p->number();
  return made;
}

std::string megabytes(int64_t bytes) { return std::to_string((bytes + 999999) / 1000000) + " MB"; }

int resolved_capacity(int wanted, int most) {
  if (wanted == 0) return std::min(kDefaultCapacity, most);
  if (wanted < 1 || wanted > most) {
    throw Error("the context is " + std::to_string(wanted) + "; this model allows 1 to " + std::to_string(most) + ".");
  }
  return wanted;
}

}  // namespace

int fast_cores() {
  std::vector<long> clocks;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof(usable), &usable);
  for (int core = 0; core < CPU_SETSIZE; core++) {
    if (!CPU_ISSET(core, &usable)) continue;
    std::ifstream stream("/sys/devices/system/cpu/cpu" + std::to_string(core) + "/cpufreq/cpuinfo_max_freq");
    long clock = 1;  // where the system does not tell, all count as equal
    stream >> clock;
    clocks.push_back(clock);
  }
  if (clocks.empty()) return 1;
  const double least = kFast * *std::max_element(clocks.begin(), clocks.end());
  const auto fast = std::count_if(clocks.begin(), clocks.end(), [least](long clock) { return clock >= least; });
  return std::min(static_cast<int>(fast), kDefaultThreads);
}

Model::Model(Bundle bundle, const Options &options)
    : bundle_(std::move(bundle)), options_(options), placement_(placed()), tokenizer_(bundle_.file(kTokenizerFile)) {
  if (options.threads < 0 || options.threads > kMostThreads) {
    throw Error("threads is " + std::to_string(options.threads) + "; allowed are 1 to " + std::to_string(kMostThreads) +
                ", or 0 for the fast cores.");
  }
  if (!options_.threads) options_.threads = fast_cores();
  int most = manifest().max_positions;
  if (placement_.any_npu_graphs()) {
    profile_ = NpuProfile::parse(bundle_.file(kProfileFile));
    most = std::min(most, profile_->contexts.back());
  }
  options_.capacity = resolved_capacity(options.capacity, most);
  if (tokenizer_.size() > manifest().vocab_size)
    throw Error("tokenizer.bin has more tokens than the model; export the bundle again.");
  require_memory();
  bundle_.check_hashes(options_.cache_dir, options_.progress);
  if (bundle_.has(kSamplingFile)) sampling_ = sampling_of(Json::parse(kSamplingFile, bundle_.file(kSamplingFile)));
  const int accelerators = PACELINE_CPU | (placement_.any(PACELINE_GPU) ? PACELINE_GPU : 0) |
                           (placement_.any(PACELINE_NPU) ? PACELINE_NPU : 0);
  runtime_.emplace(options_.library, accelerators, options_.npu.libraries);
  load_pair();
  cache_.emplace(caches(false), manifest().window, options_.capacity);
  graphs_.emplace(parts_, manifest(), *runtime_, *cache_, placement_, profile_);
  ran_on_ =
      placement_.describe(profile_ ? profile_->recipe : "") + ", " + std::to_string(options_.threads) + " threads";
  options_.progress("loading", 1);
}

Placement Model::placed() {
  Placement made(manifest(), options_.target_on, options_.drafter_on, options_.npu);
  bundle_.open(kTokenizerFile);
  if (manifest().files.count(kSamplingFile)) bundle_.open(kSamplingFile);
  for (const auto &[part, on_cpu] : manifest().parts) {
    if (made.file(part) != on_cpu) {
      try {
        bundle_.open(made.file(part));
      } catch (const Error &missing) {
        made.fall_back(part, missing.what());
      }
    }
    if (made.file(part) == on_cpu || made.may_fall_back()) bundle_.open(on_cpu);
  }
  if (made.any_npu_graphs()) bundle_.open(kProfileFile);
  return made;
}

int64_t Model::weights_bytes() const {
  int64_t bytes = 0;
  for (const char *part : kPair) bytes += static_cast<int64_t>(bundle_.file(placement_.file(part)).size());
  return bytes;
}

std::vector<CacheSpec> Model::caches(bool of_npu_graphs) const {
  if (placement_.on_npu_graphs("target") == of_npu_graphs) return manifest().caches;
  if (placement_.on_npu_graphs("drafter") == of_npu_graphs) return manifest().drafter_caches;
  return {};
}

int64_t Model::kv_bytes() const {
  const int window = manifest().window, capacity = options_.capacity;
  const int64_t floats = KvCache::bytes(caches(false), window, capacity);
  return placement_.any_npu_graphs() ? floats + NpuRows::bytes(*profile_, caches(true), window, capacity) : floats;
}

void Model::require_memory() const {
  if (!options_.memory_budget) return;
  const int64_t needed = weights_bytes() + kv_bytes() + kBesides;
  if (needed <= options_.memory_budget) return;
  throw Error("this model needs about " + megabytes(needed) + " of memory (weights " + megabytes(weights_bytes()) +
              ", a context of " + std::to_string(options_.capacity) + " tokens " + megabytes(kv_bytes()) + "), and " +
              megabytes(options_.memory_budget) +
              " can be used; close other apps, or choose a smaller context or model.");
}

std::unique_ptr<CompiledModel> Model::load(const std::string &part) {
  const std::string &file = placement_.file(part);
  const std::string_view bytes = bundle_.file(file);
  // The token tables have nothing that XNNPACK packs, and accelerators no lookup.
  const bool table = part != "target" && part != "drafter";
  const paceline_backend place = table ? PACELINE_CPU : placement_.of(part);
  const bool shared =
      part == "target" || (part == "drafter" && static_cast<int64_t>(bytes.size()) >= kSharedDrafterBytes);
  const int threads = shared ? options_.threads : 1;
  if (table || place != PACELINE_CPU || options_.cache_dir.empty()) {
    const int accelerator = place == PACELINE_NPU_ON_CPU ? PACELINE_CPU : place;
    return std::make_unique<CompiledModel>(*runtime_, file, bytes, CompileOptions{accelerator, threads, ""});
  }
  WeightCache packed(options_.cache_dir, manifest().files.at(file).sha256, bytes.size());
  auto made =
      std::make_unique<CompiledModel>(*runtime_, file, bytes, CompileOptions{PACELINE_CPU, threads, packed.path()});
  packed.complete();
  return made;
}

void Model::load_pair() {
  double done = 0;
  for (const auto &[part, on_cpu] : manifest().parts) {
    options_.progress("loading", done++ / manifest().parts.size());
    try {
      parts_[part] = load(part);
    } catch (const Error &refused) {
      const bool on_npu = (part == "target" || part == "drafter") && placement_.of(part) == PACELINE_NPU;
      if (!on_npu) throw;
      placement_.fall_back(part, refused.what());
      require_memory();
      parts_[part] = load(part);
    }
  }
  const CompiledModel &target = *parts_.at("target"), &drafter = *parts_.at("drafter");
  const bool target_on_npu = placement_.on_npu_graphs("target"), drafter_on_npu = placement_.on_npu_graphs("drafter");
  require_tables(manifest(), parts_);
  target_on_npu ? require_npu_target(manifest(), *profile_, target) : require_target(manifest(), target);
  drafter_on_npu ? require_npu_drafter(manifest(), *profile_, drafter) : require_drafter(manifest(), drafter);
  if (target_on_npu && drafter_on_npu) require_shared_rows(manifest(), *profile_);
}

std::vector<int32_t> Model::encode(const std::string &text) const {
  std::vector<int32_t> tokens = tokenizer_.encode(text);
  const auto bos = manifest().bos_id;
  if (!bos) return tokens;
  const auto first = std::find_if(tokens.begin(), tokens.end(), [bos](int32_t token) { return token != *bos; });
  tokens.erase(tokens.begin(), first);  // those that the text spelled out
  tokens.insert(tokens.begin(), *bos);
  return tokens;
}

std::string Model::written(const std::vector<std::pair<bool, std::string>> &turns) const {
  const auto &format = manifest().turns;
  if (!format) throw Error("this bundle does not say how a conversation is written; continue a text instead.");
  if (turns.empty() || turns.back().first) throw Error("the last turn of a conversation should be the user's.");
  std::string text = format->start;
  for (const auto &[from_model, content] : turns) {
    const auto &around = from_model ? format->model : format->user;
    const char *spaces = " \t\n\r\f\v";  // Gemma's template trims
    const size_t first = content.find_first_not_of(spaces), last = content.find_last_not_of(spaces);
    text += around[0] + (first == std::string::npos ? "" : content.substr(first, last - first + 1)) + around[1];
  }
  return text + format->answer;
}

int Model::keep(const std::vector<int32_t> &tokens) {
  const size_t most = std::min({text_.size(), static_cast<size_t>(cache_->length()), tokens.size() - 1});
  size_t kept = 0;
  while (kept < most && text_[kept] == tokens[kept]) kept++;
  if (!cache_->roll_back(static_cast<int>(kept))) {  // local caches have lost the rows before
    cache_->reset();
    kept = 0;
  }
  text_ = tokens;
  return static_cast<int>(kept);
}

void Model::reset() {
  cache_->reset();
  text_.clear();
}

std::unique_ptr<DraftLength> Model::draft_length(int wanted) {
  if (wanted != PACELINE_AUTO) return std::make_unique<Fixed>(wanted);
  if (options_.capacity < kMostRows + 1) return std::make_unique<Fixed>(0);  // no room to measure in
  if (!costs_) {
    std::string key =
        manifest().files.at(placement_.file("target")).sha256.substr(0, 24) + "-" + std::to_string(options_.threads);
    for (const char *part : kPair) key += "-" + std::to_string(placement_.of(part));
    costs_ = calibrated(*graphs_, manifest(), KeptFile(options_.cache_dir, "costs-" + key, ".txt"));
    text_.clear();
  }
  return std::make_unique<Adaptive>(*costs_, manifest().most_drafts);
}

}  // namespace paceline
