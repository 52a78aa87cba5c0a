// A node on the CPU of which all that a run needs is planned once for the shapes of its inputs.
#ifndef ONNXFUSE_PLANNED_NODE_H_
#define ONNXFUSE_PLANNED_NODE_H_

#include <string>
#include <vector>

#include "ort/ort_abi.h"
#include "ort/symbolic_shape.h"
#include "plan/plan_cache.h"
#include "platform/error.h"
#include "program/dtype.h"
#include "runtime/node.h"

namespace onnxfuse {

// Kind says what is of one operator, in types and static functions:
//   kOperator                                    its name
//   Description                                  what its attributes say
//   read(attributes, input count, Description*, error)  false, and why, if they are not valid
//   input_types(Description, input count)        of all inputs
//   output_types(Description)                    of all outputs
//   Plan                                         with the members `key` and `output`, the shape of every output
//   plan(Description, PlanKey, Plan*, error)     false, and why, if the shapes do not fit
//   run(Description, Plan, NodeInputs, Host)     with the outputs' memory among the inputs'
//   infer(Description, InferenceNode)            sets the outputs' types and shapes, as far as they are certain
// Functions throw Error, or what the context throws.
template <class Kind>
class PlannedNode final : public Node {
 public:
  using Description = typename Kind::Description;
  using Plan = typename Kind::Plan;

  static constexpr const char* kOperator = Kind::kOperator;

  explicit PlannedNode(const NodeDefinition& definition)
      : Node(kOperator, definition),
        description_(read(definition.attributes(), input_count())),
        input_types_(Kind::input_types(description_, input_count())),
        output_types_(Kind::output_types(description_)) {
    if (output_count() == output_types_.size()) return;
    throw Error("the node has " + std::to_string(output_count()) + " outputs, not " +
                std::to_string(output_types_.size()));
  }

  // Tells ORT the types and shapes of such a node's outputs.
  static void infer(const OrtApi& api, OrtShapeInferContext* context) {
    const InferenceNode inferred(api, context);
    Kind::infer(read(inferred.attributes(), inferred.input_count()), inferred);
  }

  void compute(NodeContext& context) {
    NodeInputs inputs;
    read_inputs(context, &inputs);
    for (size_t i = 0; i < inputs.types.size(); ++i) check_type(inputs.types, i, input_types_[i]);
    const auto plan = plans_.find_or_make(inputs.key, [&](Plan* made, std::string* error) {
      return Kind::plan(description_, inputs.key, made, error);
    });
    std::vector<void*>& outputs = inputs.outputs;
    for (size_t o = 0; o < outputs.size(); ++o) outputs[o] = output(context, o, plan->output, output_types_[o]);
    const Host& host = context.host();
    const auto bytes = [&](size_t o) { return bytes_of(plan->output, output_types_[o]); };
    const OverlappingOutputs overlapping(host, outputs.data(), outputs.size(), bytes);
    std::vector<RunMemory> copies;
    for (size_t o = 0; o < outputs.size(); ++o) keep_apart(host, outputs[o], bytes(o), &inputs, &copies);
    Kind::run(description_, *plan, inputs, host);
    overlapping.copy();
  }

 private:
  static Description read(const AttributeSource& attributes, size_t inputs) {
    Description description;
    std::string error;
    if (!Kind::read(attributes, inputs, &description, &error)) throw Error(error);
    return description;
  }

  const Description description_;
  const std::vector<DType> input_types_;
  const std::vector<DType> output_types_;
  PlanCache<Plan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_PLANNED_NODE_H_
