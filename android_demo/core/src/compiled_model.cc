#include "compiled_model.h"

#include <algorithm>

#include "error.h"

namespace paceline {
namespace {

constexpr int32_t kInteger = 2, kText = 8;  // of LiteRtAny
constexpr int kDispatchFolder = 1;          // environment option: where LiteRT looks for libLiteRtDispatch*.so
constexpr int kAutoRegister = 24;  // environment option: accelerators that register themselves, all unless it is given
constexpr int kLogSeverity = 25, kErrors = 3;  // and the least severe message that is printed
// QS8, QU8, dynamic FULLY_CONNECTED and the newest operators of XNNPACK, as LiteRT-LM asks for them.
constexpr int kXnnpackFlags = 0x4B;

std::string toml_text(const std::string &text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

[[noreturn]] void refuse(const std::string &name, int accelerator, int status) {
  const char *advice = accelerator == PACELINE_NPU   ? "NPU; its dispatch library must be of LiteRT's own version, and "
                                                       "the graph compiled for this chip; otherwise choose the CPU."
                       : accelerator == PACELINE_GPU ? "GPU; choose the CPU, or export the bundle again."
                                                     : "CPU; export the bundle again.";
  throw Error(name + ": LiteRT refused (status " + std::to_string(status) + ") to prepare it for the " + advice);
}

// Options of ours that LiteRT reads while it compiles; it frees nothing.
void keep(void *) {}

}  // namespace

size_t tensor_bytes(int32_t element, const Shape &shape) {
  size_t bytes = element == litert::kInt8 ? 1 : element == litert::kInt16 ? 2 : 4;
  for (const int size : shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

Runtime::Runtime(const std::string &library, int accelerators, const std::string &npu_libraries) : litert_(library) {
  std::vector<litert::Option> options = {{kAutoRegister, kInteger, 0, accelerators},
                                         {kLogSeverity, kInteger, 0, kErrors}};
  if (!npu_libraries.empty())  // LiteRT keeps a copy of the text
    options.push_back({kDispatchFolder, kText, 0, reinterpret_cast<intptr_t>(npu_libraries.c_str())});
  litert::Handle handle = nullptr;
  litert_.check(litert_.create_environment(static_cast<int>(options.size()), options.data(), &handle), "starting");
  environment_ = Owned(handle, litert_.destroy_environment);
}

Buffer::Buffer(const Runtime &runtime, int32_t element, const Shape &shape, void *data) {
  litert::TensorType type = {};
  type.element = element;
  type.layout.rank = static_cast<unsigned>(shape.size());
  std::copy(shape.begin(), shape.end(), type.layout.dimensions);
  litert::Handle handle = nullptr;
  const LiteRt &litert = runtime.litert();
  litert.check(litert.create_buffer(&type, data, tensor_bytes(element, shape), nullptr, &handle),
               "making a tensor buffer");
  buffer_ = Owned(handle, litert.destroy_buffer);
}

CompiledModel::CompiledModel(const Runtime &runtime, const std::string &name, std::string_view bytes,
                             const CompileOptions &options)
    : runtime_(runtime), name_(name) {
  const LiteRt &litert = runtime.litert();
  litert::Handle model = nullptr, made = nullptr, compiled = nullptr;
  // LiteRT checks a graph in memory for consistency; one that it opens itself it does not.
  if (int status = litert.create_model_from_buffer(runtime.environment(), bytes.data(), bytes.size(), &model)) {
    throw Error(name + ": LiteRT cannot read it (status " + std::to_string(status) +
                "); copy or export the bundle again.");
  }
  model_ = Owned(model, litert.destroy_model);
  litert.check(litert.create_options(&made), "making options");
  const Owned owned(made, litert.destroy_options);
  litert.check(litert.set_accelerators(made, options.accelerator), "choosing an accelerator");
  std::string xnnpack =
      "num_threads = " + std::to_string(options.threads) + "\nflags = " + std::to_string(kXnnpackFlags) + "\n";
  if (!options.weight_cache.empty()) xnnpack += "weight_cache_file_path = " + toml_text(options.weight_cache) + "\n";
  litert::Handle opaque = nullptr;
  litert.check(litert.create_opaque("xnnpack", xnnpack.data(), keep, &opaque), "making options");
  litert.check(litert.add_opaque(made, opaque), "making options");
  if (int status = litert.compile(runtime.environment(), model, made, &compiled))
    refuse(name, options.accelerator, status);
  compiled_ = Owned(compiled, litert.destroy_compiled);
  read_signatures();
}

void CompiledModel::read_signatures() {
  const LiteRt &litert = runtime_.litert();
  const auto tensors = [&litert](litert::Handle signature, auto count_of, auto name_of, auto tensor_of) {
    size_t count = 0;
    litert.check(count_of(signature, &count), "reading a graph");
    std::vector<TensorInfo> found;
    for (size_t i = 0; i < count; i++) {
      const char *name = "";
      litert::Handle tensor = nullptr;
      litert::TensorType type = {};
      litert.check(name_of(signature, i, &name), "reading a graph");
      litert.check(tensor_of(signature, i, &tensor), "reading a graph");
      litert.check(litert.tensor_type(tensor, &type), "reading a graph");
      found.push_back(
          {name, type.element, Shape(type.layout.dimensions, type.layout.dimensions + std::min(type.layout.rank, 8u))});
    }
    return found;
  };
  size_t count = 0;
  litert.check(litert.num_signatures(model_.get(), &count), "reading a graph");
  for (size_t i = 0; i < count; i++) {
    litert::Handle signature = nullptr;
    const char *key = "";
    litert.check(litert.get_signature(model_.get(), i, &signature), "reading a graph");
    litert.check(litert.signature_key(signature, &key), "reading a graph");
    signatures_[key] = {i, tensors(signature, litert.num_inputs, litert.input_name, litert.input_tensor),
                        tensors(signature, litert.num_outputs, litert.output_name, litert.output_tensor)};
  }
}

const SignatureInfo &CompiledModel::signature(const std::string &key) const {
  const auto found = signatures_.find(key);
  if (found == signatures_.end()) throw Error(name_ + " has no signature " + key + "; export the bundle again.");
  return found->second;
}

Call::Call(const CompiledModel &model, const std::string &signature)
    : model_(model), info_(model.signature(signature)) {}

void Call::set(const std::map<std::string, const Buffer *> &buffers) {
  inputs_.clear();
  outputs_.clear();
  for (const TensorInfo &tensor : info_.inputs) inputs_.push_back(buffers.at(tensor.name)->handle());
  for (const TensorInfo &tensor : info_.outputs) outputs_.push_back(buffers.at(tensor.name)->handle());
}

void Call::run() {
  const LiteRt &litert = model_.runtime().litert();
  litert.check(
      litert.run(model_.handle(), info_.index, inputs_.size(), inputs_.data(), outputs_.size(), outputs_.data()),
      ("running " + model_.name()).c_str());
}

}  // namespace paceline
