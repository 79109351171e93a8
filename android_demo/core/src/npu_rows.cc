#include "npu_rows.h"

#include <algorithm>

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
  cover(0);
  cache.add(*this);
}

int64_t NpuRows::bytes(const NpuProfile &profile, const std::vector<CacheSpec> &specs, int window, int capacity) {
  int64_t numbers = 0;
  for (const CacheSpec &spec : specs) {
    numbers += 2 * numbers_of(spec, npu_slots(spec.kind, window, profile.context_for(capacity)));
  }
  return numbers * static_cast<int64_t>(tensor_bytes(profile.element, {}));
}

void NpuRows::cover(int rows) {
  const int needed = profile_.context_for(rows);
  if (needed <= context_) return;
  context_ = needed;
  for (auto &[name, tensor] : tensors_) {
    const int slots = npu_slots(tensor.spec.kind, cache_.window(), needed);
    if (slots != tensor.slots) resize(name, tensor, slots);
  }
}

void NpuRows::resize(const std::string &name, Tensor &tensor, int slots) {
  const CacheSpec &spec = tensor.spec;
  Memory larger(numbers_of(spec, slots) * tensor_bytes(profile_.element, {}));
  with_integers(profile_.element, larger.as<void>(), [&](auto *integers) {
    using Integer = std::remove_pointer_t<decltype(integers)>;
    copy_rows(spec, tensor.slots, tensor.memory.as<Integer>(), Steps::of(tensor.value, tensor.slots, spec.head_dim), 0,
              integers, Steps::of(tensor.value, slots, spec.head_dim), 0);
  });
  const Shape shape =
      tensor.value ? Shape{1, spec.kv_heads, spec.head_dim, slots} : Shape{1, spec.kv_heads, slots, spec.head_dim};
  buffers_.erase(name);
  buffers_.emplace(name, Buffer(runtime_, profile_.element, shape, larger.as<void>()));
  tensor.memory = std::move(larger);
  tensor.slots = slots;
}

void NpuRows::write(const std::function<void *(const std::string &)> &slice, int held, int start, int count) {
  for (auto &[name, tensor] : tensors_) {
    const CacheSpec &spec = tensor.spec;
    const int first = slot(tensor, start);
    with_integers(profile_.element, slice(npu_slice(spec, tensor.value)), [&, &tensor = tensor](auto *integers) {
      using Integer = std::remove_pointer_t<decltype(integers)>;
      const Integer *from = integers;
      copy_rows(spec, count, from, Steps::of(tensor.value, held, spec.head_dim), 0, tensor.memory.as<Integer>(),
                Steps::of(tensor.value, tensor.slots, spec.head_dim), first);
    });
  }
}

void NpuRows::move_window(int first, int count) {
  for (auto &[name, tensor] : tensors_) {
    if (tensor.spec.kind != CacheKind::kLocal) continue;
    const Steps steps = Steps::of(tensor.value, tensor.slots, tensor.spec.head_dim);
    with_integers(profile_.element, tensor.memory.as<void>(), [&, &spec = tensor.spec](auto *integers) {
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
    const Steps steps = Steps::of(tensor.value, tensor.slots, head_dim);
    Memory &memory = tensor.memory;
    with_integers(profile_.element, memory.as<void>(), [&, &floats = tensor.floats](auto *integers) {
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
