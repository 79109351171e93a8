#include "npu_signatures.h"

#include <algorithm>

#include "error.h"
#include "kv_cache.h"
#include "signatures.h"

namespace paceline {
namespace {

constexpr char kTopClusters[] =
    "top_cluster_logits";  // nobody reads it, but a compiler loses outputs that lead nowhere

// What rows see of the old slots and of `added` new ones, how they are rotated, and the old rows.
Wanted context_ports(const std::vector<CacheSpec> &specs, const Manifest &manifest, const NpuProfile &profile, int rows,
                     int context, int added) {
  Wanted wanted;
  for (const CacheSpec &spec : specs) {
    const NpuNames &names = npu_names(spec.kind);
    const int slots = npu_slots(spec.kind, manifest.window, context);
    wanted[names.mask] = {profile.element, {1, 1, rows, slots + added}};
    wanted[names.cosines] = wanted[names.sines] = {profile.element, {1, rows, 1, spec.head_dim}};
    wanted[npu_cache(spec, 0)] = {profile.element, {1, spec.kv_heads, slots, spec.head_dim}};
    wanted[npu_cache(spec, 1)] = {profile.element, {1, spec.kv_heads, spec.head_dim, slots}};
  }
  return wanted;
}

// Every integer needs its scale, and every kind of layers its rotation.
void require_numbers(const NpuProfile &profile, const std::string &part, const std::vector<CacheSpec> &specs,
                     const Wanted &ports) {
  for (const auto &[name, port] : ports) {
    if (port.first == profile.element) profile.scale(part, name);
  }
  for (const CacheSpec &spec : specs) {
    const auto rotation = profile.rotations.find(spec.kind);
    if (rotation == profile.rotations.end() || rotation->second.head_dim != spec.head_dim || spec.head_dim % 2)
      throw Error("npu.json: rotations are those of another pair; export the bundle again.");
  }
}

// Rows are copied as they are, from the slice that they come in to the tensor of whoever reads them.
void require_same_scale(const NpuProfile &profile, const std::string &part, const std::string &written,
                        const std::string &reader, const std::string &read) {
  const Scale &one = profile.scale(part, written), &other = profile.scale(reader, read);
  if (one.scale != other.scale || one.zero_point != other.zero_point) {
    throw Error("npu.json: scales." + part + "." + written + " is not that of scales." + reader + "." + read +
                "; export the bundle again.");
  }
}

}  // namespace

const NpuNames &npu_names(CacheKind kind) {
  static const NpuNames local = {"mask_local", "pos_emb_local_cos", "pos_emb_local_sin"};
  static const NpuNames full = {"mask_global", "pos_emb_cos", "pos_emb_sin"};
  return kind == CacheKind::kLocal ? local : full;
}

std::string npu_cache(const CacheSpec &spec, int value) {
  return (value ? "kv_cache_v_" : "kv_cache_k_") + std::to_string(spec.layer);
}

std::string npu_slice(const CacheSpec &spec, int value) {
  return (value ? "kv_slice_v_" : "kv_slice_k_") + std::to_string(spec.layer);
}

std::string npu_signature(const char *name, const NpuProfile &profile, int context) {
  return profile.contexts.size() == 1 ? name : std::string(name) + "_cache_" + std::to_string(context);
}

int npu_slots(CacheKind kind, int window, int context) {
  return kind == CacheKind::kLocal ? local_slots(window) : context;
}

int new_slots(int rows) { return std::max(rows, kMostRows); }

void require_npu_target(const Manifest &manifest, const NpuProfile &profile, const CompiledModel &target) {
  for (const int rows : kVerifyRows) {
    if (std::find(profile.rows.begin(), profile.rows.end(), rows) == profile.rows.end())
      throw Error("npu.json: rows lacks " + std::to_string(rows) +
                  ", which this program calls; export the bundle again.");
  }
  for (const int context : profile.contexts) {
    for (const int rows : profile.rows) {
      Wanted inputs = context_ports(manifest.caches, manifest, profile, rows, context, new_slots(rows)), outputs;
      inputs["embeddings"] = {profile.element, {1, rows, manifest.hidden_size}};
      if (manifest.per_layer_size) {
        inputs["per_layer_embeddings"] = {profile.element, {1, rows, manifest.layers, manifest.per_layer_size}};
      }
      if (rows <= kMostRows) {
        outputs["logits"] = {profile.element, {1, rows, manifest.vocab_size}};
        outputs["activations"] = {profile.element, {1, rows, manifest.hidden_size}};
      }
      for (const CacheSpec &spec : manifest.caches) {
        outputs[npu_slice(spec, 0)] = {profile.element, {1, spec.kv_heads, rows, spec.head_dim}};
        outputs[npu_slice(spec, 1)] = {profile.element, {1, spec.kv_heads, spec.head_dim, rows}};
      }
      require_tensors(target, npu_signature(signature_names().at(rows), profile, context), inputs, outputs);
      require_numbers(profile, "target", manifest.caches, inputs);
      require_numbers(profile, "target", {}, outputs);
    }
  }
  for (const CacheSpec &spec : manifest.caches) {
    for (const int value : {0, 1})
      require_same_scale(profile, "target", npu_slice(spec, value), "target", npu_cache(spec, value));
  }
}

void require_shared_rows(const Manifest &manifest, const NpuProfile &profile) {
  for (const CacheSpec &spec : manifest.drafter_caches) {
    for (const int value : {0, 1})
      require_same_scale(profile, "target", npu_cache(spec, value), "drafter", npu_cache(spec, value));
  }
}

void require_npu_drafter(const Manifest &manifest, const NpuProfile &profile, const CompiledModel &drafter) {
  for (const int context : profile.contexts) {
    Wanted inputs = context_ports(manifest.drafter_caches, manifest, profile, 1, context, 0), outputs;
    inputs["activations"] = {profile.element, {1, 1, 2 * manifest.hidden_size}};
    outputs["logits"] = {profile.element, {1, 1, manifest.scored_tokens}};
    outputs["projected_activations"] = {profile.element, {1, 1, manifest.hidden_size}};
    if (profile.top_clusters) {
      outputs["draft_scored"] = {litert::kInt32, {manifest.scored_tokens}};
      outputs[kTopClusters] = {litert::kFloat32, {1, 1, profile.top_clusters}};
    }
    require_tensors(drafter, npu_signature("draft", profile, context), inputs, outputs);
    require_numbers(profile, "drafter", manifest.drafter_caches, inputs);
    require_numbers(profile, "drafter", {}, outputs);
  }
}

}  // namespace paceline
