#include "manifest.h"

#include <algorithm>

#include "error.h"
#include "json.h"
#include "paceline.h"

namespace paceline {
namespace {

constexpr int kVersion = 3;
constexpr char kNpu[] = "npu", kNpuOf[] = "npu.";  // graphs for a neural processor, and those compiled for a chip
// Larger sizes would only ask for memory that no device has; products of these fit in 64 bits.
constexpr int kMost = 1 << 24, kMostLayers = 1024, kMostHeads = 64, kMostWidth = 1 << 16;

int size_at(const Json &object, const char *name, int most, int least = 1) {
  return static_cast<int>(object.at(name).integer(least, most));
}

const std::string &plain_name(const Json &value) {
  const std::string &name = value.text();
  if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
    throw Error(value.place() + " is \"" + name + "\"; allowed are names of files in the bundle, without a directory.");
  }
  return name;
}

CacheSpec cache_spec(const Json &entry) {
  const std::string &kind = entry.at("kind").text();
  if (kind != "local" && kind != "full")
    throw Error(entry.place() + ".kind is \"" + kind + "\"; allowed are local and full.");
  return {static_cast<int>(entry.at("layer").integer(0, kMostLayers)),
          kind == "local" ? CacheKind::kLocal : CacheKind::kFull, size_at(entry, "kv_heads", kMostHeads),
          size_at(entry, "head_dim", kMostWidth)};
}

std::array<std::string, 2> pair_of(const Json &value) {
  if (value.list().size() != 2)
    throw Error(value.place() + " should have two texts: in front of a turn, and behind it.");
  return {value.list()[0].text(), value.list()[1].text()};
}

std::string stored_file(const Manifest &manifest, const Json &name) {
  const std::string &file = plain_name(name);
  if (!manifest.files.count(file)) throw Error("manifest.json: files lacks " + file + "; export the bundle again.");
  return file;
}

std::map<std::string, std::string> parts_of(const Manifest &manifest, const Json &graphs) {
  std::map<std::string, std::string> found;
  for (const auto &[part, name] : graphs.at("parts").object()) {
    if (part != "target" && part != "drafter")
      throw Error(name.place() + " is unknown; an NPU runs the parts target and drafter.");
    found[part] = stored_file(manifest, name);
  }
  return found;
}

}  // namespace

std::vector<std::string> CacheSpec::names(int value) const {
  const std::string name = (value ? "kv_cache_v_" : "kv_cache_k_") + std::to_string(layer);
  if (kv_heads == 1) return {name};
  std::vector<std::string> heads;
  for (int head = 0; head < kv_heads; head++) heads.push_back(name + "." + std::to_string(head));
  return heads;
}

Manifest Manifest::parse(std::string_view json) {
  const Json raw = Json::parse("manifest.json", json);
  if (const Json *format = raw.find("format"); !format || format->text() != "paceline-bundle") {
    throw Error("manifest.json is not that of a paceline bundle; make one with: paceline export");
  }
  if (raw.at("format_version").integer(0, kMost) != kVersion) {
    throw Error("manifest.json has format_version " + std::to_string(raw.at("format_version").integer(0, kMost)) +
                "; this program reads " + std::to_string(kVersion) + "; export the bundle again.");
  }
  const Json &model = raw.at("model"), *graphs = raw.at("graphs").find("litert");
  if (!graphs) throw Error("the bundle has no TFLite graphs; export it with --format tflite.");
  Manifest made;
  made.recipe = raw.at("recipe").text();
  made.vocab_size = size_at(model, "vocab_size", kMost);
  made.hidden_size = size_at(model, "hidden_size", kMostWidth);
  made.layers = size_at(model, "layers", kMostLayers);
  made.per_layer_size = size_at(model, "per_layer_size", kMostWidth, 0);
  made.window = size_at(model, "window", kMost);
  made.max_positions = size_at(model, "max_positions", kMost);
  if (const Json *bos = model.find("bos_id")) made.bos_id = static_cast<int32_t>(bos->integer(0, made.vocab_size - 1));
  for (const Json &id : model.at("stop_ids").list()) {
    made.stop_ids.insert(static_cast<int32_t>(id.integer(0, made.vocab_size - 1)));
  }
  made.draft_position_offset = static_cast<int>(raw.at("draft_position_offset").integer(-1, 0));
  made.scored_tokens = static_cast<int>(raw.at("drafter_scores_tokens").integer(1, made.vocab_size));
  made.most_drafts = PACELINE_MOST_DRAFTS;
  if (const Json *adaptive = raw.find("adaptive")) {
    made.most_drafts = static_cast<int>(adaptive->at("most_drafts").integer(0, PACELINE_MOST_DRAFTS));
  }
  for (const Json &entry : raw.at("kv_cache").list()) made.caches.push_back(cache_spec(entry));
  for (const Json &layer : raw.at("drafter_reads_layers").list()) {
    const int64_t wanted = layer.integer(0, kMostLayers);
    const auto found = std::find_if(made.caches.begin(), made.caches.end(),
                                    [wanted](const CacheSpec &spec) { return spec.layer == wanted; });
    if (found == made.caches.end())
      throw Error(layer.place() + " is a layer without KV rows; export the bundle again.");
    made.drafter_caches.push_back(*found);
  }
  for (const auto &[name, entry] : raw.at("files").object()) {
    made.files[name] = {entry.at("bytes").integer(0, INT64_MAX), entry.at("sha256").text()};
  }
  std::set<std::string> wanted = {"target", "drafter", "embedder"};
  if (made.per_layer_size) wanted.insert("per_layer_embedder");
  for (const std::string &part : wanted) {
    made.parts[part] = stored_file(made, graphs->at("parts").at(part));
  }
  for (const auto &[backend, each] : raw.at("graphs").object()) {
    const std::string soc = backend.rfind(kNpuOf, 0) == 0 ? backend.substr(sizeof(kNpuOf) - 1) : "";
    if (backend == kNpu || !soc.empty()) made.npu_parts[soc] = parts_of(made, each);
  }
  if (const Json *turns = raw.find("chat_turns")) {
    made.turns = ChatTurns{turns->at("start").text(), turns->at("answer").text(), pair_of(turns->at("user")),
                           pair_of(turns->at("model"))};
  }
  return made;
}

}  // namespace paceline
