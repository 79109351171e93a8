#include "costs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "clock.h"
#include "sampler.h"

namespace paceline {
namespace {

constexpr int kContext = 512;       // committed rows, or as many as the capacity has; ratios change little with it
constexpr double kBudgetMs = 1000;  // no turn starts later than this after the warm-up, but for the least ones
constexpr int kLeastTurns = 2, kMostTurns = 20;
constexpr int kChain = 3;       // draft steps that are timed together; the first is dearer than the others
constexpr float kScale = 0.1f;  // of the made-up rows: small enough for a flat softmax, and far from denormal numbers

void fill(float *values, size_t count, uint64_t stream) {
  for (size_t i = 0; i < count; i++) values[i] = kScale * static_cast<float>(2 * uniform(0, i, stream) - 1);
}

CallCosts measured(Graphs &graphs, const Manifest &manifest) {
  KvCache &cache = graphs.cache();
  cache.reset();
  uint64_t stream = 1;  // an NPU's rows stay zeros, on which its integers take as long
  for (CacheTensor &tensor : cache.tensors()) {
    fill(tensor.memory.as<float>(), static_cast<size_t>(std::min(tensor.slots, kContext)) * tensor.head_dim, stream++);
  }
  const int context = std::max(1, std::min(kContext, cache.capacity() - kMostRows));
  for (int row = 0; row < context; row += kPrefillChunk) {
    const int chunk = std::min(kPrefillChunk, context - row);
    cache.make_room(chunk);
    cache.commit(chunk);
  }
  std::vector<float> hidden(manifest.hidden_size);
  fill(hidden.data(), hidden.size(), 0);
  std::vector<int32_t> tokens(kMostRows);
  for (int i = 0; i < kMostRows; i++) tokens[i] = static_cast<int32_t>(uniform(0, i) * manifest.vocab_size);
  const auto chain = [&] {
    const float *state = hidden.data();
    for (int step = 0; step < kChain; step++) state = graphs.draft(tokens[step], state).state;
  };
  std::vector<std::function<void()>> calls = {chain};
  for (const int count : kVerifyRows)
    calls.push_back([&graphs, &tokens, count] { graphs.verify(tokens.data(), count); });
  for (const auto &call : calls) call();                // binds and warms up
  std::vector<double> fastest(calls.size(), INFINITY);  // noise only adds
  const double started = now_ms();
  for (int turn = 0; turn < kMostTurns && (turn < kLeastTurns || now_ms() - started <= kBudgetMs); turn++) {
    for (size_t i = 0; i < calls.size(); i++) {
      const double before = now_ms();
      calls[i]();
      fastest[i] = std::min(fastest[i], now_ms() - before);
    }
  }
  cache.reset();
  CallCosts costs = {fastest[1], fastest[0] / kChain, {}};
  for (int drafts = 0; drafts <= kMostDrafts; drafts++) {
    const auto *call = std::lower_bound(std::begin(kVerifyRows), std::end(kVerifyRows), drafts + 1);
    costs.verify_ms[drafts] = fastest[1 + (call - std::begin(kVerifyRows))];
  }
  return costs;
}

bool usable(double ms) { return std::isfinite(ms) && ms > 0; }

}  // namespace

CallCosts calibrated(Graphs &graphs, const Manifest &manifest, const KeptFile &kept) {
  CallCosts costs = {};
  std::istringstream stream(kept.read());
  stream >> costs.decode_ms >> costs.draft_ms;
  for (double &ms : costs.verify_ms) stream >> ms;
  const bool whole = !stream.fail() && usable(costs.decode_ms) && usable(costs.draft_ms) &&
                     std::all_of(costs.verify_ms.begin(), costs.verify_ms.end(), usable);
  if (whole) return costs;
  costs = measured(graphs, manifest);
  std::ostringstream text;
  text << costs.decode_ms << ' ' << costs.draft_ms;
  for (const double ms : costs.verify_ms) text << ' ' << ms;
  kept.write(text.str() + "\n");
  return costs;
}

}  // namespace paceline
