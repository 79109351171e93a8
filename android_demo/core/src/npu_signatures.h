// Inputs and outputs of the graphs for a neural processor, as runtime/paceline/npu/signatures.py has them. Such a
// processor wants fixed sizes, and no writes, lookups or trigonometry: masks and rotations are inputs, the KV tensors
// are only read, and what a call adds to them comes out as kv_slice_*.
#pragma once

#include <string>

#include "compiled_model.h"
#include "manifest.h"
#include "npu_profile.h"

namespace paceline {

struct NpuNames {
  const char *mask, *cosines, *sines;
};

const NpuNames &npu_names(CacheKind kind);
// The name of a layer's key (0) or value (1): of the tensor with its old rows, and of the output with its new ones.
std::string npu_cache(const CacheSpec &spec, int value);
std::string npu_slice(const CacheSpec &spec, int value);
// The target's signature for `rows` rows, or the drafter's of one step, for full caches of `context` slots.
std::string npu_signature(const char *name, const NpuProfile &profile, int context);
int npu_slots(CacheKind kind, int window, int context);
// Columns of a mask for a call's own rows: as many for one row as for the most that are verified. A softmax of 16-bit
// integers counts what is masked, each slot a little, so a row's result depends on the number of slots.
int new_slots(int rows);

// Compare what npu.json and a graph's file hold with what the calls will ask of them. Throw Error, naming what differs.
void require_npu_target(const Manifest &manifest, const NpuProfile &profile, const CompiledModel &target);
void require_npu_drafter(const Manifest &manifest, const NpuProfile &profile, const CompiledModel &drafter);

// Throws Error where the drafter would read the target's rows with other scales than they were written with.
void require_shared_rows(const Manifest &manifest, const NpuProfile &profile);

}  // namespace paceline
