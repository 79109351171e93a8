#include "npu_rows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "npu_signatures.h"

namespace paceline {
namespace {

// Where the numbers of KV rows lie in a tensor.
struct Steps {
  size_t head, row, number;  // from one to the next

  // Of keys [1, K, S, H], or of values [1, K, H, S].
  static Steps of(int value, int slots, int head_dim) {
    const size_t held = slots, size = head_dim;
    return value ? Steps{held * size, 1, held} : Steps{held * size, size, 1};
  }
};

// Copies `count` rows. They may be those of one tensor, if they move to its front.
template <typename Integer>
void copy_rows(const CacheSpec &spec, int count, const Integer *from, Steps of, int first, Integer *to, Steps into,
               int slot) {
  for (int head = 0; head < spec.kv_heads; head++) {
    for (int row = 0; row < count; row++) {
      const Integer *source = from + head * of.head + (first + row) * of.row;
      Integer *target = to + head * into.head + (slot + row) * into.row;
      for (int i = 0; i < spec.head_dim; i++) target[i * into.number] = source[i * of.number];
    }
  }
}

size_t numbers_of(const CacheSpec &spec, int slots) { return size_t{1} * spec.kv_heads * spec.head_dim * slots; }

}  // namespace

NpuRows::NpuRows(const Runtime &runtime, KvCache &cache, const NpuProfile &profile, const std::string &part,
                 const std::vector<CacheSpec> &specs)
    : runtime_(runtime), cache_(cache), profile_(profile), part_(part) {
  for (const CacheSpec &spec : specs) {
    for (const int value : {0, 1}) {
      Tensor tensor = {spec, value};
      for (const std::string &head : spec.names(value)) {
        for (CacheTensor &floats : cache.tensors()) {
          if (floats.name == head) tensor.floats.push_back(floats.memory.as<float>());
        }
      }
      tensors_.emplace(npu_cache(spec, value), std::move(tensor));
    }
  }
  at(0);
  cache.add(*this);
}

int64_t NpuRows::bytes(const NpuProfile &profile, const std::vector<CacheSpec> &specs, int window, int capacity) {
  int64_t numbers = 0;
  for (const CacheSpec &spec : specs) {
    std::set<int> sizes;
    for (const int context : profile.contexts) {
      if (context <= profile.context_of(capacity - 1)) sizes.insert(npu_slots(spec.kind, window, context));
    }
    for (const int slots : sizes) numbers += 2 * numbers_of(spec, slots);
  }
  return numbers * static_cast<int64_t>(tensor_bytes(profile.element, {}));
}

const Buffer *NpuRows::buffer(const std::string &name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.now->buffer;
}

void NpuRows::at(int row) {
  const int needed = profile_.context_of(row);
  if (needed == context_) return;
  // There may be no memory for them, and then nothing has changed.
  for (auto &[name, tensor] : tensors_) held(tensor, npu_slots(tensor.spec.kind, cache_.window(), needed));
  context_ = needed;
  for (auto &[name, tensor] : tensors_) {
    const CacheSpec &spec = tensor.spec;
    const int slots = npu_slots(spec.kind, cache_.window(), needed), value = tensor.value;
    Held *old = std::exchange(tensor.now, &held(tensor, slots));
    if (!old || old == tensor.now) continue;
    with_integers(profile_.element, old->memory.as<void>(), [&, &now = *tensor.now](const auto *integers) {
      using Integer = std::remove_const_t<std::remove_pointer_t<decltype(integers)>>;
      copy_rows(spec, std::min({row, old->slots, slots}), integers, Steps::of(value, old->slots, spec.head_dim), 0,
                now.memory.template as<Integer>(), Steps::of(value, slots, spec.head_dim), 0);
    });
  }
}

NpuRows::Held &NpuRows::held(Tensor &tensor, int slots) {
  const auto found = tensor.by_slots.find(slots);
  if (found != tensor.by_slots.end()) return found->second;
  const CacheSpec &spec = tensor.spec;
  const Shape shape =
      tensor.value ? Shape{1, spec.kv_heads, spec.head_dim, slots} : Shape{1, spec.kv_heads, slots, spec.head_dim};
  Memory memory(tensor_bytes(profile_.element, shape));
  Buffer buffer(runtime_, profile_.element, shape, memory.as<void>());
  return tensor.by_slots.emplace(slots, Held{slots, std::move(memory), std::move(buffer)}).first->second;
}

void NpuRows::pieces(int start, int count, const std::function<void(int, int)> &work) {
  for (int first = start, end; first < start + count; first = end) {
    at(first);
    for (end = first + 1; end < start + count && profile_.context_of(end) == context_;) end++;
    work(first, end - first);
  }
}

void NpuRows::write(const std::function<void *(const std::string &)> &slice, int held, int start, int count) {
  for (auto &[name, tensor] : tensors_) {
    const CacheSpec &spec = tensor.spec;
    const int first = slot(tensor, start);
    with_integers(profile_.element, slice(npu_slice(spec, tensor.value)), [&, &tensor = tensor](auto *integers) {
      using Integer = std::remove_pointer_t<decltype(integers)>;
      const Integer *from = integers;
      copy_rows(spec, count, from, Steps::of(tensor.value, held, spec.head_dim), 0,
                tensor.now->memory.template as<Integer>(), Steps::of(tensor.value, tensor.now->slots, spec.head_dim),
                first);
    });
  }
}

void NpuRows::move_window(int first, int count) {
  for (auto &[name, tensor] : tensors_) {
    if (tensor.spec.kind != CacheKind::kLocal) continue;
    const Steps steps = Steps::of(tensor.value, tensor.now->slots, tensor.spec.head_dim);
    with_integers(profile_.element, tensor.now->memory.as<void>(), [&, &spec = tensor.spec](auto *integers) {
      using Integer = std::remove_pointer_t<decltype(integers)>;
      copy_rows(spec, count, static_cast<const Integer *>(integers), steps, first, integers, steps, 0);
    });
  }
}

int NpuRows::slot(const Tensor &tensor, int row) const {
  return row - (tensor.spec.kind == CacheKind::kLocal ? cache_.local_start() : 0);
}

// Calls `work` with the scale and each pair of an integer and the float that it stands for.
template <typename Work>
void NpuRows::translate(int start, int count, Work work) {
  for (auto &[name, tensor] : tensors_) {
    if (tensor.floats.empty()) continue;
    const Scale &scale = profile_.scale(part_, name);
    const int first = slot(tensor, start), head_dim = tensor.spec.head_dim;
    const Steps steps = Steps::of(tensor.value, tensor.now->slots, head_dim);
    with_integers(profile_.element, tensor.now->memory.template as<void>(),
                  [&, &floats = tensor.floats](auto *integers) {
                    for (size_t head = 0; head < floats.size(); head++) {
                      for (int row = first; row < first + count; row++) {
                        auto *line = integers + head * steps.head + row * steps.row;
                        float *numbers = floats[head] + static_cast<size_t>(row) * head_dim;
                        for (int i = 0; i < head_dim; i++) work(scale, line[i * steps.number], numbers[i]);
                      }
                    }
                  });
  }
}

void NpuRows::from_floats(int start, int count) {
  translate(start, count, [](const Scale &scale, auto &integer, float &number) {
    integer = scale.integer<std::remove_reference_t<decltype(integer)>>(number);
  });
}

void NpuRows::to_floats(int start, int count) {
  translate(start, count, [](const Scale &scale, auto &integer, float &number) { number = scale.number(integer); });
}

}  // namespace paceline
