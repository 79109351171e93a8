// npu.json: what the graphs for a neural processor are, beside what the manifest says of the pair. BUNDLE.md specifies
// it; runtime/paceline/npu/profile.py reads it with the same refusals.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "manifest.h"
#include "npu_scale.h"

namespace paceline {

constexpr char kProfileFile[] = "npu.json";

// The rotary embedding of one kind of layers: frequencies theta^(-2i / head_dim) of the first pairs, 0 of the others.
struct Rotation {
  int head_dim;
  double theta, rotated;  // fraction of the head

  // Writes the cosines and sines [H] at a position. Computed in double, so that every language rounds to the same
  // float. The sines of a head's low half have the sign of rotate-half.
  void fill(int position, float *cosines, float *sines) const;
};

struct NpuProfile {
  std::string recipe;            // how the numbers were chosen, such as a16w8
  int32_t element;               // of the graphs' tensors: litert::kInt16 or kInt8
  std::vector<int> contexts;     // slots of the full caches, of each size that there is, rising
  std::vector<int> rows;         // T of the target's signatures, rising
  std::vector<int> draft_steps;  // steps of the drafter's signatures, rising
  int top_clusters;              // that the drafter's head chooses; 0 where it scores the whole vocabulary
  std::map<CacheKind, Rotation> rotations;
  std::map<std::string, std::map<std::string, Scale>> scales;  // part -> port -> its scale

  // Throws Error, naming the field.
  static NpuProfile parse(std::string_view json);
  // Throws Error where the file has none of that port.
  const Scale &scale(const std::string &part, const std::string &port) const;
  // The size of the full caches where a row is computed, which depends on nothing but its position.
  int context_of(int row) const;
};

}  // namespace paceline
