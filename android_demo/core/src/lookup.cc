#include "lookup.h"

#include <algorithm>

#include "signatures.h"

namespace paceline {

Lookup::Lookup(const Parts &parts, const Runtime &runtime, int rows,
               const std::map<std::string, const Buffer *> &outputs)
    : rows_(rows), tokens_(sizeof(int32_t) * rows), token_ids_(runtime, litert::kInt32, {1, rows}, tokens_.as<void>()) {
  for (const auto &[part, output] :
       {std::pair("embedder", "embeddings"), std::pair("per_layer_embedder", "per_layer_embeddings")}) {
    const auto found = outputs.find(output);
    if (found == outputs.end()) continue;
    Call &call = calls_.emplace_back(*parts.at(part), signature_names().at(rows));
    call.set({{"token_ids", &token_ids_}, {output, found->second}});
  }
}

void Lookup::run(const int32_t *tokens, int count) {
  std::copy(tokens, tokens + count, tokens_.as<int32_t>());
  std::fill(tokens_.as<int32_t>() + count, tokens_.as<int32_t>() + rows_, 0);
  for (Call &call : calls_) call.run();
}

}  // namespace paceline
