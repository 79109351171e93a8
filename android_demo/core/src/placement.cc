#include "placement.h"

#include <dirent.h>
#ifdef __ANDROID__
#include <sys/system_properties.h>
#endif

#include "error.h"

namespace paceline {
namespace {

// The chip of this device, such as SM8750; empty where the system does not say.
std::string own_soc() {
#ifdef __ANDROID__
  char value[PROP_VALUE_MAX] = "";
  __system_property_get("ro.soc.model", value);
  return value;
#else
  return "";
#endif
}

bool known(paceline_backend place) {
  return place == PACELINE_CPU || place == PACELINE_GPU || place == PACELINE_NPU || place == PACELINE_NPU_ON_CPU;
}

}  // namespace

Placement::Placement(const Manifest &manifest, paceline_backend target, paceline_backend drafter, const NpuOptions &npu)
    : manifest_(manifest), npu_(npu), places_({{"target", target}, {"drafter", drafter}}) {
  if (!known(target) || !known(drafter)) throw Error("a place is unknown; allowed are CPU, GPU, NPU and NPU on CPU.");
  if (any(PACELINE_GPU) && target != drafter)
    throw Error("the GPU runs target and drafter, or none of them; choose the same for both.");
  if (npu_.soc.empty()) npu_.soc = own_soc();
  for (const char *part : kPair) {
    if (!on_npu_graphs(part)) continue;
    const std::string reason = reason_against(part);
    if (!reason.empty()) fall_back(part, reason);
  }
}

bool Placement::on_npu_graphs(const std::string &part) const {
  return of(part) == PACELINE_NPU || of(part) == PACELINE_NPU_ON_CPU;
}

std::string Placement::reason_against(const std::string &part) const {
  const auto &all = manifest_.npu_parts;
  const auto has = [&all, &part](const std::string &soc) { return all.count(soc) && all.at(soc).count(part); };
  if (all.empty()) return "the bundle has no graphs for an NPU; export it with --profile npu, or choose the CPU.";
  if (of(part) == PACELINE_NPU_ON_CPU) {
    return has("") ? "" : "the bundle has no graphs for an NPU that are not compiled for one; export it again.";
  }
  if (npu_.soc.empty()) return "this system does not say what chip it has; name it, or choose the CPU.";
  if (!has(npu_.soc)) {
    std::string others;
    for (const auto &[soc, parts] : all) {
      if (!soc.empty() && parts.count(part)) others += (others.empty() ? "" : ", ") + soc;
    }
    return "the bundle has no graphs of the " + part + " for the NPU of " + npu_.soc + " (it has those for " +
           (others.empty() ? "none" : others) + "); compile them for it, or choose the CPU.";
  }
  if (npu_.libraries.empty())
    return "an NPU takes LiteRT's dispatch library, and no directory for it was named; name it, or choose the CPU.";
  if (!has_dispatch_library(npu_.libraries)) {
    return "there is no dispatch library of LiteRT (libLiteRtDispatch_*.so) in " + npu_.libraries +
           "; put the chip maker's there, or choose the CPU.";
  }
  return "";
}

void Placement::fall_back(const std::string &part, const std::string &reason) {
  if (!npu_.allow_fallback) throw Error(reason);
  places_[part] = PACELINE_CPU;
  reasons_[part] = reason;
  fallback_.clear();
  if (reasons_.size() == 2 && reasons_.at("target") == reasons_.at("drafter")) {
    fallback_ = "Target and drafter run on the CPU: " + reason;
    return;
  }
  for (const auto &[each, why] : reasons_)
    fallback_ += (fallback_.empty() ? "The " : " The ") + each + " runs on the CPU: " + why;
}

const std::string &Placement::file(const std::string &part) const {
  const auto place = places_.find(part);
  if (place == places_.end() || !on_npu_graphs(part)) return manifest_.parts.at(part);
  return manifest_.npu_parts.at(place->second == PACELINE_NPU ? npu_.soc : "").at(part);
}

std::string Placement::name_of(paceline_backend place, const std::string &npu_recipe) const {
  switch (place) {
    case PACELINE_GPU: return "GPU, token tables on the CPU";
    case PACELINE_NPU: return "NPU of " + npu_.soc + " (" + npu_recipe + ")";
    case PACELINE_NPU_ON_CPU: return "CPU with the NPU's graphs (" + npu_recipe + ")";
    default: return "CPU (XNNPACK)";
  }
}

std::string Placement::describe(const std::string &npu_recipe) const {
  const std::string target = name_of(of("target"), npu_recipe), drafter = name_of(of("drafter"), npu_recipe);
  if (target == drafter) return "LiteRT on the " + target;
  return "LiteRT, target on the " + target + ", drafter on the " + drafter;
}

bool has_dispatch_library(const std::string &folder) {
  DIR *opened = opendir(folder.c_str());
  if (!opened) return false;
  bool found = false;
  while (const dirent *entry = readdir(opened)) {
    const std::string name = entry->d_name;
    found |= name.rfind("libLiteRtDispatch", 0) == 0 && name.size() > 3 && name.substr(name.size() - 3) == ".so";
  }
  closedir(opened);
  return found;
}

}  // namespace paceline
