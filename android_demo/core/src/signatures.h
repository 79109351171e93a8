// What a graph's signatures must have for the model that the manifest describes.
// Names and shapes are those of runtime/paceline/signatures.py and BUNDLE.md.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "compiled_model.h"
#include "manifest.h"

namespace paceline {

using Wanted = std::map<std::string, std::pair<int32_t, Shape>>;  // tensor -> element type and shape

// Of the token tables and of a target for numbers, by their number of rows.
const std::map<int, const char *> &signature_names();
const char *mask_name(CacheKind kind);
const char *start_name(CacheKind kind);

// Compare what files hold with what the calls of them will ask. Throw Error, naming file, signature and tensor.
void require_tensors(const CompiledModel &model, const std::string &signature, const Wanted &inputs,
                     const Wanted &outputs);
void require_tables(const Manifest &manifest, const Parts &parts);
void require_target(const Manifest &manifest, const CompiledModel &target);
void require_drafter(const Manifest &manifest, const CompiledModel &drafter);

}  // namespace paceline
