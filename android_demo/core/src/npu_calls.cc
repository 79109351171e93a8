#include "npu_calls.h"

#include <algorithm>
#include <cmath>

#include "npu_signatures.h"
#include "signatures.h"

namespace paceline {

StaticCall::StaticCall(const CompiledModel &model, const std::string &signature, const NpuProfile &profile,
                       const std::string &part, const NpuRows &kept, int rows)
    : profile_(profile),
      part_(part),
      cache_(kept.cache()),
      rows_(rows),
      context_(kept.context()),
      call_(model, signature) {
  std::map<std::string, const Buffer *> all;
  for (const auto *tensors : {&call_.info().inputs, &call_.info().outputs}) {
    for (const TensorInfo &tensor : *tensors) {
      if (const Buffer *shared = kept.buffer(tensor.name)) {
        all[tensor.name] = shared;
        continue;
      }
      Memory &memory = arrays_.emplace(tensor.name, Memory(tensor_bytes(tensor.element, tensor.shape))).first->second;
      const Buffer &buffer =
          buffers_.emplace(tensor.name, Buffer(kept.runtime(), tensor.element, tensor.shape, memory.as<void>()))
              .first->second;
      all[tensor.name] = &buffer;
    }
  }
  call_.set(all);
}

void StaticCall::put(const std::string &name, const float *numbers, size_t count, size_t first) {
  const Scale &scale = profile_.scale(part_, name);
  with_integers(profile_.element, memory(name), [&](auto *integers) {
    for (size_t i = 0; i < count; i++) {
      integers[first + i] = scale.integer<std::remove_pointer_t<decltype(integers)>>(numbers[i]);
    }
  });
}

void StaticCall::read(const std::string &name, size_t count, std::vector<float> &numbers) const {
  const Scale &scale = profile_.scale(part_, name);
  const size_t first = numbers.size();
  numbers.resize(first + count);
  with_integers(profile_.element, memory(name), [&](const auto *integers) {
    for (size_t i = 0; i < count; i++) numbers[first + i] = scale.number(integers[i]);
  });
}

void StaticCall::rotate(int row, int position) {
  for (const auto &[kind, rotation] : profile_.rotations) {
    const NpuNames &names = npu_names(kind);
    if (!arrays_.count(names.cosines)) continue;
    std::vector<float> cosines(rotation.head_dim), sines(rotation.head_dim);
    rotation.fill(position, cosines.data(), sines.data());
    const size_t first = static_cast<size_t>(row) * rotation.head_dim;
    put(names.cosines, cosines.data(), cosines.size(), first);
    put(names.sines, sines.data(), sines.size(), first);
  }
}

void StaticCall::see(int row, int committed, int new_rows) {
  for (const CacheKind kind : {CacheKind::kLocal, CacheKind::kFull}) {
    const auto mask = arrays_.find(npu_names(kind).mask);
    if (mask == arrays_.end()) continue;
    const int old = npu_slots(kind, cache_.window(), context_);
    int base = 0, first = 0, first_new = 0;
    if (kind == CacheKind::kLocal) {
      base = cache_.local_start();
      first = std::min(committed, std::max(base, committed + new_rows - cache_.window()));
      first_new = std::max(0, new_rows - cache_.window());
    }
    const int shown = profile_.scale(part_, mask->first).zero_point;
    with_integers(profile_.element, mask->second.as<void>(), [&, &memory = mask->second](auto *integers) {
      using Integer = std::remove_pointer_t<decltype(integers)>;
      const size_t width = memory.size() / sizeof(Integer) / rows_;
      Integer *line = integers + row * width;
      std::fill(line, line + width, least<Integer>());
      std::fill(line + first - base, line + committed - base, static_cast<Integer>(shown));
      std::fill(line + old + first_new, line + old + new_rows, static_cast<Integer>(shown));
    });
  }
}

TokenRows::TokenRows(const Parts &parts, const Runtime &runtime, const Manifest &manifest, int rows, bool per_layer) {
  add(runtime, "embeddings", {1, rows, manifest.hidden_size});
  if (per_layer) add(runtime, "per_layer_embeddings", {1, rows, manifest.layers, manifest.per_layer_size});
  std::map<std::string, const Buffer *> outputs;
  for (const auto &[name, buffer] : buffers_) outputs[name] = &buffer;
  lookup_.emplace(parts, runtime, rows, outputs);
}

void TokenRows::add(const Runtime &runtime, const std::string &output, const Shape &shape) {
  const Memory &memory = arrays_.emplace(output, Memory(tensor_bytes(litert::kFloat32, shape))).first->second;
  buffers_.emplace(output, Buffer(runtime, litert::kFloat32, shape, memory.as<void>()));
}

const std::map<std::string, Memory> &TokenRows::of(const int32_t *tokens, int count) {
  lookup_->run(tokens, count);
  return arrays_;
}

NpuTarget::NpuTarget(const Parts &parts, const Manifest &manifest, const NpuProfile &profile, NpuRows &kept)
    : parts_(parts), manifest_(manifest), profile_(profile), kept_(kept) {}

void NpuTarget::prefill(const int32_t *tokens, int count) {
  const int most = profile_.rows.back();
  const int begin = kept_.cache().length();
  kept_.pieces(begin, count, [&](int first, int own) {
    for (int start = first; start < first + own; start += most)
      run(tokens + start - begin, std::min(most, first + own - start), start);
  });
}

Verified NpuTarget::verify(const int32_t *tokens, int count) {
  const int begin = kept_.cache().length();
  logits_.clear();
  activations_.clear();
  kept_.pieces(begin, count, [&](int first, int own) {
    const StaticCall &call = run(tokens + first - begin, own, first);
    call.read("logits", static_cast<size_t>(own) * manifest_.vocab_size, logits_);
    call.read("activations", static_cast<size_t>(own) * manifest_.hidden_size, activations_);
  });
  return {logits_.data(), activations_.data()};
}

StaticCall &NpuTarget::run(const int32_t *tokens, int count, int start) {
  const int rows = *std::lower_bound(profile_.rows.begin(), profile_.rows.end(), count), context = kept_.context();
  const std::string name = npu_signature(signature_names().at(rows), profile_, context);
  StaticCall &call =
      calls_.try_emplace({context, rows}, *parts_.at("target"), name, profile_, "target", kept_, rows).first->second;
  const bool per_layer = manifest_.per_layer_size > 0;
  TokenRows &table = tokens_.try_emplace(rows, parts_, kept_.runtime(), manifest_, rows, per_layer).first->second;
  for (const auto &[input, numbers] : table.of(tokens, count)) {
    call.put(input, numbers.as<float>(), numbers.size() / sizeof(float));
  }
  for (int row = 0; row < rows; row++) {
    call.rotate(row, start + row);
    call.see(row, start, row + 1);
  }
  call.run();
  kept_.write([&call](const std::string &slice) { return call.memory(slice); }, rows, start, count);
  return call;
}

NpuDrafter::NpuDrafter(const Parts &parts, const Manifest &manifest, const NpuProfile &profile, NpuRows &kept)
    : parts_(parts),
      manifest_(manifest),
      profile_(profile),
      kept_(kept),
      tokens_(parts, kept.runtime(), manifest, 1, false) {}

DraftStep NpuDrafter::run(int32_t token, const float *hidden) {
  const KvCache &cache = kept_.cache();
  kept_.at(cache.length());
  const int context = kept_.context();
  const std::string name = npu_signature("draft", profile_, context);
  StaticCall &call =
      calls_.try_emplace(context, *parts_.at("drafter"), name, profile_, "drafter", kept_, 1).first->second;
  const std::pair<int, int> place = {cache.length(), cache.local_start()};
  if (const auto [shown, first] = shown_.try_emplace(context, place); first || shown->second != place) {
    // Constant in a round: every step stands where the pending token will be written.
    call.rotate(0, cache.length() + manifest_.draft_position_offset);
    call.see(0, cache.length(), 0);
    shown->second = place;
  }
  const size_t width = manifest_.hidden_size;
  call.put("activations", tokens_.of(&token, 1).at("embeddings").as<float>(), width);
  call.put("activations", hidden, width, width);
  call.run();
  logits_.clear();
  state_.clear();
  call.read("logits", manifest_.scored_tokens, logits_);
  call.read("projected_activations", width, state_);
  const auto best = std::max_element(logits_.begin(), logits_.end());
  double sum = 0;
  for (const float logit : logits_) sum += std::exp(logit - *best);
  const auto at = best - logits_.begin();
  const bool is_vocabulary = profile_.top_clusters == 0;
  return {is_vocabulary ? static_cast<int32_t>(at) : static_cast<int32_t *>(call.memory("draft_scored"))[at],
          static_cast<float>(1 / sum), state_.data()};
}

}  // namespace paceline
