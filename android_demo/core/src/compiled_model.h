// Graphs that LiteRT has prepared, and calls of their signatures on memory of ours.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "litert.h"
#include "memory.h"
#include "paceline.h"

namespace paceline {

using Shape = std::vector<int>;

// Bytes of a dense tensor of one of LiteRT's element types.
size_t tensor_bytes(int32_t element, const Shape &shape);

struct TensorInfo {
  std::string name;
  int32_t element;
  Shape shape;  // litert::kVaries for a size that is set by the call
};

struct SignatureInfo {
  size_t index;
  std::vector<TensorInfo> inputs, outputs;
};

// Models and buffers of one runtime work together.
class Runtime {
 public:
  // Throws Error where the library cannot be loaded. LiteRT looks for no accelerators but these, a bit each, and for an
  // NPU's dispatch library in `npu_libraries`.
  Runtime(const std::string &library, int accelerators, const std::string &npu_libraries);

  const LiteRt &litert() const { return litert_; }
  litert::Handle environment() const { return environment_.get(); }

 private:
  LiteRt litert_;
  Owned environment_;
};

// A tensor in memory of ours, which LiteRT reads and writes where it lies.
class Buffer {
 public:
  Buffer(const Runtime &runtime, int32_t element, const Shape &shape, void *data);
  litert::Handle handle() const { return buffer_.get(); }

 private:
  Owned buffer_;
};

struct CompileOptions {
  int accelerator;  // the bit of the one that runs all of a graph
  int threads;
  std::string weight_cache;  // where XNNPACK keeps weights in its own layout; empty for nowhere
};

class CompiledModel {
 public:
  // Prepares all signatures of a .tflite file in memory, which must outlive the object. Throws Error, naming the file.
  CompiledModel(const Runtime &runtime, const std::string &name, std::string_view bytes, const CompileOptions &options);

  const Runtime &runtime() const { return runtime_; }
  const std::string &name() const { return name_; }
  litert::Handle handle() const { return compiled_.get(); }
  // Throws Error where there is none of that name.
  const SignatureInfo &signature(const std::string &key) const;

 private:
  void read_signatures();

  const Runtime &runtime_;
  const std::string name_;
  Owned model_, compiled_;
  std::map<std::string, SignatureInfo> signatures_;
};

using Parts = std::map<std::string, std::unique_ptr<CompiledModel>>;  // target, drafter, embedder, per_layer_embedder

// A signature and the buffers of its inputs and outputs.
class Call {
 public:
  Call(const CompiledModel &model, const std::string &signature);
  const SignatureInfo &info() const { return info_; }
  // Takes buffers by tensor name, for every input and output; they must outlive the call's runs.
  void set(const std::map<std::string, const Buffer *> &buffers);
  // Throws Error with LiteRT's status.
  void run();

 private:
  const CompiledModel &model_;
  const SignatureInfo &info_;
  std::vector<litert::Handle> inputs_, outputs_;
};

}  // namespace paceline
