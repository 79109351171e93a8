// Where target and drafter run: what was asked for, held against what the bundle has and this device can.
#pragma once

#include <map>
#include <string>

#include "manifest.h"
#include "paceline.h"

namespace paceline {

constexpr const char *kPair[] = {"target", "drafter"};

struct NpuOptions {
  std::string libraries;  // the directory of LiteRT's dispatch library
  std::string soc;        // the chip; empty for this device's own
  bool allow_fallback = false;
};

class Placement {
 public:
  // Throws Error where a part cannot run where it should and may not fall back, saying why and what to do.
  Placement(const Manifest &manifest, paceline_backend target, paceline_backend drafter, const NpuOptions &npu);

  paceline_backend of(const std::string &part) const { return places_.at(part); }
  bool on_npu_graphs(const std::string &part) const;  // whether it runs graphs of integers, on whichever processor
  bool any_npu_graphs() const { return on_npu_graphs(kPair[0]) || on_npu_graphs(kPair[1]); }
  bool any(paceline_backend place) const { return of(kPair[0]) == place || of(kPair[1]) == place; }
  // The graph of a part, in its place; of any other part the only one.
  const std::string &file(const std::string &part) const;
  bool may_fall_back() const { return npu_.allow_fallback; }
  // Puts a part on the CPU. Throws Error with the reason where it may not be.
  void fall_back(const std::string &part, const std::string &reason);
  // Why something runs on the CPU that should be on the NPU, in a sentence; empty where all is as it was asked for.
  const std::string &fallback() const { return fallback_; }
  // What runs where, in a few words.
  std::string describe(const std::string &npu_recipe) const;

 private:
  std::string reason_against(const std::string &part) const;  // empty where it can be tried
  std::string name_of(paceline_backend place, const std::string &npu_recipe) const;

  const Manifest &manifest_;
  NpuOptions npu_;
  std::map<std::string, paceline_backend> places_;
  std::map<std::string, std::string> reasons_;  // of the parts that fell back
  std::string fallback_;
};

// Whether a directory has a library that LiteRT would take for its dispatch to an NPU.
bool has_dispatch_library(const std::string &folder);

}  // namespace paceline
