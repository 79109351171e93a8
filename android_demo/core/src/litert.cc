#include "litert.h"

#include <dlfcn.h>

#include "error.h"

namespace paceline {
namespace {

constexpr char kName[] = "libLiteRt.so";

}  // namespace

LiteRt::LiteRt(const std::string &path) {
  const std::string name = path.empty() ? kName : path;
  library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) {
    const char *why = dlerror();
    throw Error(std::string("LiteRT cannot be loaded (") + (why ? why : name.c_str()) +
                "); it comes with the package com.google.ai.edge.litert, or with the Python wheel ai-edge-litert.");
  }
  // Before 2.1.6, which brought this function, those that create a model took other arguments.
  void *newer = nullptr;
  find(newer, "LiteRtCreateModelFromFd");
  find(create_environment, "LiteRtCreateEnvironment");
  find(create_model_from_buffer, "LiteRtCreateModelFromBuffer");
  find(num_signatures, "LiteRtGetNumModelSignatures");
  find(get_signature, "LiteRtGetModelSignature");
  find(signature_key, "LiteRtGetSignatureKey");
  find(num_inputs, "LiteRtGetNumSignatureInputs");
  find(num_outputs, "LiteRtGetNumSignatureOutputs");
  find(input_name, "LiteRtGetSignatureInputName");
  find(output_name, "LiteRtGetSignatureOutputName");
  find(input_tensor, "LiteRtGetSignatureInputTensorByIndex");
  find(output_tensor, "LiteRtGetSignatureOutputTensorByIndex");
  find(tensor_type, "LiteRtGetRankedTensorType");
  find(create_options, "LiteRtCreateOptions");
  find(set_accelerators, "LiteRtSetOptionsHardwareAccelerators");
  find(create_opaque, "LiteRtCreateOpaqueOptions");
  find(add_opaque, "LiteRtAddOpaqueOptions");
  find(compile, "LiteRtCreateCompiledModel");
  find(run, "LiteRtRunCompiledModel");
  find(create_buffer, "LiteRtCreateTensorBufferFromHostMemory");
  find(destroy_environment, "LiteRtDestroyEnvironment");
  find(destroy_model, "LiteRtDestroyModel");
  find(destroy_options, "LiteRtDestroyOptions");
  find(destroy_compiled, "LiteRtDestroyCompiledModel");
  find(destroy_buffer, "LiteRtDestroyTensorBuffer");
}

template <typename Function>
void LiteRt::find(Function &function, const char *name) {
  void *found = dlsym(library_, name);
  if (!found)
    throw Error(std::string("this libLiteRt.so lacks ") + name +
                "; paceline needs LiteRT 2.1.6 to 2.x, and was tested with 2.3.0.");
  function = reinterpret_cast<Function>(found);
}

void LiteRt::check(int status, const char *what) const {
  if (status) throw Error(std::string("LiteRT failed with status ") + std::to_string(status) + " while " + what + ".");
}

}  // namespace paceline
