#include "signatures.h"

#include "error.h"
#include "kv_cache.h"

namespace paceline {
namespace {

void require_all(const CompiledModel &model, const std::string &signature, const std::vector<TensorInfo> &held,
                 const Wanted &wanted) {
  const auto where = [&](const std::string &tensor) {
    return model.name() + ": " + tensor + " of signature " + signature;
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
    throw Error(model.name() + ": signature " + signature + " lacks a tensor; export the bundle again.");
}

int slots_of(const CacheSpec &spec, int window) {
  return spec.kind == CacheKind::kLocal ? local_slots(window) : litert::kVaries;
}

void add_caches(Wanted &wanted, const std::vector<CacheSpec> &specs, int window) {
  for (const CacheSpec &spec : specs) {
    for (const int value : {0, 1}) {
      for (const std::string &name : spec.names(value)) {
        wanted[name] = {litert::kFloat32, {1, 1, slots_of(spec, window), spec.head_dim}};
      }
    }
  }
}

void add_masks(Wanted &wanted, const std::vector<CacheSpec> &specs, int window, int rows) {
  for (const CacheSpec &spec : specs) {
    wanted[mask_name(spec.kind)] = {litert::kFloat32, {1, 1, rows, slots_of(spec, window)}};
  }
}

}  // namespace

const std::map<int, const char *> &signature_names() {
  static const std::map<int, const char *> names = {{1, "decode"},
                                                    {2, "verify_2"},
                                                    {4, "verify"},
                                                    {8, "verify_8"},
                                                    {kShortPrefill, "prefill_16"},
                                                    {kPrefillChunk, "prefill_128"}};
  return names;
}

const char *mask_name(CacheKind kind) { return kind == CacheKind::kLocal ? "local_mask" : "mask"; }

const char *start_name(CacheKind kind) { return kind == CacheKind::kLocal ? "local_cache_start" : "cache_start"; }

void require_tensors(const CompiledModel &model, const std::string &signature, const Wanted &inputs,
                     const Wanted &outputs) {
  const SignatureInfo &info = model.signature(signature);
  require_all(model, signature, info.inputs, inputs);
  require_all(model, signature, info.outputs, outputs);
}

void require_tables(const Manifest &manifest, const Parts &parts) {
  for (const auto &[rows, name] : signature_names()) {
    const Wanted token_ids = {{"token_ids", {litert::kInt32, {1, rows}}}};
    require_tensors(*parts.at("embedder"), name, token_ids,
                    {{"embeddings", {litert::kFloat32, {1, rows, manifest.hidden_size}}}});
    if (!manifest.per_layer_size) continue;
    const Shape shape = {1, rows, manifest.layers, manifest.per_layer_size};
    require_tensors(*parts.at("per_layer_embedder"), name, token_ids,
                    {{"per_layer_embeddings", {litert::kFloat32, shape}}});
  }
}

void require_target(const Manifest &manifest, const CompiledModel &target) {
  for (const auto &[rows, name] : signature_names()) {
    Wanted inputs, outputs;
    inputs["embeddings"] = {litert::kFloat32, {1, rows, manifest.hidden_size}};
    inputs["input_pos"] = {litert::kInt32, {rows}};
    if (manifest.per_layer_size) {
      inputs["per_layer_embeddings"] = {litert::kFloat32, {1, rows, manifest.layers, manifest.per_layer_size}};
    }
    add_masks(inputs, manifest.caches, manifest.window, rows);
    for (const CacheSpec &spec : manifest.caches) inputs[start_name(spec.kind)] = {litert::kInt32, {4}};
    add_caches(inputs, manifest.caches, manifest.window);
    if (rows <= kMostRows) {
      outputs["logits"] = {litert::kFloat32, {1, rows, manifest.vocab_size}};
      outputs["activations"] = {litert::kFloat32, {1, rows, manifest.hidden_size}};
    }
    add_caches(outputs, manifest.caches, manifest.window);
    require_tensors(target, name, inputs, outputs);
  }
}

void require_drafter(const Manifest &manifest, const CompiledModel &drafter) {
  Wanted inputs, outputs;
  inputs["activations"] = {litert::kFloat32, {1, 1, 2 * manifest.hidden_size}};
  inputs["input_pos"] = {litert::kInt32, {1}};
  add_masks(inputs, manifest.drafter_caches, manifest.window, 1);
  add_caches(inputs, manifest.drafter_caches, manifest.window);
  outputs["draft_token"] = {litert::kInt32, {1}};
  outputs["draft_logit"] = outputs["draft_logsumexp"] = {litert::kFloat32, {1}};
  outputs["projected_activations"] = {litert::kFloat32, {1, 1, manifest.hidden_size}};
  outputs["draft_logits"] = {litert::kFloat32, {manifest.scored_tokens}};
  if (manifest.scored_tokens < manifest.vocab_size)
    outputs["draft_scored"] = {litert::kInt32, {manifest.scored_tokens}};
  require_tensors(drafter, "draft", inputs, outputs);
}

}  // namespace paceline
