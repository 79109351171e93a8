#include "float_calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "signatures.h"

namespace paceline {
namespace {

constexpr float kMasked =
    -0.7f * 3.4028234663852886e38f;  // what a mask adds to the score of a row that must not be seen
constexpr CacheKind kKinds[] = {CacheKind::kLocal, CacheKind::kFull};

std::map<std::string, const Buffer *> table_outputs(const BoundCall &bound, const Manifest &manifest) {
  std::map<std::string, const Buffer *> outputs = {{"embeddings", &bound.buffer("embeddings")}};
  if (manifest.per_layer_size) outputs["per_layer_embeddings"] = &bound.buffer("per_layer_embeddings");
  return outputs;
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
      const bool is_mask = tensor.name == mask_name(CacheKind::kLocal) || tensor.name == mask_name(CacheKind::kFull);
      if (is_mask || shared.count(tensor.name)) continue;
      Memory &memory = arrays_.emplace(tensor.name, Memory(tensor_bytes(tensor.element, tensor.shape))).first->second;
      buffers_.emplace(tensor.name, Buffer(views.runtime(), tensor.element, tensor.shape, memory.as<void>()));
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
      bound_(*parts.at("target"), signature_names().at(rows), views, rows),
      lookup_(parts, views.runtime(), rows, table_outputs(bound_, manifest)) {}

void TargetCall::run(const int32_t *tokens, int count, int start) {
  bound_.cover(start + count);
  for (const CacheKind kind : kKinds) {
    const int first = kind == CacheKind::kLocal ? start - views_.cache().local_start() : start;
    if (bound_.has(start_name(kind))) bound_.ints(start_name(kind))[2] = first;
  }
  for (int row = 0; row < rows_; row++) {
    bound_.ints("input_pos")[row] = start + row;
    bound_.show(row, start + row + 1);
  }
  lookup_.run(tokens, count);
  bound_.run();
}

TargetCall &FloatTarget::call(int rows) {
  return calls_.try_emplace(rows, parts_, views_, manifest_, rows).first->second;
}

void FloatTarget::prefill(const int32_t *tokens, int count) {
  for (int start = 0; start < count;) {
    const int left = count - start;
    const int rows = in_steps(left, kShortPrefill) >= kPrefillChunk ? kPrefillChunk : kShortPrefill;
    const int taken = std::min(rows, left);
    call(rows).run(tokens + start, taken, views_.cache().length() + start);
    start += taken;
  }
}

Verified FloatTarget::verify(const int32_t *tokens, int count) {
  TargetCall &chosen = call(*std::lower_bound(std::begin(kVerifyRows), std::end(kVerifyRows), count));
  chosen.run(tokens, count, views_.cache().length());
  return chosen.verified();
}

FloatDrafter::FloatDrafter(const Parts &parts, CacheViews &views, const Manifest &manifest)
    : views_(views),
      bound_(*parts.at("drafter"), "draft", views, 1),
      hidden_size_(manifest.hidden_size),
      offset_(manifest.draft_position_offset),
      // The table writes the token's embedding straight into the first half of the drafter's input.
      embedded_(views.runtime(), litert::kFloat32, {1, 1, manifest.hidden_size}, bound_.floats("activations")),
      lookup_(parts, views.runtime(), 1, {{"embeddings", &embedded_}}) {}

DraftStep FloatDrafter::run(int32_t token, const float *hidden) {
  const KvCache &cache = views_.cache();
  if (shown_length_ != cache.length() || shown_start_ != cache.local_start()) {
    bound_.cover(cache.length());
    bound_.show(0, cache.length());
    // Constant in a round: every step stands where the pending token will be written.
    bound_.ints("input_pos")[0] = cache.length() + offset_;
    shown_length_ = cache.length();
    shown_start_ = cache.local_start();
  }
  std::memmove(bound_.floats("activations") + hidden_size_, hidden, sizeof(float) * hidden_size_);
  lookup_.run(&token, 1);
  bound_.run();
  return {bound_.ints("draft_token")[0],
          std::exp(bound_.floats("draft_logit")[0] - bound_.floats("draft_logsumexp")[0]),
          bound_.floats("projected_activations")};
}

}  // namespace paceline
