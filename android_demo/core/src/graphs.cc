#include "graphs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "error.h"

namespace paceline {
namespace {

constexpr float kMasked =
    -0.7f * 3.4028234663852886e38f;  // what a mask adds to the score of a row that must not be seen
constexpr const char *kMaskNames[] = {"local_mask", "mask"}, *kStartNames[] = {"local_cache_start", "cache_start"};

const char *mask_name(CacheKind kind) { return kMaskNames[static_cast<int>(kind)]; }

const std::map<int, const char *> kSignatures = {{1, "decode"},
                                                 {2, "verify_2"},
                                                 {4, "verify"},
                                                 {8, "verify_8"},
                                                 {kShortPrefill, "prefill_16"},
                                                 {kPrefillChunk, "prefill_128"}};

Buffer made(const Runtime &runtime, const TensorInfo &tensor, Memory &memory) {
  return Buffer(runtime, tensor.element, tensor.shape, memory.as<void>());
}

size_t bytes_of(const TensorInfo &tensor) {
  size_t bytes = 4;
  for (const int size : tensor.shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

}  // namespace

const std::map<std::string, Buffer> &CacheViews::at(int slots) {
  auto &buffers = by_slots_[slots];
  if (buffers.empty()) {
    for (CacheTensor &tensor : cache_.tensors()) {
      const int seen = tensor.kind == CacheKind::kLocal ? tensor.slots : slots;
      buffers.emplace(tensor.name,
                      Buffer(runtime_, litert::kFloat32, {1, 1, seen, tensor.head_dim}, tensor.memory.as<void>()));
    }
  }
  return buffers;
}

BoundCall::BoundCall(const CompiledModel &model, const std::string &signature, CacheViews &views, int rows)
    : views_(views), call_(model, signature), rows_(rows) {
  const auto &shared = views.at(kGrowthSlots);
  for (const auto *tensors : {&call_.info().inputs, &call_.info().outputs}) {
    for (const TensorInfo &tensor : *tensors) {
      if (tensor.name == kMaskNames[0] || tensor.name == kMaskNames[1] || shared.count(tensor.name)) continue;
      Memory &memory = arrays_.emplace(tensor.name, Memory(bytes_of(tensor))).first->second;
      buffers_.emplace(tensor.name, made(views.runtime(), tensor, memory));
    }
  }
  make_mask(CacheKind::kLocal, local_slots(views.cache().window()));
}

void BoundCall::make_mask(CacheKind kind, int slots) {
  masks_[kind] = Memory(sizeof(float) * rows_ * slots);
  mask_buffers_[kind] =
      std::make_unique<Buffer>(views_.runtime(), litert::kFloat32, Shape{1, 1, rows_, slots}, masks_[kind].as<void>());
}

void BoundCall::cover(int rows) {
  const int slots = visible_slots(rows);
  if (slots == slots_) return;
  slots_ = slots;
  make_mask(CacheKind::kFull, slots);
  std::map<std::string, const Buffer *> all;
  for (const auto &[name, buffer] : views_.at(slots)) all[name] = &buffer;
  for (const auto &[name, buffer] : buffers_) all[name] = &buffer;
  for (const auto &[kind, buffer] : mask_buffers_) all[mask_name(kind)] = buffer.get();
  call_.set(all);
}

void BoundCall::show(int row, int end) {
  const KvCache &cache = views_.cache();
  for (const auto &[kind, mask] : masks_) {
    const int slots = static_cast<int>(mask.size() / sizeof(float)) / rows_;
    float *line = mask.as<float>() + static_cast<size_t>(row) * slots;
    int base = 0, first = 0;
    if (kind == CacheKind::kLocal) {
      base = cache.local_start();
      first = std::max(base, end - cache.window());
    }
    std::fill(line, line + slots, kMasked);
    std::fill(line + first - base, line + end - base, 0.0f);
  }
}

TargetCall::TargetCall(const Parts &parts, CacheViews &views, const Manifest &manifest, int rows)
    : rows_(rows),
      views_(views),
      bound_(*parts.at("target"), kSignatures.at(rows), views, rows),
      tokens_(sizeof(int32_t) * rows),
      token_ids_(views.runtime(), litert::kInt32, {1, rows}, tokens_.as<void>()) {
  for (const auto &[part, output] :
       {std::pair("embedder", "embeddings"), std::pair("per_layer_embedder", "per_layer_embeddings")}) {
    if (!manifest.parts.count(part)) continue;
    Call &lookup = lookups_.emplace_back(*parts.at(part), kSignatures.at(rows));
    lookup.set({{"token_ids", &token_ids_}, {output, &bound_.buffer(output)}});
  }
}

void TargetCall::run(const int32_t *tokens, int count, int start) {
  bound_.cover(start + count);
  std::copy(tokens, tokens + count, tokens_.as<int32_t>());
  std::fill(tokens_.as<int32_t>() + count, tokens_.as<int32_t>() + rows_, 0);
  const int first_slots[] = {start - views_.cache().local_start(), start};
  for (const int kind : {0, 1}) {
    if (bound_.has(kStartNames[kind])) bound_.ints(kStartNames[kind])[2] = first_slots[kind];
  }
  for (int row = 0; row < rows_; row++) {
    bound_.ints("input_pos")[row] = start + row;
    bound_.show(row, start + row + 1);
  }
  for (Call &lookup : lookups_) lookup.run();
  bound_.run();
}

DrafterCall::DrafterCall(const Parts &parts, CacheViews &views, const Manifest &manifest)
    : views_(views),
      bound_(*parts.at("drafter"), "draft", views, 1),
      hidden_size_(manifest.hidden_size),
      offset_(manifest.draft_position_offset),
      token_(sizeof(int32_t)),
      token_id_(views.runtime(), litert::kInt32, {1, 1}, token_.as<void>()),
      // The table writes the token's embedding straight into the first half of the drafter's input.
      embedded_(views.runtime(), litert::kFloat32, {1, 1, manifest.hidden_size}, bound_.floats("activations")),
      lookup_(*parts.at("embedder"), "decode") {
  lookup_.set({{"token_ids", &token_id_}, {"embeddings", &embedded_}});
}

DraftStep DrafterCall::run(int32_t token, const float *hidden) {
  const KvCache &cache = views_.cache();
  if (shown_length_ != cache.length() || shown_start_ != cache.local_start()) {
    bound_.cover(cache.length());
    bound_.show(0, cache.length());
    // Constant in a round: every step stands where the pending token will be written.
    bound_.ints("input_pos")[0] = cache.length() + offset_;
    shown_length_ = cache.length();
    shown_start_ = cache.local_start();
  }
  *token_.as<int32_t>() = token;
  std::memmove(bound_.floats("activations") + hidden_size_, hidden, sizeof(float) * hidden_size_);
  lookup_.run();
  bound_.run();
  return {bound_.ints("draft_token")[0],
          std::exp(bound_.floats("draft_logit")[0] - bound_.floats("draft_logsumexp")[0]),
          bound_.floats("projected_activations")};
}

Graphs::Graphs(const Parts &parts, const Manifest &manifest, const Runtime &runtime, KvCache &cache)
    : parts_(parts), manifest_(manifest), views_(runtime, cache), drafter_(parts, views_, manifest) {}

TargetCall &Graphs::call(int rows) { return calls_.try_emplace(rows, parts_, views_, manifest_, rows).first->second; }

void Graphs::prefill(const int32_t *tokens, int count) {
  KvCache &kept = cache();
  kept.make_room(count);
  for (int start = 0; start < count;) {
    const int left = count - start;
    const int rows = in_steps(left, kShortPrefill) >= kPrefillChunk ? kPrefillChunk : kShortPrefill;
    const int taken = std::min(rows, left);
    call(rows).run(tokens + start, taken, kept.length() + start);
    start += taken;
  }
  kept.commit(count);
}

Verified Graphs::verify(const int32_t *tokens, int count) {
  cache().make_room(count);
  TargetCall &chosen = call(*std::lower_bound(std::begin(kVerifyRows), std::end(kVerifyRows), count));
  chosen.run(tokens, count, cache().length());
  return chosen.verified();
}

void require_signatures(const Manifest &manifest, const Parts &parts) {
  using Wanted = std::map<std::string, std::pair<int32_t, Shape>>;
  const int hidden = manifest.hidden_size, locals = local_slots(manifest.window);
  const auto require = [&parts](const std::string &part, const std::string &name, const Wanted &wanted, bool inputs) {
    const CompiledModel &model = *parts.at(part);
    const SignatureInfo &info = model.signature(name);
    const auto &held = inputs ? info.inputs : info.outputs;
    const auto where = [&](const std::string &tensor) {
      return model.name() + ": " + tensor + " of signature " + name;
    };
    for (const TensorInfo &tensor : held) {
      const auto found = wanted.find(tensor.name);
      if (found == wanted.end()) throw Error(where(tensor.name) + " is unknown; export the bundle again.");
      if (found->second != std::pair(tensor.element, tensor.shape)) {
        throw Error(where(tensor.name) +
                    " has another type or shape than the manifest says; it belongs to another pair; "
                    "export the bundle again.");
      }
    }
    if (held.size() != wanted.size())
      throw Error(model.name() + ": signature " + name + " lacks a tensor; export the bundle again.");
  };
  const auto add_caches = [&](Wanted &wanted, const std::vector<CacheSpec> &specs) {
    for (const CacheSpec &spec : specs) {
      for (const int value : {0, 1}) {
        for (const std::string &name : spec.names(value)) {
          wanted[name] = {litert::kFloat32,
                          {1, 1, spec.kind == CacheKind::kLocal ? locals : litert::kVaries, spec.head_dim}};
        }
      }
    }
  };
  const auto add_masks = [&](Wanted &wanted, const std::vector<CacheSpec> &specs, int rows, bool starts) {
    for (const CacheSpec &spec : specs) {
      const int kind = static_cast<int>(spec.kind), slots = spec.kind == CacheKind::kLocal ? locals : litert::kVaries;
      wanted[kMaskNames[kind]] = {litert::kFloat32, {1, 1, rows, slots}};
      if (starts) wanted[kStartNames[kind]] = {litert::kInt32, {4}};
    }
  };
  for (const auto &[rows, name] : kSignatures) {
    Wanted inputs, outputs;
    inputs["embeddings"] = {litert::kFloat32, {1, rows, hidden}};
    inputs["input_pos"] = {litert::kInt32, {rows}};
    require("embedder", name, {{"token_ids", {litert::kInt32, {1, rows}}}}, true);
    require("embedder", name, {{"embeddings", inputs["embeddings"]}}, false);
    if (manifest.per_layer_size) {
      inputs["per_layer_embeddings"] = {litert::kFloat32, {1, rows, manifest.layers, manifest.per_layer_size}};
      require("per_layer_embedder", name, {{"token_ids", {litert::kInt32, {1, rows}}}}, true);
      require("per_layer_embedder", name, {{"per_layer_embeddings", inputs["per_layer_embeddings"]}}, false);
    }
    add_masks(inputs, manifest.caches, rows, true);
    add_caches(inputs, manifest.caches);
    if (rows <= kMostRows) {
      outputs["logits"] = {litert::kFloat32, {1, rows, manifest.vocab_size}};
      outputs["activations"] = {litert::kFloat32, {1, rows, hidden}};
    }
    add_caches(outputs, manifest.caches);
    require("target", name, inputs, true);
    require("target", name, outputs, false);
  }
  Wanted inputs, outputs;
  inputs["activations"] = {litert::kFloat32, {1, 1, 2 * hidden}};
  inputs["input_pos"] = {litert::kInt32, {1}};
  add_masks(inputs, manifest.drafter_caches, 1, false);
  add_caches(inputs, manifest.drafter_caches);
  outputs["draft_token"] = {litert::kInt32, {1}};
  outputs["draft_logit"] = outputs["draft_logsumexp"] = {litert::kFloat32, {1}};
  outputs["projected_activations"] = {litert::kFloat32, {1, 1, hidden}};
  outputs["draft_logits"] = {litert::kFloat32, {manifest.scored_tokens}};
  if (manifest.scored_tokens < manifest.vocab_size)
    outputs["draft_scored"] = {litert::kInt32, {manifest.scored_tokens}};
  require("drafter", "draft", inputs, true);
  require("drafter", "draft", outputs, false);
}

}  // namespace paceline
