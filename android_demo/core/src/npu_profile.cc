#include "npu_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "error.h"
#include "json.h"
#include "kv_cache.h"

namespace paceline {
namespace {

constexpr int kVersion = 1, kMostContext = 1 << 20, kMostSteps = 16;
const std::set<int> kRows = {1, 2, 4, 8, 128};  // that a target may have signatures for

std::vector<int> rising(const Json &raw, const char *name, int most) {
  std::vector<int> found;
  for (const Json &each : raw.at(name).list()) {
    found.push_back(static_cast<int>(each.integer(1, most)));
    if (found.size() > 1 && found[found.size() - 2] >= found.back())
      throw Error(each.place() + " is not larger than the one before it; export the bundle again.");
  }
  if (found.empty()) throw Error(raw.at(name).place() + " is empty; export the bundle again.");
  return found;
}

std::vector<int> rising_from_1(const Json &raw, const char *name, int most) {
  std::vector<int> found = rising(raw, name, most);
  if (found.front() != 1) throw Error(raw.at(name).place() + " lacks 1; export the bundle again.");
  return found;
}

Rotation rotation_of(const Json &raw) {
  const Rotation made = {static_cast<int>(raw.at("head_dim").integer(2, kMostContext)), raw.at("theta").number(),
                         raw.at("rotated").number()};
  if (!(made.theta >= 1) || !(made.rotated > 0 && made.rotated <= 1)) {
    throw Error(raw.place() + " should have a theta of 1 or more, and rotate more than 0 and at most 1 of a head; " +
                "export the bundle again.");
  }
  return made;
}

Scale scale_of(const Json &raw) {
  if (raw.list().size() != 2)
    throw Error(raw.place() + " should be a scale and a zero point; export the bundle again.");
  const double scale = raw.list()[0].fraction();
  // Beyond these a float32 has no such number.
  if (!(scale >= std::numeric_limits<float>::min() && scale <= std::numeric_limits<float>::max()))
    throw Error(raw.list()[0].place() + " should be above 0 and a float32; export the bundle again.");
  return {static_cast<float>(scale), static_cast<int>(raw.list()[1].integer(-128, 127))};
}

}  // namespace

void Rotation::fill(int position, float *cosines, float *sines) const {
  const int half = head_dim / 2, pairs = static_cast<int>(std::floor(rotated * head_dim / 2));
  for (int pair = 0; pair < half; pair++) {
    const double angle = pair < pairs ? position * std::pow(theta, -(2.0 * pair / head_dim)) : 0;
    cosines[pair] = cosines[half + pair] = static_cast<float>(std::cos(angle));
    sines[half + pair] = static_cast<float>(std::sin(angle));
    sines[pair] = -sines[half + pair];
  }
}

NpuProfile NpuProfile::parse(std::string_view json) {
  const Json raw = Json::parse(kProfileFile, json);
  if (raw.at("format_version").integer(0, kMostContext) != kVersion) {
    throw Error("npu.json has format_version " + std::to_string(raw.at("format_version").integer(0, kMostContext)) +
                "; this program reads " + std::to_string(kVersion) + "; export the bundle again.");
  }
  NpuProfile made;
  made.recipe = raw.at("recipe").text();
  const std::string &dtype = raw.at("dtype").text();
  if (dtype != "int16" && dtype != "int8")
    throw Error(raw.at("dtype").place() + " is \"" + dtype + "\"; allowed are int8 and int16.");
  made.element = dtype == "int8" ? litert::kInt8 : litert::kInt16;
  made.contexts = rising(raw, "contexts", kMostContext);
  made.rows = rising_from_1(raw, "rows", *kRows.rbegin());
  for (const int rows : made.rows) {
    if (!kRows.count(rows))
      throw Error(raw.at("rows").place() + " has " + std::to_string(rows) + "; allowed are 1, 2, 4, 8 and 128.");
  }
  made.draft_steps = rising_from_1(raw, "draft_steps", kMostSteps);
  made.top_clusters = static_cast<int>(raw.at("top_clusters").integer(0, kMostContext));
  for (const auto &[kind, each] : raw.at("rotations").object()) {
    if (kind != "local" && kind != "full") throw Error(each.place() + " is unknown; allowed are local and full.");
    made.rotations[kind == "local" ? CacheKind::kLocal : CacheKind::kFull] = rotation_of(each);
  }
  for (const auto &[part, scales] : raw.at("scales").object()) {
    for (const auto &[port, each] : scales.object()) made.scales[part][port] = scale_of(each);
  }
  return made;
}

const Scale &NpuProfile::scale(const std::string &part, const std::string &port) const {
  const auto of_part = scales.find(part);
  if (of_part != scales.end()) {
    const auto found = of_part->second.find(port);
    if (found != of_part->second.end()) return found->second;
  }
  throw Error("npu.json: scales." + part + " lacks " + port + "; export the bundle again.");
}

int NpuProfile::context_of(int row) const {
  const auto found = std::find_if(contexts.begin(), contexts.end(), [row](int size) { return row < size - kMostRows; });
  return found == contexts.end() ? contexts.back() : *found;
}

}  // namespace paceline
